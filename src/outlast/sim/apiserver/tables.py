"""Objects as the rows that `kubectl get` prints: the server decides on columns and cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from outlast.sim.apiserver.resources import Resource

Row = dict[str, Any]
Cells = Callable[[Row, datetime], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Columns:
    """Column heads and the function that fills a row; a head that ends in `*` is wide only."""

    heads: tuple[str, ...]
    cells: Cells

    def definitions(self) -> list[dict[str, Any]]:
        """columnDefinitions of a Table."""
        found = []
        for head in self.heads:
            name = head.rstrip("*")
            found.append(
                {"name": name, "type": "string", "format": "name" if name == "Name" else "",
                 "description": "", "priority": 1 if head.endswith("*") else 0}
            )  # fmt: skip
        return found


def human_duration(seconds: float) -> str:
    """A duration as kubectl shows ages: two units at most, coarser as it grows."""
    s = int(seconds)
    if s < -1:
        return "<invalid>"
    s = max(s, 0)
    if s < 120:
        return f"{s}s"
    minutes, hours, days = s // 60, s // 3600, s // 86400
    if minutes < 10:
        return f"{minutes}m{s % 60}s" if s % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        rest = minutes % 60
        return f"{hours}h{rest}m" if rest else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if hours < 192:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    if days < 365 * 2:
        return f"{days}d"
    years = days // 365
    if years < 8:
        return f"{years}y{days % 365}d" if days % 365 else f"{years}y"
    return f"{years}y"


def parse_time(text: Any) -> datetime | None:
    """A time of an object, or None."""
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def since(text: Any, now: datetime) -> str:
    """An age cell."""
    moment = parse_time(text)
    return "<unknown>" if moment is None else human_duration((now - moment).total_seconds())


def _meta(obj: Row) -> dict[str, Any]:
    meta: dict[str, Any] = obj.get("metadata") or {}
    return meta


def _age(obj: Row, now: datetime) -> str:
    return since(_meta(obj).get("creationTimestamp"), now)


def _spec(obj: Row) -> dict[str, Any]:
    spec: dict[str, Any] = obj.get("spec") or {}
    return spec


def _status(obj: Row) -> dict[str, Any]:
    status: dict[str, Any] = obj.get("status") or {}
    return status


def _node(obj: Row, now: datetime) -> Sequence[Any]:
    conditions = {c.get("type"): c.get("status") for c in _status(obj).get("conditions") or ()}
    ready = {"True": "Ready", "False": "NotReady"}.get(conditions.get("Ready", ""), "NotReady")
    state = ready if "Ready" in conditions else "Unknown"
    if _spec(obj).get("unschedulable"):
        state += ",SchedulingDisabled"
    prefix = "node-role.kubernetes.io/"
    roles = sorted(k.removeprefix(prefix) for k in _meta(obj).get("labels") or {} if k.startswith(prefix))
    info = _status(obj).get("nodeInfo") or {}
    addresses = {a.get("type"): a.get("address") for a in _status(obj).get("addresses") or ()}
    return (
        _meta(obj).get("name"), state, ",".join(roles) or "<none>", _age(obj, now),
        info.get("kubeletVersion", ""), addresses.get("InternalIP", "<none>"),
        addresses.get("ExternalIP", "<none>"), info.get("osImage") or "<unknown>",
        info.get("kernelVersion") or "<unknown>",
        info.get("containerRuntimeVersion") or "<unknown>",
    )  # fmt: skip


def _pod_state(obj: Row) -> str:
    status = _status(obj)
    reason = status.get("reason") or status.get("phase") or ""
    for container in status.get("containerStatuses") or ():
        state = container.get("state") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
        if waiting.get("reason"):
            reason = waiting["reason"]
        elif ended.get("reason"):
            reason = ended["reason"]
        elif ended:
            reason = (
                f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{ended.get('exitCode', 0)}"
            )
    if _meta(obj).get("deletionTimestamp"):
        return "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    return str(reason)


def _pod(obj: Row, now: datetime) -> Sequence[Any]:
    status = _status(obj)
    containers = status.get("containerStatuses") or ()
    ready = sum(bool(c.get("ready")) for c in containers)
    restarts = sum(int(c.get("restartCount", 0)) for c in containers)
    return (
        _meta(obj).get("name"), f"{ready}/{len(_spec(obj).get('containers') or ())}", _pod_state(obj),
        str(restarts), _age(obj, now), status.get("podIP") or "<none>",
        _spec(obj).get("nodeName") or "<none>", status.get("nominatedNodeName") or "<none>", "<none>",
    )  # fmt: skip


def _event(obj: Row, now: datetime) -> Sequence[Any]:
    about = obj.get("involvedObject") or {}
    series = obj.get("series") or {}
    seen = series.get("lastObservedTime") or obj.get("lastTimestamp") or obj.get("eventTime")
    first = obj.get("firstTimestamp") or obj.get("eventTime")
    source = obj.get("source") or {}
    origin = ", ".join(
        s for s in (source.get("component") or obj.get("reportingComponent", ""), source.get("host", "")) if s
    )
    return (
        since(seen, now), obj.get("type", ""), obj.get("reason", ""),
        f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}", about.get("fieldPath", ""), origin,
        str(obj.get("message", "")).strip(), since(first, now), series.get("count", obj.get("count", 1)),
        _meta(obj).get("name"),
    )  # fmt: skip


def _job(obj: Row, now: datetime) -> Sequence[Any]:
    spec, status = _spec(obj), _status(obj)
    held = {c.get("type") for c in status.get("conditions") or () if c.get("status") == "True"}
    state = "Running"
    for name in ("Complete", "Failed", "Suspended", "FailureTarget", "SuccessCriteriaMet"):
        if name in held:
            state = name
            break
    if _meta(obj).get("deletionTimestamp"):
        state = "Terminating"
    wanted = spec.get("completions")
    done = (
        f"{status.get('succeeded', 0)}/{wanted}" if wanted is not None else f"{status.get('succeeded', 0)}/1"
    )
    start, end = parse_time(status.get("startTime")), parse_time(status.get("completionTime"))
    took = "" if start is None else human_duration(((end or now) - start).total_seconds())
    return (_meta(obj).get("name"), state, done, took, _age(obj, now), *_containers(obj))


def _containers(obj: Row) -> tuple[str, str, str]:
    template = (_spec(obj).get("template") or {}).get("spec") or {}
    listed = template.get("containers") or ()
    labels = (_spec(obj).get("selector") or {}).get("matchLabels") or {}
    return (
        ",".join(c.get("name", "") for c in listed),
        ",".join(c.get("image", "") for c in listed),
        ",".join(f"{k}={v}" for k, v in sorted(labels.items())) or "<none>",
    )


def _pdb(obj: Row, now: datetime) -> Sequence[Any]:
    spec = _spec(obj)
    bounds = [str(spec[k]) if k in spec else "N/A" for k in ("minAvailable", "maxUnavailable")]
    return (_meta(obj).get("name"), *bounds, _status(obj).get("disruptionsAllowed", 0), _age(obj, now))


def _workload(obj: Row, now: datetime) -> Sequence[Any]:
    status, wanted = _status(obj), _spec(obj).get("replicas", 1)
    ready = f"{status.get('readyReplicas', 0)}/{wanted}"
    return (
        _meta(obj).get("name"), ready, status.get("updatedReplicas", 0), status.get("availableReplicas", 0),
        _age(obj, now), *_containers(obj),
    )  # fmt: skip


def _daemon_set(obj: Row, now: datetime) -> Sequence[Any]:
    status = _status(obj)
    names = (
        "desiredNumberScheduled",
        "currentNumberScheduled",
        "numberReady",
        "updatedNumberScheduled",
        "numberAvailable",
    )
    template = (_spec(obj).get("template") or {}).get("spec") or {}
    selector = ",".join(f"{k}={v}" for k, v in (template.get("nodeSelector") or {}).items()) or "<none>"
    return (
        _meta(obj).get("name"),
        *(status.get(n, 0) for n in names),
        selector,
        _age(obj, now),
        *_containers(obj),
    )


_WIDE = ("Containers*", "Images*", "Selector*")
_BUILT_IN: dict[tuple[str, str], Columns] = {
    ("", "nodes"): Columns(
        ("Name", "Status", "Roles", "Age", "Version", "Internal-IP*", "External-IP*", "OS-Image*",
         "Kernel-Version*", "Container-Runtime*"), _node,
    ),
    ("", "pods"): Columns(
        ("Name", "Ready", "Status", "Restarts", "Age", "IP*", "Node*", "Nominated Node*", "Readiness Gates*"),
        _pod,
    ),
    ("", "namespaces"): Columns(
        ("Name", "Status", "Age"),
        lambda o, n: (_meta(o).get("name"), _status(o).get("phase", ""), _age(o, n)),
    ),
    ("", "events"): Columns(
        ("Last Seen", "Type", "Reason", "Object", "Subobject*", "Source*", "Message", "First Seen*", "Count*",
         "Name*"), _event,
    ),
    ("coordination.k8s.io", "leases"): Columns(
        ("Name", "Holder", "Age"),
        lambda o, n: (_meta(o).get("name"), _spec(o).get("holderIdentity", ""), _age(o, n)),
    ),
    ("batch", "jobs"): Columns(("Name", "Status", "Completions", "Duration", "Age", *_WIDE), _job),
    ("policy", "poddisruptionbudgets"): Columns(
        ("Name", "Min Available", "Max Unavailable", "Allowed Disruptions", "Age"), _pdb
    ),
    ("apps", "deployments"): Columns(("Name", "Ready", "Up-to-date", "Available", "Age", *_WIDE), _workload),
    ("apps", "daemonsets"): Columns(
        ("Name", "Desired", "Current", "Ready", "Up-to-date", "Available", "Node Selector", "Age", *_WIDE),
        _daemon_set,
    ),
    ("apps", "replicasets"): Columns(
        ("Name", "Desired", "Current", "Ready", "Age", *_WIDE),
        lambda o, n: (
            _meta(o).get("name"), _spec(o).get("replicas", 1), _status(o).get("replicas", 0),
            _status(o).get("readyReplicas", 0), _age(o, n), *_containers(o),
        ),
    ),
    ("", "configmaps"): Columns(
        ("Name", "Data", "Age"), lambda o, n: (_meta(o).get("name"), len(o.get("data") or ()), _age(o, n))
    ),
    ("", "secrets"): Columns(
        ("Name", "Type", "Data", "Age"),
        lambda o, n: (_meta(o).get("name"), o.get("type", "Opaque"), len(o.get("data") or ()), _age(o, n)),
    ),
    ("apiextensions.k8s.io", "customresourcedefinitions"): Columns(
        ("Name", "Created At"), lambda o, n: (_meta(o).get("name"), _meta(o).get("creationTimestamp"))
    ),
}  # fmt: skip
_PLAIN = Columns(("Name", "Age"), lambda o, n: (_meta(o).get("name"), _age(o, n)))


def _custom_cell(column: Any, obj: Row, now: datetime) -> Any:
    found = column.path(obj)
    if not found:
        return None
    value = found[0]
    if column.type == "date":
        return since(value, now)
    if column.type == "string" and not isinstance(value, str):
        if len(found) == 1 and isinstance(value, bool):
            return "true" if value else "false"
        import msgspec

        return msgspec.json.encode(value).decode()
    return value


class TableView:
    """Rows of one kind at one moment; `include` is Metadata, None or Object."""

    def __init__(self, resource: Resource, now: datetime, include: str = "Metadata") -> None:
        self._resource = resource
        self._now = now
        self._include = include
        self._columns = _BUILT_IN.get(resource.key, _PLAIN)

    def definitions(self) -> list[dict[str, Any]]:
        """columnDefinitions."""
        custom = self._resource.custom
        if custom is None or not custom.columns:
            return self._columns.definitions()
        named = {"name": "Name", "type": "string", "format": "name", "description": "", "priority": 0}
        return [
            named,
            *(
                {"name": c.name, "type": c.type, "format": c.format, "description": c.description,
                 "priority": c.priority}
                for c in custom.columns
            ),
        ]  # fmt: skip

    def row(self, obj: Row) -> dict[str, Any]:
        """One row."""
        custom = self._resource.custom
        cells: Sequence[Any]
        if custom is None or not custom.columns:
            cells = self._columns.cells(obj, self._now)
        else:
            cells = [_meta(obj).get("name"), *(_custom_cell(c, obj, self._now) for c in custom.columns)]
        row: dict[str, Any] = {"cells": list(cells)}
        if self._include == "Object":
            row["object"] = obj
        elif self._include != "None":
            row["object"] = partial(obj)
        return row

    def table(self, objects: Sequence[Row], meta: dict[str, Any]) -> dict[str, Any]:
        """A whole Table."""
        return {
            "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": meta,
            "columnDefinitions": self.definitions(), "rows": [self.row(o) for o in objects],
        }  # fmt: skip


def partial(obj: Row) -> Row:
    """Only the metadata of an object."""
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": _meta(obj)}
