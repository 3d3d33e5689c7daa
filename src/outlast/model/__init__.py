"""Nouns shared by all rooms: frozen msgspec structs that import nothing of ours but each other.

`cluster` has the Kubernetes objects (only the fields we use), the other modules have our own:
what is wrong (`health`), what is being done about it (`incident`), what may be done (`policy`).
"""
