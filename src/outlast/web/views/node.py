"""One node: what it is, one row a GPU, what is wrong with the evidence as it was seen, its incidents."""

from __future__ import annotations

from datetime import datetime

import msgspec

from outlast.model.cluster import Node
from outlast.model.health import Fault, Gpu, NodeHealth, Subsystem, Verdict
from outlast.model.names import ACCELERATED_HARDWARE_READY
from outlast.remediation.page import State
from outlast.web.standing import in_service
from outlast.web.state import FleetState
from outlast.web.views.incidents import Row, row
from outlast.web.wording import ago, fault_name

_INCIDENTS_SHOWN_MAX = 50


class Fact(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A name and a value."""

    name: str
    value: str


class GpuRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One GPU."""

    index: str
    pci_address: str
    serial: str
    uuid: str
    model: str
    letter: str
    """`o` good, `f` faulty, `x` lost."""
    word: str
    faults: tuple[str, ...] = ()


class VerdictRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One subsystem's verdict."""

    subsystem: Subsystem
    verdict: Verdict
    reason: str
    message: str
    since: datetime | None
    age: str


class EvidenceLine(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One thing that was seen, as it was seen."""

    at: datetime
    source: str
    text: str


class FaultRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One open fault."""

    name: str
    code: str
    summary: str
    scope: str
    where: str
    state: str
    opened_at: datetime
    age: str
    clears_by: str
    evidence: tuple[EvidenceLine, ...]


class NodePage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The page as data."""

    now: datetime
    synced: bool
    name: str
    state: State
    in_service: bool
    because: str
    incident: str
    facts: tuple[Fact, ...]
    gpus: tuple[GpuRow, ...]
    verdicts: tuple[VerdictRow, ...]
    faults: tuple[FaultRow, ...]
    faults_dropped: int
    incidents: tuple[Row, ...]


def node(state: FleetState, name: str, now: datetime) -> NodePage | None:
    """Build the page of a node; None when neither the node nor any trace of it is known."""
    found = state.nodes.get(name)
    stories = state.by_node.get(name, ())
    if found is None and not stories:
        return None
    health = state.healths.get(name)
    stands = state.standing(found) if found is not None else None
    incident = state.open_incident(found) if found is not None else None
    status = health.status if health is not None else None
    return NodePage(
        now=now,
        synced=state.synced,
        name=name,
        state=stands.state if stands else State.UNKNOWN,
        in_service=_takes_work(found, stands.state) if found is not None and stands is not None else False,
        because=stands.because if stands else "This node is no longer part of the cluster.",
        incident=incident.metadata.name if incident else "",
        facts=_facts(found, health, now),
        gpus=tuple(_gpu(g, status.faults) for g in status.gpus) if status else (),
        verdicts=_verdicts(health, now),
        faults=tuple(_fault(f, now) for f in status.faults) if status else (),
        faults_dropped=status.faults_dropped if status else 0,
        incidents=tuple(row(i, now) for i in stories[:_INCIDENTS_SHOWN_MAX]),
    )


def _takes_work(found: Node, state: State) -> bool:
    return in_service(state, unschedulable=found.spec.unschedulable)


def _facts(node_: Node | None, health: NodeHealth | None, now: datetime) -> tuple[Fact, ...]:
    facts: list[Fact] = []
    if node_ is not None:
        labels = node_.metadata.labels
        facts += [
            Fact(name="instance type", value=labels.get("node.kubernetes.io/instance-type", "")),
            Fact(name="zone", value=labels.get("topology.kubernetes.io/zone", "")),
            Fact(name="provider", value=node_.spec.provider_id),
            Fact(name="joined", value=ago(node_.metadata.creation_timestamp, now)),
        ]
        for taint in node_.spec.taints:
            facts.append(Fact(name="taint", value=f"{taint.key}:{taint.effect}"))
        handed = node_.condition(ACCELERATED_HARDWARE_READY)
        if handed is not None and handed.status == "False":
            facts.append(Fact(name="handed over", value=f"to Karpenter: {handed.reason}"))
    if health is not None:
        status = health.status
        facts += [
            Fact(name="boot", value=status.boot_id),
            Fact(name="RDMA devices", value=f"{status.rdma_found} of {status.rdma_expected}"),
            Fact(name="last complete check", value=ago(status.checked_at, now) or "none in this boot"),
            Fact(name="agent", value=status.agent_version),
        ]
    return tuple(f for f in facts if f.value)


def _gpu(gpu: Gpu, faults: tuple[Fault, ...]) -> GpuRow:
    who = gpu.identity
    mine = [f for f in faults if f.gpu is not None and f.gpu.pci_address == who.pci_address]
    letter = "x" if not gpu.present else "f" if mine else "o"
    return GpuRow(
        index="" if who.index is None else str(who.index),
        pci_address=who.pci_address,
        serial=who.serial,
        uuid=who.uuid,
        model=gpu.model,
        letter=letter,
        word={"x": "lost", "f": "faulty", "o": "good"}[letter],
        faults=tuple(fault_name(f.code) for f in mine),
    )


def _verdicts(health: NodeHealth | None, now: datetime) -> tuple[VerdictRow, ...]:
    if health is None:
        return ()
    return tuple(
        VerdictRow(
            subsystem=v.subsystem,
            verdict=v.verdict,
            reason=v.reason,
            message=v.message,
            since=v.since,
            age=ago(v.since, now),
        )
        for v in health.status.verdicts
    )


def _fault(fault: Fault, now: datetime) -> FaultRow:
    gpu = fault.gpu
    where = fault.device
    if gpu is not None:
        index = "" if gpu.index is None else f" {gpu.index}"
        where = f"GPU{index} at {gpu.pci_address}" + (f", serial {gpu.serial}" if gpu.serial else "")
    return FaultRow(
        name=fault_name(fault.code),
        code=fault.code,
        summary=fault.summary,
        scope=fault.scope.value,
        where=where,
        state="open" if fault.state.value == "Open" else "awaiting proof",
        opened_at=fault.opened_at,
        age=ago(fault.opened_at, now),
        clears_by=fault.clears_by,
        evidence=tuple(EvidenceLine(at=e.at, source=e.source, text=e.text) for e in fault.evidence),
    )
