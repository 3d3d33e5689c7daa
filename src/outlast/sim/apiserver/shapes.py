"""How lists and maps of built-in kinds merge.

Two questions are answered per field, and Kubernetes answers them differently: which key a strategic
merge patch matches list items by, and which list items have owners of their own in managedFields.
Facts from the `patchMergeKey` and `listType` markers of the API types.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Shape:
    """One field: what its children are, and how it merges when it is a list or a map."""

    fields: Mapping[str, Shape] = field(default_factory=dict)
    item: Shape | None = None
    merge_key: str = ""
    """Strategic merge matches list items by this key; empty replaces the list."""
    merge_set: bool = False
    """Strategic merge of a list of plain values is a union."""
    retain_keys: bool = False
    owned_by: tuple[str, ...] = ()
    """Keys by which list items are owned one by one; empty means the list has one owner."""
    owned_set: bool = False
    """Each plain value of the list has its own owners."""
    atomic: bool = False
    """The map has one owner."""
    member: bool = False
    """The map or list itself is owned beside its members, as for all maps of custom kinds."""

    def child(self, name: str) -> Shape:
        """The shape of a field; unknown fields merge as plain maps and replaced lists."""
        return self.fields.get(name, PLAIN)


PLAIN = Shape()
_ATOMIC = Shape(atomic=True)
_SELECTOR = Shape(atomic=True)


def _keyed(
    key: str, item: Shape = PLAIN, *, owned_by: tuple[str, ...] | None = None, retain: bool = False
) -> Shape:
    return Shape(
        item=item, merge_key=key, owned_by=(key,) if owned_by is None else owned_by, retain_keys=retain
    )


META = Shape(
    {
        "finalizers": Shape(merge_set=True, owned_set=True),
        "ownerReferences": _keyed("uid"),
    }
)
META_ONLY = Shape({"metadata": META})

_CONTAINER = Shape(
    {
        "ports": _keyed("containerPort", owned_by=("containerPort", "protocol")),
        "env": _keyed("name"),
        "volumeMounts": _keyed("mountPath"),
        "volumeDevices": _keyed("devicePath"),
        "resources": Shape({"claims": Shape(owned_by=("name",))}),
    }
)
_CONDITIONS = _keyed("type")
_POD_SPEC = Shape(
    {
        "volumes": _keyed("name", retain=True),
        "containers": _keyed("name", _CONTAINER),
        "initContainers": _keyed("name", _CONTAINER),
        "ephemeralContainers": _keyed("name", _CONTAINER),
        "imagePullSecrets": _keyed("name"),
        "hostAliases": _keyed("ip"),
        "topologySpreadConstraints": _keyed("topologyKey", owned_by=("topologyKey", "whenUnsatisfiable")),
        "resourceClaims": _keyed("name", retain=True),
        "schedulingGates": _keyed("name"),
        "nodeSelector": _ATOMIC,
    }
)
_TEMPLATE = Shape({"metadata": META, "spec": _POD_SPEC})

NODE = Shape(
    {
        "metadata": META,
        "spec": Shape({"podCIDRs": Shape(merge_set=True, owned_set=True)}),
        "status": Shape({"conditions": _CONDITIONS, "addresses": _keyed("type")}),
    }
)
POD = Shape(
    {
        "metadata": META,
        "spec": _POD_SPEC,
        "status": Shape(
            {
                "conditions": _CONDITIONS,
                "podIPs": _keyed("ip"),
                "hostIPs": Shape(merge_key="ip"),
                "resourceClaimStatuses": _keyed("name", retain=True),
            }
        ),
    }
)
JOB = Shape(
    {
        "metadata": META,
        "spec": Shape({"template": _TEMPLATE, "selector": _SELECTOR}),
        "status": Shape({"conditions": Shape(merge_key="type")}),
    }
)
PDB = Shape(
    {
        "metadata": META,
        "spec": Shape({"selector": _SELECTOR}),
        "status": Shape({"conditions": _CONDITIONS}),
    }
)
DEFINITION = Shape({"metadata": META, "status": Shape({"conditions": _CONDITIONS})})
CONTROLLER = Shape(
    {
        "metadata": META,
        "spec": Shape({"template": _TEMPLATE, "selector": _SELECTOR, "strategy": Shape(retain_keys=True)}),
        "status": Shape({"conditions": _CONDITIONS}),
    }
)
SERVICE = Shape(
    {
        "metadata": META,
        "spec": Shape({"ports": _keyed("port", owned_by=("port", "protocol")), "selector": _ATOMIC}),
    }
)
