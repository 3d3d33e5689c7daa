"""Measurements, not assertions: each module has `run()` and returns rows; `python -m benchmarks` writes them.

Figures are ratios or medians from one machine in one run. A goal that is missed is printed as missed.
"""
