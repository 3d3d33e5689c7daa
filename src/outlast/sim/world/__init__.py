"""A cluster of simulated machines: hardware that breaks on cue, kubelets, workloads, a Karpenter.

Everything here plays the outside world. The agent and the controller that live in it are the production
ones; symptoms reach them as kernel-log records and device readings, never as conditions.
"""
