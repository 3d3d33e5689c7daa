"""Active checks on real devices: CUDA's driver library, torch, and the processes that may be lost to them."""
