"""What of a kernel log is new, and what is missing from it.

Sequence numbers have no holes, so a jump is a count of lost records. Records that could not be read
or parsed used up numbers too: they are reported at once and not counted again by the jump behind them.
"""

from __future__ import annotations

from outlast.model.observation import KernelLogCaughtUp, KernelLogGap, KernelRecord
from outlast.ports.node import KernelLogItem


class Continuity:
    """Follows one opening of a log from its oldest record on. Pure: bytes and time stay outside.

    `position` is the sequence of the last record that was delivered before, None when there is none
    in this boot; records up to it are skipped.
    """

    def __init__(self, position: int | None) -> None:
        self._position = position
        self._skipping = position is not None
        self._newest: int | None = None
        self._last: int | None = position
        self._caught_up = False
        self._replayed = 0
        self._bad = 0
        self._bad_reason = ""
        self._reported_bad = 0
        self._overrun = False

    @property
    def replaying(self) -> bool:
        """Whether what comes now was in the log before the opening."""
        return not self._caught_up

    @property
    def position_is_beyond_newest(self) -> bool:
        """At the end of the log: the saved position lies behind all records there are."""
        return (
            self._skipping
            and self._position is not None
            and (self._newest is None or self._newest < self._position)
        )

    def accept(self, record: KernelRecord) -> list[KernelLogItem]:
        """What to deliver because of this record: nothing, the record, or a gap and the record."""
        if self._skipping and self._position is not None:
            self._newest = record.sequence
            if record.sequence <= self._position:
                return []
            self._skipping = False
        items = self._missing_before(record)
        self._last = record.sequence
        self._replayed += self.replaying
        items.append(record)
        return items

    def spoiled(self, reason: str) -> None:
        """A record was there and could not be used; reported by the next `accept` or `flush`."""
        self._bad += 1
        self._bad_reason = self._bad_reason or reason

    def overrun(self) -> None:
        """The kernel said that records were overwritten; the next record tells how many."""
        self._overrun = True

    def flush(self) -> list[KernelLogItem]:
        """The gaps known so far: call after each burst, so that trouble is not kept waiting for a record."""
        if not self._bad:
            return []
        gap = KernelLogGap(lost=self._bad, reason=self._bad_reason)
        self._reported_bad += self._bad
        self._bad, self._bad_reason = 0, ""
        return [gap]

    def end_reached(self) -> list[KernelLogItem]:
        """The log has no more records now; the first time, this is the end of the replay."""
        items = self.flush()
        self._skipping = False
        if not self._caught_up:
            self._caught_up = True
            items.append(KernelLogCaughtUp(replayed=self._replayed))
        return items

    def _missing_before(self, record: KernelRecord) -> list[KernelLogItem]:
        last, bad, reason = self._last, self._bad, self._bad_reason
        reported, overrun = self._reported_bad, self._overrun
        self._bad, self._bad_reason, self._reported_bad, self._overrun = 0, "", 0, False
        if last is None:
            return [KernelLogGap(lost=bad, reason=reason)] if bad else []
        if record.sequence <= last:
            return [
                KernelLogGap(
                    lost=bad, reason=f"sequence went back from {last} to {record.sequence}: another log"
                )
            ]
        jump = max(0, record.sequence - last - 1 - reported)
        if jump > bad:
            words = "overwritten before they were read" if overrun else "missing from the log"
            reason = f"{jump} records {words}" + (f"; {reason}" if bad else "")
        elif overrun and not bad:
            return []
        return [KernelLogGap(lost=max(jump, bad), reason=reason)] if max(jump, bad) else []
