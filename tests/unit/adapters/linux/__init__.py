"""Kernel log, PCI, machine facts and the state file on files of our own."""
