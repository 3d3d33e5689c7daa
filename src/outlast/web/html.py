"""Page data to HTML. Everything is escaped: names of nodes, pods and reasons are strangers' text."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined

from outlast.remediation.page import State
from outlast.web.standing import slug
from outlast.web.views.fleet import Filter, Group, Headline, Tile
from outlast.web.wording import clock_time, clock_time_ms


@cache
def _environment() -> Environment:
    env = Environment(
        loader=PackageLoader("outlast.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    env.filters["slug"] = slug
    env.filters["hms"] = clock_time
    env.filters["hms_ms"] = clock_time_ms
    env.filters["address"] = fleet_address
    env.filters["percent"] = percent
    env.globals["healthy"] = State.HEALTHY
    return env


def percent(value: float) -> str:
    """A share in percent that never rounds up to a full hundred."""
    if value >= 100:
        return "100"
    text = f"{value:.2f}"
    return "99.99" if text == "100.00" else text


def fleet_address(shown: Filter, **changed: str) -> str:
    """The address of the fleet page with this filter, a few of its fields changed."""
    fields = {"state": shown.state, "q": shown.query, "group": shown.group, "view": shown.view} | changed
    defaults = {"state": "", "q": "", "group": "domain", "view": "map"}
    query = urlencode({k: v for k, v in fields.items() if v != defaults[k]})
    return f"/?{query}" if query else "/"


def whole(page_name: str, page: Any, *, twin: str) -> str:
    """A complete document."""
    here = "incidents" if page_name == "incident" else page_name
    return _environment().get_template(f"{page_name}.html").render(page=page, here=here, twin=twin)


def fragment(page_name: str, page: Any) -> str:
    """The part of a page that changes while it is open."""
    return _environment().get_template(f"{page_name}_live.html").render(page=page)


def missing(text: str, now: datetime) -> str:
    """The page for an address that leads nowhere."""
    return (
        _environment()
        .get_template("missing.html")
        .render(page={"text": text, "now": now}, here="", twin="/fleet.json")
    )


def tile_part(tile: Tile, shown: Filter, now: datetime, *, roomy: bool) -> str:
    """One tile, or one row of the table."""
    macros: Any = _environment().get_template("parts.html").module
    return str(macros.tile_row(tile, now) if shown.view == "table" else macros.tile(tile, roomy))


def head_part(headline: Headline, shown: Filter) -> str:
    """The summary on top of the fleet page."""
    macros: Any = _environment().get_template("parts.html").module
    return str(macros.fleet_head(headline, shown))


def group_part(group: Group, index: int) -> str:
    """The heading of one group."""
    macros: Any = _environment().get_template("parts.html").module
    return str(macros.group_head(group, index))
