"""`outlast explain`: what is going on with a node, why, what is next and how to overrule it."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from outlast.cli import EXIT_OK
from outlast.cli.connection import Context, Kubeconfig, connected
from outlast.cli.reading import run


def explain(
    target: Annotated[str, Parameter(help="A node, or an incident.")],
    /,
    *,
    kubeconfig: Kubeconfig = "",
    context: Context = "",
    json: Annotated[bool, Parameter(help="Print the page as JSON.")] = False,
) -> int:
    """Explain a node or an incident: what happened, what was done and why, what is next.

    Exit code 0 when it could be explained, 2 when nothing has that name, 3 when the cluster can't be read.

    Example: outlast explain gpu-0417
    """
    return run("explain", _explain(target, kubeconfig, context, as_json=json))


async def _explain(target: str, kubeconfig: str, context: str, *, as_json: bool) -> int:
    import msgspec

    from outlast.adapters.clock import SystemClock
    from outlast.cli import pages
    from outlast.cli.targets import find
    from outlast.model.cluster import PODS
    from outlast.model.health import NODE_HEALTHS, NodeHealth
    from outlast.model.policy import REMEDIATION_POLICIES
    from outlast.ports.cluster import NotFound
    from outlast.remediation.explain import explain as explain_objects

    async with connected(kubeconfig, context) as cluster:
        found = await find(cluster, target)
        story, node = found.incident, found.node
        if story is not None and story.status.end is not None and story.metadata.name != target:
            story = None  # a node is asked for, and its last incident is over
        if story is not None and node is not None and story.spec.node_uid not in ("", node.metadata.uid):
            node = None
        health: NodeHealth | None = None
        pods = None
        if node is not None:
            try:
                health = await cluster.get(NODE_HEALTHS, found.node_name)
            except NotFound:
                health = None
            pods = tuple(await cluster.list(PODS, field_selector=f"spec.nodeName={found.node_name}"))
        policies = {p.metadata.name: p for p in await cluster.list(REMEDIATION_POLICIES)}
    ruling = policies.get(story.spec.policy) if story is not None else None
    if story is None and node is None:
        story = found.incidents[0]
    now = SystemClock().now()
    page = explain_objects(story, node, health, ruling, pods, now)
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(page), indent=2).decode())
    else:
        pages.print_explanation(pages.console(), page, now)
    return EXIT_OK
