"""Keeping away from the GPUs while somebody needs them without clients.

The request comes with the own Node and ends when it is withdrawn, when its time is up, or after the
limit. It is remembered on disk, so that an agent that starts in the middle of a reset does not disturb it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import structlog

from outlast.agent.options import FIRST_SIGHT_MAX_S, RELEASE_RETRY_S
from outlast.agent.waiting import news_or_time
from outlast.model.cluster import Node
from outlast.model.health import QuiesceStatus
from outlast.model.names import QUIESCE_ANNOTATION
from outlast.model.observation import GpuSurvey, SurveyProblem
from outlast.model.quiesce import QUIESCE_MAX_S, QuiesceRequest, request_in
from outlast.ports.clock import Clock
from outlast.ports.node import GpuReader, StateFile

log = structlog.get_logger("outlast.agent")


class Quiesce:
    """Whether the GPUs are to be left alone, and what is answered to whoever asked."""

    def __init__(
        self, node: str, clock: Clock, memory: StateFile | None, changed: Callable[[], None]
    ) -> None:
        self._node = node
        self._clock = clock
        self._memory = memory
        self._changed = changed
        self._text: str | None = None
        self._request: QuiesceRequest | None = None
        self._ends_s = 0.0
        self._answer: QuiesceStatus | None = None
        self._asking: set[str] = set()
        self._sight = asyncio.Event()
        self._recall(memory.load() if memory is not None else None)

    @property
    def active(self) -> bool:
        """Whether no process of ours may ask the GPUs now."""
        if self._request is not None and self._clock.monotonic() >= self._ends_s:
            self._end("its time is up")
        return self._request is not None

    @property
    def status(self) -> QuiesceStatus | None:
        """What NodeHealth says of it."""
        return self._answer if self.active else None

    def saw(self, node: Node | None) -> None:
        """Take in the own Node, or that there is none."""
        self._sight.set()
        text = node.metadata.annotations.get(QUIESCE_ANNOTATION) if node is not None else None
        if text == self._text:
            return
        self._text = text
        request = request_in(text) if text else None
        if text and request is None:
            log.warning(
                "a request to leave the GPUs alone is not understood", node=self._node, text=text[:200]
            )
        if request is None:
            self._end("it was withdrawn")
            self._remember(b"")
        else:
            now = self._clock.now()
            self._take_up(request, min(request.until, now + timedelta(seconds=QUIESCE_MAX_S)))
        self._changed()

    async def first_sight(self) -> None:
        """Wait until the own Node was seen, or not much longer; a request that is known already is enough."""
        if not self.active:
            await news_or_time(self._sight, self._clock, FIRST_SIGHT_MAX_S)

    def wait_s(self, otherwise_s: float) -> float:
        """Seconds until the next look at the GPUs, or at whether they are free."""
        if not self.active or self._answer is None:
            return otherwise_s
        left_s = max(0.0, self._ends_s - self._clock.monotonic())
        return min(otherwise_s if self._answer.released else RELEASE_RETRY_S, left_s)

    @contextmanager
    def asking(self, source: str) -> Iterator[None]:
        """Around a survey that makes somebody ask the GPUs."""
        self._asking.add(source)
        try:
            yield
        finally:
            self._asking.discard(source)

    async def release(self, reader: GpuReader) -> GpuSurvey:
        """Let go of the GPUs, and say so instead of a survey."""
        gone = await reader.release()
        request, answer = self._request, self._answer
        if request is None or answer is None:
            return GpuSurvey(message="the GPUs were to be left alone for a moment")
        why = ""
        if not gone:
            why = "a worker process of the agent hangs in the driver and cannot be ended; a reboot ends it"
        elif self._asking:
            why = f"a question is still open: {', '.join(sorted(self._asking))}"
        self._answer = QuiesceStatus(
            request=answer.request,
            by=answer.by,
            since=answer.since,
            until=answer.until,
            released=not why,
            message=why,
        )
        if self._answer != answer:
            log.info("the GPUs are left alone", node=self._node, by=request.by, released=not why, why=why)
        held = f", but {why}" if why else ""
        until = answer.until.strftime("%Y-%m-%dT%H:%M:%SZ")
        return GpuSurvey(
            problem=SurveyProblem.RELEASED,
            message=f"{request.by} asked to leave the GPUs alone until {until}{held}",
        )

    def _take_up(self, request: QuiesceRequest, until: datetime) -> None:
        now = self._clock.now()
        self._remember(f"{until.isoformat()} {self._text}".encode())
        left_s = min((until - now).total_seconds(), QUIESCE_MAX_S)
        if left_s <= 0:
            self._end("its time is up")
            return
        since = self._answer.since if self._answer and self._answer.request == request.id else now
        self._request = request
        self._ends_s = self._clock.monotonic() + left_s
        self._answer = QuiesceStatus(request=request.id, by=request.by, since=since, until=until)

    def _end(self, why: str) -> None:
        if self._request is not None:
            log.info("the GPUs are looked at again", node=self._node, by=self._request.by, why=why)
        self._request = self._answer = None

    def _recall(self, content: bytes | None) -> None:
        """What an earlier process took up, until the moment that it gave itself: no restart prolongs it."""
        until, _, text = (content or b"").partition(b" ")
        request = request_in(text) if text else None
        if request is None:
            return
        try:
            ends = datetime.fromisoformat(until.decode())
            self._text = text.decode()
            self._take_up(request, min(request.until, ends))
        except (ValueError, TypeError):  # not our words, or a time without a zone
            self._text = None

    def _remember(self, content: bytes) -> None:
        if self._memory is not None:
            self._memory.save(content)
