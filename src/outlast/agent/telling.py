"""What the agent says in its log and in Events: faults always, everything else at a bounded rate.

Anybody who can write to the kernel log could otherwise fill ours.
"""

from __future__ import annotations

from typing import Final

import structlog

from outlast.agent.options import COMPLAIN_EVERY_S
from outlast.health.reasons import Reason
from outlast.health.verdict import Judgement, JudgeState
from outlast.health.verdict.report import published_fault
from outlast.model.cluster import NODES
from outlast.ports.clock import Clock
from outlast.ports.cluster import EventNote, EventRecorder

log = structlog.get_logger("outlast.agent")

RECENT_TOLD_MAX: Final = 3
"""Application and informational events told from one judgement; the others are counted."""
RECENT_EVERY_S: Final = 1.0
BOARDS_TOLD_MAX: Final = 8
FAULT_EVENT_REASON: Final = "FaultCleared"


class Teller:
    """Tells of the differences between two judgements."""

    def __init__(self, node: str, clock: Clock, events: EventRecorder | None) -> None:
        self._node = node
        self._clock = clock
        self._events = events
        self._told_s: dict[str, float] = {}

    def tell(self, before: JudgeState, answer: Judgement, node_uid: str) -> None:
        """Log what happened, and write Events about faults."""
        for opened in answer.opened:
            fault = published_fault(opened)
            log.warning("fault", node=self._node, code=fault.code, fault=fault.id, summary=fault.summary)
            self._event(node_uid, opened.root.reason, fault.summary, warning=True)
        for ended in answer.ended:
            fault = published_fault(ended.fault)
            log.info("fault is over", node=self._node, code=fault.code, fault=fault.id, how=ended.ending)
            self._event(node_uid, FAULT_EVENT_REASON, f"{fault.code} is over: {ended.ending}.", warning=False)
        self._tell_inventory(before, answer.state, node_uid)
        self._tell_counts(before, answer.state)
        self._tell_suspicions(before, answer.state)
        self._tell_recent(before, answer.state)

    def _tell_inventory(self, before: JudgeState, after: JudgeState, node_uid: str) -> None:
        """Boards that came or went, by serial number; a first look is no change."""
        if before.known_gpus is after.known_gpus or not before.known_gpus:
            return
        was = {gpu.serial or gpu.uuid: gpu.pci_address for gpu in before.known_gpus}
        now = {gpu.serial or gpu.uuid: gpu.pci_address for gpu in after.known_gpus}
        came = [f"{board} at {now[board]}" for board in now if board not in was]
        went = [f"{board} at {was[board]}" for board in was if board not in now]
        if not came and not went:
            return
        parts = [
            f"{word} {', '.join(boards[:BOARDS_TOLD_MAX])}"
            for word, boards in (("new:", came), ("gone:", went))
            if boards
        ]
        message = f"The GPUs of this machine changed; {'; '.join(parts)}."
        log.warning("GPU inventory changed", node=self._node, came=len(came), went=len(went), boards=message)
        self._event(node_uid, Reason.INVENTORY_CHANGED, message, warning=False)

    def _tell_counts(self, before: JudgeState, after: JudgeState) -> None:
        if after.untrusted > before.untrusted and self._may("untrusted", COMPLAIN_EVERY_S):
            log.warning(
                "lines that look like the driver's came from user space; they are not believed",
                node=self._node,
                since_start=after.untrusted,
            )
        if after.gaps > before.gaps and self._may("gaps", COMPLAIN_EVERY_S):
            log.warning(
                "records of the kernel log were lost; all levels are probed again",
                node=self._node,
                since_start=after.gaps,
            )
        if after.kernel_log_lost and after.kernel_log_lost != before.kernel_log_lost:
            log.warning("the kernel log cannot be read", node=self._node, problem=after.kernel_log_lost)
        if after.faults_dropped > before.faults_dropped and self._may("dropped", COMPLAIN_EVERY_S):
            log.warning("more faults than are kept", node=self._node, dropped=after.faults_dropped)

    def _tell_suspicions(self, before: JudgeState, after: JudgeState) -> None:
        if after.suspicions is before.suspicions:
            return
        known = {(entry.gpu, entry.code, entry.jobs) for entry in before.suspicions}
        for entry in after.suspicions:
            if (entry.gpu, entry.code, entry.jobs) not in known:
                log.warning(
                    "different jobs met the same error on one GPU; test it deeply when it is idle",
                    node=self._node,
                    gpu=entry.address,
                    code=entry.code,
                    jobs=entry.jobs,
                    rule=after.settings.application_rule,
                    enough_to_block=entry.blocks,
                )

    def _tell_recent(self, before: JudgeState, after: JudgeState) -> None:
        known = {id(entry) for entry in before.recent}
        fresh = [entry for entry in after.recent if id(entry) not in known]
        if not fresh or not self._may("recent", RECENT_EVERY_S):
            return
        for entry in fresh[:RECENT_TOLD_MAX]:
            log.info(
                "no fault of the node",
                node=self._node,
                code=entry.code,
                gpu=entry.gpu,
                role=entry.role,
                more=max(0, len(fresh) - RECENT_TOLD_MAX),
            )

    def _may(self, what: str, every_s: float) -> bool:
        now_s = self._clock.monotonic()
        if what in self._told_s and now_s - self._told_s[what] < every_s:
            return False
        self._told_s[what] = now_s
        return True

    def _event(self, node_uid: str, reason: str, message: str, *, warning: bool) -> None:
        if self._events is None:
            return
        self._events.record(
            EventNote(
                kind=NODES, name=self._node, reason=reason, message=message, uid=node_uid, warning=warning
            )
        )
