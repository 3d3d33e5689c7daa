"""A node with its network, processes and host around the GPUs, moved by virtual time.

scene = Around(rdma=[infiniband_device("mlx5_0", "0000:5c:00.0")])
scene.rdma.change_port("mlx5_0", state="DOWN")
scene.look(4)
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from outlast.health.verdict import Judgement, Settings
from outlast.model.observation import MachineFacts, PciDevice, RdmaDevice
from outlast.ports.node import Wanted
from outlast.sim.node import FakeHost, FakeProcesses, FakeRdma
from tests.unit.health.builders import Scene

LOOK_S = 30.0
GRACE_S = 400.0
"""After this the first minutes of a machine are over."""
IB = tuple(f"0000:{bus:02x}:00.0" for bus in (0x18, 0x2A, 0x3A, 0x5D, 0x9A, 0xAB, 0xBA, 0xDB))


def nvswitch(address: str, *, device: int = 0x22A3, driver: str = "nvidia-nvswitch") -> PciDevice:
    """An NVSwitch of an HGX H100."""
    return PciDevice(address=address, vendor=0x10DE, device=device, class_code=0x0680, driver=driver)


class Around(Scene):
    """A `Scene` whose further sources are polled too; its first minutes are over."""

    def __init__(
        self,
        *,
        rdma: Iterable[RdmaDevice] = (),
        efa: int = 0,
        instance_type: str = "",
        settings: Settings | None = None,
        nvswitches: int = 0,
    ) -> None:
        self.rdma = FakeRdma(rdma)
        self.processes = FakeProcesses()
        self.host = FakeHost()
        self.instance_type = instance_type
        super().__init__(efa=efa, settings=settings, checked=False)
        for device in self.rdma.devices.values():
            self.plug(device)
        for number in range(nvswitches):
            address = f"0000:{7 + number:02x}:00.0"
            self.hardware.nvswitches[address] = nvswitch(address)
        self.tell(MachineFacts(boot_id=self.boot, instance_type=instance_type))
        self.start()

    def start(self) -> None:
        """The kernel log is read, everything is looked at, and the first minutes pass."""
        from outlast.model.observation import KernelLogCaughtUp

        self.tell(KernelLogCaughtUp())
        self.look()
        self.time_s += GRACE_S
        self.look(2)

    def plug(self, device: RdmaDevice) -> None:
        """The PCI function of an RDMA device."""
        if device.pci_address and not device.is_efa:
            self.hardware.nics[device.pci_address] = PciDevice(
                address=device.pci_address,
                vendor=device.vendor,
                device=device.device,
                class_code=0x0207,
                driver=device.driver,
            )

    def look(self, times: int = 1, *, after_s: float = LOOK_S) -> Judgement:
        """Every source is polled, `times` times."""
        for _ in range(times):
            self.time_s += after_s
            self.tell(self.pci(), self.survey())
            for source in (self.rdma, self.processes, self.host):
                self.tell(asyncio.run(source.survey(Wanted())))
        return self.answer

    def again(self) -> None:
        """The agent is restarted, and the first minutes of it pass."""
        self.restart()
        self.tell(MachineFacts(boot_id=self.boot, instance_type=self.instance_type))
        self.start()

    @property
    def codes(self) -> set[str]:
        """Codes of all faults."""
        return {fault.code for fault in self.answer.status.faults}
