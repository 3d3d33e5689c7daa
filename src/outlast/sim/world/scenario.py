"""The script of the demo, as data: what breaks where and when, and how each story has to end.

Times are minutes from the start. A symptom is what hardware and driver do; what is made of it is for
the platform to find out.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from outlast.model.incident import EndResult
from outlast.model.policy import Rung


class Symptom(StrEnum):
    """What happens to a machine."""

    GPU_LOST = "a GPU falls off the bus, a reboot brings it back"
    BOARD_DEAD = "a GPU falls off the bus for good"
    APPLICATION_FAULT = "a job makes a GPU raise an exception"
    EFA_LOST = "a network device disappears until the next boot"
    NVML_HANGS = "NVML stops answering"
    NVML_ANSWERS = "NVML answers again"


class Happening(msgspec.Struct, frozen=True, kw_only=True):
    """One symptom at one time."""

    minute: float
    node: int
    """Position in the fleet, from 0."""
    symptom: Symptom
    device: int = 0
    """Which GPU or network device, from 0."""


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """Symptoms that belong together, and the end they have to come to."""

    title: str
    happenings: tuple[Happening, ...]
    end: EndResult | None
    """How each incident of these nodes ends; None: there must be none."""
    rungs: tuple[Rung, ...] = ()
    """Rungs that must have been taken, in this order."""
    never: tuple[Rung, ...] = ()
    """Rungs that must not be taken."""
    storm: bool = False
    """The storm limit has to have held repairs back."""

    @property
    def nodes(self) -> tuple[int, ...]:
        """The machines it is about, each once."""
        return tuple(dict.fromkeys(h.node for h in self.happenings))


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet."""

    nodes: int = 48
    nodes_per_rack: int = 8
    gpus: int = 8
    efa: int = 32
    instance_type: str = "p5.48xlarge"
    gangs: tuple[tuple[str, int], ...] = (("llama-run3", 16), ("moe-run8", 12), ("vision-run2", 8))
    """Training jobs and their size in machines; they fill the front of the fleet."""
    spares: int = 4
    """Training machines at the end of the fleet that join when the others have work: room to move to."""
    inference_pods: int = 24
    inference_gpus: int = 2
    inference_available: int = 22
    """What the PodDisruptionBudget of the inference Deployment keeps up."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet, what happens to it, and for how long."""

    minutes: float
    shape: Shape
    stories: tuple[Story, ...]
    seed: int = 1


_DRAINING: Final = (Rung.DRAIN, Rung.REBOOT, Rung.REPLACE)
_RACK: Final = 1

DEMO: Final = Scenario(
    minutes=60,
    shape=Shape(),
    stories=(
        Story(
            title="An application's bad kernel launch (Xid 13): nothing happens to the node",
            happenings=(
                Happening(minute=1.5, node=29, symptom=Symptom.APPLICATION_FAULT, device=3),
                Happening(minute=14, node=33, symptom=Symptom.APPLICATION_FAULT, device=6),
            ),
            end=None,
        ),
        Story(
            title="A GPU falls off the bus (Xid 79): a reboot cures it",
            happenings=(Happening(minute=3, node=2, symptom=Symptom.GPU_LOST, device=5),),
            end=EndResult.RETURNED,
            rungs=(Rung.REQUEST_CHECKPOINT, Rung.DRAIN, Rung.REBOOT),
            never=(Rung.REPLACE,),
        ),
        Story(
            title="A board dies for good: a reboot does not help, the machine is replaced",
            happenings=(Happening(minute=6, node=19, symptom=Symptom.BOARD_DEAD, device=2),),
            end=EndResult.REPLACED,
            rungs=(Rung.REQUEST_CHECKPOINT, Rung.DRAIN, Rung.REBOOT, Rung.REPLACE),
        ),
        Story(
            title="A network device is missing (31 of 32 EFA): a reboot brings it back",
            happenings=(Happening(minute=9, node=37, symptom=Symptom.EFA_LOST, device=11),),
            end=EndResult.RETURNED,
            rungs=(Rung.DRAIN, Rung.REBOOT),
            never=(Rung.REPLACE,),
        ),
        Story(
            title="NVML hangs: no new work until it answers again, and nothing is moved",
            happenings=(
                Happening(minute=12, node=39, symptom=Symptom.NVML_HANGS),
                Happening(minute=24, node=39, symptom=Symptom.NVML_ANSWERS),
            ),
            end=EndResult.NOT_NEEDED,
            never=_DRAINING,
        ),
        Story(
            title="A rack loses a GPU in each of its eight machines: repairs stop, then go on in small steps",
            happenings=tuple(
                Happening(minute=28 + i * 0.2, node=8 * _RACK + i, symptom=Symptom.GPU_LOST, device=i)
                for i in range(8)
            ),
            end=EndResult.RETURNED,
            rungs=(Rung.DRAIN, Rung.REBOOT),
            never=(Rung.REPLACE,),
            storm=True,
        ),
    ),
)
