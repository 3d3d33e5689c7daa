"""NVML field 230: what the driver itself asks for. A level, polled; Xid 154 may never be printed.

It also catches what happened while the agent was away. "Not supported" is unknown, not none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from outlast.health.checks.declaration import LevelCheck, View
from outlast.health.checks.gpus import driver_absent
from outlast.health.finding import Assessment, Level, Note, Proof
from outlast.health.reasons import Reason
from outlast.model.health import FaultClass, Scope, Subsystem
from outlast.model.observation import GpuSurvey

NAME: Final = "recovery_action"


@dataclass(frozen=True, slots=True)
class Action:
    """One value of the field that asks for something."""

    code: str
    reason: Reason
    fault_class: FaultClass
    text: str
    proof: Proof = Proof.RECOVERY_NONE
    subsystem: Subsystem = Subsystem.GPU
    scope: Scope = Scope.GPU
    rank: int = 9


_RESET = Action(
    "recovery/reset", Reason.GPU_RESET_REQUIRED, FaultClass.RESET_CURES, "the driver asks for a GPU reset."
)
_REBOOT = Action(
    "recovery/reboot",
    Reason.REBOOT_REQUIRED,
    FaultClass.REBOOT_CURES,
    "the driver asks for a reboot.",
    # The driver forgets this wish when it is reloaded, so only a new boot proves anything.
    proof=Proof.NEW_BOOT_AND_PRESENT,
    scope=Scope.NODE,
)
_PEERS = Action(
    "recovery/drain-peers",
    Reason.FABRIC_RECOVERY_REQUIRED,
    FaultClass.TRANSIENT,
    "the driver asks to end traffic between GPUs.",
    proof=Proof.FABRIC_RECOVERED,
    subsystem=Subsystem.FABRIC,
)
_IMEX = Action(
    "recovery/imex",
    Reason.FABRIC_RECOVERY_REQUIRED,
    FaultClass.TRANSIENT,
    "the driver asks to recover the IMEX domain.",
    proof=Proof.FABRIC_RECOVERED,
    subsystem=Subsystem.FABRIC,
    scope=Scope.DOMAIN,
)

ACTIONS: Final[dict[int, Action]] = {
    1: _RESET,
    2: _REBOOT,
    3: _PEERS,
    4: _RESET,
    5: _IMEX,
    6: _RESET,
    7: _REBOOT,
}
"""nvmlDeviceGpuRecoveryAction_t: 1 reset, 2 node reboot, 3 drain P2P, 4 drain and reset, 5 recover IMEX
domain, 6 bus reset, 7 system reboot."""


def run(view: View) -> Assessment | None:
    """A finding for each GPU that asks for something."""
    if view.gpu is None or driver_absent(view):
        return None
    read = [gpu for gpu in view.gpu.gpus if gpu.recovery_action is not None]
    bad, notes = [], []
    for gpu in read:
        action = ACTIONS.get(gpu.recovery_action or 0)
        if action is None:
            if gpu.recovery_action:
                text = f"GPU {gpu.pci_address} asks for a recovery that this version does not know"
                notes.append(Note(subsystem=Subsystem.GPU, text=text, doubt=Reason.GPU_NOT_READABLE))
            continue
        bad.append(
            Level(
                code=action.code,
                reason=action.reason,
                fault_class=action.fault_class,
                subsystem=action.subsystem,
                scope=action.scope,
                rank=action.rank,
                proof=action.proof,
                gpu=gpu.pci_address,
                source=GpuSurvey.source,
                text=f"recovery action {gpu.recovery_action}",
                summary=f"GPU {gpu.pci_address}: {action.text}",
            )
        )
    covers = frozenset(gpu.pci_address for gpu in read if gpu.recovery_action in (0, *ACTIONS))
    return Assessment(check=NAME, bad=tuple(bad), notes=tuple(notes), covers=covers)


CHECK: Final = LevelCheck(NAME, "what the driver asks for", frozenset({GpuSurvey}), run)
