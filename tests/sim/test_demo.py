"""The demo's script, played to its end once; each story's end is read from the API over HTTP."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from rich.console import Console

from outlast.adapters.clock import SystemClock
from outlast.adapters.kubernetes import KubernetesCluster, access_with_token
from outlast.cli.demo_screen import print_summary
from outlast.model.cluster import EVENTS, NODES, PODS, Event, Node, Pod
from outlast.model.health import NODE_HEALTHS, NodeHealth
from outlast.model.incident import INCIDENTS, EndResult, Incident, Phase, Result
from outlast.model.names import (
    ACCELERATED_HARDWARE_READY,
    CORDON_ANNOTATION,
    DO_NOT_DISRUPT_ANNOTATION,
)
from outlast.model.policy import Rung
from outlast.sim.apiserver.resources import NODES as STORED_NODES
from outlast.sim.apiserver.resources import PODS as STORED_PODS
from outlast.sim.demo import Demo, Report
from outlast.sim.world.objects import INFERENCE, RACK_LABEL, TRAINING
from outlast.sim.world.scenario import DEMO

RATE = 120.0
"""Twice the demo's; the clock slows down by itself where the machine is too busy."""

pytestmark = [pytest.mark.long, pytest.mark.timeout(420)]


@dataclass
class Played:
    """What was seen on the way, and what the API says at the end."""

    report: Report
    nodes: dict[str, Node]
    healths: dict[str, NodeHealth]
    incidents: dict[str, list[Incident]]
    pods: list[Pod]
    events: list[Event]
    boot_before: dict[str, str]
    uid_before: dict[str, str]
    placed_before: dict[str, str]
    """Pod uid -> node, for the users' pods when the script began."""
    cordoned_ever: set[str] = field(default_factory=set)
    out_most: int = 0
    serving_least: int = 1000
    conditions_seen: set[tuple[str, str, str]] = field(default_factory=set)

    def only(self, node: str) -> Incident:
        """The one incident of a node."""
        (found,) = self.incidents.get(node, [])
        return found

    def rungs(self, node: str) -> list[Rung]:
        """The rungs that were taken on a node."""
        return [attempt.rung for attempt in self.only(node).status.attempts]


class Watcher:
    """Notes, at every change, what must never be exceeded."""

    def __init__(self, demo: Demo) -> None:
        self._store = demo.world.store
        self.cordoned_ever: set[str] = set()
        self.out_most = 0
        self.serving_least = 1000
        self.conditions_seen: set[tuple[str, str, str]] = set()

    def begin(self) -> None:
        """Look from now on."""
        self._store.storage.observe(self._on_change)

    def _on_change(self, kind: tuple[str, str], change: Any) -> None:
        if kind == STORED_NODES.key:
            self._look_at_nodes(change)
        elif kind == STORED_PODS.key and change.entry.namespace == INFERENCE:
            serving = [e for e in self._store.entries(STORED_PODS, INFERENCE) if _serves(e)]
            self.serving_least = min(self.serving_least, len(serving))

    def _look_at_nodes(self, change: Any) -> None:
        node = change.entry.decode()
        for condition in node["status"].get("conditions", ()):
            self.conditions_seen.add((change.entry.name, condition["type"], condition["status"]))
        out = [e.name for e in self._store.entries(STORED_NODES) if _is_cordoned(e)]
        self.cordoned_ever.update(out)
        self.out_most = max(self.out_most, len(out))


def _serves(entry: Any) -> bool:
    return entry.fields.get("status.phase") == "Running" and b'"deletionTimestamp"' not in entry.raw


def _is_cordoned(entry: Any) -> bool:
    return entry.fields.get("spec.unschedulable") == "true"


async def play() -> Played:
    """Run the script and read everything at its end."""
    pace = SystemClock()
    demo = Demo(pace=pace, rate=RATE)
    watcher = Watcher(demo)
    async with demo.running() as url:
        assert await demo.ready(), "the healthy cluster did not come up"
        boots = {n: node.status.node_info.boot_id for n, node in demo.world.nodes().items()}
        uids = {n: node.metadata.uid for n, node in demo.world.nodes().items()}
        async with KubernetesCluster(access_with_token(url), clock=pace, rng=Random(1)) as cluster:
            users = [p for ns in (TRAINING, INFERENCE) for p in await cluster.list(PODS, ns)]
            watcher.begin()
            await demo.finished()
            incidents: dict[str, list[Incident]] = {}
            for incident in await cluster.list(INCIDENTS):
                incidents.setdefault(incident.spec.node_name, []).append(incident)
            return Played(
                report=demo.report(),
                nodes={n.metadata.name: n for n in await cluster.list(NODES)},
                healths={h.metadata.name: h for h in await cluster.list(NODE_HEALTHS)},
                incidents=incidents,
                pods=await cluster.list(PODS),
                events=await cluster.list(EVENTS),
                boot_before=boots,
                uid_before=uids,
                placed_before={p.metadata.uid: p.spec.node_name for p in users},
                cordoned_ever=watcher.cordoned_ever,
                out_most=watcher.out_most,
                serving_least=watcher.serving_least,
                conditions_seen=watcher.conditions_seen,
            )


@pytest.fixture(scope="module")
def played() -> Iterator[Played]:
    yield asyncio.run(play())


def test_every_story_came_to_its_end(played: Played) -> None:
    """The demo's own verdict, which decides its exit code, agrees with what follows here."""
    problems = {s.title: s.problems for s in played.report.stories if s.problems}
    assert not problems
    assert played.report.ok, played.report
    assert played.report.over


def test_no_invariant_was_violated_at_any_change(played: Played) -> None:
    """The referee looked at every change of an incident or a cordon and found nothing."""
    assert played.report.violations == ()
    assert played.report.checks > 100
    assert played.report.crashes == ()


def test_an_applications_fault_does_nothing_to_its_node(played: Played) -> None:
    """Xid 13 leaves no incident and no cordon, and moves nobody's pod; the agent had seen it."""
    for name in ("gpu-030", "gpu-034"):
        assert name not in played.incidents
        assert name not in played.cordoned_ever
        assert played.nodes[name].status.node_info.boot_id == played.boot_before[name]
        assert pods_stayed(played, name)
        assert played.healths[name].status.state == "Healthy"


def test_a_gpu_off_the_bus_is_cured_by_one_reboot(played: Played) -> None:
    """Checkpoint, drain, reboot, proof, return: in this order, once each, and the node is as before."""
    story = played.only("gpu-003")
    assert story.status.end is not None
    assert story.status.end.result is EndResult.RETURNED
    assert played.rungs("gpu-003") == [
        Rung.BLOCK_NEW_WORK,
        Rung.REQUEST_CHECKPOINT,
        Rung.DRAIN,
        Rung.REBOOT,
    ]
    assert all(a.outcome is not None and a.outcome.result is Result.SUCCEEDED for a in story.status.attempts)
    timings = story.status.timings
    steps = [
        timings.detected_at,
        timings.blocked_at,
        timings.checkpoint_requested_at,
        timings.checkpoint_done_at,
        timings.drain_started_at,
        timings.drained_at,
        timings.acted_at,
        timings.came_back_at,
        timings.verified_at,
        timings.returned_at,
    ]
    known = [at for at in steps if at is not None]
    assert len(known) == len(steps)
    assert known == sorted(known)
    node = played.nodes["gpu-003"]
    assert node.metadata.uid == played.uid_before["gpu-003"]
    assert node.status.node_info.boot_id != played.boot_before["gpu-003"]
    assert is_given_back(node)


def test_a_dead_board_is_replaced_after_the_reboot_did_not_help(played: Played) -> None:
    """The same fault in the new boot goes one rung higher; Karpenter brings another machine in."""
    story = played.only("gpu-020")
    assert story.status.end is not None
    assert story.status.end.result is EndResult.REPLACED
    assert played.rungs("gpu-020")[-2:] == [Rung.REBOOT, Rung.REPLACE]
    reboot = next(a for a in story.status.attempts if a.rung is Rung.REBOOT)
    assert reboot.outcome is not None
    assert reboot.outcome.result is Result.FAILED
    assert ("gpu-020", ACCELERATED_HARDWARE_READY, "False") in played.conditions_seen
    assert "gpu-020" not in played.nodes
    newcomer = played.nodes["gpu-049"]
    assert newcomer.metadata.labels[RACK_LABEL] == "rack-c"
    assert is_given_back(newcomer)
    assert played.healths["gpu-049"].status.gpus_found == 8
    assert len(played.nodes) == DEMO.shape.nodes


def test_nobody_else_was_handed_over_for_replacement(played: Played) -> None:
    """AcceleratedHardwareReady turned False on one node only: the last rung is for the dead board."""
    handed = {
        name
        for name, type_, status in played.conditions_seen
        if type_ == ACCELERATED_HARDWARE_READY and status == "False"
    }
    assert handed == {"gpu-020"}
    assert played.report.replaced == 1


def test_a_missing_network_device_comes_back_with_a_reboot(played: Played) -> None:
    """31 of 32 EFA: the node is drained under its budget, rebooted and returned with 32."""
    story = played.only("gpu-038")
    assert story.status.fault == "efa/missing"
    assert story.status.end is not None
    assert story.status.end.result is EndResult.RETURNED
    assert Rung.REBOOT in played.rungs("gpu-038")
    assert ("gpu-038", "RDMAReady", "False") in played.conditions_seen
    assert played.healths["gpu-038"].status.rdma_found == 32
    assert is_given_back(played.nodes["gpu-038"])


def test_the_disruption_budget_of_the_service_was_kept(played: Played) -> None:
    """All pods had to leave a node, and never fewer than 22 of 24 served."""
    assert played.serving_least >= DEMO.shape.inference_available
    moved = [uid for uid, node in played.placed_before.items() if node == "gpu-038"]
    still = {p.metadata.uid for p in played.pods}
    assert len(moved) >= 3
    assert not still & set(moved)


def test_a_hung_monitor_blocks_and_never_drains(played: Played) -> None:
    """While NVML hangs no new work comes; what runs stays, and the block ends by itself with the proof."""
    story = played.only("gpu-040")
    assert story.status.fault == "monitor/hung"
    assert story.status.end is not None
    assert story.status.end.result is EndResult.NOT_NEEDED
    assert set(played.rungs("gpu-040")) == {Rung.BLOCK_NEW_WORK}
    assert ("gpu-040", "GPUMonitorReady", "False") in played.conditions_seen
    assert pods_stayed(played, "gpu-040")
    assert is_given_back(played.nodes["gpu-040"])


def test_a_rack_wide_storm_is_held_and_then_let_go_in_small_steps(played: Played) -> None:
    """Repairs wait while the storm lasts; afterwards all eight machines are repaired within the budgets."""
    rack = [f"gpu-{i:03d}" for i in range(9, 17)]
    held = 0
    for name in rack:
        story = played.only(name)
        assert story.status.end is not None
        assert story.status.end.result is EndResult.RETURNED
        assert Rung.REBOOT in played.rungs(name)
        assert played.nodes[name].status.node_info.boot_id != played.boot_before[name]
        assert is_given_back(played.nodes[name])
        held += any("storm" in d.message for d in story.status.decisions)
    assert held >= 4


def test_the_limit_on_nodes_out_of_service_was_reached_and_never_passed(played: Played) -> None:
    """The rack fills the budget to the last place, which is what a budget is for."""
    assert played.out_most == 8


def test_everything_is_back_at_the_end(played: Played) -> None:
    """No cordon, no open incident, no repair Job, every job and service complete, every node healthy."""
    assert all(is_given_back(node) for node in played.nodes.values())
    assert all(i.status.phase is Phase.CLOSED for found in played.incidents.values() for i in found)
    assert {h.status.state for n, h in played.healths.items() if n in played.nodes} == {"Healthy"}
    running = [p for p in played.pods if p.metadata.namespace == TRAINING and p.status.phase == "Running"]
    assert len(running) == sum(size for _, size in DEMO.shape.gangs)


def test_the_story_is_told_in_events_on_the_nodes(played: Played) -> None:
    """`kubectl describe node` alone tells what happened."""
    reasons = {e.reason for e in played.events if e.involved_object.name == "gpu-003"}
    assert {"NewWorkBlocked", "CheckpointRequested", "DrainStarted", "RebootStarted"} <= reasons


def test_the_summary_says_how_every_story_ended(played: Played) -> None:
    """In a pipe: plain text within 100 columns, every story and every incident, the counts at the end."""
    paper = io.StringIO()
    print_summary(Console(file=paper, width=100), played.report, stays=False)
    text = paper.getvalue()
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 100
    assert text.count("ok    ") == len(DEMO.stories)
    assert all(name in text for name in played.incidents)
    assert "0 invariants violated" in text
    assert "0 false drains" in text


def test_a_quiet_fleet_costs_few_writes(played: Played) -> None:
    """NodeHealth and conditions are written when something changed, not once a poll."""
    polls = played.report.simulated_minutes * 2 * played.report.nodes
    written = played.report.agent_writes["nodehealths/status"]
    assert written < polls / 5


def pods_stayed(played: Played, name: str) -> bool:
    """Whether every user's pod that was on the node is still there."""
    before = {uid for uid, node in played.placed_before.items() if node == name}
    now = {p.metadata.uid for p in played.pods if p.spec.node_name == name}
    return bool(before) and before <= now


def is_given_back(node: Node) -> bool:
    """Whether nothing of ours is left on it."""
    notes = node.metadata.annotations
    return not (node.spec.unschedulable or CORDON_ANNOTATION in notes or DO_NOT_DISRUPT_ANNOTATION in notes)
