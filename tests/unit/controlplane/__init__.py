"""What the test control plane promises without starting one."""
