"""Wiring of the real agent: adapters for this machine, one Agent, signals.

SIGTERM ends the process at once, even while a worker of ours sleeps in the driver for ever: nothing is
joined, and what must outlive us is already on disk.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from random import Random

import structlog

import outlast
from outlast.adapters.clock import SystemClock
from outlast.adapters.kubernetes import KubeconfigError, KubernetesCluster, QueuedEvents, find_access
from outlast.adapters.kubernetes.access import Access
from outlast.adapters.linux.kernel_log import DevKmsg
from outlast.adapters.linux.machine import LinuxMachine
from outlast.adapters.linux.pci import SysfsPciBus
from outlast.adapters.linux.state_file import AtomicFile
from outlast.adapters.nvml.reader import NvmlReader
from outlast.agent.agent import Agent
from outlast.agent.lock import only_agent
from outlast.agent.options import Options
from outlast.health.catalogue import Catalogue, CatalogueError, load
from outlast.health.verdict import Settings
from outlast.model.names import AGENT_FIELD_MANAGER

log = structlog.get_logger("outlast.agent")

EXIT_GRACE_S = 1.0
"""After SIGTERM: time for the last save, then the process ends whatever still runs."""


class StartError(Exception):
    """The agent cannot start as asked; `str()` is one sentence."""


@dataclass(frozen=True, slots=True)
class Config:
    """The command line, as data."""

    node_name: str
    kubeconfig: Path | None
    namespace: str
    kernel_log: Path
    host_root: Path
    proc_root: Path
    state_dir: Path
    poll_interval_s: float
    heartbeat_s: float
    lease_renew_s: float
    expected_gpus: int | None
    expected_efa: int | None
    xid_catalogue: Path | None
    note: str
    trust_user_records: bool


def run(config: Config) -> int:
    """Run until a signal; returns the exit code. Raises StartError."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    try:
        access = find_access(config.kubeconfig)
        catalogue = load(config.xid_catalogue)
    except (KubeconfigError, CatalogueError) as error:
        raise StartError(str(error)) from error
    gc.collect()
    gc.freeze()  # imports live for ever; looking at them again at each collection costs time and pages
    try:
        asyncio.run(_run(config, access, catalogue))
    except BaseExceptionGroup as group:
        log.error("a loop of the agent failed", node=config.node_name, exc_info=group)
        return _end(1)
    return _end(0)


def _end(code: int) -> int:
    """Leave without joining anything: a child in uninterruptible sleep would hold us for ever."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


async def _run(config: Config, access: Access, catalogue: Catalogue) -> None:
    loop = asyncio.get_running_loop()
    main = asyncio.current_task()
    stopping = False

    def stop() -> None:
        nonlocal stopping
        stopping = True
        loop.call_later(EXIT_GRACE_S, os._exit, 0)
        if main is not None:
            main.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        await _serve(config, access, catalogue)
    except asyncio.CancelledError:
        if not stopping:
            raise
        log.info("agent ends", node=config.node_name)


async def _serve(config: Config, access: Access, catalogue: Catalogue) -> None:
    clock, rng = SystemClock(), Random()  # noqa: S311 (jitter, not secrets)
    await only_agent(config.state_dir / "agent.lock", clock)
    machine = LinuxMachine(config.host_root)
    position = AtomicFile(config.state_dir / "kernel-log.json")
    boot_id = machine.facts().boot_id
    settings = Settings(
        expected_gpus=config.expected_gpus,
        expected_efa=config.expected_efa,
        trust_user_records=config.trust_user_records,
        note=config.note,
    )
    async with (
        KubernetesCluster(access, clock=clock, rng=rng, field_manager=AGENT_FIELD_MANAGER) as cluster,
        asyncio.TaskGroup() as group,
    ):
        events = QueuedEvents(
            cluster, clock=clock, rng=rng, component=AGENT_FIELD_MANAGER, host=config.node_name
        )
        group.create_task(events.run(), name="events")
        agent = Agent(
            cluster=cluster,
            kernel_log=DevKmsg(state=position, boot_id=boot_id, clock=clock, path=config.kernel_log),
            gpu_reader=NvmlReader(clock=clock, proc=config.proc_root),
            pci=SysfsPciBus(config.host_root),
            machine=machine,
            state_file=AtomicFile(config.state_dir / "judge.json"),
            clock=clock,
            rng=rng,
            options=Options(
                node_name=config.node_name,
                poll_interval_s=config.poll_interval_s,
                heartbeat_s=config.heartbeat_s,
                lease_renew_s=config.lease_renew_s,
                namespace=config.namespace,
                settings=settings,
            ),
            events=events,
            catalogue=catalogue,
        )
        log.info("agent starts", node=config.node_name, version=outlast.__version__, boot_id=boot_id)
        group.create_task(agent.run(), name="agent")
