"""Whether every story came to its end, judged from API objects alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from outlast.model.cluster import Node
from outlast.model.incident import Incident
from outlast.model.names import CORDON_ANNOTATION
from outlast.model.policy import Rung
from outlast.sim.world.scenario import Scenario, Story

_MOVES_WORK: Final = frozenset({Rung.DRAIN, Rung.RESET_GPU, Rung.REBOOT, Rung.REPLACE})


class StoryVerdict(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How one story came out."""

    title: str
    problems: tuple[str, ...]
    incidents: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether it ended as it had to."""
        return not self.problems


def is_over(
    scenario: Scenario, names: Sequence[str], incidents: Iterable[Incident], nodes: Mapping[str, Node]
) -> bool:
    """Whether nothing more is to come: every expected incident closed, every node takes work."""
    found = list(incidents)
    if any(i.status.end is None for i in found):
        return False
    if any(n.spec.unschedulable or CORDON_ANNOTATION in n.metadata.annotations for n in nodes.values()):
        return False
    if len(nodes) < scenario.shape.nodes:
        return False
    seen = {i.spec.node_name for i in found}
    return all(names[n] in seen for story in scenario.stories if story.end is not None for n in story.nodes)


def judge(
    scenario: Scenario, names: Sequence[str], incidents: Iterable[Incident]
) -> tuple[StoryVerdict, ...]:
    """Hold each story against what the objects say. `names` are the nodes of the start, by position."""
    found = sorted(incidents, key=lambda i: i.spec.opened_at)
    verdicts = []
    for story in scenario.stories:
        mine = [i for i in found if i.spec.node_name in {names[n] for n in story.nodes}]
        verdicts.append(
            StoryVerdict(
                title=story.title,
                problems=tuple(_problems(story, mine, names)),
                incidents=tuple(i.metadata.name for i in mine),
            )
        )
    return tuple(verdicts)


def false_drains(scenario: Scenario, names: Sequence[str], incidents: Iterable[Incident]) -> tuple[str, ...]:
    """Incidents that moved work off a node although no story of that node asks for it."""
    allowed = {names[n] for s in scenario.stories if set(s.rungs) & _MOVES_WORK for n in s.nodes}
    return tuple(
        i.metadata.name
        for i in incidents
        if i.spec.node_name not in allowed and any(a.rung in _MOVES_WORK for a in i.status.attempts)
    )


def _problems(story: Story, incidents: Sequence[Incident], names: Sequence[str]) -> Iterable[str]:
    if story.end is None:
        for incident in incidents:
            yield f"{incident.spec.node_name}: an incident was opened, {incident.metadata.name}"
        return
    for number in story.nodes:
        name = names[number]
        mine = [i for i in incidents if i.spec.node_name == name]
        if not mine:
            yield f"{name}: no incident was opened"
        for incident in mine:
            end = incident.status.end
            if end is None:
                yield f"{name}: {incident.metadata.name} is still open, {incident.status.phase}"
            elif end.result is not story.end:
                yield f"{name}: ended {end.result}, not {story.end}"
        if mine:
            yield from _rungs(story, name, [a.rung for i in mine for a in i.status.attempts])
    held = [d.message for i in incidents for d in i.status.decisions if d.message.find("storm") >= 0]
    if story.storm and not held:
        yield "the storm limit held nothing back"


def _rungs(story: Story, name: str, taken: Sequence[Rung]) -> Iterable[str]:
    at = 0
    for rung in taken:
        if at < len(story.rungs) and rung is story.rungs[at]:
            at += 1
    if at < len(story.rungs):
        yield f"{name}: {story.rungs[at]} was not taken (taken: {', '.join(taken) or 'nothing'})"
    for rung in story.never:
        if rung in taken:
            yield f"{name}: {rung} was taken"
