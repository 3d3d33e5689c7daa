"""The connection of one process to the API server: counted, and cut when its machine dies.

A killed process says no goodbye: after the cut every call fails as if the network were gone.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, TypeVar

from outlast.model.cluster import Kind, KubernetesObject
from outlast.ports.cluster import Cache, Cluster, Eviction, Patch, Unavailable

T = TypeVar("T", bound=KubernetesObject)


class Wire:
    """Implements `outlast.ports.cluster.Cluster` over another one."""

    def __init__(self, cluster: Cluster, writes: Counter[str]) -> None:
        """`writes` is counted up by kind of object, and may be shared by several wires."""
        self._cluster = cluster
        self._writes = writes
        self._is_cut = False

    def cut(self) -> None:
        """From now on nothing gets through."""
        self._is_cut = True

    def _count(self, what: str) -> None:
        self._check()
        self._writes[what] += 1

    def _check(self) -> None:
        if self._is_cut:
            raise Unavailable("the machine of this process is down")

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        """Read one object."""
        self._check()
        return await self._cluster.get(kind, name, namespace)

    async def list(
        self, kind: Kind[T], namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> list[T]:
        """Read a collection."""
        self._check()
        return await self._cluster.list(
            kind, namespace, label_selector=label_selector, field_selector=field_selector
        )

    async def create(self, kind: Kind[T], body: dict[str, Any] | T, namespace: str = "") -> T:
        """Create, counted."""
        self._count(kind.plural)
        return await self._cluster.create(kind, body, namespace)

    async def patch(
        self, kind: Kind[T], name: str, patch: Patch, namespace: str = "", *, subresource: str = ""
    ) -> T:
        """Patch, counted."""
        self._count(f"{kind.plural}/{subresource}" if subresource else kind.plural)
        return await self._cluster.patch(kind, name, patch, namespace, subresource=subresource)

    async def delete(
        self,
        kind: Kind[T],
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        resource_version: str = "",
        grace_period_s: int | None = None,
        propagation: str = "Background",
    ) -> None:
        """Delete, counted."""
        self._count(kind.plural)
        await self._cluster.delete(
            kind,
            name,
            namespace,
            uid=uid,
            resource_version=resource_version,
            grace_period_s=grace_period_s,
            propagation=propagation,
        )

    async def evict(
        self, name: str, namespace: str, *, uid: str, grace_period_s: int | None = None
    ) -> Eviction:
        """Evict, counted."""
        self._count("pods/eviction")
        return await self._cluster.evict(name, namespace, uid=uid, grace_period_s=grace_period_s)

    def cache(
        self, kind: Kind[T], namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> Cache[T]:
        """A cache over a collection; a killed process has its tasks cancelled, which ends the cache."""
        return self._cluster.cache(
            kind, namespace, label_selector=label_selector, field_selector=field_selector
        )
