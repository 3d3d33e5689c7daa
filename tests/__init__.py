"""Tests, as one importable package: benchmarks and test suites share `tests.controlplane`."""
