"""Levels: run the checks on a new survey, count agreeing polls, let what stands join a fault."""

from __future__ import annotations

from datetime import datetime
from functools import cache

import msgspec

from outlast.health.catalogue import Catalogue
from outlast.health.checks import LEVEL_CHECKS
from outlast.health.checks.declaration import LevelCheck, View
from outlast.health.counters import absorb
from outlast.health.finding import Assessment, Level
from outlast.health.verdict import broken, repeats, wedge
from outlast.health.verdict.faults import join_level
from outlast.health.verdict.inventory import (
    expected,
    initializing,
    learn_from_bus,
    learn_identities,
    vouches,
)
from outlast.health.verdict.ports import learn_ports
from outlast.health.verdict.state import (
    CADENCE_MAX_S,
    CADENCE_MIN_S,
    SOURCES_MAX,
    STALE_INTERVALS,
    JudgeState,
    LevelState,
    Moment,
)
from outlast.model.observation import GpuSurvey, PciSurvey, ProcessSurvey, RdmaSurvey, Survey

POLLS_COUNTED_MAX = 10_000
LEVELS_PER_CHECK_MAX = 128
"""64 GPUs, or all ports of a machine, twice."""
LEVELS_MAX = 512
CADENCE_FADES = 0.9
"""A pause that was long once counts less with each shorter one."""
STUCK_MIN_S = 60.0


def take(state: JudgeState, survey: Survey, catalogue: Catalogue, now: Moment) -> JudgeState:
    """Remember a new look by a source, and what it teaches about the machine."""
    state = _seen(state, survey, now)
    match survey:
        case PciSurvey():
            state = msgspec.structs.replace(state, pci=survey, uptime_s=now.monotonic)
            return learn_from_bus(state, survey, catalogue) if survey.readable else state
        case GpuSurvey():
            state = msgspec.structs.replace(state, gpu=survey, asked=True)
            if not vouches(survey):
                return state
            state = msgspec.structs.replace(state, surveyed=now.monotonic, checked_at=_checked_at(state, now))
            return learn_identities(state, survey, catalogue)
    if survey.source not in state.surveys and len(state.surveys) >= SOURCES_MAX:
        return state
    state = msgspec.structs.replace(state, surveys={**state.surveys, survey.source: survey})
    if isinstance(survey, RdmaSurvey):
        return learn_ports(state, survey)
    if isinstance(survey, ProcessSurvey):
        state = repeats.learn_owners(state, ((owner.pid, owner.key) for owner in survey.owners), now)
        for task in survey.stuck:
            if task.asleep_s >= STUCK_MIN_S:
                state = wedge.stuck_task(state, task.name, task.pid, now, in_driver=True)
    return state


def run_checks(state: JudgeState, survey: Survey, catalogue: Catalogue, now: Moment) -> JudgeState:
    """Every check that reads this kind of survey, on the newest of all surveys."""
    book = absorb(state.counters, survey.counters(), now.monotonic)
    if book is not state.counters:
        state = msgspec.structs.replace(state, counters=book)
    checks = checks_of(type(survey))
    if not checks:
        return state
    late = initializing(state, now)
    fresh = View(
        expected=expected(state, catalogue),
        pci=state.pci,
        gpu=state.gpu,
        initializing=False,
        just_started=late,
        kernel_log_lost=state.kernel_log_lost,
        instance_type=state.instance_type,
        surveys=state.surveys,
        counters=state.counters,
    )
    starting = msgspec.structs.replace(fresh, initializing=True) if late else fresh
    judged: list[tuple[LevelCheck, Assessment]] = []
    for check in checks:
        try:
            assessment = check.run(fresh if _complete(state, check.name) else starting)
        except Exception as error:  # what it would have found is unknown; the others go on
            state = broken.failed(state, f"check {check.name}", error)
            continue
        state = broken.works(state, f"check {check.name}")
        if assessment is not None:
            judged.append((check, assessment))
    if not judged:
        return state
    state = msgspec.structs.replace(
        state,
        judged={
            **state.judged,
            **dict.fromkeys((look for _, a in judged for look in _looks(a)), now.monotonic),
        },
        notes={**state.notes, **{check.name: assessment.notes for check, assessment in judged}},
    )
    for check, assessment in judged:
        state = _count(state, assessment, survey.source, now)
        for entry in state.levels:
            if entry.check == assessment.check and entry.stands:
                state = join_level(state, entry.level, check.name, survey.source, now)
    return state


@cache
def checks_of(kind: type[Survey]) -> tuple[LevelCheck, ...]:
    """The checks that look when such a survey arrives."""
    return tuple(check for check in LEVEL_CHECKS if kind in check.sources)


def _seen(state: JudgeState, survey: Survey, now: Moment) -> JudgeState:
    """When a source last answered, and how long its pauses are."""
    source = survey.source
    last = state.surveyed_at.get(source)
    if last is None and len(state.surveyed_at) >= SOURCES_MAX:
        return state
    cadence = state.cadence
    if last is not None:
        pause = max(now.monotonic - last, cadence.get(source, 0.0) * CADENCE_FADES)
        cadence = {**cadence, source: min(max(pause, CADENCE_MIN_S), CADENCE_MAX_S)}
    return msgspec.structs.replace(
        state, surveyed_at={**state.surveyed_at, source: now.monotonic}, cadence=cadence
    )


def _checked_at(state: JudgeState, now: Moment) -> datetime | None:
    return now.wall if state.pci is not None and state.pci.readable else state.checked_at


def _looks(assessment: Assessment) -> list[str]:
    """The check as a whole, or it on each of the keys that it could judge."""
    if assessment.covers is None:
        return [assessment.check]
    return [f"{assessment.check} {key}" for key in assessment.covers]


def _complete(state: JudgeState, check: str) -> bool:
    """All that such a check looks at has been seen in this boot, so what is missing is not just late."""
    if check.startswith("gpu"):
        return state.gpus_complete
    return state.ports_complete if check.startswith("rdma") else state.efa_complete


def _count(state: JudgeState, assessment: Assessment, source: str, now: Moment) -> JudgeState:
    if not assessment.bad and all(entry.check != assessment.check for entry in state.levels):
        return state
    # What was seen before the source could judge nothing for long is no poll in a row with this one.
    heard_s = STALE_INTERVALS * state.cadence.get(source, CADENCE_MIN_S)
    before = {
        (entry.level.code, entry.level.key): entry
        for entry in state.levels
        if entry.check == assessment.check and now.monotonic - entry.seen <= heard_s
    }
    kept = [
        entry
        for entry in state.levels
        if entry.check != assessment.check
        or (assessment.covers is not None and entry.level.key not in assessment.covers)
    ]
    fresh = [
        _counted(before.get((level.code, level.key)), assessment.check, level, state, now)
        for level in assessment.bad[:LEVELS_PER_CHECK_MAX]
    ]
    return msgspec.structs.replace(state, levels=(*kept, *fresh)[-LEVELS_MAX:])


def _counted(
    before: LevelState | None, check: str, level: Level, state: JudgeState, now: Moment
) -> LevelState:
    if state.settings.pace < 1:
        level = msgspec.structs.replace(level, spacing_s=level.spacing_s * state.settings.pace)
    if before is None:
        return LevelState(check, level, 1, now.monotonic, now.monotonic)
    return LevelState(check, level, min(before.polls + 1, POLLS_COUNTED_MAX), before.since, now.monotonic)
