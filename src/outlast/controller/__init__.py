"""The leader-elected process: load, decide, apply."""
