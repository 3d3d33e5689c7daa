"""Adapters whose outside is a file or a byte string."""
