"""Did the kernel give up a local NVMe controller, or fail to bring one back?

A controller that is gone is no fault by itself: volumes of a cloud come and go.
"""

from __future__ import annotations

from typing import Final

from outlast.health.checks.declaration import LevelCheck, View
from outlast.health.finding import HOST_SPACING_S, Assessment, Level, Proof
from outlast.health.reasons import Reason
from outlast.model.health import FaultClass, Scope, Subsystem
from outlast.model.observation import DiskController, HostSurvey

NAME: Final = "host_disks"
DEAD_POLLS: Final = 2
RESET_POLLS: Final = 5
"""At 60 s: five minutes, longer than any reset that succeeds."""
RANK: Final = 7
DEAD: Final = "dead"
RECOVERING: Final = frozenset({"resetting", "connecting"})


def run(view: View) -> Assessment | None:
    """A finding for each controller that is dead or goes on being reset."""
    survey = view.newest(HostSurvey)
    if survey is None:
        return None
    bad = []
    for controller in survey.controllers:
        if controller.state == DEAD:
            bad.append(_level(controller, "host/disk-dead", "was given up by the kernel", DEAD_POLLS))
        elif controller.state in RECOVERING:
            bad.append(_level(controller, "host/disk-resetting", "does not come back", RESET_POLLS))
    return Assessment(check=NAME, bad=tuple(bad))


CHECK: Final = LevelCheck(NAME, "local NVMe controllers", frozenset({HostSurvey}), run)


def _level(controller: DiskController, code: str, text: str, polls: int) -> Level:
    return Level(
        code=code,
        reason=Reason.DISK_FAILED,
        fault_class=FaultClass.TRANSIENT,
        subsystem=Subsystem.HOST,
        scope=Scope.NODE,
        rank=RANK,
        proof=Proof.LEVEL_GOOD,
        polls=polls,
        spacing_s=HOST_SPACING_S,
        device=f"disk {controller.name}",
        source=HostSurvey.source,
        text=f"NVMe controller {controller.name} {text}; its state is {controller.state}",
        summary=f"The NVMe controller {controller.name} {text}.",
    )
