"""What Linux itself tells about a machine: kernel log, PCI bus, boot identity, and a small durable file."""
