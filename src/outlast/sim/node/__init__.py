"""A node without hardware: the agent's ports, answered from scripted state.

Kernel-log lines pass through the production parser; everything else is plain data that a scenario sets.
"""

from outlast.sim.node.dcgm import FakeDcgm
from outlast.sim.node.devices import FakeGpuReader, FakePciBus, Hardware
from outlast.sim.node.kernel_log import FakeKernelLog
from outlast.sim.node.machine import FakeMachine, MemoryStateFile
from outlast.sim.node.sources import FakeHost, FakeProcesses, FakeRdma

__all__ = [
    "FakeDcgm",
    "FakeGpuReader",
    "FakeHost",
    "FakeKernelLog",
    "FakeMachine",
    "FakePciBus",
    "FakeProcesses",
    "FakeRdma",
    "Hardware",
    "MemoryStateFile",
]
