"""The fleet page: every node as a tile, grouped by failure domain, with the few numbers that matter on top.

Healthy nodes recede, the others say what they are by mark, word and colour. The page for 10,000 nodes
is the same page; only the tiles get smaller.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

import msgspec

from outlast.model.cluster import Node
from outlast.model.health import NodeHealth, Scope
from outlast.model.policy import Mode, RemediationPolicy
from outlast.remediation.page import State
from outlast.web.standing import ORDER, in_service, slug
from outlast.web.state import POOL_LABEL, FleetState, out_seconds
from outlast.web.views.limits import Limit, limits_of
from outlast.web.wording import fault_name

AVAILABILITY_WINDOW: Final = timedelta(hours=1)
ROOMY_NODES_MAX: Final = 400
"""Up to this many tiles carry their name and a cell per GPU; beyond, tiles are small."""
QUERY_CHARS_MAX: Final = 100


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """What of the fleet is shown; it lives in the address."""

    state: str = ""
    """Slug of a state; empty shows all."""
    query: str = ""
    """Part of a node name, instance type or fault."""
    group: str = "domain"
    """`domain` or `pool`."""
    view: str = "map"
    """`map` or `table`."""

    def accepts(self, tile: Tile) -> bool:
        """Whether this tile is shown."""
        if self.state and slug(tile.state) != self.state:
            return False
        return not self.query or self.query.lower() in tile.searchable


class Tile(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One node."""

    name: str
    state: State
    in_service: bool = True
    because: str = ""
    group: str = ""
    gpus: str = ""
    """One letter a GPU: `o` good, `f` faulty, `x` lost."""
    gpus_found: int = 0
    gpus_expected: int = 0
    rdma_found: int = 0
    rdma_expected: int = 0
    instance_type: str = ""
    fault: str = ""
    incident: str = ""
    since: datetime | None = None

    @property
    def searchable(self) -> str:
        """What the filter's query is looked up in."""
        return f"{self.name} {self.instance_type} {self.fault}".lower()


class Group(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Tiles that share a failure domain or pool."""

    name: str
    tiles: tuple[Tile, ...]
    out: int
    """Nodes out of service, the hidden ones included."""
    total: int


class Banner(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Something that overrides everything else on the page."""

    title: str
    text: str


class StateCount(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How many nodes are in a state."""

    state: State
    nodes: int


class Headline(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The numbers on top."""

    nodes: int
    out_of_service: int
    gpus_found: int
    gpus_expected: int
    availability_percent: float
    """Share of node time in which nodes took new work, over the window."""
    availability_window_s: int
    open_incidents: int
    observe_only: bool
    """No policy enforces anything."""
    limits: tuple[Limit, ...] = ()
    counts: tuple[StateCount, ...] = ()
    banners: tuple[Banner, ...] = ()


class FleetPage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The fleet page as data."""

    now: datetime
    synced: bool
    headline: Headline
    groups: tuple[Group, ...]
    group_label: str
    filter: Filter
    shown: int
    roomy: bool


def fleet(state: FleetState, filter_: Filter, now: datetime) -> FleetPage:
    """Build the fleet page."""
    label = POOL_LABEL if filter_.group == "pool" else state.domain_label()
    tiles = [_remembered(state, node, label) for node in gpu_nodes(state)]
    return FleetPage(
        now=now,
        synced=state.synced,
        headline=headline(state, tiles, now),
        groups=_groups(tiles, filter_),
        group_label=label,
        filter=filter_,
        shown=sum(1 for t in tiles if filter_.accepts(t)),
        roomy=len(tiles) <= ROOMY_NODES_MAX,
    )


def gpu_nodes(state: FleetState) -> list[Node]:
    """The nodes that are shown, in the order of their names."""
    found = [node for node in state.nodes.values() if state.is_gpu_node(node)]
    found.sort(key=lambda n: n.metadata.name)
    return found


def _remembered(state: FleetState, node: Node, group_label: str) -> Tile:
    """The tile made earlier from the very same objects, else a new one."""
    key = (node.metadata.name, group_label)
    rests_on = (node, state.healths.get(node.metadata.name), state.open_incident(node))
    seen = state.memo.get(key)
    if seen is not None and all(old is new for old, new in zip(seen[0], rests_on, strict=True)):
        known: Tile = seen[1]
        return known
    made = tile(state, node, group_label)
    state.memo[key] = (rests_on, made)
    return made


def tile(state: FleetState, node: Node, group_label: str) -> Tile:
    """One node's tile."""
    name = node.metadata.name
    health = state.healths.get(name)
    incident = state.open_incident(node)
    stands = state.standing(node)
    status = health.status if health is not None else None
    code = incident.status.fault if incident is not None else ""
    if not code and status is not None and status.faults:
        code = status.faults[0].code
    return Tile(
        name=name,
        state=stands.state,
        because=stands.because,
        in_service=in_service(stands.state, unschedulable=node.spec.unschedulable),
        group=node.metadata.labels.get(group_label, ""),
        gpus=gpu_letters(health),
        gpus_found=status.gpus_found if status else 0,
        gpus_expected=status.gpus_expected if status else 0,
        rdma_found=status.rdma_found if status else 0,
        rdma_expected=status.rdma_expected if status else 0,
        instance_type=node.metadata.labels.get("node.kubernetes.io/instance-type", ""),
        fault=fault_name(code) if code else "",
        incident=incident.metadata.name if incident is not None else "",
        since=incident.spec.opened_at if incident is not None else None,
    )


def gpu_letters(health: NodeHealth | None) -> str:
    """The GPUs of a node, one letter each, in the order of the inventory."""
    if health is None:
        return ""
    status = health.status
    sick = {f.gpu.pci_address for f in status.faults if f.gpu is not None and f.scope is not Scope.NODE}
    letters = [
        "x" if not gpu.present else "f" if gpu.identity.pci_address in sick else "o" for gpu in status.gpus
    ]
    missing = min(status.gpus_expected, 64) - len(letters)
    return "".join(letters) + "x" * max(0, missing)


def headline(state: FleetState, tiles: Iterable[Tile], now: datetime) -> Headline:
    """The numbers over all nodes, whatever is filtered."""
    tiles = list(tiles)
    counts = dict.fromkeys(ORDER, 0)
    for one in tiles:
        counts[one.state] += 1
    opened = [i for i in state.incidents.values() if i.status.end is None]
    enforced = [p for p in state.policies.values() if effective_mode(p) is Mode.ENFORCE]
    return Headline(
        nodes=len(tiles),
        out_of_service=sum(1 for one in tiles if not one.in_service),
        gpus_found=sum(t.gpus_found for t in tiles),
        gpus_expected=sum(t.gpus_expected for t in tiles),
        availability_percent=availability_percent(state, len(tiles), now),
        availability_window_s=int(AVAILABILITY_WINDOW.total_seconds()),
        open_incidents=len(opened),
        observe_only=not enforced,
        limits=tuple(limit for p in sorted_policies(state) for limit in limits_of(p, state, now, short=True)),
        counts=tuple(StateCount(state=word, nodes=n) for word, n in counts.items()),
        banners=banners(state),
    )


def effective_mode(policy: RemediationPolicy) -> Mode:
    """The mode in force: that of the last spec the controller accepted, where it says so."""
    return (policy.status.in_force or policy.spec).mode


def sorted_policies(state: FleetState) -> list[RemediationPolicy]:
    """Policies, the strongest first."""
    return sorted(state.policies.values(), key=lambda p: (-p.spec.priority, p.metadata.name))


def availability_percent(state: FleetState, nodes: int, now: datetime) -> float:
    """Share of node time without a block of ours in the window, in percent."""
    if not nodes:
        return 100.0
    since = now - AVAILABILITY_WINDOW
    lost_s = sum(out_seconds(incident, since, now) for incident in state.incidents.values())
    return max(0.0, 100.0 * (1.0 - lost_s / (nodes * AVAILABILITY_WINDOW.total_seconds())))


def banners(state: FleetState) -> tuple[Banner, ...]:
    """Storms, and policies that were not accepted."""
    found: list[Banner] = []
    if not state.synced:
        found.append(
            Banner(title="Not live", text="The API server does not answer; this is the last known state.")
        )
    for policy in sorted_policies(state):
        for condition in policy.status.conditions:
            if condition.type == "Storm" and condition.status == "True":
                found.append(Banner(title="Storm", text=condition.message or condition.reason))
            if condition.type == "Accepted" and condition.status == "False":
                text = f"{policy.metadata.name}: {condition.message or condition.reason}"
                found.append(Banner(title="Policy not accepted", text=text))
    return tuple(found)


def _groups(tiles: list[Tile], filter_: Filter) -> tuple[Group, ...]:
    """Tiles by group in the order of names; groups the filter empties are left out."""
    by_group: dict[str, list[Tile]] = {}
    for one in tiles:
        by_group.setdefault(one.group, []).append(one)
    made = (
        Group(
            name=name or "unlabelled",
            tiles=tuple(t for t in members if filter_.accepts(t)),
            out=sum(1 for t in members if not t.in_service),
            total=len(members),
        )
        for name, members in sorted(by_group.items())
    )
    return tuple(group for group in made if group.tiles)
