"""The three CustomResourceDefinitions: schema from the model, plus the rules a server must enforce.

The rules make history append-only: an intent never changes, an outcome is written once, an attempt
leaves only into the count of dropped ones, Closed stays closed, the epoch never falls. Every rule guards
optional fields with `has()`: an unguarded one makes an object unwritable for ever when a field is absent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from outlast.model.cluster import Kind
from outlast.model.health import NODE_HEALTHS
from outlast.model.incident import INCIDENTS
from outlast.model.names import GROUP, VERSION
from outlast.model.policy import REMEDIATION_POLICIES
from outlast.schema.openapi import Hints, Rule, structural_schema

KEEP_STATUS: Final = Rule(
    "!has(oldSelf.status) || has(self.status)",
    "status holds the history and cannot be removed",
)
SPEC_IS_FIXED: Final = Rule("self == oldSelf", "spec says how the incident opened and never changes")


def _unchanged(name: str) -> str:
    return (
        f"(has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name}))"
    )


def _or_zero(owner: str, name: str) -> str:
    return f"(has({owner}.{name}) ? {owner}.{name} : 0)"


INTENT_FIELDS: Final = ("rung", "startedAt", "deadlineAt", "reason", "because", "bootID", "jobName")
INTENT_IS_FIXED: Final = tuple(
    Rule(_unchanged(name), f"an intent is written once: {name} cannot change") for name in INTENT_FIELDS
)
OUTCOME_ONCE: Final = Rule(
    "!has(oldSelf.outcome) || (has(self.outcome) && self.outcome == oldSelf.outcome)",
    "an outcome is written once",
)
STATUS_RULES: Final = (
    Rule(
        "!has(oldSelf.attempts)"
        " || oldSelf.attempts.filter(o, !has(self.attempts) || !self.attempts.exists(n, n.id == o.id)).size()"
        f" <= {_or_zero('self', 'attemptsDropped')} - {_or_zero('oldSelf', 'attemptsDropped')}",
        "an attempt can leave the list only when attemptsDropped grows by it",
    ),
    Rule(
        f"{_or_zero('self', 'attemptsDropped')} >= {_or_zero('oldSelf', 'attemptsDropped')}",
        "attemptsDropped never falls",
    ),
    Rule(
        "!has(oldSelf.phase) || oldSelf.phase != 'Closed' || (has(self.phase) && self.phase == 'Closed')",
        "a closed incident stays closed",
    ),
    Rule(
        "!has(oldSelf.end) || (has(self.end) && self.end == oldSelf.end)",
        "the end of an incident is written once",
    ),
    Rule(
        f"{_or_zero('self', 'epoch')} >= {_or_zero('oldSelf', 'epoch')}",
        "epoch never falls",
    ),
)
BLOCKS_FIRST: Final = Rule(
    "!self.rungs.exists(r, r in ['Drain', 'ResetGPU', 'Reboot', 'Replace']) || 'BlockNewWork' in self.rungs",
    "a ladder that drains or repairs must have BlockNewWork before it",
)


@dataclass(frozen=True, slots=True)
class Column:
    """A printer column of `kubectl get`; `priority` 1 shows only with -o wide."""

    name: str
    json_path: str
    type: str = "string"
    description: str = ""
    priority: int = 0

    def to_plain(self) -> dict[str, Any]:
        """As `additionalPrinterColumns` wants it."""
        plain: dict[str, Any] = {"name": self.name, "type": self.type, "jsonPath": self.json_path}
        if self.description:
            plain["description"] = self.description
        if self.priority:
            plain["priority"] = self.priority
        return plain


@dataclass(frozen=True, slots=True)
class Resource:
    """One definition: a kind of the model and what surrounds its schema."""

    kind: Kind[Any]
    short_names: tuple[str, ...]
    columns: tuple[Column, ...]
    hints: Hints
    selectable: tuple[str, ...] = ()


def _verdict(subsystem: str) -> str:
    return f'.status.verdicts[?(@.subsystem=="{subsystem}")].verdict'


AGE: Final = Column("Age", ".metadata.creationTimestamp", "date")
RESOURCES: Final = (
    Resource(
        NODE_HEALTHS,
        ("nh",),
        (
            Column("State", ".status.state", description="Healthy, Faulty or Unknown over all subsystems"),
            Column("GPUs", ".status.gpuCount", description="GPUs that answer / GPUs expected"),
            Column("Fabric", _verdict("Fabric")),
            Column("RDMA", _verdict("RDMA")),
            Column("Monitor", _verdict("Monitor")),
            Column("Fault", ".status.faults[0].code", description="The worst open fault"),
            Column("Since", ".status.faults[0].openedAt", "date"),
            Column("Checked", ".status.checkedAt", "date", "Last completed full check", priority=1),
            Column("Version", ".status.agentVersion", priority=1),
        ),
        Hints(list_keys={"status.verdicts": ("subsystem",)}),
        (".status.state",),
    ),
    Resource(
        INCIDENTS,
        ("inc",),
        (
            Column("Node", ".spec.nodeName"),
            Column("Fault", ".status.fault"),
            Column("Step", ".status.step", description="The rung of the ladder it stands on"),
            Column("State", ".status.phase"),
            Column("Blocked by", ".status.blockedByText", description="The limit that holds it back"),
            AGE,
            Column("Ended", ".status.end.result", priority=1),
            Column("Observed", ".spec.observeOnly", "boolean", "Only observed, nothing is done", priority=1),
        ),
        Hints(
            rules={
                "": (KEEP_STATUS,),
                "spec": (SPEC_IS_FIXED,),
                "status": STATUS_RULES,
                "status.attempts[]": (*INTENT_IS_FIXED, OUTCOME_ONCE),
            },
            list_keys={"status.attempts": ("id",)},
        ),
        (".spec.nodeName", ".status.phase"),
    ),
    Resource(
        REMEDIATION_POLICIES,
        ("rempol",),
        (
            Column("Mode", ".spec.mode"),
            Column("Nodes", ".status.nodes", "integer", "Nodes it rules"),
            Column("Unavailable", ".status.unavailable", "integer", "Of them out of service now"),
            Column("Accepted", '.status.conditions[?(@.type=="Accepted")].status'),
            Column("Storm", '.status.conditions[?(@.type=="Storm")].status'),
            AGE,
        ),
        Hints(
            rules={"spec.ladders[]": (BLOCKS_FIRST,)},
            list_keys={
                "spec.ladders": ("class",),
                "status.inForce.ladders": ("class",),
                "status.conditions": ("type",),
            },
            defaults_under=("spec",),
        ),
    ),
)


def definition(resource: Resource) -> dict[str, Any]:
    """One CustomResourceDefinition as plain data, ready for an API server."""
    kind = resource.kind
    schema = structural_schema(kind.shape, resource.hints)
    schema["properties"] = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        **schema["properties"],
    }
    version: dict[str, Any] = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [column.to_plain() for column in resource.columns],
        "schema": {"openAPIV3Schema": schema},
    }
    if resource.selectable:
        version["selectableFields"] = [{"jsonPath": path} for path in resource.selectable]
    names = {
        "kind": kind.name,
        "listKind": f"{kind.name}List",
        "plural": kind.plural,
        "singular": kind.name.lower(),
        "shortNames": list(resource.short_names),
        "categories": ["outlast"],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "names": names,
            "versions": [version],
        },
    }


def definitions() -> list[dict[str, Any]]:
    """All definitions, in the order in which they are applied."""
    return [definition(resource) for resource in RESOURCES]
