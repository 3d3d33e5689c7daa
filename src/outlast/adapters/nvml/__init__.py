"""NVML in a process of its own, because a call into a sick driver may never return."""
