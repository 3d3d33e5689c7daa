"""A simulated GPU machine: its devices, its driver's words, and what a reboot does to them.

The agent sees it only through the fakes of `sim.node`; each symptom changes the devices first and then
lets the driver say what a real driver says.
"""

from __future__ import annotations

import uuid
from random import Random

from outlast.ports.clock import Clock
from outlast.sim.node import FakeGpuReader, FakeKernelLog, FakeMachine, FakePciBus, Hardware, MemoryStateFile
from outlast.sim.world.scenario import Shape, Symptom

BOOT_S = 240.0
"""From the reset to a kubelet that reports Ready, for a machine with eight GPUs."""
SHUTDOWN_S = 12.0


class Machine:
    """One machine under a node name; it survives reboots and is thrown away when replaced."""

    def __init__(self, name: str, shape: Shape, clock: Clock, rng: Random) -> None:
        self.name = name
        self.system_uuid = str(uuid.UUID(int=rng.getrandbits(128), version=4))
        self.instance_id = f"i-{rng.getrandbits(68):017x}"
        self.hardware = Hardware.h100(name, gpus=shape.gpus, efa=shape.efa)
        self.identity = FakeMachine(name, instance_type=shape.instance_type)
        self.kernel_log = FakeKernelLog(clock=clock, boot_id=self.identity.boot_id, state=MemoryStateFile())
        self.reader = FakeGpuReader(self.hardware, clock=clock)
        self.pci = FakePciBus(self.hardware)
        self.disk = MemoryStateFile()
        """The agent's own small file."""
        self.identity.attach(self.kernel_log, self.reader)
        self.powered = True
        self._rng = rng
        self._dead: set[str] = set()

    @property
    def boot_id(self) -> str:
        """Of the present boot."""
        return self.identity.boot_id

    def gpu(self, index: int) -> str:
        """PCI address of a GPU by its place."""
        return sorted(self.hardware.gpus)[index]

    def suffer(self, symptom: Symptom, device: int) -> None:
        """Let something happen to it."""
        if symptom in (Symptom.GPU_LOST, Symptom.BOARD_DEAD):
            address = self.gpu(device)
            if symptom is Symptom.BOARD_DEAD:
                self._dead.add(address)
            self._lose(address)
        elif symptom is Symptom.APPLICATION_FAULT:
            self._application_fault(self.gpu(device))
        elif symptom is Symptom.EFA_LOST:
            self._lose_network_device(self.hardware.efa[device])
        elif symptom is Symptom.NVML_HANGS:
            self.reader.hanging.add("")
        elif symptom is Symptom.NVML_ANSWERS:
            self.reader.hanging.clear()

    def reboot(self) -> str:
        """Come up again: what was only stuck is back, what is dead is not. Returns the new boot id."""
        self.hardware.off_bus = set(self._dead)
        self.hardware.unplugged.clear()
        boot_id = self.identity.reboot()
        self.kernel_log.write("Linux version 6.8.0-1021-aws (buildd@lcy02-amd64-075)", priority=5, flags="-")
        version = self.hardware.driver_version
        self.kernel_log.write(
            f"NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build"
        )
        return boot_id

    def driver_is_up(self) -> None:
        """The driver has initialised the GPUs, or failed to."""
        for address in sorted(self._dead):
            self._lose(address)

    def _lose(self, address: str) -> None:
        self.hardware.off_bus.add(address)
        serial = self.hardware.gpus[address].serial
        self.kernel_log.write(f"NVRM: GPU at PCI:{address[:-2]}: {self.hardware.gpus[address].uuid}")
        self.kernel_log.write(f"NVRM: GPU Board Serial Number: {serial}")
        self.kernel_log.write(
            f"NVRM: Xid (PCI:{address[:-2]}): 79, pid='<unknown>', name=<unknown>, "
            "GPU has fallen off the bus."
        )
        self.kernel_log.write(f"NVRM: GPU {address}: GPU has fallen off the bus.")

    def _application_fault(self, address: str) -> None:
        pid = self._rng.randrange(20_000, 4_000_000)
        self.kernel_log.write(
            f"NVRM: Xid (PCI:{address[:-2]}): 13, pid={pid}, name=python3, Graphics Exception: "
            "ESR 0x57c730=0xc04000b 0x57c734=0x24 0x57c728=0x1f81fb60 0x57c72c=0x1174"
        )
        self.kernel_log.write(f"NVRM: Xid (PCI:{address[:-2]}): 43, pid={pid}, name=python3, Ch 00000008")

    def _lose_network_device(self, address: str) -> None:
        self.hardware.unplugged.add(address)
        slot = int(address[8:10], 16)
        self.kernel_log.write(
            f"pcieport 0000:00:1f.0: pciehp: Slot({slot}): Link Down", priority=6, flags="-"
        )
