"""Every number the agent lives by, with its name and default."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from outlast.health.verdict import Settings
from outlast.model.names import SYSTEM_NAMESPACE

POLL_INTERVAL_S: Final = 15.0
HEARTBEAT_S: Final = 900.0
"""10,000 healthy nodes then cost the API server 11 writes a second; see docs/mechanisms/publishing.md."""
LEASE_RENEW_S: Final = 60.0
LEASE_DURATION_S: Final = 180
JITTER: Final = 0.1
"""Each wait of a fleet-wide rhythm is drawn from this share around its value, so that nodes spread."""

FIRST_SIGHT_MAX_S: Final = 5.0
"""The first survey waits this long for the own Node, which may say that the GPUs are to be left alone."""
RELEASE_RETRY_S: Final = 5.0
"""While a worker of ours cannot let go of the GPUs, it is looked at again this often."""
FIRST_LOOK_MAX_S: Final = 30.0
"""Nothing is published before the first survey returned, at most this long; faults never wait."""
INBOX_MAX: Final = 4096
"""Readings that wait for the judge; beyond it the source waits."""
WRITE_SPACING_S: Final = 0.2
"""Between two writes of one object. The first change is written at once, a flood is gathered."""
REASSERT_DELAY_S: Final = 1.0
"""After another writer changed our conditions: long enough for our own write's echo to arrive."""
SAVE_SPACING_S: Final = 1.0
SAVE_AGAIN_S: Final = 300.0
"""State that has not changed is written again this often: its file may be gone, or its disk full by now."""
FORGOTTEN_SHOWN_S: Final = 3600.0
"""How long it is said that what an earlier agent had saved could not be read."""
BACKOFF_BASE_S: Final = 0.5
BACKOFF_MAX_S: Final = 30.0
COMPLAIN_EVERY_S: Final = 300.0
"""A failure that lasts is logged again this often."""


@dataclass(frozen=True, slots=True)
class Options:
    """What an operator may change."""

    node_name: str
    poll_interval_s: float = POLL_INTERVAL_S
    heartbeat_s: float = HEARTBEAT_S
    lease_renew_s: float = LEASE_RENEW_S
    lease_duration_s: int = LEASE_DURATION_S
    namespace: str = SYSTEM_NAMESPACE
    settings: Settings = field(default_factory=Settings)
