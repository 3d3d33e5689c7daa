"""Addresses to pages: which view answers a path, for whole documents, JSON twins and live streams alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from outlast.model.incident import Incident
from outlast.remediation.page import ExplainPage
from outlast.web.standing import ORDER, slug
from outlast.web.state import FleetState
from outlast.web.views.fleet import QUERY_CHARS_MAX, Filter, FleetPage, fleet
from outlast.web.views.incident import incident_page
from outlast.web.views.incidents import incidents
from outlast.web.views.node import node
from outlast.web.views.policy import policies

NAME_CHARS_MAX: Final = 253
MEMO_MAX: Final = 100_000
"""Derived values remembered with a state; beyond, they are made each time."""
_FLEET_AGE_MAX: Final = timedelta(seconds=10)
"""The availability in the headline moves with time alone."""

_EVERYTHING: Final = Filter()

Explain = Callable[[FleetState, Incident, datetime], ExplainPage]


@dataclass(frozen=True, slots=True)
class Address:
    """A page that was asked for: which template, which object, which filter."""

    page: str
    name: str = ""
    filter: Filter = _EVERYTHING


@dataclass(frozen=True, slots=True)
class Missing:
    """Nothing is there; `text` says what was looked for."""

    text: str


def address_of(path: str, query: Mapping[str, str]) -> Address | None:
    """Read an address; None when no page has it. Unknown filter values fall back to the default."""
    path = path.removesuffix(".json") if path.endswith(".json") else path
    if path in ("", "/", "/fleet"):
        return Address("fleet", filter=filter_of(query))
    if path in ("/incidents", "/policy"):
        return Address(path[1:])
    kind, _, name = path.removeprefix("/").partition("/")
    pages = {"nodes": "node", "incidents": "incident"}
    if kind not in pages or not name or "/" in name or len(name) > NAME_CHARS_MAX:
        return None
    return Address(pages[kind], name=unquote(name))


def filter_of(query: Mapping[str, str]) -> Filter:
    """The fleet page's filter from its address."""
    state = query.get("state", "")
    group = query.get("group", "domain")
    view = query.get("view", "map")
    return Filter(
        state=state if state in {slug(word) for word in ORDER} else "",
        query=query.get("q", "")[:QUERY_CHARS_MAX].strip(),
        group=group if group in ("domain", "pool") else "domain",
        view=view if view in ("map", "table") else "map",
    )


def page_data(where: Address, state: FleetState, explain: Explain, now: datetime) -> Any | Missing:
    """The page as data, or what is missing."""
    if where.page == "fleet":
        return _fleet(where.filter, state, now)
    if where.page == "incidents":
        return incidents(state, now)
    if where.page == "policy":
        return policies(state, now)
    if where.page == "node":
        return node(state, where.name, now) or Missing(f"No node or past incident is called {where.name}.")
    incident = state.incidents.get(where.name)
    if incident is None:
        return Missing(f"No incident is called {where.name}; closed ones are removed after a while.")
    return incident_page(incident, explain(state, incident, now), now, synced=state.synced)


def _fleet(filter_: Filter, state: FleetState, now: datetime) -> FleetPage:
    """The fleet page, made once for all readers of one state; only its clock is set anew."""
    seen = state.memo.get(filter_)
    if seen is not None and seen[0] is state and now - seen[1].now < _FLEET_AGE_MAX:
        known: FleetPage = seen[1]
        return msgspec.structs.replace(known, now=now)
    page = fleet(state, filter_, now)
    if len(state.memo) < MEMO_MAX:
        state.memo[filter_] = (state, page)
    return page
