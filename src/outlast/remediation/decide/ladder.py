"""The path of a fault: mildest rung first, each higher one only when the lower did not help.

The defaults follow what cures a fault. A policy may give another path per class; what a ladder must
never do (repair before drain, drain before block) is refused when the policy is read.
"""

from __future__ import annotations

import itertools
from typing import Final

from outlast.model.health import Fault, FaultClass
from outlast.model.incident import Attempt, Result
from outlast.model.policy import Ladder, RemediationPolicySpec, Rung

_ALL = (Rung.BLOCK_NEW_WORK, Rung.REQUEST_CHECKPOINT, Rung.DRAIN)

DEFAULT_LADDERS: Final[dict[FaultClass, tuple[Rung, ...]]] = {
    FaultClass.APPLICATION: (Rung.WATCH,),
    FaultClass.TRANSIENT: (Rung.BLOCK_NEW_WORK,),
    FaultClass.MONITOR_HUNG: (*_ALL, Rung.REBOOT, Rung.HOLD),
    FaultClass.RESET_CURES: (*_ALL, Rung.RESET_GPU, Rung.REBOOT, Rung.REPLACE, Rung.HOLD),
    FaultClass.REBOOT_CURES: (*_ALL, Rung.REBOOT, Rung.REPLACE, Rung.HOLD),
    FaultClass.HARDWARE_GONE: (*_ALL, Rung.REPLACE, Rung.HOLD),
}
"""Source: docs/mechanisms/remediation.md. MonitorHung needs a second witness beyond its first rung."""

DISRUPTIVE: Final = frozenset(
    {Rung.REQUEST_CHECKPOINT, Rung.DRAIN, Rung.RESET_GPU, Rung.REBOOT, Rung.REPLACE}
)
REPAIRS: Final = frozenset({Rung.RESET_GPU, Rung.REBOOT, Rung.REPLACE})
UNTRIED: Final = frozenset({Result.CANCELLED, Result.NEVER_RAN})
"""Outcomes of an attempt that did nothing to the machine."""
WITHOUT_EXECUTOR: Final = {
    Rung.RESET_GPU: "a GPU reset is not available yet: the node is rebooted instead",
    Rung.END_JOB: "ending one job is not available yet: the step is left out",
}


def ladder_for(fault_class: FaultClass, policy: RemediationPolicySpec) -> tuple[Rung, ...]:
    """The path of a class under a policy, as written."""
    for ladder in policy.ladders:
        if ladder.fault_class is fault_class:
            return ladder.rungs
    return DEFAULT_LADDERS[fault_class]


def executable(rungs: tuple[Rung, ...]) -> tuple[Rung, ...]:
    """The path that can be walked today: a reset becomes a reboot, other rungs without executor go."""
    walked: list[Rung] = []
    for rung in rungs:
        actual = Rung.REBOOT if rung is Rung.RESET_GPU else rung
        if actual not in WITHOUT_EXECUTOR and actual is not Rung.WATCH and actual not in walked:
            walked.append(actual)
    return tuple(walked)


def remarks(rungs: tuple[Rung, ...]) -> tuple[str, ...]:
    """What a reader has to know about rungs that are replaced or left out."""
    return tuple(WITHOUT_EXECUTOR[rung] for rung in rungs if rung in WITHOUT_EXECUTOR)


def held_by_witness(fault: Fault, rung: Rung) -> bool:
    """Whether a rung is closed because only the monitor says so: Unknown never drains."""
    return (
        fault.fault_class is FaultClass.MONITOR_HUNG
        and not fault.second_witness
        and rung.height > Rung.BLOCK_NEW_WORK.height
    )


def next_rung(rungs: tuple[Rung, ...], attempts: tuple[Attempt, ...], reboot_tries: int) -> Rung | None:
    """The first rung that is higher than all that were tried, or one more reboot where tries are left."""
    tried = [a for a in attempts if a.outcome is not None and a.outcome.result not in UNTRIED]
    height = max((a.rung.height for a in tried), default=-1)
    reboots = sum(a.rung is Rung.REBOOT for a in tried)
    for rung in rungs:
        if rung is Rung.REBOOT and height == rung.height and reboots < reboot_tries:
            return rung
        if rung is Rung.REBOOT and reboot_tries == 0:
            continue
        if rung.height > height:
            return rung
    return None


def policy_problems(spec: RemediationPolicySpec) -> tuple[str, ...]:
    """What is wrong with a policy beyond its schema, each beginning with the field's path."""
    problems: list[str] = []
    seen: set[FaultClass] = set()
    for index, ladder in enumerate(spec.ladders):
        path = f"spec.ladders[{index}]"
        if ladder.fault_class in seen:
            problems.append(f"{path}.class: {ladder.fault_class} has a ladder already; one per class")
        seen.add(ladder.fault_class)
        problems.extend(_ladder_problems(path, ladder))
    limit = spec.budgets.max_unavailable
    if limit == 0 and spec.mode == "Enforce":
        problems.append(
            "spec.budgets.maxUnavailable: 0 never lets a node be blocked; use mode Observe instead of Enforce"
        )
    return tuple(problems)


def _ladder_problems(path: str, ladder: Ladder) -> list[str]:
    rungs = ladder.rungs
    problems: list[str] = []
    for index, (lower, higher) in enumerate(itertools.pairwise(rungs)):
        if higher.height <= lower.height:
            problems.append(
                f"{path}.rungs[{index + 1}]: {higher} does not climb above {lower};"
                " rungs go from mild to severe"
            )
    repairs = [rung for rung in rungs if rung in REPAIRS]
    if repairs and Rung.DRAIN not in rungs:
        problems.append(f"{path}.rungs: {repairs[0]} needs Drain before it, or it kills running jobs")
    if Rung.DRAIN in rungs and Rung.BLOCK_NEW_WORK not in rungs:
        problems.append(f"{path}.rungs: Drain needs BlockNewWork before it, or new pods keep coming")
    if ladder.fault_class is FaultClass.APPLICATION and set(rungs) - {Rung.WATCH, Rung.END_JOB}:
        problems.append(f"{path}.rungs: an application's fault does nothing to a node; use Watch or EndJob")
    return problems
