"""Machines of many kinds, complete with all their sources, moved by virtual time.

site = Site(MACHINES["H100"])
site.gpus[3] = changed(site.gpus[3], error="GPU_IS_LOST")
site.live(600)
assert site.disruptive == set()
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from outlast.health.catalogue import builtin
from outlast.health.checks.gpu_presence import counted
from outlast.health.verdict import Moment, Settings, judge, restore, start, to_bytes
from outlast.health.verdict.judge import Input
from outlast.model.health import FaultClass, Subsystem
from outlast.model.observation import (
    Fill,
    GpuDetail,
    GpuReading,
    GpuSurvey,
    HostSurvey,
    KernelLogCaughtUp,
    KernelRecord,
    LinkLayer,
    MachineFacts,
    PciDevice,
    PciSurvey,
    ProcessSurvey,
    RdmaDevice,
    RdmaPort,
    RdmaSurvey,
    Survey,
    SurveyProblem,
)
from outlast.model.observation.processes import FABRIC_MANAGER, IMEX, PERSISTENCE_DAEMON

EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)
STEP_S: Final = 15.0
GRACE_S: Final = 420.0
DISRUPTIVE: Final = {FaultClass.RESET_CURES, FaultClass.REBOOT_CURES, FaultClass.HARDWARE_GONE}
"""Classes whose ladder drains somebody."""


def changed(gpu: GpuReading, **fields: Any) -> GpuReading:
    """The reading with other values; those of its detail by their own names."""
    detail = {name: value for name, value in fields.items() if name in GpuDetail.__struct_fields__}
    own = {name: value for name, value in fields.items() if name not in detail}
    if detail and gpu.detail is not None:
        own["detail"] = msgspec.structs.replace(gpu.detail, **detail)
    return msgspec.structs.replace(gpu, **own)


def gpu(index: int, name: str, *, domain: int = 0, **fields: Any) -> GpuReading:
    """A GPU that answers everything a current data centre board does."""
    good = GpuReading(
        pci_address=f"{domain:04x}:{0x10 + 8 * index:02x}:00.0",
        index=index,
        minor=index,
        uuid=f"GPU-{index}",
        serial=f"16500000000{index}",
        name=name,
        recovery_action=0,
        remap_pending=False,
        remap_failed=False,
        ecc_corrected_volatile=0,
        ecc_uncorrected_volatile=0,
        sram_uncorrected=0,
        sram_threshold_exceeded=False,
        temperature_c=40,
        temperature_margin_c=40,
        clocks_event_reasons=1,
        sw_thermal_ns=0,
        hw_thermal_ns=0,
        power_brake_ns=0,
        performance_state=0,
        pcie_width=16,
        pcie_generation=5,
        pcie_errors={"replay": 0, "fatal": 0},
        mig_enabled=False,
        mig_pending=False,
        persistence_enabled=True,
        memory_total_bytes=80 << 30,
        memory_used_bytes=1 << 30,
        process_ids=(),
        detail=GpuDetail(ecc_enabled=True, pcie_width_max=16, nvlinks=()),
    )
    return changed(good, **fields)


@dataclass
class Site:
    """One machine and the judge in its agent."""

    gpus: list[GpuReading] = field(default_factory=list)
    instance_type: str = ""
    efa: int = 0
    switches: tuple[int, int] = (0, 0)
    """How many NVSwitches, and their device id."""
    rdma: list[RdmaDevice] = field(default_factory=list)
    nics: list[PciDevice] = field(default_factory=list)
    drivers: dict[str, str] = field(default_factory=dict)
    """By address, where it is not NVIDIA's."""
    device_ids: dict[str, int] = field(default_factory=dict)
    services: set[str] = field(default_factory=lambda: {PERSISTENCE_DAEMON})
    unlisted: set[str] = field(default_factory=set)
    """Addresses that the bus does not show."""
    driver_loaded: bool | None = True
    pci_message: str = ""
    problem: SurveyProblem | None = None
    connections: Fill = field(default_factory=lambda: Fill(used=10, limit=1000))
    suspended_s: float = 0.0
    rdma_message: str = ""
    extra: list[Survey] = field(default_factory=list)
    settings: Settings = field(default_factory=Settings)

    def __post_init__(self) -> None:
        self.time_s, self.booted_s, self.boot, self.sequence = 5000.0, 4900.0, 1, 0
        self._next_s: dict[str, float] = {}
        self.disruptive: set[str] = set()
        """Codes of faults that would have drained somebody, at any time."""
        self.codes: set[str] = set()
        """Of all faults, at any time."""
        self.state = start(self.boot_id, self.instance_type, self.settings, self.now)
        self.tell(self.facts(), KernelLogCaughtUp())
        self.live(GRACE_S)

    @property
    def boot_id(self) -> str:
        """Of this boot."""
        return f"boot-{self.boot}"

    @property
    def now(self) -> Moment:
        """The present."""
        return Moment(EPOCH + timedelta(seconds=self.time_s), self.time_s - self.booted_s)

    def facts(self) -> MachineFacts:
        """Which machine and boot it is."""
        return MachineFacts(
            boot_id=self.boot_id, instance_type=self.instance_type, suspended_s=self.suspended_s
        )

    def tell(self, *readings: Input) -> None:
        """Readings arrive; what follows is remembered."""
        self.answer = judge(self.state, readings, self.now, builtin())
        self.state = self.answer.state
        self.codes |= {fault.code for fault in self.answer.status.faults}
        self.disruptive |= {f.code for f in self.answer.status.faults if f.fault_class in DISRUPTIVE}

    def line(self, text: str) -> None:
        """The kernel prints a line."""
        self.sequence += 1
        at_us = int(self.now.monotonic * 1e6)
        self.tell(KernelRecord(sequence=self.sequence, timestamp_us=at_us, priority=4, flags="c", text=text))

    def live(self, seconds: float, step_s: float = STEP_S) -> None:
        """Time passes, and every source is polled at its own pace."""
        until_s = self.time_s + seconds
        while self.time_s < until_s:
            self.time_s += step_s
            self.tell(self.facts(), self.pci())
            self.tell(self.nvml(detailed=self._due("detail", 4 * STEP_S)))
            if self._due("network", 2 * STEP_S):
                self.tell(self.network())
                self.tell(ProcessSurvey(whole_machine=True, services=tuple(sorted(self.services))))
            if self._due("host", 4 * STEP_S):
                self.tell(HostSurvey(filesystems=(), connections=self.connections), *self.extra)

    def _due(self, name: str, every_s: float) -> bool:
        due = self.time_s >= self._next_s.get(name, 0.0)
        if due:
            self._next_s[name] = self.time_s + every_s
        return due

    def copy(self) -> Site:
        """The same machine at the same moment, to go another way."""
        other = copy.copy(self)
        other.disruptive, other.codes, other._next_s = set(), set(), dict(self._next_s)
        return other

    def restart(self) -> None:
        """The agent ends and starts again with what it had saved."""
        saved = to_bytes(self.state)
        self.time_s += 20
        self.state, problem = restore(saved, self.boot_id, self.instance_type, self.settings, self.now)
        assert not problem
        self.tell(self.facts(), KernelLogCaughtUp())

    def reboot(self) -> None:
        """The machine starts again with what it has now, and the agent with what it had saved."""
        saved = to_bytes(self.state)
        self.boot += 1
        self.time_s += 120
        self.booted_s = self.time_s - 60
        self.sequence = 0
        self.state, problem = restore(saved, self.boot_id, self.instance_type, self.settings, self.now)
        assert not problem
        self.tell(self.facts(), KernelLogCaughtUp())

    def pci(self) -> PciSurvey:
        """What the bus shows."""
        if self.pci_message:
            return PciSurvey(readable=False, message=self.pci_message)
        count, switch = self.switches
        known = [gpu.pci_address for gpu in self.gpus]
        return PciSurvey(
            gpus=tuple(self._gpu(address) for address in known if address not in self.unlisted),
            efa=tuple(
                PciDevice(address=address, vendor=0x1D0F, device=0xEFA2, class_code=0x0200, driver="efa")
                for address in self.efa_addresses
                if address not in self.unlisted
            ),
            nics=tuple(nic for nic in self.nics if nic.address not in self.unlisted),
            nvswitches=tuple(
                PciDevice(
                    address=f"0000:{0xC0 + number:02x}:00.0",
                    vendor=0x10DE,
                    device=switch,
                    class_code=0x0680,
                    driver="nvidia-nvswitch" if self.driver_loaded else "",
                )
                for number in range(count)
            ),
            driver_loaded=self.driver_loaded,
        )

    @property
    def efa_addresses(self) -> list[str]:
        """Of the EFA devices that are attached."""
        return [f"0000:{0x10 + number:02x}:1b.0" for number in range(self.efa)]

    def _gpu(self, address: str) -> PciDevice:
        bound = "nvidia" if self.driver_loaded else ""
        return PciDevice(
            address=address,
            vendor=0x10DE,
            device=self.device_ids.get(address, 0x2330),
            class_code=0x0302,
            driver=self.drivers.get(address, bound),
            link_width=16,
            link_width_max=16,
        )

    def nvml(self, *, detailed: bool) -> GpuSurvey:
        """What NVML answers about the GPUs that are asked for."""
        if self.driver_loaded is False:
            return GpuSurvey(problem=SurveyProblem.DRIVER_NOT_LOADED, message="not loaded")
        if self.problem is not None:
            return GpuSurvey(problem=self.problem, message="no answer")
        ours = counted(self.pci())
        asked = [gpu for gpu in self.gpus if gpu.pci_address in ours]
        answers = tuple(
            GpuReading(pci_address=gpu.pci_address, error="NOT_FOUND")
            if self.drivers.get(gpu.pci_address, "nvidia") != "nvidia"
            else gpu
            for gpu in asked
        )
        return GpuSurvey(gpus=answers, complete=True, detailed=detailed)

    def network(self) -> RdmaSurvey:
        """What /sys/class/infiniband shows."""
        if self.rdma_message:
            return RdmaSurvey(readable=False, message=self.rdma_message, failures=9)
        efa = [
            RdmaDevice(
                name=f"rdmap{number}",
                pci_address=address,
                driver="efa",
                vendor=0x1D0F,
                device=0xEFA2,
                ports=(RdmaPort(number=1, state="ACTIVE"),),
            )
            for number, address in enumerate(self.efa_addresses)
        ]
        devices = tuple(one for one in (*self.rdma, *efa) if one.pci_address not in self.unlisted)
        return RdmaSurvey(devices=devices)

    def every_gpu(self, **fields: Any) -> None:
        """All GPUs change alike."""
        self.gpus = [changed(gpu, **fields) for gpu in self.gpus]

    def first_gpu(self, **fields: Any) -> None:
        """The first GPU changes."""
        self.gpus[:1] = [changed(gpu, **fields) for gpu in self.gpus[:1]]

    def every_port(self, **fields: Any) -> None:
        """All ports of the network change alike."""
        self.rdma = [
            msgspec.structs.replace(
                one, ports=tuple(msgspec.structs.replace(port, **fields) for port in one.ports)
            )
            for one in self.rdma
        ]

    @property
    def verdicts(self) -> dict[Subsystem, str]:
        """What is said now."""
        return {entry.subsystem: entry.verdict.value for entry in self.answer.status.verdicts}


def mlx5(number: int, *, layer: LinkLayer = LinkLayer.INFINIBAND) -> tuple[RdmaDevice, PciDevice]:
    """A ConnectX-7 with one active port, and its function on the bus."""
    address = f"0000:{0x80 + number:02x}:00.0"
    port = RdmaPort(number=1, state="ACTIVE", physical_state="LinkUp", rate_gbps=400.0, link_layer=layer)
    device = RdmaDevice(
        name=f"mlx5_{number}",
        pci_address=address,
        driver="mlx5_core",
        vendor=0x15B3,
        device=0x1021,
        ports=(port,),
    )
    function = PciDevice(address=address, vendor=0x15B3, device=0x1021, class_code=0x0207, driver="mlx5_core")
    return device, function


def _nics(count: int) -> dict[str, Any]:
    pairs = [mlx5(number) for number in range(count)]
    return {"rdma": [device for device, _ in pairs], "nics": [function for _, function in pairs]}


def _joined(count: int, name: str, links: int, **fields: Any) -> list[GpuReading]:
    good = {"fabric_state": 3, "fabric_status": 0, "fabric_summary": 1, "nvlinks": (True,) * links, **fields}
    return [gpu(index, name, **good) for index in range(count)]


def _old(index: int, name: str, **fields: Any) -> GpuReading:
    """An old driver, or a small board: most questions have no answer."""
    bare = GpuReading(
        pci_address=f"0000:{0x10 + index:02x}:1e.0",
        index=index,
        uuid=f"GPU-{index}",
        name=name,
        memory_total_bytes=16 << 30,
        detail=GpuDetail(),
    )
    return changed(bare, **fields)


HGX: Final = {FABRIC_MANAGER, PERSISTENCE_DAEMON}
LINKED: Final = (True,) * 12
DARK: Final = (False,) * 12


def _workstation() -> Site:
    rtx, old = gpu(0, "NVIDIA GeForce RTX 4090"), gpu(1, "NVIDIA GeForce GT 710")
    rtx = changed(rtx, persistence_enabled=False, ecc_enabled=None, serial="")
    at = old.pci_address
    return Site([rtx, old], drivers={at: "nouveau"}, device_ids={at: 0x128B}, services=set())


def _passthrough() -> Site:
    gpus = _joined(8, "NVIDIA A100-SXM4-80GB", 12, fabric_state=None, fabric_summary=None)
    return Site(gpus, switches=(6, 0x1AF1), services=set(HGX), drivers={gpus[5].pci_address: "vfio-pci"})


def _mig() -> Site:
    gpus = _joined(8, "NVIDIA A100-SXM4-40GB", 12, fabric_state=None, fabric_summary=None, nvlinks=DARK)
    gpus = [changed(one, mig_enabled=True, mig_pending=True, mig_instances=(1, 2)) for one in gpus]
    return Site(gpus, "p4d.24xlarge", 4, (6, 0x1AF1), services=set(HGX))


def _bridged() -> Site:
    gpus = [gpu(index, "NVIDIA A100 80GB PCIe", nvlinks=LINKED if index < 2 else DARK) for index in range(4)]
    return Site(gpus)


def _half_v100() -> Site:
    links = (True, True, True, True, False, False)
    return Site([_old(i, "Tesla V100-SXM2-16GB", nvlinks=links) for i in range(4)], "p3.8xlarge")


MACHINES: Final[dict[str, Callable[[], Site]]] = {
    "H100 p5": lambda: Site(
        _joined(8, "NVIDIA H100 80GB HBM3", 18), "p5.48xlarge", 32, (4, 0x22A3), services=set(HGX)
    ),
    "H100 p5 without EFA": lambda: Site(
        _joined(8, "NVIDIA H100 80GB HBM3", 18), "p5.48xlarge", 0, (4, 0x22A3), services=set(HGX)
    ),
    "B200 p6": lambda: Site(_joined(8, "NVIDIA B200", 18), "p6-b200.48xlarge", 8, services=set(HGX)),
    "GB200 rack": lambda: Site(
        _joined(4, "NVIDIA GB200", 18, domain=8, fabric_clique=1),
        services={IMEX, PERSISTENCE_DAEMON},
        **_nics(4),
    ),
    "A100 MIG p4d": _mig,
    "A100 p4d with one EFA": lambda: Site(
        _joined(8, "NVIDIA A100-SXM4-40GB", 12, fabric_state=None, fabric_summary=None),
        "p4d.24xlarge",
        1,
        (6, 0x1AF1),
        services=set(HGX),
    ),
    "A100 PCIe, two bridged": _bridged,
    "H200 with InfiniBand": lambda: Site(
        _joined(8, "NVIDIA H200", 18), switches=(4, 0x22A3), services=set(HGX), **_nics(8)
    ),
    "H100 Azure": lambda: Site(
        _joined(8, "NVIDIA H100 80GB HBM3", 18), "Virtual Machine", services=set(HGX), **_nics(8)
    ),
    "H100 Google": lambda: Site(_joined(8, "NVIDIA H100 80GB HBM3", 18), "Google Compute Engine"),
    "L4 cloud": lambda: Site([_old(0, "NVIDIA L4", pcie_width=8, pcie_width_max=16, nvlinks=())]),
    "A10G cloud": lambda: Site([_old(0, "NVIDIA A10G", recovery_action=0, nvlinks=())], "g5.xlarge"),
    "T4 cloud": lambda: Site([_old(0, "Tesla T4", pcie_width=8, nvlinks=())], "g4dn.xlarge"),
    "V100 old driver": lambda: Site([_old(i, "Tesla V100-SXM2-16GB") for i in range(8)], "p3.16xlarge"),
    "V100 half a machine": _half_v100,
    "workstation": _workstation,
    "vGPU guest": lambda: Site([_old(0, "NVIDIA A10-24Q")]),
    "some GPUs in virtual machines": _passthrough,
    "no GPU": lambda: Site(driver_loaded=False, services=set()),
}
