"""The agent on simulated hardware, against the embedded API server."""
