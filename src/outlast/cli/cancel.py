"""`outlast cancel`: a human ends an incident and gives the node back."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from outlast.cli import EXIT_OK, UserError
from outlast.cli.connection import Context, Kubeconfig, connected
from outlast.cli.reading import run


def cancel(
    target: Annotated[str, Parameter(help="An incident, or a node: then its open incident.")],
    /,
    *,
    reason: Annotated[str, Parameter(help="Why; it stands in the incident.")],
    kubeconfig: Kubeconfig = "",
    context: Context = "",
) -> int:
    """End an incident now and put its node back into service.

    Example: outlast cancel gpu-0417-7f3a91c0 --reason "cable was reseated"
    """
    if not reason.strip():
        raise UserError('a cancellation needs a reason: --reason "..."')
    return run("cancel", _cancel(target, reason, kubeconfig, context))


async def _cancel(target: str, reason: str, kubeconfig: str, context: str) -> int:
    from outlast.cli.targets import find
    from outlast.model.incident import INCIDENTS
    from outlast.model.names import CANCEL_ANNOTATION
    from outlast.ports.cluster import Patch, PatchType

    async with connected(kubeconfig, context) as cluster:
        found = await find(cluster, target)
        story = found.incident
        if story is None or story.status.end is not None:
            raise UserError(f"{target} has no open incident, so there is nothing to cancel.")
        patch = Patch(PatchType.MERGE, {"metadata": {"annotations": {CANCEL_ANNOTATION: reason}}})
        await cluster.patch(INCIDENTS, story.metadata.name, patch)
    print(f"{story.metadata.name} is cancelled: {reason}. {found.node_name} goes back into service.")
    return EXIT_OK
