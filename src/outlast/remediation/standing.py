"""The word for a node of which nothing is on record: what its kubelet and its agent say of it.

Terminal and browser both ask here, so that they never disagree about one node.
"""

from __future__ import annotations

from outlast.model.cluster import Node
from outlast.model.health import NodeHealth, Subsystem, Verdict
from outlast.remediation.page import State


def not_ready(node: Node) -> str:
    """What the kubelet says when it does not vouch for the node; empty while it does, or says nothing."""
    ready = node.condition("Ready")
    return "" if ready is None or ready.status == "True" else f"Ready is {ready.status}: {ready.reason}"


def by_health(health: NodeHealth | None) -> tuple[State, str]:
    """The agent's word, and the sentence behind it. Silence is not health."""
    if health is None or health.status.checked_at is None:
        return State.UNKNOWN, "no completed check yet"
    if health.status.faults:
        return State.WATCHED, health.status.faults[0].summary
    for found in health.status.verdicts:
        if found.verdict is Verdict.FAULTY:
            return State.WATCHED, found.message or found.reason
    for subsystem in (Subsystem.MONITOR, Subsystem.GPU):
        verdict = health.status.verdict(subsystem)
        if verdict is not None and verdict.verdict is Verdict.UNKNOWN:
            return State.UNKNOWN, verdict.message or verdict.reason
    return (State.HEALTHY, "") if health.status.verdicts else (State.UNKNOWN, "no verdict yet")
