"""DCGM as `dcgmi` and the exporter show it: a second opinion, never the only one.

A value that DCGM left blank is None. What kept DCGM from an opinion is a field of its own, because an
engine that is down, hung or not watching says nothing about a GPU.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from outlast.model.observation.base import Reading, Survey


class DcgmProblem(StrEnum):
    """Why there is no opinion."""

    NOT_INSTALLED = "NotInstalled"
    ENGINE_DOWN = "EngineDown"
    """No host engine answers; nothing is started instead."""
    WATCHES_OFF = "WatchesOff"
    """The engine watches nothing, so its health is empty. Turning watches on would change a shared engine."""
    HUNG = "Hung"
    VERSION_MISMATCH = "VersionMismatch"
    DRIVER_TIMEOUT = "DriverTimeout"
    """The engine itself gave up on the driver and answers blank until it is restarted."""
    PAUSED = "Paused"
    ALREADY_RUNNING = "AlreadyRunning"
    """Another diagnostic is running."""
    REFUSED = "Refused"
    """Asked for something this machine, its mode (MIG) or its rights do not allow."""
    KILLED = "Killed"
    GARBAGE = "Garbage"
    FAILED = "Failed"


class DcgmIncident(Reading, frozen=True, kw_only=True):
    """One thing a health watch holds against one entity."""

    entity_group: str
    """GPU, Switch, GPU_I, CPU, ConnectX ... as DCGM names them."""
    entity_id: int | None
    system: str
    """The watch: PCIe system, Memory system ..."""
    health: str
    """Warning or Failure."""
    text: str
    """DCGM's words, joined from the pieces that `dcgmi` cuts; a mark at a cut may be lost."""
    code: int | None = None
    """DCGM error code, recognised in the words because the report has none; None when not recognised."""
    xid: int | None = None
    polls: int = 1
    """Reports in a row that had it."""


class DcgmSurvey(Survey, frozen=True, kw_only=True):
    """One `dcgmi health` report."""

    source: ClassVar[str] = "DCGM"

    overall: str = ""
    """Healthy, Warning or Failure; empty without a report."""
    incidents: tuple[DcgmIncident, ...] = ()
    incidents_dropped: int = 0
    problem: DcgmProblem | None = None
    message: str = ""
    version: str = ""
    engines: int | None = None
    """Processes of a host engine on this machine; more than one compete for the same counters."""
    duration_s: float = 0.0


class DcgmGpu(Reading, frozen=True, kw_only=True):
    """One GPU (or MIG instance) in the exporter's page. None: no such series, or blank."""

    index: int | None = None
    uuid: str = ""
    pci_address: str = ""
    instance: int | None = None
    """MIG GPU instance id."""
    xid_last: int | None = None
    """The last Xid only: it stays after recovery and hides repeats, so it is never an event."""
    remap_failed: bool | None = None
    remap_pending: bool | None = None
    health_status: int | None = None
    """The worst watch: 0 good, 10 warning, 20 failure."""
    blank: bool = False
    """Series of it are there, and all of them hold DCGM's marks for "no value"."""


class DcgmExporterSurvey(Survey, frozen=True, kw_only=True):
    """One page of dcgm-exporter, cut down to the series above."""

    source: ClassVar[str] = "DCGM exporter"

    gpus: tuple[DcgmGpu, ...] = ()
    problem: DcgmProblem | None = None
    message: str = ""
    frozen_s: float = 0.0
    """For how long no series of the page that moves on a living GPU has moved."""
    lines_dropped: int = 0
    duration_s: float = 0.0
