"""`dcgmi` as a program that may hang, lie about its exit or drown us in text.

It asks the engine that is there and never starts one: a second engine on a machine competes for the
same counters and can wedge the driver. What it cannot do is in the answer, as a problem.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from outlast.adapters.linux.command import CommandResult, run_command
from outlast.health.sources.dcgm_health import health_report
from outlast.health.sources.dcgm_output import major, plain, versions
from outlast.model.observation.dcgm import DcgmProblem, DcgmSurvey
from outlast.ports.clock import Clock

if TYPE_CHECKING:
    from outlast.health.sources.dcgm_diag import DiagResult

HEALTH_DEADLINE_S: Final = 10.0
VERSION_DEADLINE_S: Final = 5.0
VERSION_TRIES: Final = 3
"""`dcgmi -v` gives the engine only 0.1 s to answer, which a busy one may miss."""
DIAG_DEADLINE_S: Final[Mapping[int, float]] = {1: 120.0, 2: 600.0, 3: 3600.0, 4: 10_800.0}
"""Several times of what NVIDIA gives for each level: seconds, 2 min, 30 min, 1-2 h."""
RETRY_DEADLINE_S: Final = 600.0
RETRIES_MAX: Final = 3
"""Tests of one run that are run again alone; more than that is no accident of order."""
COOL_DOWN_S: Final = 60.0
"""Pause before a test is run again alone, so that the heat and traffic of the last one are gone."""
STOP_GRACE_S: Final = 30.0
"""`dcgmi` needs up to 25 s to stop a diagnostic in the engine; killed at once it would leave it running."""

HEALTH_BYTES_MAX: Final = 256 * 1024
DIAG_BYTES_MAX: Final = 4 * 1024 * 1024
VERSION_BYTES_MAX: Final = 64 * 1024


class DcgmVersion(msgspec.Struct, frozen=True, kw_only=True):
    """Who would be asked."""

    tool: str = ""
    engine: str = ""
    """Empty: no engine answers."""
    problem: DcgmProblem | None = None
    message: str = ""


class DcgmTool:
    """One `dcgmi`, asking one host engine (`host`: name or address, with `:port`; empty is this machine)."""

    def __init__(self, command: Sequence[str], *, clock: Clock, host: str = "") -> None:
        self._command = tuple(command)
        self._host = ("--host", host) if host else ()
        self._clock = clock
        # What a job may see of the GPUs is not what is to be tested.
        inherited = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        self._environment = {**inherited, "LC_ALL": "C"}

    async def version(self) -> DcgmVersion:
        """Versions of the tool and of the engine; takes at most 5 s for each of its tries."""
        tool = engine = ""
        for _ in range(VERSION_TRIES):
            run = await self._run(("-v", *self._host), VERSION_DEADLINE_S, VERSION_BYTES_MAX)
            if isinstance(run, _Silence):
                return DcgmVersion(problem=run.problem, message=run.message)
            tool, engine = versions(run.output)
            if engine:
                break
        if not engine:
            message = "no DCGM host engine answers"
            return DcgmVersion(tool=tool, problem=DcgmProblem.ENGINE_DOWN, message=message)
        if tool and major(tool) != major(engine):
            message = f"dcgmi is version {tool} and the host engine is {engine}"
            return DcgmVersion(
                tool=tool, engine=engine, problem=DcgmProblem.VERSION_MISMATCH, message=message
            )
        return DcgmVersion(tool=tool, engine=engine)

    async def health(self) -> DcgmSurvey:
        """What the health watches hold; takes at most 10 s. Turns nothing on."""
        arguments = ("health", *self._host, "-c", "-j")
        run = await self._run(arguments, HEALTH_DEADLINE_S, HEALTH_BYTES_MAX)
        if isinstance(run, _Silence):
            return DcgmSurvey(problem=run.problem, message=run.message, duration_s=run.duration_s)
        survey = health_report(run.output or run.errors, run.exit_code)
        return msgspec.structs.replace(survey, duration_s=run.duration_s)

    async def diagnose(
        self,
        level: int,
        gpu_ids: Sequence[int] | None = None,
        deadline_s: float | None = None,
        *,
        retry: bool = True,
        embedded: bool = False,
    ) -> DiagResult:
        """Run the tests of a level (1 to 4) on these GPUs, or on all.

        A test whose result depends on what ran before it is run again alone before it counts, unless
        `retry` is off. Without an answering engine nothing is run, unless `embedded` allows `dcgmi` to
        start one inside itself; that is for machines that surely have no other.
        Cancelling asks `dcgmi` to stop the diagnostic. Raises ValueError for a level that does not exist.
        """
        from outlast.health.sources.dcgm_diag import DiagResult  # half a megabyte, for diagnostics only
        from outlast.health.sources.dcgm_retry import merged, to_retry

        if level not in DIAG_DEADLINE_S:
            raise ValueError(f"DCGM has the diagnostic levels 1 to 4, not {level}")
        if not embedded:
            version = await self.version()
            if version.problem is not None:
                return DiagResult(problem=version.problem, message=version.message, version=version.engine)
        result = await self._diag(str(level), gpu_ids, deadline_s or DIAG_DEADLINE_S[level])
        names = to_retry(result)[:RETRIES_MAX] if retry and result.problem is None else ()
        for name in names:
            await self._clock.sleep(COOL_DOWN_S)
            again = await self._diag(name, gpu_ids, RETRY_DEADLINE_S)
            result = merged(result, name, again)
        return result

    async def _diag(self, what: str, gpu_ids: Sequence[int] | None, deadline_s: float) -> DiagResult:
        from outlast.health.sources.dcgm_diag import DiagResult, diag_report

        which = ("-i", ",".join(str(gpu) for gpu in gpu_ids)) if gpu_ids is not None else ()
        arguments = ("diag", *self._host, "-r", what, *which, "-j")
        run = await self._run(arguments, deadline_s, DIAG_BYTES_MAX, STOP_GRACE_S)
        if isinstance(run, _Silence):
            return DiagResult(problem=run.problem, message=run.message, duration_s=run.duration_s)
        result = diag_report(run.output or run.errors, run.exit_code)
        return msgspec.structs.replace(result, duration_s=run.duration_s)

    async def _run(
        self, arguments: Sequence[str], deadline_s: float, bytes_max: int, stop_grace_s: float = 0.0
    ) -> CommandResult | _Silence:
        what = f"dcgmi {arguments[0]}"
        try:
            run = await run_command(
                (*self._command, *arguments),
                deadline_s=deadline_s,
                output_bytes_max=bytes_max,
                environment=self._environment,
                stop_grace_s=stop_grace_s,
            )
        except FileNotFoundError:
            return _Silence(DcgmProblem.NOT_INSTALLED, f"{self._command[-1]} is not there")
        except OSError as error:
            return _Silence(
                DcgmProblem.NOT_INSTALLED, f"{self._command[-1]} cannot be started: {error.strerror}"
            )
        if run.hung:
            told = plain(run.errors) if run.duration_s == 0 else ""
            message = told or f"{what} did not answer within {deadline_s:g} s"
            return _Silence(DcgmProblem.HUNG, message, run.duration_s)
        if run.truncated:
            message = f"{what} printed more than {bytes_max} bytes"
            return _Silence(DcgmProblem.GARBAGE, message, run.duration_s)
        if run.exit_code is not None and run.exit_code < 0:
            message = f"{what} was ended by signal {-run.exit_code}"
            return _Silence(DcgmProblem.KILLED, message, run.duration_s)
        return run


class _Silence(msgspec.Struct, frozen=True):
    """A run that said nothing that could be read."""

    problem: DcgmProblem
    message: str
    duration_s: float = 0.0
