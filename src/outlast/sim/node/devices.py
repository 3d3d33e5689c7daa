"""GPUs and network functions of a simulated node, as the PCI bus and NVML show them.

Both fakes look at one `Hardware`, so that a GPU that falls off the bus is missing from both; only the
reader itself can hang or fail.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from outlast.model.observation import (
    AerTotals,
    GpuDetail,
    GpuReading,
    GpuSurvey,
    PciDevice,
    PciSurvey,
    SurveyProblem,
)
from outlast.ports.clock import Clock

NVIDIA_H100 = 0x2330
EFA_DEVICE = 0xEFA2


@dataclass
class Hardware:
    """What is plugged in. A scenario changes it; the fakes show it."""

    gpus: dict[str, GpuReading] = field(default_factory=dict)
    """By PCI address; what NVML says of each."""
    off_bus: set[str] = field(default_factory=set)
    """GPUs that are listed but no longer answer."""
    unplugged: set[str] = field(default_factory=set)
    """GPUs and EFA devices that are not listed at all."""
    efa: tuple[str, ...] = ()
    efa_unbound: set[str] = field(default_factory=set)
    nics: dict[str, PciDevice] = field(default_factory=dict)
    """Other network functions, by address."""
    nvswitches: dict[str, PciDevice] = field(default_factory=dict)
    lanes: dict[str, int] = field(default_factory=dict)
    """GPUs whose link uses fewer than 16."""
    aer: dict[str, AerTotals] = field(default_factory=dict)
    """PCIe errors that a GPU or EFA device has counted."""
    driver_version: str = "580.95.05"
    driver_loaded: bool = True
    pci_drivers: dict[str, str] = field(default_factory=dict)
    """GPUs that another driver than NVIDIA's holds, or none (an empty name)."""

    @classmethod
    def h100(cls, node: str, *, gpus: int = 8, efa: int = 32) -> Hardware:
        """A p5-like machine; UUIDs and serials are derived from the node's name."""
        readings = {}
        for index in range(gpus):
            address = f"0000:{0x10 + index * 0x10:02x}:1c.0"
            readings[address] = GpuReading(
                pci_address=address,
                index=index,
                uuid=f"GPU-{node}-{index}",
                serial=f"{node}-{index}",
                name="NVIDIA H100 80GB HBM3",
                recovery_action=0,
                remap_pending=False,
                remap_failed=False,
                remapped_corrected=0,
                remapped_uncorrected=0,
                ecc_corrected_volatile=0,
                ecc_uncorrected_volatile=0,
                sram_uncorrected=0,
                temperature_c=41,
                temperature_margin_c=40,
                clocks_event_reasons=0,
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
                sram_threshold_exceeded=False,
                memory_total_bytes=80 * 1024**3,
                memory_used_bytes=0,
                fabric_state=3,
                fabric_status=0,
                fabric_summary=1,
                process_ids=(),
                detail=GpuDetail(
                    ecc_enabled=True,
                    remap_histogram=(640, 0, 0, 0, 0),
                    pcie_width_max=16,
                    pcie_generation_max=5,
                    nvlinks=(True,) * 18,
                    nvlink_errors={"replay": (0,) * 18, "recovery": (0,) * 18},
                ),
            )
        return cls(
            gpus=readings,
            efa=tuple(f"0000:{0x90 + index // 8:02x}:{index % 8:02x}.0" for index in range(efa)),
        )

    def change(self, address: str, **fields: object) -> None:
        """Change what NVML says of one GPU: `change(address, recovery_action=2)`."""
        self.gpus[address] = msgspec.structs.replace(self.gpus[address], **fields)

    def change_detail(self, address: str, **fields: object) -> None:
        """The same for what NVML is asked less often: `change_detail(address, memory_unrepairable=True)`."""
        before = self.gpus[address].detail or GpuDetail()
        self.change(address, detail=msgspec.structs.replace(before, **fields))


class FakePciBus:
    """Implements `outlast.ports.node.PciBus` on a `Hardware`."""

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware
        self.message = ""
        """Set to make the bus unreadable."""

    def survey(self) -> PciSurvey:
        """List what is plugged in."""
        if self.message:
            return PciSurvey(readable=False, message=self.message)
        there = self._hardware
        nics = [address for address in there.efa if address not in there.unplugged]
        return PciSurvey(
            gpus=tuple(
                self._gpu(address) for address in sorted(there.gpus) if address not in there.unplugged
            ),
            efa=tuple(self._efa(address) for address in nics if address not in there.efa_unbound),
            efa_unbound=tuple(_nic(address, "") for address in nics if address in there.efa_unbound),
            nics=tuple(nic for address, nic in sorted(there.nics.items()) if address not in there.unplugged),
            nvswitches=tuple(
                switch
                for address, switch in sorted(there.nvswitches.items())
                if address not in there.unplugged
            ),
            driver_loaded=there.driver_loaded,
            driver_module_version=there.driver_version if there.driver_loaded else "",
        )

    def _gpu(self, address: str) -> PciDevice:
        responds = address not in self._hardware.off_bus
        return PciDevice(
            address=address,
            vendor=0x10DE,
            device=NVIDIA_H100,
            class_code=0x0302,
            driver=self._hardware.pci_drivers.get(address, "nvidia" if self._hardware.driver_loaded else ""),
            link_width=self._hardware.lanes.get(address, 16) if responds else None,
            link_width_max=16 if responds else None,
            responds=responds,
            aer=self._hardware.aer.get(address),
        )

    def _efa(self, address: str) -> PciDevice:
        return msgspec.structs.replace(_nic(address, "efa"), aer=self._hardware.aer.get(address))


def _nic(address: str, driver: str) -> PciDevice:
    return PciDevice(address=address, vendor=0x1D0F, device=EFA_DEVICE, class_code=0x0200, driver=driver)


class FakeGpuReader:
    """Implements `outlast.ports.node.GpuReader` on a `Hardware`.

    `hanging` names GPUs whose calls never return ("" is the driver as a whole): the survey then takes
    the whole deadline of the clock and says so, as the real reader does.
    """

    def __init__(self, hardware: Hardware, *, clock: Clock, deadline_s: float = 5.0) -> None:
        self._hardware = hardware
        self._clock = clock
        self._deadline_s = deadline_s
        self.hanging: set[str] = set()
        self.problem: SurveyProblem | None = None
        self.leaked_workers = 0
        self.held = False
        """Whether a worker has the GPUs open."""

    async def survey(self, pci_addresses: tuple[str, ...], *, closely: bool = False) -> GpuSurvey:
        """Ask about these GPUs; always closely."""
        start_s = self._clock.monotonic()
        if self.problem is not None:
            return GpuSurvey(
                problem=self.problem, message=self.problem.value, leaked_workers=self.leaked_workers
            )
        self.held = True
        stuck = "" if "" in self.hanging else next((a for a in pci_addresses if a in self.hanging), None)
        if stuck is None:
            return self._answer(pci_addresses, complete=True)
        await self._clock.sleep(self._deadline_s)
        self.held = False
        asked = () if not stuck else tuple(a for a in pci_addresses if a not in self.hanging)
        partial = self._answer(asked, complete=False)
        return msgspec.structs.replace(
            partial,
            problem=SurveyProblem.HUNG,
            problem_gpu=stuck,
            message=f"NVML did not answer within {self._deadline_s:g} s",
            duration_s=self._clock.monotonic() - start_s,
            leaked_workers=self.leaked_workers,
        )

    async def release(self) -> bool:
        """Let go; False while a call hangs in a worker that can't be ended."""
        self.held = False
        return self.leaked_workers == 0

    def reboot(self, boot_id: str) -> None:
        """A reboot ends every hanging call."""
        self.hanging.clear()
        self.problem = None
        self.leaked_workers = 0
        self.held = False

    def _answer(self, addresses: tuple[str, ...], *, complete: bool) -> GpuSurvey:
        return GpuSurvey(
            gpus=tuple(self._reading(address) for address in addresses),
            driver_version=self._hardware.driver_version,
            complete=complete,
            detailed=True,
            leaked_workers=self.leaked_workers,
        )

    def _reading(self, address: str) -> GpuReading:
        there = self._hardware
        if address in there.unplugged or address not in there.gpus:
            return GpuReading(pci_address=address, error="NOT_FOUND")
        if address in there.off_bus:
            return GpuReading(pci_address=address, error="GPU_IS_LOST")
        return there.gpus[address]
