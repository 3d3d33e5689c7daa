"""Health reports of DCGM as a polled source, and how many host engines this machine runs.

Asks seldom, because each question wakes an engine that others share, and remembers what it needs to
tell a lasting incident from one that came and went.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from outlast.adapters.dcgm.tool import DcgmTool
from outlast.model.observation.dcgm import DcgmIncident, DcgmProblem, DcgmSurvey
from outlast.ports.clock import Clock
from outlast.ports.node import Wanted

POLL_INTERVAL_S: Final = 60.0
SPACING_S: Final = 50.0
"""Asked sooner than this, the last answer is given again."""
PROCESSES_MAX: Final = 65536
ENGINE_NAME: Final = "nv-hostengine"

_COMM_BYTES: Final = 64


class DcgmSurveyor:
    """Implements `outlast.ports.node.Surveyor`. One survey takes at most 15 s."""

    def __init__(self, tool: DcgmTool, *, clock: Clock, proc: Path | None = Path("/proc")) -> None:
        """Without `proc` host engines are not counted, because the one that is asked runs elsewhere."""
        self._tool = tool
        self._clock = clock
        self._proc = proc
        self._asked_s: float | None = None
        self._last = DcgmSurvey()
        self._version = ""

    async def survey(self, wanted: Wanted) -> DcgmSurvey:
        """The present report, or why there is none."""
        now_s = self._clock.monotonic()
        if self._asked_s is not None and now_s - self._asked_s < SPACING_S:
            return self._last
        self._asked_s = now_s
        survey = await self._tool.health()
        engines = None if self._proc is None else engine_processes(self._proc)
        if survey.problem is not None:
            survey = await self._explained(survey, engines)
        elif not self._version:
            self._version = (await self._tool.version()).engine
        self._last = msgspec.structs.replace(
            survey,
            incidents=tuple(self._counted(incident) for incident in survey.incidents),
            version=self._version,
            engines=engines,
        )
        return self._last

    async def aclose(self) -> None:
        """Nothing is held between surveys."""

    async def _explained(self, survey: DcgmSurvey, engines: int | None) -> DcgmSurvey:
        """Why there is no report: an engine of another version fails in many words."""
        self._version = ""
        if survey.problem is DcgmProblem.ENGINE_DOWN and engines is not None:
            there = "runs on this machine but does not answer" if engines else "runs on this machine"
            subject = "a host engine" if engines else "no host engine"
            message = f"{subject} {there} ({survey.message})"
            return msgspec.structs.replace(survey, message=message)
        if survey.problem in (DcgmProblem.FAILED, DcgmProblem.GARBAGE):
            version = await self._tool.version()
            if version.problem is DcgmProblem.VERSION_MISMATCH:
                return msgspec.structs.replace(survey, problem=version.problem, message=version.message)
        return survey

    def _counted(self, incident: DcgmIncident) -> DcgmIncident:
        before = (old.polls for old in self._last.incidents if _same(old, incident))
        return msgspec.structs.replace(incident, polls=max(before, default=0) + 1)


def engine_processes(proc: Path = Path("/proc")) -> int | None:
    """Host engines among the processes that are seen here; None when /proc cannot be read.

    Reads only `comm`: other files of a process whose thread is stuck in the driver may hang the reader.
    """
    try:
        pids = [name for name in os.listdir(proc) if name.isdigit()][:PROCESSES_MAX]  # noqa: PTH208 - fast
    except OSError:
        return None
    return sum(1 for pid in pids if _comm(proc / pid / "comm") == ENGINE_NAME)


def _comm(path: Path) -> str:
    try:
        with path.open("rb", buffering=0) as file:
            return (file.read(_COMM_BYTES) or b"").decode("ascii", "replace").strip()
    except OSError:
        return ""  # It ended while we looked.


def _same(old: DcgmIncident, new: DcgmIncident) -> bool:
    """The same trouble, though counts in its words may have moved."""
    about = (old.entity_group, old.entity_id, old.system, old.health, old.code, old.xid)
    return about == (new.entity_group, new.entity_id, new.system, new.health, new.code, new.xid)
