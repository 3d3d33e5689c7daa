"""What active checks found: tests that ran on an idle GPU, or say why they did not.

A test that did not run to its end says nothing about the GPU; only a test that failed does.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from outlast.model.health import FaultClass
from outlast.model.observation.base import Reading, Survey


class ActiveTest(StrEnum):
    """One kind of test; the value is what people and JSON see."""

    CONTEXT = "context"
    """A context, memory, and a word written and read back."""
    MEMORY = "memory-pattern"
    HOST_COPY = "host-copy"
    GEMM = "gemm-checksum"
    PEER_COPY = "peer-copy"
    ALL_REDUCE = "all-reduce"
    DCGM = "dcgm-diag"


class Outcome(StrEnum):
    """Three values: a test that did not finish is neither good nor bad."""

    PASSED = "Passed"
    FAILED = "Failed"
    NOT_TESTED = "NotTested"


class NotTested(StrEnum):
    """Why a test says nothing."""

    GPU_BUSY_FOREIGN = "GpuBusyForeign"
    """Somebody else uses the GPU, or began to: the test gave way."""
    NO_ENGINE = "NoEngine"
    """What would run it is not on this machine."""
    NOT_HEALTHY = "NotHealthy"
    """The GPU was faulty or unreadable before."""
    MIG = "Mig"
    DEADLINE = "Deadline"
    CRASHED = "Crashed"
    NO_ROOM = "NoRoom"
    """Not enough free memory, or no second GPU."""
    SOFTWARE = "Software"
    """Driver, library or rights: not the GPU."""
    INCONCLUSIVE = "Inconclusive"
    """It ran and did not pass, for a reason that proves nothing about the GPU."""
    EARLIER_TEST = "EarlierTest"
    """A test before it ended the worker."""


class Failure(StrEnum):
    """What a failed test proves."""

    WRONG_RESULT = "WrongResult"
    """A computation gave other bits than before, than its peers, or than arithmetic."""
    WRONG_MEMORY = "WrongMemory"
    """Memory gave back something else than was written."""
    ERROR = "Error"
    """The GPU refused or broke off work of ours."""
    DIAGNOSTIC = "Diagnostic"
    """DCGM's diagnostic found it; `cure` says what it takes."""
    FABRIC_NOT_READY = "FabricNotReady"
    """CUDA error 802: the fabric manager has not initialised this GPU."""


class ActiveResult(Reading, frozen=True, kw_only=True):
    """One test on one GPU, or on a pair."""

    test: ActiveTest
    gpus: tuple[str, ...]
    """PCI addresses."""
    outcome: Outcome
    why: str = ""
    """One sentence: what failed, or why it was not tested."""
    not_tested: NotTested | None = None
    failure: Failure | None = None
    cure: FaultClass | None = None
    engine: str = ""
    """What ran it, with its version; results are compared among equals only."""
    model: str = ""
    checksum: str = ""
    bytes_per_s: float | None = None
    duration_s: float = 0.0


class ActiveSurvey(Survey, frozen=True, kw_only=True):
    """All results of one run."""

    source: ClassVar[str] = "active checks"

    level: str = ""
    results: tuple[ActiveResult, ...] = ()
