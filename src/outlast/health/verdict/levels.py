"""Levels: run the checks on a new survey, count agreeing polls, let what stands join a fault.

Also learns what this machine has: identities of GPUs, and the most that was ever seen of them.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from outlast.health.catalogue import Catalogue
from outlast.health.checks import LEVEL_CHECKS
from outlast.health.checks.declaration import Expected, View
from outlast.health.checks.efa_presence import working
from outlast.health.checks.gpu_presence import VM_DRIVER, counted
from outlast.health.counters import absorb
from outlast.health.finding import Assessment
from outlast.health.learned import learned
from outlast.health.verdict.faults import join_level
from outlast.health.verdict.ports import learn_ports
from outlast.health.verdict.state import JudgeState, LevelState, Moment
from outlast.model.health import GPUS_MAX
from outlast.model.observation import GpuSurvey, PciSurvey, RdmaSurvey, Survey

EFA_MAX = 64


def absorb_pci(state: JudgeState, survey: PciSurvey, catalogue: Catalogue, now: Moment) -> JudgeState:
    """A new look at the bus."""
    state = msgspec.structs.replace(state, pci=survey)
    if survey.readable:
        state = _learn_from_bus(state, survey, catalogue)
    return _run(state, survey, catalogue, now)


def absorb_gpu(state: JudgeState, survey: GpuSurvey, catalogue: Catalogue, now: Moment) -> JudgeState:
    """A new answer, or silence, of NVML."""
    state = msgspec.structs.replace(state, gpu=survey, asked=True)
    if vouches(survey):
        state = msgspec.structs.replace(state, surveyed=now.monotonic, checked_at=_checked_at(state, now))
        state = _learn_identities(state, survey, catalogue)
    return _run(state, survey, catalogue, now)


def absorb_survey(state: JudgeState, survey: Survey, catalogue: Catalogue, now: Moment) -> JudgeState:
    """A new look by any other source."""
    state = msgspec.structs.replace(
        state,
        surveys={**state.surveys, survey.source: survey},
        surveyed_at={**state.surveyed_at, survey.source: now.monotonic},
    )
    if isinstance(survey, RdmaSurvey):
        state = learn_ports(state, survey)
    return _run(state, survey, catalogue, now)


def vouches(survey: GpuSurvey | None) -> bool:
    """Whether a survey says something about every GPU."""
    return survey is not None and survey.complete and survey.problem is None


def expected(state: JudgeState, catalogue: Catalogue) -> Expected:
    """What this machine should have: the operator's word, else the most of table and experience."""
    listed = catalogue.hardware.get(state.instance_type)
    gpus, efa = state.settings.expected_gpus, state.settings.expected_efa
    if gpus is None:
        gpus = max(listed.gpus if listed else 0, state.learned_gpus)
    if efa is None:
        efa = max(listed.efa if listed else 0, state.learned_efa)
        if state.learned_efa == 0:
            # The table gives the most a machine type can have; none at all is a choice of its owner.
            efa = 0
    return Expected(
        gpus=gpus,
        efa=efa,
        known_gpus=state.known_gpus,
        known_efa=state.known_efa,
        known_ports=state.known_ports,
    )


def initializing(state: JudgeState, now: Moment) -> bool:
    """Whether something that is missing may just be late."""
    return now.monotonic < state.quiet_from


def _checked_at(state: JudgeState, now: Moment) -> datetime | None:
    return now.wall if state.pci is not None and state.pci.readable else state.checked_at


def _run(state: JudgeState, survey: Survey, catalogue: Catalogue, now: Moment) -> JudgeState:
    book = absorb(state.counters, survey.counters(), now.monotonic)
    state = msgspec.structs.replace(state, counters=book)
    late = initializing(state, now)
    for check in LEVEL_CHECKS:
        if type(survey) not in check.sources:
            continue
        complete = _complete(state, check.name)
        view = View(
            expected=expected(state, catalogue),
            pci=state.pci,
            gpu=state.gpu,
            initializing=late and not complete,
            just_started=late,
            kernel_log_lost=state.kernel_log_lost,
            instance_type=state.instance_type,
            surveys=state.surveys,
            counters=state.counters,
        )
        assessment = check.run(view)
        if assessment is not None:
            judged = {**state.judged, check.name: now.monotonic}
            notes = {**state.notes, check.name: assessment.notes}
            state = msgspec.structs.replace(_count(state, assessment), judged=judged, notes=notes)
            for entry in state.levels:
                if entry.check == assessment.check and entry.stands:
                    state = join_level(state, entry.level, check.name, survey.source, now)
    return state


def _complete(state: JudgeState, check: str) -> bool:
    """All that such a check looks at has been seen in this boot, so what is missing is not just late."""
    if check.startswith("gpu"):
        return state.gpus_complete
    return state.ports_complete if check.startswith("rdma") else state.efa_complete


def _count(state: JudgeState, assessment: Assessment) -> JudgeState:
    before = {(e.level.code, e.level.key): e.polls for e in state.levels if e.check == assessment.check}
    kept = [
        entry
        for entry in state.levels
        if entry.check != assessment.check
        or (assessment.covers is not None and entry.level.key not in assessment.covers)
    ]
    fresh = [
        LevelState(assessment.check, level, min(before.get((level.code, level.key), 0) + 1, 10_000))
        for level in assessment.bad
    ]
    return msgspec.structs.replace(state, levels=(*kept, *fresh))


def _learn_from_bus(state: JudgeState, survey: PciSurvey, catalogue: Catalogue) -> JudgeState:
    gpus = len(counted(survey))
    efa = tuple(device.address for device in working(survey))
    state = msgspec.structs.replace(
        state,
        learned_gpus=max(state.learned_gpus, min(gpus, GPUS_MAX)),
        learned_efa=max(state.learned_efa, min(len(efa), EFA_MAX)),
    )
    wanted = expected(state, catalogue)
    if len(efa) >= wanted.efa:
        state = msgspec.structs.replace(state, efa_complete=True, known_efa=efa[:EFA_MAX])
    return state


def _learn_identities(state: JudgeState, survey: GpuSurvey, catalogue: Catalogue) -> JudgeState:
    known = {gpu.pci_address: gpu for gpu in state.known_gpus}
    read = tuple(
        learned(gpu, known.get(gpu.pci_address))
        for gpu in survey.gpus
        if not gpu.error and (gpu.uuid or gpu.serial)
    )[:GPUS_MAX]
    wanted = expected(state, catalogue).gpus - _given_away(state.pci)
    if read and len(read) >= wanted:
        # Everything is there: what is remembered of other addresses has left the machine.
        return msgspec.structs.replace(state, known_gpus=read, gpus_complete=True)
    seen = {gpu.pci_address for gpu in read}
    others = tuple(gpu for gpu in state.known_gpus if gpu.pci_address not in seen)
    merged = tuple(sorted((*read, *others), key=lambda gpu: gpu.pci_address))
    return msgspec.structs.replace(state, known_gpus=merged[:GPUS_MAX])


def _given_away(pci: PciSurvey | None) -> int:
    return 0 if pci is None else sum(1 for gpu in pci.gpus if gpu.driver == VM_DRIVER)
