"""What a caller says about a read, a write or a deletion, beside the object."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

JSON = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"


class KindRef(Protocol):
    """Anything that names a collection: a `Resource`, or a `Kind` of the model."""

    @property
    def api_version(self) -> str:
        """`v1` or `group/version`."""
        ...

    @property
    def plural(self) -> str:
        """Lower-case plural."""
        ...


@dataclass(frozen=True, slots=True)
class Writer:
    """Who writes, and how; `warnings` collects what the answer should warn about."""

    manager: str = "embedded"
    dry_run: bool = False
    unknown_fields: str = "Warn"
    """Strict refuses them, Warn drops them with a warning, Ignore drops them."""
    force: bool = False
    """Apply takes fields that others own."""
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Deletion:
    """Options of a delete."""

    uid: str = ""
    version: str = ""
    grace_s: int | None = None
    propagation: str = ""


def timestamp(moment: datetime) -> str:
    """RFC 3339 in whole seconds, as object times are written."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
