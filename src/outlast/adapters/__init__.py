"""The outside worlds, one folder each; no policy in here."""
