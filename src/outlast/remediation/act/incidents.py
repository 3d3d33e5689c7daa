"""Writes to Incidents: open one, and put its next record down against the version it was decided from."""

from __future__ import annotations

from typing import Any

import msgspec

from outlast.model.cluster import KubernetesObject
from outlast.model.incident import INCIDENTS, Incident, IncidentSpec, IncidentStatus
from outlast.ports.cluster import AlreadyExists, Cluster, Patch, PatchType


async def open_incident(cluster: Cluster, name: str, spec: IncidentSpec) -> Incident:
    """Create the object, or read it where a crash left it created. Raises ClusterError."""
    body = {"metadata": {"name": name}, "spec": msgspec.to_builtins(spec)}
    try:
        return await cluster.create(INCIDENTS, body)
    except AlreadyExists:
        return await cluster.get(INCIDENTS, name)


async def write_status(cluster: Cluster, incident: Incident, status: IncidentStatus) -> Incident:
    """Replace the record. Raises Conflict where it moved meanwhile, Invalid where a rule says no."""
    body = {
        "metadata": {"resourceVersion": incident.metadata.resource_version},
        "status": status_body(status),
    }
    name = incident.metadata.name
    return await cluster.patch(INCIDENTS, name, Patch(PatchType.MERGE, body), subresource="status")


def status_body(status: IncidentStatus) -> dict[str, Any]:
    """The whole record as a merge patch: what it leaves out is removed, what kubectl shows is explicit."""
    body: dict[str, Any] = _with_nulls(status)
    body |= {"epoch": status.epoch, "phase": status.phase.value, "step": status.step.value}
    for part in ("next", "timings", "end"):
        value = getattr(status, part)
        if value is not None:
            body[part] = _with_nulls(value)
    return body


def _with_nulls(struct: msgspec.Struct) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(struct)
    return dict.fromkeys(struct.__struct_encode_fields__) | plain


async def delete(cluster: Cluster, incident: KubernetesObject) -> None:
    """Forget a closed incident whose retention is over. Raises ClusterError."""
    meta = incident.metadata
    await cluster.delete(INCIDENTS, meta.name, uid=meta.uid, resource_version=meta.resource_version)
