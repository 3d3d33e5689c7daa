"""What a word on the command line means: a node, or an incident of one."""

from __future__ import annotations

from dataclasses import dataclass

from outlast.cli import UserError
from outlast.model.cluster import NODES, Node
from outlast.model.incident import INCIDENTS, Incident
from outlast.ports.cluster import Cluster, NotFound


@dataclass(frozen=True, slots=True)
class Target:
    """A node name with what is known of it."""

    node_name: str
    node: Node | None
    incident: Incident | None
    """The one that was named, else the node's open one, else its newest."""
    incidents: tuple[Incident, ...]
    """All of this node name, newest first."""


async def find(cluster: Cluster, word: str) -> Target:
    """Look a word up: first as a node, then as an incident. Raises UserError when it is neither."""
    node = await _node(cluster, word)
    if node is None:
        try:
            named = await cluster.get(INCIDENTS, word)
        except NotFound:
            if stories := await _incidents(cluster, word):
                return Target(word, None, _chosen(stories), stories)
            raise UserError(
                f"no node and no incident is called {word!r}; `outlast status` lists the open ones."
            ) from None
        name = named.spec.node_name
        return Target(name, await _node(cluster, name), named, await _incidents(cluster, name))
    stories = await _incidents(cluster, word)
    return Target(word, node, _chosen(stories), stories)


def _chosen(stories: tuple[Incident, ...]) -> Incident | None:
    opened = (story for story in stories if story.status.end is None)
    return next(opened, stories[0] if stories else None)


async def _node(cluster: Cluster, name: str) -> Node | None:
    try:
        return await cluster.get(NODES, name)
    except NotFound:
        return None


async def _incidents(cluster: Cluster, node_name: str) -> tuple[Incident, ...]:
    found = [i for i in await cluster.list(INCIDENTS) if i.spec.node_name == node_name]
    return tuple(sorted(found, key=lambda i: i.spec.opened_at, reverse=True))
