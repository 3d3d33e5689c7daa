"""What every adapter of a port must do; each suite runs against all of them."""
