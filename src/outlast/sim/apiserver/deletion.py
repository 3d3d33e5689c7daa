"""How an object is deleted: preconditions, grace, and the finalizers that hold it for its dependents."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from outlast.sim.apiserver import errors, strategy
from outlast.sim.apiserver.options import Deletion, Writer, timestamp
from outlast.sim.apiserver.resources import Resource
from outlast.sim.apiserver.storage import Entry


def check_deletion(resource: Resource, entry: Entry, options: Deletion) -> None:
    """Refuse with 409 where a precondition does not hold."""
    if options.uid and options.uid != entry.uid:
        raise errors.precondition(resource, entry.name, "UID", options.uid, entry.uid)
    if options.version and options.version != str(entry.version):
        raise errors.precondition(
            resource, entry.name, "ResourceVersion", options.version, str(entry.version)
        )


def deletion_grace_s(resource: Resource, obj: dict[str, Any], options: Deletion) -> int:
    """Seconds that a kubelet is given; 0 where nobody would confirm."""
    if not resource.graceful:
        return 0
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in ("Succeeded", "Failed"):
        return 0
    if options.grace_s is not None:
        return max(options.grace_s, 0)
    return int(spec.get("terminationGracePeriodSeconds", strategy.DEFAULT_GRACE_S))


def set_propagation_finalizer(
    resource: Resource, meta: dict[str, Any], options: Deletion, writer: Writer, *, has_dependents: bool
) -> None:
    """Hold an object by the finalizer of its propagation policy, in place."""
    propagation = options.propagation
    if not propagation and resource.kind == "Job":
        propagation = "Orphan"
        writer.warnings.append(
            "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background "
            "to remove them or set propagationPolicy=Orphan to suppress this warning"
        )
    wanted = {"Foreground": "foregroundDeletion", "Orphan": "orphan"}.get(propagation)
    finalizers = [f for f in meta.get("finalizers", ()) if f not in ("foregroundDeletion", "orphan")]
    if propagation == "" and meta.get("deletionTimestamp"):
        return
    if wanted and (has_dependents or wanted == "foregroundDeletion"):
        finalizers.append(wanted)
    if finalizers:
        meta["finalizers"] = finalizers
    else:
        meta.pop("finalizers", None)


def begin_deletion(meta: dict[str, Any], grace_s: int, now: datetime) -> None:
    """Mark metadata as being deleted, in place."""
    if meta.get("generation") and not meta.get("deletionTimestamp"):
        meta["generation"] += 1
    meta["deletionTimestamp"] = timestamp(now + timedelta(seconds=grace_s))
    meta["deletionGracePeriodSeconds"] = grace_s
