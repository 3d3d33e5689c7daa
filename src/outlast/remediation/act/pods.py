"""Writes to Pods: the request for a checkpoint, and evictions.

A pod is always named by uid. What a PodDisruptionBudget refused is asked again once in a while for the
budget, not for every pod: a retry storm against one budget helps nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from outlast.model.cluster import PODS
from outlast.model.decision import AskCheckpoint, Evict, PodRef
from outlast.model.names import CHECKPOINT_REQUEST_ANNOTATION
from outlast.ports.cluster import (
    Cluster,
    Conflict,
    EventNote,
    EventRecorder,
    EvictionAnswer,
    Invalid,
    NotFound,
    Patch,
    PatchType,
)

BUDGET_RETRY_S = 5.0
"""Least time between two tries against one blocked budget."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An eviction that was refused: by what, and when that was last tried."""

    why: str
    at_s: float


async def ask_checkpoint(
    cluster: Cluster, recorder: EventRecorder, act: AskCheckpoint, guard: Callable[[], None]
) -> int:
    """Annotate each pod and tell it in an Event; how many were asked. Raises ClusterError."""
    asked = 0
    for pod in act.pods:
        guard()
        body = {"metadata": {"uid": pod.uid, "annotations": {CHECKPOINT_REQUEST_ANNOTATION: act.request_id}}}
        try:
            await cluster.patch(PODS, pod.name, Patch(PatchType.MERGE, body), pod.namespace)
        except (NotFound, Conflict, Invalid):
            continue
        asked += 1
        recorder.record(
            EventNote(
                PODS,
                pod.name,
                "CheckpointRequested",
                "the machine under this pod is going away: write a checkpoint, then set annotation "
                f"outlast.dev/checkpoint-done={act.request_id}",
                namespace=pod.namespace,
                uid=pod.uid,
                warning=True,
            )
        )
    return asked


async def evict(
    cluster: Cluster,
    act: Evict,
    before: Mapping[str, Refusal],
    monotonic: Callable[[], float],
    guard: Callable[[], None],
) -> dict[str, Refusal]:
    """Ask for each pod to go; the refusals that stand afterwards, by pod uid. Raises ClusterError."""
    refused: dict[str, Refusal] = {}
    last_try: dict[str, float] = {}
    for pod in act.pods:
        if pod.uid in before:
            earlier = before[pod.uid]
            last_try[earlier.why] = max(earlier.at_s, last_try.get(earlier.why, earlier.at_s))
    for pod in act.pods:
        known = before.get(pod.uid)
        if known is not None and monotonic() - last_try[known.why] < BUDGET_RETRY_S:
            refused[pod.uid] = Refusal(known.why, last_try[known.why])
            continue
        guard()
        why = await _evict_one(cluster, pod)
        if why:
            refused[pod.uid] = Refusal(why, monotonic())
            last_try[why] = monotonic()
        elif known is not None:
            last_try[known.why] = monotonic() - BUDGET_RETRY_S
    return refused


async def _evict_one(cluster: Cluster, pod: PodRef) -> str:
    """Why the pod may not go now; empty when it goes or is gone."""
    eviction = await cluster.evict(pod.name, pod.namespace, uid=pod.uid)
    if eviction.answer is EvictionAnswer.BLOCKED_BY_BUDGET:
        return eviction.message or "a PodDisruptionBudget allows no disruption now"
    if eviction.answer is EvictionAnswer.MISCONFIGURED:
        return (
            "more than one PodDisruptionBudget covers the pod; evictions are impossible until one is removed"
        )
    return ""
