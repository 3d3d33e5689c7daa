"""A small fleet in every state, as plain objects: what views, pages and their tests are shown."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from outlast.model.cluster import Condition, Node, NodeSpec, NodeStatus, ObjectMeta
from outlast.model.health import (
    Evidence,
    Fault,
    FaultClass,
    Gpu,
    GpuIdentity,
    NodeHealth,
    NodeHealthStatus,
    Scope,
    Subsystem,
    SubsystemVerdict,
    Verdict,
)
from outlast.model.incident import (
    Attempt,
    End,
    EndResult,
    Incident,
    IncidentSpec,
    IncidentStatus,
    Outcome,
    Phase,
    Result,
    Timings,
)
from outlast.model.names import CORDON_ANNOTATION
from outlast.model.policy import (
    Budgets,
    Mode,
    RemediationPolicy,
    RemediationPolicySpec,
    RemediationPolicyStatus,
    Rung,
)
from outlast.remediation.page import ExplainPage, Line, Milestone, State
from outlast.web.state import FleetState

NOW = datetime(2026, 11, 30, 12, 10, 31, tzinfo=UTC)
DOMAIN = "topology.kubernetes.io/rack"


def gpu(node: str, index: int, *, present: bool = True) -> Gpu:
    address = f"0000:{0x10 + 0x10 * index:02x}:1c.0"
    who = GpuIdentity(pci_address=address, uuid=f"GPU-{node}-{index}", serial=f"16530{index}", index=index)
    return Gpu(identity=who, model="NVIDIA H100 80GB HBM3", present=present)


def node(name: str, rack: str = "rack-a", *, cordoned: bool = False, **annotations: str) -> Node:
    labels = {
        DOMAIN: rack,
        "nvidia.com/gpu.present": "true",
        "node.kubernetes.io/instance-type": "p5.48xlarge",
        "karpenter.sh/nodepool": "training" if rack < "rack-e" else "inference",
    }
    notes = {key.replace("__", "/").replace("_", "."): value for key, value in annotations.items()}
    if cordoned:
        notes[CORDON_ANNOTATION] = "{}"
    ready = Condition(type="Ready", status="True", reason="KubeletReady")
    return Node(
        metadata=ObjectMeta(name=name, uid=f"uid-{name}", labels=labels, annotations=notes),
        spec=NodeSpec(unschedulable=cordoned, provider_id=f"aws:///use1/{name}"),
        status=NodeStatus(conditions=(ready,)),
    )


def fault(code: str = "xid/79", *, at: datetime = NOW - timedelta(minutes=6), index: int = 5) -> Fault:
    return Fault(
        id=f"{code}@{index}",
        code=code,
        fault_class=FaultClass.REBOOT_CURES,
        subsystem=Subsystem.GPU,
        scope=Scope.GPU,
        summary=f"GPU {index} has fallen off the bus",
        opened_at=at,
        last_seen_at=at,
        gpu=gpu("n", index).identity,
        clears_by="the GPU answers with the same serial in a new boot",
        evidence=(
            Evidence(
                at=at,
                source="kernel log",
                text="NVRM: Xid (PCI:0000:60:1c): 79, GPU has fallen off the bus.",
            ),
        ),
    )


def health(name: str, *faults: Fault, lost: int | None = None) -> NodeHealth:
    gpus = tuple(gpu(name, i, present=i != lost) for i in range(8))
    verdicts = tuple(
        SubsystemVerdict(
            subsystem=s,
            verdict=Verdict.FAULTY if faults and s is Subsystem.GPU else Verdict.HEALTHY,
            reason="DeviceLost" if faults and s is Subsystem.GPU else "AllGood",
            message=faults[0].summary if faults and s is Subsystem.GPU else "",
            since=NOW - timedelta(hours=2),
        )
        for s in Subsystem
    )
    return NodeHealth(
        metadata=ObjectMeta(name=name),
        status=NodeHealthStatus(
            boot_id="3f1c9a52",
            agent_version="0.1.0",
            checked_at=NOW - timedelta(seconds=20),
            state="Faulty" if faults else "Healthy",
            gpus_found=8 - (lost is not None),
            gpus_expected=8,
            rdma_found=32,
            rdma_expected=32,
            gpus=gpus,
            verdicts=verdicts,
            faults=faults,
        ),
    )


def incident(
    node_name: str,
    phase: Phase = Phase.DRAINING,
    *,
    code: str = "xid/79",
    minutes: float = 6,
    end: EndResult | None = None,
    blocked_by: tuple[str, ...] = (),
    observe_only: bool = False,
) -> Incident:
    opened = NOW - timedelta(minutes=minutes)
    closing = End(at=opened + timedelta(minutes=minutes / 2), result=end) if end else None
    return Incident(
        metadata=ObjectMeta(name=f"{node_name}-7f3a91c0"),
        spec=IncidentSpec(
            node_name=node_name,
            node_uid=f"uid-{node_name}",
            opened_at=opened,
            policy="default",
            faults=(fault(code, at=opened),),
            observe_only=observe_only,
        ),
        status=IncidentStatus(
            epoch=2,
            phase=phase,
            step=Rung.DRAIN,
            fault=code,
            faults=(fault(code, at=opened),),
            blocked_by=blocked_by,
            attempts=(
                Attempt(
                    id="1-Drain",
                    rung=Rung.DRAIN,
                    started_at=opened + timedelta(seconds=90),
                    reason="RebootCures",
                    because=("Xid 79 needs a restart of the machine",),
                    outcome=Outcome(
                        at=opened + timedelta(minutes=3), result=Result.SUCCEEDED, message="5 of 5 pods moved"
                    ),
                ),
            ),
            timings=Timings(
                detected_at=opened, blocked_at=opened, returned_at=closing.at if closing else None
            ),
            end=closing,
        ),
    )


def policy(unavailable: int = 3, nodes: int = 48) -> RemediationPolicy:
    return RemediationPolicy(
        metadata=ObjectMeta(name="default", generation=1),
        spec=RemediationPolicySpec(
            mode=Mode.ENFORCE,
            budgets=Budgets(max_unavailable=10, max_unavailable_percent=20, failure_domain_label=DOMAIN),
        ),
        status=RemediationPolicyStatus(observed_generation=1, nodes=nodes, unavailable=unavailable),
    )


def fleet_state(racks: int = 6, per_rack: int = 8) -> FleetState:
    """Nodes `gpu-0000` and on, the first few of them in trouble."""
    names = [f"gpu-{i:04d}" for i in range(racks * per_rack)]
    sick = {
        names[3]: incident(names[3], Phase.DRAINING),
        names[9]: incident(names[9], Phase.REPAIRING, minutes=14),
        names[12]: incident(names[12], Phase.BLOCKED, code="efa/missing", minutes=3),
        names[21]: incident(
            names[21], Phase.ON_HOLD, code="xid/64", blocked_by=("no replacement capacity",), minutes=48
        ),
        names[30]: incident(names[30], Phase.WATCHED, minutes=31),
    }
    closed = msgspec.structs.replace(
        incident(names[5], Phase.CLOSED, end=EndResult.RETURNED, minutes=40),
    )
    nodes, healths = [], []
    for i, name in enumerate(names):
        rack = f"rack-{chr(97 + i // per_rack)}" if racks <= 26 else f"rack-{i // per_rack:04d}"
        trouble = sick.get(name)
        nodes.append(
            node(name, rack, cordoned=trouble is not None and trouble.status.phase is not Phase.WATCHED)
        )
        if trouble is not None and trouble.status.phase in (Phase.DRAINING, Phase.REPAIRING, Phase.ON_HOLD):
            healths.append(health(name, fault(), lost=5 if trouble.status.phase is Phase.DRAINING else None))
        elif i != 37:
            healths.append(health(name))
    return FleetState.of(nodes, healths, [*sick.values(), closed], [policy(4, len(names))])


def explanation(story: Incident) -> ExplainPage:
    """What the domain would say of the draining incident."""
    at = story.spec.opened_at
    return ExplainPage(
        node=story.spec.node_name,
        state=State.DRAINING,
        in_service=False,
        headline="OUT OF SERVICE, draining (step 3 of 5)",
        incident=story.metadata.name,
        opened_at=at,
        ended_at=story.status.end.at if story.status.end else None,
        policy="default",
        happened=(
            Line(
                at=at,
                head="kernel log",
                text="GPU 5 (0000:b3:00.0) has fallen off the bus (Xid 79)",
                bad=True,
            ),
            Line(
                at=at + timedelta(milliseconds=480),
                head="NVML",
                text="7 of 8 GPUs enumerate",
                remark="confirms",
            ),
        ),
        did=(
            Line(
                at=at + timedelta(milliseconds=92),
                head="blocked new work",
                remark="92 ms after the kernel line",
            ),
            Line(at=at + timedelta(seconds=1), head="asked 1 job to checkpoint", text="llama-run3, 16 nodes"),
            Line(at=at + timedelta(seconds=91), head="checkpoint done", text="step 18,400"),
            Line(at=at + timedelta(seconds=92), head="draining", text="3 of 5 pods moved"),
        ),
        why=(
            Line(head="reboot, not reset", text="Xid 79 needs a restart of the machine (catalogue xid/79)"),
            Line(
                head="not replace", text="first failure of this serial in 30 days; a second within 24 h would"
            ),
        ),
        blocked_by=(
            Line(
                head="PodDisruptionBudget web/api",
                text="allows 0 disruptions: 2 pods wait, 3 of at most 10 min",
            ),
        ),
        next=(
            Line(
                head="reboot when drained",
                text="at the latest 12:16:03, then a quick validation (about 4 min)",
            ),
        ),
        overrule=(
            f"outlast hold {story.metadata.name}",
            f"outlast cancel {story.metadata.name}",
            f"kubectl uncordon {story.spec.node_name}",
        ),
        timeline=(
            Milestone(name="detect", started_at=at, ended_at=at + timedelta(milliseconds=92)),
            Milestone(
                name="checkpoint", started_at=at + timedelta(seconds=1), ended_at=at + timedelta(seconds=91)
            ),
            Milestone(name="drain", started_at=at + timedelta(seconds=92)),
        ),
    )
