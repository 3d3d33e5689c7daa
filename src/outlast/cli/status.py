"""`outlast status`: how the fleet is, and what is being done."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from outlast.cli import EXIT_FAULT, EXIT_OK
from outlast.cli.connection import Context, Kubeconfig, connected
from outlast.cli.reading import run


def status(
    *,
    kubeconfig: Kubeconfig = "",
    context: Context = "",
    json: Annotated[
        bool, Parameter(help="Print the page as JSON, as /fleet.json and /incidents.json.")
    ] = False,
) -> int:
    """Show how the fleet is and which incidents are open.

    Exit code 0 when every node takes work, 1 when one does not, 3 when the cluster can't be read.

    Example: outlast status --json
    """
    return run("status", _status(kubeconfig, context, as_json=json))


async def _status(kubeconfig: str, context: str, *, as_json: bool) -> int:
    import msgspec

    from outlast.adapters.clock import SystemClock
    from outlast.cli import pages
    from outlast.model.cluster import NODES
    from outlast.model.health import NODE_HEALTHS
    from outlast.model.incident import INCIDENTS
    from outlast.model.policy import REMEDIATION_POLICIES
    from outlast.web.state import FleetState
    from outlast.web.views.fleet import Filter, fleet
    from outlast.web.views.incidents import incidents

    async with connected(kubeconfig, context) as cluster:
        state = FleetState.of(
            await cluster.list(NODES),
            await cluster.list(NODE_HEALTHS),
            await cluster.list(INCIDENTS),
            await cluster.list(REMEDIATION_POLICIES),
        )
    now = SystemClock().now()
    page, stories = fleet(state, Filter(), now), incidents(state, now)
    if as_json:
        body = {"apiVersion": "outlast.dev/cli/v1", "fleet": page.headline, "incidents": stories}
        print(msgspec.json.format(msgspec.json.encode(body), indent=2).decode())
    else:
        out = pages.console()
        pages.print_headline(out, page.headline)
        if stories.open:
            out.print()
            out.print(pages.incident_table(stories.open, pages.how_many(len(stories.open), "open incident")))
    return EXIT_FAULT if page.headline.out_of_service else EXIT_OK
