"""Simulated network devices, processes and host: what the polled sources of a node would find.

Each fake shows plain data that a scenario changes, and can hang or fail as its adapter does.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from outlast.model.observation import (
    DiskController,
    Filesystem,
    Fill,
    HostSurvey,
    LinkLayer,
    NetworkInterface,
    ProcessOwner,
    ProcessSurvey,
    RdmaDevice,
    RdmaPort,
    RdmaProblem,
    RdmaSurvey,
    StuckTask,
)
from outlast.model.observation.processes import FABRIC_MANAGER, PERSISTENCE_DAEMON
from outlast.model.observation.rdma import (
    ACTIVE,
    EFA_DEVICE_COUNTERS,
    EFA_DRIVER,
    EFA_PORT_COUNTERS,
    LINK_COUNTERS,
)
from outlast.ports.node import Wanted

MELLANOX, CONNECTX_7 = 0x15B3, 0x1021
AMAZON, EFA_DEVICE = 0x1D0F, 0xEFA2


def infiniband_device(name: str, address: str, *, rate_gbps: float = 400.0, ports: int = 1) -> RdmaDevice:
    """A ConnectX-7 whose InfiniBand links are up."""
    return RdmaDevice(
        name=name,
        pci_address=address,
        driver="mlx5_core",
        vendor=MELLANOX,
        device=CONNECTX_7,
        ports=tuple(_up(number, LinkLayer.INFINIBAND, rate_gbps) for number in range(1, ports + 1)),
    )


def roce_device(name: str, address: str, interface: str, *, rate_gbps: float = 400.0) -> RdmaDevice:
    """A ConnectX-7 whose Ethernet link is up."""
    return RdmaDevice(
        name=name,
        pci_address=address,
        driver="mlx5_core",
        vendor=MELLANOX,
        device=CONNECTX_7,
        ports=(_up(1, LinkLayer.ETHERNET, rate_gbps),),
        interfaces=(NetworkInterface(name=interface, up=True, carrier_changes=2),),
    )


def efa_device(name: str, address: str) -> RdmaDevice:
    """An EFA device: its port says the same whatever happens, so only its counters are shown."""
    return RdmaDevice(
        name=name,
        pci_address=address,
        driver=EFA_DRIVER,
        vendor=AMAZON,
        device=EFA_DEVICE,
        ports=(RdmaPort(number=1, counters=dict.fromkeys(EFA_PORT_COUNTERS, 0)),),
        counters=dict.fromkeys(EFA_DEVICE_COUNTERS, 0),
    )


def _up(number: int, layer: LinkLayer, rate_gbps: float) -> RdmaPort:
    return RdmaPort(
        number=number,
        state=ACTIVE,
        physical_state="LinkUp",
        rate_gbps=rate_gbps,
        link_layer=layer,
        counters=dict.fromkeys(LINK_COUNTERS, 0),
    )


class FakeRdma:
    """Implements `outlast.ports.node.Surveyor` for RDMA devices."""

    def __init__(self, devices: Iterable[RdmaDevice] = ()) -> None:
        self.devices = {device.name: device for device in devices}
        self.hanging: set[str] = set()
        """Devices whose files never answer."""
        self.exclusive = False
        """Devices that pods were given are out of the host's sight."""
        self._failures = 0

    async def survey(self, wanted: Wanted) -> RdmaSurvey:
        """What is there now."""
        hanging = sorted(self.hanging & self.devices.keys())
        self._failures = self._failures + 1 if hanging else 0
        return RdmaSurvey(
            devices=tuple(
                msgspec.structs.replace(device, ports=(), interfaces=(), counters={}, answered=False)
                if name in hanging
                else device
                for name, device in sorted(self.devices.items())
            ),
            problem=RdmaProblem.HUNG if hanging else None,
            problem_device=hanging[0] if hanging else "",
            message=f"{hanging[0]} did not answer" if hanging else "",
            failures=self._failures,
            exclusive=self.exclusive,
        )

    async def aclose(self) -> None:
        """Nothing is held."""

    def change_port(self, name: str, number: int = 1, **fields: object) -> None:
        """Change a port: `change_port("mlx5_0", state="DOWN")`."""
        device = self.devices[name]
        ports = tuple(
            msgspec.structs.replace(port, **fields) if port.number == number else port
            for port in device.ports
        )
        self.devices[name] = msgspec.structs.replace(device, ports=ports)

    def count(self, name: str, counter: str, by: int, number: int = 1) -> None:
        """A counter of a port grows, or one of the device where its ports have none of that name."""
        device = self.devices[name]
        if counter in device.counters:
            counters = {**device.counters, counter: device.counters[counter] + by}
            self.devices[name] = msgspec.structs.replace(device, counters=counters)
            return
        [port] = [port for port in device.ports if port.number == number]
        value = min(port.counters.get(counter, 0) + by, LINK_COUNTERS.get(counter, 2**63))
        self.change_port(name, number, counters={**port.counters, counter: value})


class FakeProcesses:
    """Implements `outlast.ports.node.Surveyor` for processes."""

    def __init__(self, services: Iterable[str] = (FABRIC_MANAGER, PERSISTENCE_DAEMON)) -> None:
        self.services = set(services)
        self.stuck: list[StuckTask] = []
        self.owners: dict[int, ProcessOwner] = {}
        """Whose a process is; shown for those that NVML lists."""
        self.whole_machine = True

    async def survey(self, wanted: Wanted) -> ProcessSurvey:
        """What runs now."""
        return ProcessSurvey(
            whole_machine=self.whole_machine,
            services=tuple(sorted(self.services)),
            stuck=tuple(self.stuck),
            owners=tuple(self.owners[pid] for pid in wanted.process_ids if pid in self.owners)
            if self.whole_machine
            else (),
            processes=100,
        )

    async def aclose(self) -> None:
        """Nothing is held."""


class FakeHost:
    """Implements `outlast.ports.node.Surveyor` for disks, file systems and kernel tables."""

    def __init__(self) -> None:
        self.filesystems: dict[str, Filesystem] = {
            "nvme0n1p1": Filesystem(device="nvme0n1p1", mount_point="/", kind="ext4", errors=0)
        }
        self.controllers: dict[str, str] = {"nvme0": "live"}
        self.connections = Fill(used=1000, limit=262_144)
        self.open_files = Fill(used=5000, limit=1_000_000)
        self.mounted_read_only: set[str] = set()
        """Devices whose file system somebody has mounted so."""

    async def survey(self, wanted: Wanted) -> HostSurvey:
        """How it is now."""
        shown = tuple(
            msgspec.structs.replace(filesystem, wanted_writable=device not in self.mounted_read_only)
            for device, filesystem in sorted(self.filesystems.items())
        )
        return HostSurvey(
            filesystems=shown,
            controllers=tuple(
                DiskController(name=name, state=state) for name, state in sorted(self.controllers.items())
            ),
            connections=self.connections,
            open_files=self.open_files,
        )

    async def aclose(self) -> None:
        """Nothing is held."""

    def turn_read_only(self, device: str, *, errors: int | None = 1) -> None:
        """The kernel gives up on writing to a file system."""
        self.filesystems[device] = msgspec.structs.replace(
            self.filesystems[device], read_only=True, errors=errors
        )
