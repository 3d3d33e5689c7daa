"""Incidents of tests/data/incidents: a machine lives through each, in variations, and the verdict is scored.

A variation moves the story to other GPUs, changes the order of lines that came together, repeats some, and
mixes in lines of others: what a rule that fits only the recorded text would trip over.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

from outlast.model.health import Fault, FaultClass, FaultState
from outlast.model.observation import (
    KernelLogCaughtUp,
    KernelLogLost,
    ProcessSurvey,
    StuckTask,
    SurveyProblem,
    Witness,
)
from outlast.model.observation.dcgm import DcgmIncident, DcgmProblem, DcgmSurvey
from tests.unit.health.builders import USER, Scene

DATA: Final = Path(__file__).parents[1] / "data" / "incidents"
TOGETHER_MAX_S: Final = 0.4

STRENGTH: Final = {
    "none": 0,
    "Transient": 1,
    "MonitorHung": 2,
    "ResetCures": 3,
    "RebootCures": 4,
    "HardwareGone": 5,
}
"""What a verdict costs the users of a node. The last three end jobs, as does a hang with a witness."""
DISRUPTIVE_FROM: Final = 3

FOREIGN: Final = (
    "systemd[1]: Started Session 4 of user root.",
    "mlx5_core 0000:d2:00.0: Port: 1 Link INIT",
    "EXT4-fs (nvme1n1): mounted filesystem with ordered data mode",
    "NVRM: NVLink link training completed",
    "NVRM: _fabricNotifyEvent: Unable to notify ImexSessionApi",
    "NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!",
    "EXT4-fs: Remounting filesystem read-write",
    "audit: type=1400 apparmor=DENIED",
    "NVRM: GPU Board Serial Number: 0000000000000",
)


class Incident(msgspec.Struct, frozen=True):
    """What happens, and which cure is right for what: `g` and `h` are two GPUs, `?` means at most."""

    id: str
    kind: str
    cure: str
    where: str
    steps: list[dict[str, Any]]

    @property
    def at_most(self) -> bool:
        """A milder verdict is right too."""
        return self.cure.endswith("?")

    @property
    def disruptive(self) -> bool:
        """Whether the right cure ends jobs."""
        return STRENGTH[self.cure.rstrip("?")] >= DISRUPTIVE_FROM


class Outcome(msgspec.Struct, frozen=True):
    """The strongest verdict while the incident lasted, and whether it is about the right thing."""

    incident: Incident
    seed: int
    cure: str
    right_place: bool

    @property
    def disruptive(self) -> bool:
        """Whether the judge would have ended jobs."""
        return STRENGTH[self.cure] >= DISRUPTIVE_FROM

    @property
    def right(self) -> bool:
        """The right cure for the right thing."""
        wanted = self.incident.cure.rstrip("?")
        if self.incident.at_most:
            return STRENGTH[self.cure] <= STRENGTH[wanted]
        return self.cure == wanted and (self.cure == "none" or self.right_place)


def incidents() -> list[Incident]:
    """All of them."""
    found = []
    for path in sorted(DATA.glob("*.jsonl")):
        found += [msgspec.json.decode(line, type=Incident) for line in path.read_bytes().splitlines()]
    return found


def lived_through(incident: Incident, seed: int) -> Outcome:
    """One variation; seed 0 is the incident as written."""
    player = _Player(Random(seed), varied=seed > 0)
    for step in incident.steps:
        player.step(step)
    player.scene.wait(6)
    player.note()
    cure, faults = player.worst()
    gpu = {"g": player.addresses["g"], "h": player.addresses["h"]}.get(incident.where)
    place = all((f.gpu.pci_address if f.gpu else "") == gpu for f in faults) if gpu else True
    return Outcome(incident, seed, cure, place)


class _Player:
    def __init__(self, rng: Random, *, varied: bool) -> None:
        self.scene = Scene()
        self.rng = rng
        self.varied = varied
        order = list(range(8))
        if varied:
            rng.shuffle(order)
            self.scene.poll(rng.randrange(3))
        self.addresses = {str(i): self.scene.gpu(order[i]) for i in range(8)}
        self.addresses |= {"g": self.scene.gpu(order[0]), "h": self.scene.gpu(order[1])}
        self.seen: dict[tuple[str, str], Fault] = {}

    def step(self, step: dict[str, Any]) -> None:
        for name, value in step.items():
            getattr(self, f"_{name}")(value)
        self.note()

    def note(self) -> None:
        for fault in self.scene.status.faults:
            if fault.state is FaultState.OPEN:
                self.seen[fault.id, self.cost(fault)] = fault

    def worst(self) -> tuple[str, list[Fault]]:
        if not self.seen:
            return "none", []
        strongest = max((cost for _, cost in self.seen), key=STRENGTH.__getitem__)
        return strongest, [f for (_, cost), f in self.seen.items() if cost == strongest]

    @staticmethod
    def cost(fault: Fault) -> str:
        """What this fault costs: a hang with a second witness may end in a reboot."""
        if fault.fault_class is FaultClass.MONITOR_HUNG and fault.second_witness:
            return "RebootCures"
        return fault.fault_class.value

    # --- steps

    def _lines(self, lines: list[str]) -> None:
        for line in self._mixed([self._named(line) for line in lines]):
            self.scene.time_s += self.rng.uniform(0, TOGETHER_MAX_S / 4) if self.varied else 0.01
            self.scene.line(line)
            self.note()

    def _mixed(self, lines: list[str]) -> Iterator[str]:
        if not self.varied:
            yield from lines
            return
        self.rng.shuffle(lines)
        lines += [line for line in lines if "Xid" in line and self.rng.random() < 0.3]
        for line in lines:
            if self.rng.random() < 0.5:
                yield self.rng.choice(FOREIGN)
            yield line
        if self.rng.random() < 0.3:
            other = self.addresses["7"][:-2]
            yield f"NVRM: Xid (PCI:{other}): 13, pid=99999, name=other, Graphics Exception: ESR 0x57c730=0x9"

    def _named(self, line: str) -> str:
        for name, address in self.addresses.items():
            line = line.replace(f"{{{name}}}", address[:-2])
        return line

    def _user(self, lines: list[str]) -> None:
        for line in lines:
            self.scene.line(self._named(line), priority=USER)

    def _replayed(self, lines: list[str]) -> None:
        for line in lines:
            self.scene.line(self._named(line), replayed=True)

    def _polls(self, times: int) -> None:
        for _ in range(times):
            self.scene.poll()
            self.note()

    def _wait(self, seconds: float) -> None:
        """Time passes, with the polls that belong to it; what is due is judged when it is."""
        end_s = self.scene.time_s + seconds
        while self.scene.time_s < end_s:
            self.scene.time_s = min(end_s, self.scene.time_s + 15)
            self.scene.tell(self.scene.pci(), self.scene.survey())
            self.note()

    def _set(self, changes: dict[str, dict[str, Any]]) -> None:
        for name, given in changes.items():
            fields = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
            which = self.scene.hardware.gpus if name == "*" else [self.addresses[name]]
            for address in list(which):
                self.scene.hardware.change(address, **fields)

    def _unplug(self, names: list[str]) -> None:
        self.scene.hardware.unplugged.update(self.addresses[name] for name in names)

    def _unplug_efa(self, index: int) -> None:
        self.scene.hardware.unplugged.add(self.scene.hardware.efa[index])

    def _off_bus(self, names: list[str]) -> None:
        self.scene.hardware.off_bus.update(self.addresses[name] for name in names)

    def _problem(self, name: str) -> None:
        self.scene.problem = SurveyProblem(name) if name else None

    def _driver(self, loaded: bool) -> None:
        self.scene.problem = None if loaded else SurveyProblem.DRIVER_NOT_LOADED

    def _owners(self, pods: dict[str, int]) -> None:
        self.scene.owners(**pods)

    def _stuck(self, task: list[Any]) -> None:
        stuck = StuckTask(pid=task[1], tid=task[1], name=task[0], asleep_s=130, witness=Witness.STACK)
        self.scene.tell(ProcessSurvey(stuck=(stuck,), whole_machine=True))

    def _storm(self, polls: int) -> None:
        for number in range(polls):
            for address in list(self.scene.hardware.gpus):
                count = 17_000 * 15 * number if address == self.addresses["g"] else 0
                self.scene.hardware.change(address, ecc_corrected_volatile=count)
            self.scene.poll()
            self.note()

    def _dcgm(self, problem: str) -> None:
        found = DcgmProblem(problem) if problem else None
        self.scene.tell(DcgmSurvey(problem=found, overall="" if found else "Healthy", message="no answer"))

    def _dcgm_incident(self, told: list[Any]) -> None:
        index = sorted(self.scene.hardware.gpus).index(self.addresses[told[0]])
        incident = DcgmIncident(
            entity_group="GPU",
            entity_id=index,
            system="Memory system",
            health="Failure",
            text=f"Detected XID {told[2]} for GPU {index}",
            code=told[1],
            xid=told[2],
            polls=3,
        )
        self.scene.tell(DcgmSurvey(overall="Failure", incidents=(incident,)))

    def _reboot(self, _: bool) -> None:
        self.scene.hardware.off_bus.clear()
        self.scene.hardware.unplugged.clear()
        self.scene.reboot()

    def _restart(self, _: bool) -> None:
        self.scene.restart()

    def _clock(self, step_s: float) -> None:
        self.scene.wall_step_s += step_s

    def _sleep(self, seconds: float) -> None:
        self.scene.tell(self.scene.facts())
        self.scene.suspended_s += seconds
        self.scene.tell(self.scene.facts())

    def _log(self, what: str) -> None:
        self.scene.tell(KernelLogLost(message="gone") if what == "lost" else KernelLogCaughtUp())
