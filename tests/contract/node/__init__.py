"""The agent's ports: the same promises, kept by the real adapters and by the simulated node."""
