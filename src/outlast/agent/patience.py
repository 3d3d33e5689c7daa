"""How a writer behaves while the API server refuses or is away: back off, complain once, never give up."""

from __future__ import annotations

from random import Random
from typing import Final

import structlog

from outlast.agent.options import BACKOFF_BASE_S, BACKOFF_MAX_S, COMPLAIN_EVERY_S
from outlast.ports.clock import Clock
from outlast.ports.cluster import ClusterError, Forbidden, Invalid, NotFound, Unauthorized, Unavailable

log = structlog.get_logger("outlast.agent")

_ADVICE: Final[tuple[tuple[type[ClusterError], str], ...]] = (
    (Forbidden, "grant the agent its rights: apply the manifests of this version"),
    (Unauthorized, "the credentials are not accepted: check the service account token or kubeconfig"),
    (NotFound, "the object or its kind is not there: is the node registered and are the CRDs installed?"),
    (Invalid, "the server refuses the content: agent and CRDs may have different versions"),
    (Unavailable, "the API server does not answer: everything is kept and written when it returns"),
)


class Patience:
    """Back-off with jitter for one writer. Not for several writers at once."""

    def __init__(self, what: str, node: str, clock: Clock, rng: Random) -> None:
        self._what = what
        self._node = node
        self._clock = clock
        self._rng = rng
        self._failures = 0
        self._since_s = 0.0
        self._complained_s: float | None = None
        self._last = ""

    def failed(self, error: ClusterError) -> float:
        """Note a failure; returns the seconds to wait before the next try."""
        now_s = self._clock.monotonic()
        if self._failures == 0:
            self._since_s = now_s
        self._failures += 1
        kind = type(error).__name__
        stale = self._complained_s is None or now_s - self._complained_s >= COMPLAIN_EVERY_S
        if stale or kind != self._last:
            self._last, self._complained_s = kind, now_s
            advice = next((text for shape, text in _ADVICE if isinstance(error, shape)), "")
            log.warning(
                "cannot write, will retry",
                what=self._what,
                node=self._node,
                problem=kind,
                error=str(error)[:500],
                advice=advice,
                failures=self._failures,
            )
        ceiling_s: float = min(BACKOFF_MAX_S, BACKOFF_BASE_S * 2 ** min(self._failures - 1, 10))
        wait_s = ceiling_s * (0.5 + 0.5 * self._rng.random())
        return max(wait_s, min(error.retry_after_s or 0.0, BACKOFF_MAX_S))

    def succeeded(self) -> None:
        """Note a success."""
        if self._failures:
            log.info(
                "writing works again",
                what=self._what,
                node=self._node,
                failures=self._failures,
                outage_s=round(self._clock.monotonic() - self._since_s, 1),
            )
        self._failures, self._complained_s, self._last = 0, None, ""
