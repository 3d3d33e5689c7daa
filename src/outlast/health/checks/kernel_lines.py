"""Every other line of the kernel by catalogue: PCIe, host memory, network, disks, and the kernel itself.

The table says what a kind of line means; the line says where. One corrected error or one stall is a
note: the event carries how many of its kind, on the same device, a fault takes.
"""

from __future__ import annotations

from typing import Final

import msgspec

from outlast.health.catalogue import Catalogue, KernelLineEntry
from outlast.health.checks.declaration import EventCheck
from outlast.health.finding import Event, Proof
from outlast.health.sources.facts import Fact, HungTaskFact, LineFact
from outlast.model.health import FaultClass, Scope, Subsystem

SOURCE: Final = "kernel log"
IN_DRIVER: Final = "task/hung-in-driver"


def run(fact: Fact, catalogue: Catalogue) -> Event | None:
    """The event in a fact, or None where the catalogue has nothing on it."""
    match fact:
        case LineFact():
            entry = catalogue.kernel_lines.get(fact.kind)
            return None if entry is None else _line(fact, entry)
        case HungTaskFact():
            entry = catalogue.kernel_lines.get(IN_DRIVER)
            if entry is None:
                return None
            return _event(fact, entry, summary=f"{entry.text} (task {fact.process})")
        case _:
            return None


CHECK: Final = EventCheck("kernel_lines", "PCIe, memory, network, disk and kernel lines by catalogue", run)


def _line(fact: LineFact, entry: KernelLineEntry) -> Event:
    where = f"GPU {fact.gpu}" if fact.gpu else fact.device
    what = f"{where}: {entry.text}" if where else entry.text
    if fact.subject and fact.subject not in where:
        what = f"{what} ({fact.subject})"
    return _event(
        fact,
        entry,
        summary=what,
        gpu=fact.gpu,
        device=fact.device,
        rdma=fact.rdma,
        occurrences=fact.occurrences,
    )


def _event(
    fact: Fact,
    entry: KernelLineEntry,
    *,
    summary: str,
    gpu: str = "",
    device: str = "",
    rdma: bool = True,
    occurrences: int = 1,
) -> Event:
    subsystem = entry.subsystem
    if subsystem is Subsystem.RDMA and not rdma:
        subsystem = Subsystem.HOST
    event = Event(
        code=entry.kind,
        reason=entry.reason,
        fault_class=entry.fault_class,
        subsystem=subsystem,
        scope=entry.scope,
        rank=entry.rank,
        proof=entry.proof,
        expiry_s=entry.expiry_s,
        summary=summary,
        source=SOURCE,
        text=fact.text,
        device=device,
        role=entry.role,
        sequence=fact.sequence,
        timestamp_us=fact.timestamp_us,
        replayed=fact.replayed,
        count_min=entry.count_min,
        count_window_s=entry.count_window_s,
        occurrences=occurrences,
    )
    return about_gpu(event, gpu) if gpu else event


def about_gpu(event: Event, address: str) -> Event:
    """The same about a GPU, where a line about any PCIe device turns out to be about one."""
    # A GPU can prove that it is well, so that time alone need not.
    ends_by_itself = event.fault_class is FaultClass.TRANSIENT and event.proof is Proof.EXPIRY
    return msgspec.structs.replace(
        event,
        gpu=address,
        device="",
        subsystem=Subsystem.GPU,
        scope=Scope.GPU,
        proof=Proof.QUIET if ends_by_itself else event.proof,
    )
