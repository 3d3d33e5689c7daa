"""Is a program asleep in NVIDIA's driver that cannot be woken?

One alone keeps new work away: the driver may let go. Beside a hung tool it is the second witness that the
driver is wedged. A killed program that such a thread keeps from ending still holds its GPUs.
"""

from __future__ import annotations

from typing import Final

from outlast.health.checks.declaration import LevelCheck, View
from outlast.health.checks.wording import some
from outlast.health.finding import Assessment, Level, Proof
from outlast.health.reasons import Reason
from outlast.model.health import FaultClass, Scope, Subsystem
from outlast.model.observation import ProcessSurvey, StuckTask

NAME: Final = "stuck_tasks"
CODE: Final = "driver/stuck-task"
STUCK_S: Final = 60.0
"""Without running once; seen in two samples at least, because the first only starts the clock."""
RANK: Final = 14
DEVICE: Final = "NVIDIA driver"


def stuck(survey: ProcessSurvey) -> list[StuckTask]:
    """Tasks that count."""
    return [task for task in survey.stuck if task.asleep_s >= STUCK_S]


def run(view: View) -> Assessment | None:
    """One finding while any task is stuck."""
    survey = view.newest(ProcessSurvey)
    if survey is None or not survey.readable:
        return None
    tasks = stuck(survey)
    if not tasks:
        return Assessment(check=NAME)
    names = some(sorted({f"{task.name} ({task.pid})" for task in tasks}))
    dead = any(task.zombie for task in tasks)
    text = f"asleep in the NVIDIA driver: {names}"
    holds = " It was killed, cannot end, and still holds its GPUs." if dead else ""
    level = Level(
        code=CODE,
        reason=Reason.DRIVER_STUCK,
        fault_class=FaultClass.TRANSIENT,
        subsystem=Subsystem.GPU,
        scope=Scope.NODE,
        rank=RANK,
        proof=Proof.LEVEL_GOOD,
        device=DEVICE,
        source=ProcessSurvey.source,
        text=text,
        summary=f"For {STUCK_S:.0f} s or more {text}.{holds}",
    )
    return Assessment(check=NAME, bad=(level,))


CHECK: Final = LevelCheck(NAME, "programs stuck in the NVIDIA driver", frozenset({ProcessSurvey}), run)
