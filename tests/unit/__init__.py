"""Pure functions, in milliseconds."""
