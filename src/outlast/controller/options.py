"""What an installation may choose about the controller; every number is a limit with a name."""

from __future__ import annotations

from dataclasses import dataclass, field

from outlast.model.names import SYSTEM_NAMESPACE
from outlast.remediation.act import RepairOptions


@dataclass(frozen=True, slots=True)
class ControllerOptions:
    """Sizes and spans of one controller."""

    namespace: str = SYSTEM_NAMESPACE
    """Where the agents' Leases and the repair Jobs are."""
    cordons_in_flight: int = 64
    """Nodes worked on at once; sick nodes that are not blocked yet go first."""
    records_in_flight: int = 32
    """Of them, nodes that are blocked already and wait for their records and further steps."""
    retry_base_s: float = 1.0
    retry_max_s: float = 60.0
    """Back-off of a node whose requests fail."""
    housekeeping_s: float = 30.0
    policy_status_s: float = 5.0
    closed_kept_s: float = 7 * 24 * 3600.0
    """How long a closed incident is kept; the repeat window of policies reaches no further back."""
    closed_kept_per_node: int = 8
    repair: RepairOptions = field(default_factory=RepairOptions)
