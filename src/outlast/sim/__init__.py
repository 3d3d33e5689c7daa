"""A world to run the production code in: embedded API server, simulated nodes, scenarios."""
