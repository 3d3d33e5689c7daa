"""What machines do to an agent, for real: clocks that step, mounts that never answer, disks that fail."""
