"""From the terminal to the cluster, as kubectl finds it; what goes wrong is said in one sentence."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Annotated, TypeAlias

from cyclopts import Parameter

from outlast.cli import UserError

if TYPE_CHECKING:
    from outlast.adapters.kubernetes import Access, KubernetesCluster

Kubeconfig: TypeAlias = Annotated[
    str, Parameter(name="--kubeconfig", help="File that says where the cluster is; default as kubectl.")
]
Context: TypeAlias = Annotated[str, Parameter(name="--context", help="Context of the kubeconfig to use.")]

FIELD_MANAGER = "outlast-cli"


class CannotTell(Exception):
    """The cluster does not answer or does not let us see; exit code 3."""


def access_to(kubeconfig: str, context: str) -> Access:
    """Where the cluster is. Raises UserError."""
    from outlast.adapters.kubernetes import KubeconfigError, find_access

    try:
        return find_access(kubeconfig or None, context=context)
    except KubeconfigError as error:
        raise UserError(str(error)) from error


@asynccontextmanager
async def connected(kubeconfig: str, context: str) -> AsyncIterator[KubernetesCluster]:
    """A client for one command. Raises UserError, and CannotTell for what the cluster refuses."""
    from outlast.adapters.clock import SystemClock
    from outlast.adapters.kubernetes import KubernetesCluster
    from outlast.ports.cluster import Forbidden, NotFound, Unauthorized, Unavailable

    access = access_to(kubeconfig, context)
    async with KubernetesCluster(
        access,
        clock=SystemClock(),
        rng=Random(),  # noqa: S311
        field_manager=FIELD_MANAGER,
    ) as cluster:
        try:
            yield cluster
        except Unauthorized as error:
            raise UserError(f"{access.server} does not accept these credentials: {error}") from error
        except Forbidden as error:
            raise CannotTell(f"{access.server} does not allow this: {error}") from error
        except NotFound as error:
            raise CannotTell(f"{error}; is outlast installed there (`kubectl get crd`)?") from error
        except Unavailable as error:
            raise CannotTell(f"{access.server} does not answer: {error}") from error
