"""The process on each GPU node: loop and wiring only."""
