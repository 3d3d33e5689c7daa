"""What a cache holds, and how one more object changes it. Pure: no wire, no time."""

from __future__ import annotations

from collections.abc import Collection
from typing import Generic, TypeVar

from outlast.model.cluster import KubernetesObject
from outlast.ports.cluster import Upserted

T = TypeVar("T", bound=KubernetesObject)
Key = tuple[str, str]


class Store(Generic[T]):
    """Objects by (namespace, name)."""

    def __init__(self) -> None:
        self._objects: dict[Key, T] = {}

    def get(self, key: Key) -> T | None:
        """The object held, or None."""
        return self._objects.get(key)

    def values(self) -> Collection[T]:
        """All objects held; a live view."""
        return self._objects.values()

    def holds_another(self, key: Key, uid: str) -> bool:
        """Whether the name is held by an object with another uid: it was deleted and created again."""
        held = self._objects.get(key)
        return held is not None and bool(uid) and held.metadata.uid != uid

    def put(self, key: Key, new: T) -> Upserted[T] | None:
        """Hold `new`; None where the same version was held already."""
        old = self._objects.get(key)
        version = new.metadata.resource_version
        if old is not None and version and old.metadata.resource_version == version:
            return None
        self._objects[key] = new
        return Upserted(new, old)

    def pop(self, key: Key) -> T | None:
        """Let go of an object."""
        return self._objects.pop(key, None)

    def missing_from(self, seen: set[Key]) -> list[Key]:
        """Keys that are held and were not seen in a complete list."""
        return [key for key in self._objects if key not in seen]
