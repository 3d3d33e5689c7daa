"""Small clusters for the tests of decisions: a sick node in a few words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from outlast.model.cluster import (
    Condition,
    Lease,
    LeaseSpec,
    Node,
    NodeSpec,
    NodeStatus,
    NodeSystemInfo,
    ObjectMeta,
    OwnerReference,
    Pod,
    PodSpec,
    PodStatus,
)
from outlast.model.decision import Act, Block, Cordon, Step
from outlast.model.health import (
    Fault,
    FaultClass,
    FaultState,
    GpuIdentity,
    NodeHealth,
    NodeHealthStatus,
    Scope,
    Subsystem,
    SubsystemVerdict,
    Verdict,
)
from outlast.model.incident import Incident, IncidentStatus
from outlast.model.names import CORDON_ANNOTATION
from outlast.model.policy import Mode, RemediationPolicySpec
from outlast.remediation.decide import AgentSight, FleetView, RulingPolicy, Situation, decide

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
FRESH = AgentSight(lease=Lease(spec=LeaseSpec(renew_time=START)), silent_s=1.0, moving=True)
POD_UID = "pod-uid"


def after(seconds: float) -> datetime:
    """Some time into the story."""
    return START + timedelta(seconds=seconds)


def a_node(
    name: str = "n1",
    *,
    uid: str = "uid-n1",
    boot_id: str = "boot-1",
    ready: bool = True,
    cordon: Cordon | None = None,
    unschedulable: bool | None = None,
    annotations: dict[str, str] | None = None,
    conditions: tuple[Condition, ...] = (),
    provider_id: str = "machine-1",
) -> Node:
    """A node, cordoned by us where a cordon is given."""
    marks = dict(annotations or {})
    if cordon is not None:
        marks[CORDON_ANNOTATION] = cordon.to_annotation()
    return Node(
        metadata=ObjectMeta(name=name, uid=uid, annotations=marks, resource_version="1"),
        spec=NodeSpec(
            unschedulable=cordon is not None if unschedulable is None else unschedulable,
            provider_id=provider_id,
        ),
        status=NodeStatus(
            conditions=(Condition(type="Ready", status="True" if ready else "Unknown"), *conditions),
            node_info=NodeSystemInfo(boot_id=boot_id),
        ),
    )


def a_fault(
    fault_class: FaultClass = FaultClass.REBOOT_CURES,
    code: str = "xid/79",
    *,
    boot_id: str = "boot-1",
    opened_at: datetime = START,
    state: FaultState = FaultState.OPEN,
    serial: str = "1653022000001",
    second_witness: bool = False,
    subsystem: Subsystem = Subsystem.GPU,
) -> Fault:
    """A fault of GPU 5."""
    return Fault(
        id=f"{code}@0000:b3:00.0",
        code=code,
        fault_class=fault_class,
        subsystem=subsystem,
        scope=Scope.GPU,
        summary="GPU 5 has fallen off the bus",
        opened_at=opened_at,
        last_seen_at=opened_at,
        boot_id=boot_id,
        state=state,
        gpu=GpuIdentity(pci_address="0000:b3:00.0", serial=serial),
        second_witness=second_witness,
        clears_by="a clean check after a reboot",
    )


def a_health(*faults: Fault, boot_id: str = "boot-1", checked: bool = True) -> NodeHealth:
    """What the agent says: faulty where there are faults, healthy elsewhere."""
    faulty = {fault.subsystem for fault in faults}
    verdicts = tuple(
        SubsystemVerdict(
            subsystem=s,
            verdict=Verdict.FAULTY if s in faulty else Verdict.HEALTHY if checked else Verdict.UNKNOWN,
            reason="Test",
        )
        for s in Subsystem
    )
    return NodeHealth(
        metadata=ObjectMeta(name="n1"),
        status=NodeHealthStatus(
            boot_id=boot_id,
            checked_at=START if checked else None,
            verdicts=verdicts,
            faults=faults,
        ),
    )


def a_pod(
    name: str = "train-0",
    *,
    daemon: bool = False,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    phase: str = "Running",
    deleting: bool = False,
) -> Pod:
    """A pod on the node."""
    owner = OwnerReference(
        api_version="apps/v1",
        kind="DaemonSet" if daemon else "ReplicaSet",
        name="o",
        uid="o",
        controller=True,
    )
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace="ml",
            uid=f"uid-{name}",
            labels=labels or {},
            annotations=annotations or {},
            owner_references=(owner,),
            deletion_timestamp=START if deleting else None,
        ),
        spec=PodSpec(node_name="n1"),
        status=PodStatus(phase=phase),
    )


def enforce(**changes: Any) -> RulingPolicy:
    """A policy that acts."""
    return RulingPolicy("gpu", RemediationPolicySpec(**{"mode": Mode.ENFORCE, **changes}))


OBSERVE = RulingPolicy("gpu", RemediationPolicySpec())
ROOMY = FleetView(nodes=100)


class Tale:
    """One node over time: applies each step's record and acts to the situation, as the controller does."""

    def __init__(self, situation: Situation, ruling: RulingPolicy | None = None) -> None:
        self.situation = situation
        self.ruling = ruling or enforce()
        self.fleet = ROOMY
        self.at = START
        self.last = Step()

    def change(self, **changes: Any) -> Tale:
        """The world moved on."""
        from dataclasses import replace

        self.situation = replace(self.situation, **changes)
        return self

    def look(self, seconds: float = 1.0) -> Step:
        """Decide after some seconds, and let the record and the cordon take effect."""
        self.at += timedelta(seconds=seconds)
        step = decide(self.situation, self.ruling, self.fleet, self.at)
        if step.needs_pods:
            self.change(pods=self.situation.pods or ())
            step = decide(self.situation, self.ruling, self.fleet, self.at)
            assert not step.needs_pods
        self.last = step
        if step.open is not None:
            self.change(incident=Incident(metadata=ObjectMeta(name=step.incident), spec=step.open))
        if step.status is not None and self.situation.incident is not None:
            self.change(incident=msgspec.structs.replace(self.situation.incident, status=step.status))
        for act in step.acts:
            self._take_effect(act)
        return step

    def _take_effect(self, act: Act) -> None:
        node = self.situation.node
        if isinstance(act, Block) and node is not None:
            marks = {**node.metadata.annotations, CORDON_ANNOTATION: act.cordon.to_annotation()}
            self.change(
                node=msgspec.structs.replace(
                    node,
                    metadata=msgspec.structs.replace(node.metadata, annotations=marks),
                    spec=msgspec.structs.replace(node.spec, unschedulable=True),
                )
            )

    @property
    def status(self) -> IncidentStatus:
        """The record as it stands."""
        assert self.situation.incident is not None
        return self.situation.incident.status

    def acts(self, kind: type) -> list[Any]:
        """Acts of one kind in the last step."""
        return [act for act in self.last.acts if isinstance(act, kind)]


def a_sick_node(*faults: Fault, ruling: RulingPolicy | None = None, **changes: Any) -> Tale:
    """A node with these faults (a fallen GPU by default) before the first look."""
    situation = Situation(
        node_name="n1",
        node=a_node(),
        health=a_health(*(faults or (a_fault(),))),
        agent=FRESH,
        pods=(),
    )
    return Tale(situation, ruling).change(**changes)
