"""What is to be done about a sick node: decide (pure) and act (the only writer)."""
