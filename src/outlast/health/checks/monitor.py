"""Can anybody vouch for the GPUs? A hung tool fails closed at once; a missing one is only unknown.

A hang never makes a GPU bad by itself: it says that nobody knows.
"""

from __future__ import annotations

from typing import Final

from outlast.health.checks.declaration import LevelCheck, View
from outlast.health.checks.gpu_presence import counted
from outlast.health.finding import POLL_SPACING_S, RANK_LAST, SPACING_SLACK, Assessment, Level, Proof
from outlast.health.reasons import Reason
from outlast.model.health import FaultClass, Scope, Subsystem
from outlast.model.observation import GpuSurvey, SurveyProblem

NAME: Final = "monitor"
KEY: Final = "diagnostics"
CRASH_POLLS: Final = 3
BLIND_POLLS: Final = 2
DRIVER_MISSING_POLLS: Final = 120
"""At the default poll of 15 s: the 30 minutes that an upgrade of the driver may take."""
CLEAN_SURVEYS: Final = 3
"""Completed surveys in a row before a hung tool is trusted again; not three within a moment."""
CLEAN_SPAN_S: Final = (CLEAN_SURVEYS - 1) * POLL_SPACING_S * SPACING_SLACK

_HUNG: Final = frozenset({SurveyProblem.HUNG, SurveyProblem.TOO_MANY_LEAKED_WORKERS})
_CRASHED: Final = frozenset({SurveyProblem.CRASHED, SurveyProblem.GARBAGE})


def run(view: View) -> Assessment | None:
    """At most one finding: the strongest that holds."""
    survey = view.gpu
    if survey is None or survey.problem is SurveyProblem.RELEASED:
        return None
    if survey.problem in _HUNG:
        where = f" at GPU {survey.problem_gpu}" if survey.problem_gpu else ""
        text = survey.message or f"no answer{where} in {survey.duration_s:.0f} s"
        if survey.problem is SurveyProblem.TOO_MANY_LEAKED_WORKERS:
            summary = (
                "NVML workers of earlier tries are still stuck in the kernel, so NVML is not asked again."
            )
        else:
            summary = f"NVML missed its deadline{where}. Nobody can vouch for the GPUs."
        level = _level("monitor/hung", Reason.DIAGNOSTICS_HUNG, text, summary, 1, survey.problem_gpu)
    elif survey.problem in _CRASHED:
        text = survey.message or f"NVML worker: {survey.problem}"
        summary = f"The NVML worker failed {CRASH_POLLS} times in a row. Nobody can vouch for the GPUs."
        level = _level("monitor/crashed", Reason.DIAGNOSTICS_CRASHED, text, summary, CRASH_POLLS, "")
    elif survey.problem is not None and view.kernel_log_lost and _has_gpus(view):
        text = f"NVML: {survey.problem}; kernel log: {view.kernel_log_lost}"
        summary = "Neither NVML nor the kernel log can be read. Nobody can vouch for the GPUs."
        level = _level("monitor/no-source", Reason.NO_SOURCE, text, summary, BLIND_POLLS, "")
    elif survey.problem is SurveyProblem.DRIVER_NOT_LOADED and _has_gpus(view):
        text = survey.message or "driver not loaded"
        summary = "The NVIDIA driver has not been loaded for a long time."
        level = _level(
            "monitor/driver-not-loaded", Reason.DRIVER_NOT_LOADED, text, summary, DRIVER_MISSING_POLLS, ""
        )
    elif survey.problem is not None or not survey.complete:
        return None
    else:
        return Assessment(check=NAME)
    return Assessment(check=NAME, bad=(level,))


CHECK: Final = LevelCheck(NAME, "the tools that vouch for the GPUs", frozenset({GpuSurvey}), run)


def _has_gpus(view: View) -> bool:
    return view.pci is not None and bool(counted(view.pci))


def _level(code: str, reason: Reason, text: str, summary: str, polls: int, gpu: str) -> Level:
    return Level(
        code=code,
        reason=reason,
        fault_class=FaultClass.MONITOR_HUNG,
        subsystem=Subsystem.MONITOR,
        scope=Scope.NODE,
        rank=RANK_LAST,
        proof=Proof.LEVEL_GOOD,
        polls=polls,
        clean_polls=CLEAN_SURVEYS,
        clean_span_s=CLEAN_SPAN_S,
        device=KEY,
        source=GpuSurvey.source,
        text=text if not gpu else f"{text} (GPU {gpu})",
        summary=summary,
    )
