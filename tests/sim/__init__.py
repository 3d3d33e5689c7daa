"""The production code on a simulated fleet and a virtual clock."""
