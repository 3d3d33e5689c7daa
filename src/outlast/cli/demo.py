"""`outlast demo`: all of it, on this machine, without a cluster or a GPU."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from outlast.cli import EXIT_FAULT, EXIT_OK, UserError

if TYPE_CHECKING:
    import socket

    from outlast.cli.demo_screen import Screen
    from outlast.sim.demo import Demo
    from outlast.web.follow import Follower

DEFAULT_PORT = 8080
RATE_MAX = 1000.0


@dataclass(frozen=True, slots=True)
class _Wishes:
    port: int | None
    rate: float
    exit_when_done: bool
    json: bool


def demo(
    *,
    port: Annotated[
        int | None, Parameter(help="Port of the dashboard; default 8080, or a free one when that is taken.")
    ] = None,
    rate: Annotated[float, Parameter(help="How many times faster than life.")] = 60.0,
    exit_when_done: Annotated[
        bool, Parameter(help="End after the summary instead of staying up until Ctrl-C.")
    ] = False,
    json: Annotated[bool, Parameter(help="Print the report as JSON and nothing else.")] = False,
) -> int:
    """An hour of trouble for 48 simulated GPU nodes in about a minute, live in terminal and browser.

    Exit code 0 when every story came to its end and no invariant was violated, else 1.

    Example: outlast demo --exit-when-done
    """
    if not 0 < rate <= RATE_MAX:
        raise UserError(f"--rate {rate:g}: choose a number above 0 and up to {RATE_MAX:g}.")
    if port is not None and not 0 <= port <= 65535:
        raise UserError(f"--port {port}: choose a number from 0 to 65535.")
    return asyncio.run(_demo(_Wishes(port, rate, exit_when_done, json)))


async def _demo(wishes: _Wishes) -> int:
    from outlast.adapters.clock import SystemClock
    from outlast.cli.demo_screen import choose_screen
    from outlast.cli.stopping import stop_event
    from outlast.sim.demo import Demo

    _keep_logs_off_the_screen()
    taken = _port_for_dashboard(wishes.port)
    pace = SystemClock()
    play = Demo(pace=pace, rate=wishes.rate)
    screen = choose_screen(as_json=wishes.json)
    async with stop_event() as stopped, play.running(), _dashboard(play, taken) as (follower, url):
        with _kubeconfig(play) as path:
            screen.begin(play, follower, dashboard=url, kubeconfig=path)
            over = await _until_over_or_stopped(play, screen, stopped)
            if over is None:
                print(f"outlast demo: stopped in minute {play.world.minute:.0f}.", file=sys.stderr)
                return EXIT_OK
            report = play.report()
            screen.end(report, stays=not wishes.exit_when_done)
            if not wishes.exit_when_done:
                await stopped.wait()
    return EXIT_OK if report.ok else EXIT_FAULT


async def _until_over_or_stopped(play: Demo, screen: Screen, stopped: asyncio.Event) -> bool | None:
    """True when all stories ended, False when they did not in time, None when a human stopped it."""
    async with asyncio.TaskGroup() as group:
        drawing = group.create_task(screen.run(play.pace))
        playing = group.create_task(_play(play))
        waiting = group.create_task(stopped.wait())
        await asyncio.wait({playing, waiting}, return_when=asyncio.FIRST_COMPLETED)
        result = playing.result() if playing.done() else None
        for task in (drawing, playing, waiting):
            task.cancel()
    return result


async def _play(play: Demo) -> bool:
    return await play.ready() and await play.finished()


@asynccontextmanager
async def _dashboard(play: Demo, taken: socket.socket | None) -> AsyncIterator[tuple[Follower, str]]:
    """Follow the simulated cluster over HTTP, and serve the dashboard where its packages are there."""
    from random import Random

    from outlast.adapters.kubernetes import KubernetesCluster, access_with_token
    from outlast.web.explained import explain_incident
    from outlast.web.follow import Follower
    from outlast.web.live import Hub

    access = access_with_token(play.url)
    rng = Random(play.scenario.seed)  # noqa: S311
    hub = Hub()
    async with KubernetesCluster(access, clock=play.pace, rng=rng, field_manager="outlast-web") as cluster:
        follower = Follower(cluster, hub, play.pace)
        async with asyncio.TaskGroup() as group:
            following = group.create_task(follower.run())
            try:
                if taken is None:
                    yield follower, ""
                else:
                    from outlast.web.app import Dashboard
                    from outlast.web.serve import serving

                    board = Dashboard(follower.state, explain_incident, hub, play.clock, play.pace)
                    async with serving(board, taken) as url:
                        yield follower, url
            finally:
                following.cancel()


def _port_for_dashboard(wanted: int | None) -> socket.socket | None:
    """The dashboard's address, or None without its packages. Raises UserError for a port that is taken."""
    try:
        from outlast.web.serve import PortTaken, bind
    except ImportError:
        if wanted is not None:
            raise UserError("the dashboard needs more packages: pip install 'outlast[web]'") from None
        return None
    try:
        return bind("127.0.0.1", DEFAULT_PORT if wanted is None else wanted)
    except PortTaken as error:
        if wanted is not None:
            raise UserError(str(error)) from error
        return bind("127.0.0.1", 0)


@contextlib.contextmanager
def _kubeconfig(play: Demo) -> Iterator[Path]:
    """A kubeconfig that only we can read, for as long as the demo runs."""
    folder = Path(tempfile.mkdtemp(prefix="outlast-demo-"))
    try:
        path = folder / "kubeconfig"
        path.touch(mode=0o600)
        path.write_text(play.world.server.kubeconfig())
        yield path
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _keep_logs_off_the_screen() -> None:
    """48 agents and a controller log in one process: only what is wrong may come through."""
    import logging

    import structlog

    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
