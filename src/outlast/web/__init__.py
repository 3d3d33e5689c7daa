"""The dashboard: what an engineer on call wants to know, readable in ten seconds.

Caches follow the cluster (`follow`), pure views turn objects into page data (`views`), templates turn
page data into HTML, and `live` pushes what changed. It only reads. Views need none of the web packages.
"""
