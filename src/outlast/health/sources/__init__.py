"""Bytes to readings: one small file per source, pure, never failing on any input."""
