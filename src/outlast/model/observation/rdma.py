"""Devices for remote memory access: EFA, InfiniBand and RoCE, as /sys/class/infiniband shows them.

An EFA port always claims to be active, so of EFA only presence and counters say something. A counter file
that is missing is an older device, not a broken one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import ClassVar, Final

from outlast.model.observation.base import CounterReading, Reading, Survey

EFA_DRIVER: Final = "efa"

EFA_LOCAL_COUNTERS: Final = (
    "rx_drops",
    "rdma_read_wr_err",
    "rdma_write_wr_err",
    "retrans_timeout_events",
    "retrans_pkts",
    "retrans_bytes",
)
EFA_REMOTE_COUNTERS: Final = ("unresponsive_remote_events", "impaired_remote_conn_events")
"""These accuse the other end: of 32 nodes that use one dead peer, 31 count here."""
EFA_PORT_COUNTERS: Final = (*EFA_LOCAL_COUNTERS, *EFA_REMOTE_COUNTERS)
"""Under ports/N/hw_counters; names of the efa driver 3.1.0."""
EFA_DEVICE_COUNTERS: Final = ("submitted_cmds", "completed_cmds", "no_completion_cmds", "cmds_err")
"""Under hw_counters of the device; the driver counts these itself, without asking the hardware."""

LINK_DOWNED: Final = "link_downed"
LINK_COUNTERS: Final[Mapping[str, int]] = {
    LINK_DOWNED: 0xFF,
    "link_error_recovery": 0xFF,
    "local_link_integrity_errors": 0xF,
    "excessive_buffer_overrun_errors": 0xF,
    "symbol_error": 0xFFFF,
    "port_rcv_errors": 0xFFFF,
    "port_rcv_remote_physical_errors": 0xFFFF,
    "port_xmit_discards": 0xFFFF,
}
"""Under ports/N/counters, with the value where each stops (PortCounters of the InfiniBand specification)."""

TRANSPORT_COUNTERS: Final = (
    "local_ack_timeout_err",
    "out_of_sequence",
    "packet_seq_err",
    "rnr_nak_retry_err",
    "roce_slow_restart",
)
"""Under ports/N/hw_counters of mlx5."""

CARRIER_CHANGES: Final = "carrier_changes"

ACTIVE: Final = "ACTIVE"
DISABLED: Final = "Disabled"


class LinkLayer(StrEnum):
    """What a port speaks."""

    INFINIBAND = "InfiniBand"
    ETHERNET = "Ethernet"
    OTHER = "other"


class RdmaProblem(StrEnum):
    """Why a survey has only part of an answer."""

    HUNG = "Hung"
    """A read missed its deadline; the process that reads was killed and not waited for."""
    FAILED = "Failed"


class NetworkInterface(Reading, frozen=True, kw_only=True):
    """The Ethernet or IPoIB interface of an RDMA device."""

    name: str
    up: bool | None = None
    """Wanted up by the administrator; None when it could not be read."""
    carrier_changes: int | None = None


class RdmaPort(Reading, frozen=True, kw_only=True):
    """One port of a device. Empty or None: nobody said."""

    number: int
    state: str = ""
    """DOWN, INIT, ARMED, ACTIVE, as the kernel words it."""
    physical_state: str = ""
    rate_gbps: float | None = None
    link_layer: LinkLayer = LinkLayer.OTHER
    counters: Mapping[str, int] = {}


class RdmaDevice(Reading, frozen=True, kw_only=True):
    """One device of /sys/class/infiniband, a virtual function of our own left out."""

    name: str
    pci_address: str = ""
    """Lower case dddd:bb:dd.f; empty for one without hardware, such as rxe or siw."""
    driver: str = ""
    vendor: int = 0
    device: int = 0
    ports: tuple[RdmaPort, ...] = ()
    interfaces: tuple[NetworkInterface, ...] = ()
    counters: Mapping[str, int] = {}
    answered: bool = True
    """Its files could be read in this survey."""

    @property
    def is_efa(self) -> bool:
        """The efa driver runs it; names prove nothing, users may rename devices."""
        return self.driver == EFA_DRIVER

    @property
    def key(self) -> str:
        """What findings about it are about."""
        return self.pci_address or self.name

    def port_key(self, number: int) -> str:
        """What findings about one of its ports are about."""
        return f"{self.key}/port{number}"


class RdmaSurvey(Survey, frozen=True, kw_only=True):
    """One pass over all RDMA devices."""

    source: ClassVar[str] = "RDMA"

    devices: tuple[RdmaDevice, ...] = ()
    problem: RdmaProblem | None = None
    problem_device: str = ""
    message: str = ""
    failures: int = 0
    """Surveys in a row, this one included, that could not read everything."""
    readable: bool = True
    """The list of devices itself could be read; there may be none."""
    exclusive: bool = False
    """A device is shown only to the network namespace that has it: those of pods are not listed here."""

    def counters(self) -> Iterable[CounterReading]:
        """Every counter that was read, with the value where it stops."""
        for device in self.devices:
            for name, value in device.counters.items():
                yield CounterReading(device=device.key, name=name, value=value)
            for interface in device.interfaces:
                if interface.carrier_changes is not None:
                    yield CounterReading(
                        device=f"{device.key}/{interface.name}",
                        name=CARRIER_CHANGES,
                        value=interface.carrier_changes,
                    )
            for port in device.ports:
                for name, value in port.counters.items():
                    yield CounterReading(
                        device=device.port_key(port.number),
                        name=name,
                        value=value,
                        limit=LINK_COUNTERS.get(name),
                    )
