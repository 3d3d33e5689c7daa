"""Protocols owned by the core: what the domains need from the outside world.

Adapters implement them; the domains import nothing else of the outside.
"""
