"""Is this node fit? Sources turn bytes into observations, checks judge them, verdicts are published."""
