"""What is to be done, as data: acts that a performer carries out, and the step that one look results in.

An act names its target by uid and carries all that its re-check needs, so performing it late or twice is
harmless. A step is the whole answer for one node: the next record of its Incident, written before any
act that follows from it, the acts, what holds it back, and when to look again.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from outlast.model.cluster import Node
from outlast.model.health import FaultClass
from outlast.model.incident import IncidentSpec, IncidentStatus
from outlast.model.names import CORDON_ANNOTATION

NODE_NAME_MAX: Final = 230
"""Of a node's name in the name of an incident, which stays within the 253 characters of an object name."""
_AFTER_NODE = re.compile(r"-[0-9a-f]{8}(-[1-9][0-9]{0,8})?")


class Cordon(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The value of our cordon annotation: intent and outcome of a block, in one write."""

    incident: str
    node_uid: str = msgspec.field(name="nodeUID")
    epoch: Annotated[int, Meta(ge=0)]
    fault_class: FaultClass = msgspec.field(name="class")
    reason: str
    since: Annotated[datetime, Meta(tz=True)]
    prior_do_not_disrupt: str | None = None
    """The value of karpenter.sh/do-not-disrupt before us; None where it was absent."""

    def to_annotation(self) -> str:
        """The JSON that goes on the node."""
        return msgspec.json.encode(self).decode()


def cordon_of(node: Node) -> Cordon | None:
    """Our cordon on a node. None where there is none or somebody wrote nonsense into the annotation.

    Nonsense is also what is well formed and names an incident that cannot be one of this node.
    """
    text = node.metadata.annotations.get(CORDON_ANNOTATION)
    if text is None:
        return None
    try:
        cordon = msgspec.json.decode(text, type=Cordon)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return cordon if can_be_incident_of(node.metadata.name, cordon.incident) else None


def can_be_incident_of(node_name: str, incident: str) -> bool:
    """Whether a name is one that an incident of this node may have."""
    kept = node_name[:NODE_NAME_MAX]
    return incident.startswith(kept) and _AFTER_NODE.fullmatch(incident, len(kept)) is not None


class _Act(msgspec.Struct, frozen=True, kw_only=True):
    pass


class Block(_Act, frozen=True, kw_only=True):
    """No new work on the node, from now on."""

    node: str
    node_uid: str
    cordon: Cordon


class Release(_Act, frozen=True, kw_only=True):
    """Take our own block away again."""

    node: str
    node_uid: str
    incident: str


class PodRef(msgspec.Struct, frozen=True, kw_only=True):
    """One pod, not whatever has its name later."""

    namespace: str
    name: str
    uid: str


class AskCheckpoint(_Act, frozen=True, kw_only=True):
    """Ask jobs to make their progress durable."""

    pods: tuple[PodRef, ...]
    request_id: str
    """Names incident and attempt, and no other of either."""


class Evict(_Act, frozen=True, kw_only=True):
    """Ask for pods to be moved, under their budgets."""

    pods: tuple[PodRef, ...]


class StartRepair(_Act, frozen=True, kw_only=True):
    """Run the repair Job of an intent; its name makes it happen once."""

    job_name: str
    incident: str
    intent_id: str
    node: str
    node_uid: str
    boot_id: str
    critical: bool
    """The node is drained: the pod may take system priority without preempting anyone's work."""


class StopRepair(_Act, frozen=True, kw_only=True):
    """Make sure that the repair Job of an intent never starts from now on."""

    job_name: str
    incident: str
    intent_id: str
    node: str
    node_uid: str
    boot_id: str


class RemoveRepair(_Act, frozen=True, kw_only=True):
    """Delete a repair Job whose outcome is recorded."""

    job_name: str


class HandOver(_Act, frozen=True, kw_only=True):
    """Publish AcceleratedHardwareReady=False, which makes Karpenter replace the machine."""

    node: str
    node_uid: str
    message: str
    since: datetime


class TakeBack(_Act, frozen=True, kw_only=True):
    """Publish AcceleratedHardwareReady=True after a hand-over that is no longer wanted."""

    node: str
    node_uid: str
    message: str
    since: datetime


Act: TypeAlias = (
    Block | Release | AskCheckpoint | Evict | StartRepair | StopRepair | RemoveRepair | HandOver | TakeBack
)

DISRUPTIVE = (AskCheckpoint, Evict, StartRepair, HandOver)
"""Acts that need an intent on record, a fresh look and the fence right before each call."""


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """One sentence of the story, to be told as an Event on the node."""

    reason: str
    message: str
    warning: bool = False


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What one look at one node results in."""

    incident: str = ""
    """Name of the incident this is about; empty when there is nothing to do."""
    open: IncidentSpec | None = None
    """Create the incident with this spec. A `Block` among the acts comes before it."""
    status: IncidentStatus | None = None
    """The record that has to stand before the acts; None leaves the stored one as it is."""
    acts: tuple[Act, ...] = ()
    notes: tuple[Note, ...] = ()
    needs_pods: bool = False
    """Nothing was decided: look again with the pods of the node."""
    look_again_s: float | None = None
    """Seconds until time alone may change the answer; None waits for a change."""
