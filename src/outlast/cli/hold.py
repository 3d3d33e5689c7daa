"""`outlast hold`: a human says that nothing more is done to a node."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from outlast.cli import EXIT_OK, UserError
from outlast.cli.connection import Context, Kubeconfig, connected
from outlast.cli.reading import run


def hold(
    target: Annotated[str, Parameter(help="A node, or an incident: then its node.")],
    /,
    *,
    reason: Annotated[str, Parameter(help="Why; everybody who looks at the node sees it.")] = "",
    off: Annotated[bool, Parameter(help="Take the hold away again.")] = False,
    kubeconfig: Kubeconfig = "",
    context: Context = "",
) -> int:
    """Leave a node in whatever state it is in: outlast begins nothing more there.

    Example: outlast hold gpu-0417 --reason "firmware test until 15:00"
    """
    if not off and not reason:
        raise UserError('a hold needs a reason that others can read: --reason "..."')
    return run("hold", _hold(target, "" if off else reason, kubeconfig, context, off=off))


async def _hold(target: str, reason: str, kubeconfig: str, context: str, *, off: bool) -> int:
    from outlast.cli.targets import find
    from outlast.model.cluster import NODES
    from outlast.model.names import HOLD_ANNOTATION
    from outlast.ports.cluster import Patch, PatchType

    async with connected(kubeconfig, context) as cluster:
        found = await find(cluster, target)
        if found.node is None:
            raise UserError(f"{target}: its node {found.node_name} is no longer in the cluster.")
        change = {HOLD_ANNOTATION: None if off else reason}
        patch = Patch(PatchType.MERGE, {"metadata": {"uid": found.node.metadata.uid, "annotations": change}})
        await cluster.patch(NODES, found.node_name, patch)
    if off:
        print(f"{found.node_name} is no longer on hold; outlast goes on.")
    else:
        print(f"{found.node_name} is on hold: {reason}. `outlast hold {found.node_name} --off` ends it.")
    return EXIT_OK
