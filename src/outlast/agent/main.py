"""Wiring of the real agent: adapters for this machine, one Agent, one process."""

from __future__ import annotations

import asyncio
import gc
from random import Random
from typing import NoReturn

import structlog

import outlast
from outlast.adapters.clock import SystemClock
from outlast.adapters.kubernetes import KubeconfigError, KubernetesCluster, QueuedEvents, find_access
from outlast.adapters.kubernetes.access import Access
from outlast.adapters.linux.machine import LinuxMachine
from outlast.adapters.linux.pci import SysfsPciBus
from outlast.adapters.linux.state_file import AtomicFile
from outlast.adapters.metrics_page import parse_address
from outlast.adapters.nvml.reader import NvmlReader
from outlast.agent.agent import Agent
from outlast.agent.config import Config
from outlast.agent.ending import leave, until_signal
from outlast.agent.kernel_source import kernel_source
from outlast.agent.lock import only_agent
from outlast.agent.options import POLL_INTERVAL_S, Options
from outlast.agent.sources import Places, build
from outlast.health.catalogue import Catalogue, CatalogueError, load
from outlast.health.verdict import ApplicationRule, Settings
from outlast.model.names import AGENT_FIELD_MANAGER

log = structlog.get_logger("outlast.agent")


class StartError(Exception):
    """The agent cannot start as asked; `str()` is one sentence."""


def run(config: Config) -> NoReturn:
    """Run until a signal, then end the process. Raises StartError."""
    try:
        access = find_access(config.kubeconfig)
        catalogue = load(*config.catalogues)
        if config.metrics_address:
            parse_address(config.metrics_address)
    except (KubeconfigError, CatalogueError, ValueError) as error:
        raise StartError(str(error)) from error
    gc.collect()
    gc.freeze()  # imports live for ever; looking at them again at each collection costs time and pages
    try:
        asyncio.run(until_signal(_serve(config, access, catalogue)))
    except BaseExceptionGroup as group:
        log.error("a loop of the agent failed", node=config.node_name, exc_info=group)
        leave(1)
    leave(0)


async def _serve(config: Config, access: Access, catalogue: Catalogue) -> None:
    clock, rng = SystemClock(), Random()  # noqa: S311 (jitter, not secrets)
    await only_agent(config.state_dir / "agent.lock", clock)
    machine = LinuxMachine(config.host_root)
    boot_id = machine.facts().boot_id
    settings = Settings(
        expected_gpus=config.expected_gpus,
        expected_efa=config.expected_efa,
        application_rule=ApplicationRule(config.application_rule),
        trust_user_records=config.trust_user_records,
        note=config.note,
        pace=min(1.0, config.poll_interval_s / POLL_INTERVAL_S),
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
            kernel_log=kernel_source(
                config.kernel_log,
                state_dir=config.state_dir,
                host_root=config.host_root,
                boot_id=boot_id,
                clock=clock,
            ),
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
            quiesce_file=AtomicFile(config.state_dir / "quiesce.json"),
            polled=build(
                Places(config.host_root, config.proc_root, config.dcgm, config.dcgm_exporter), clock
            ),
        )
        log.info("agent starts", node=config.node_name, version=outlast.__version__, boot_id=boot_id)
        if config.metrics_address:
            from outlast.agent.metrics import served

            group.create_task(served(config.metrics_address, agent, clock).run(), name="metrics")
        group.create_task(agent.run(), name="agent")
