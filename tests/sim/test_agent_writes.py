"""What a fleet of healthy agents costs the API server, on virtual time: every write counted."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import pairwise
from random import Random

import pytest

from outlast.agent.agent import Agent
from outlast.agent.options import HEARTBEAT_S, JITTER, LEASE_DURATION_S, LEASE_RENEW_S, Options
from outlast.model.policy import RemediationPolicySpec
from outlast.ports.node import Polled
from outlast.schema.crds import definitions
from outlast.sim.apiserver import Store
from outlast.sim.apiserver.resources import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, NODES
from outlast.sim.direct import DirectCluster, Operation
from outlast.sim.node import FakeGpuReader, FakeKernelLog, FakeMachine, FakePciBus, Hardware, MemoryStateFile
from outlast.sim.node.sources import FakeHost, FakeProcesses, FakeRdma
from outlast.sim.virtual_time import VirtualClock, run_virtual
from tests.sim.playground import running

HOURS = 4
FLEET = 10_000
GOAL_PER_S = 20
NAME = "gpu-0"


def _agent(store: Store, clock: VirtualClock, seed: int, writes: list[tuple[float, str]]) -> Agent:
    async def gate(operation: Operation) -> None:
        if operation.writes and operation.done:
            writes.append((clock.monotonic(), operation.kind))

    machine, hardware = FakeMachine(NAME), Hardware.h100(NAME, gpus=8, efa=32)
    kernel = FakeKernelLog(clock=clock, boot_id=machine.boot_id)
    nvml = FakeGpuReader(hardware, clock=clock)
    machine.attach(kernel, nvml)
    return Agent(
        cluster=DirectCluster(store, manager="outlast-agent", gate=gate),
        kernel_log=kernel,
        gpu_reader=nvml,
        pci=FakePciBus(hardware),
        machine=machine,
        state_file=MemoryStateFile(),
        clock=clock,
        rng=Random(seed),
        options=Options(node_name=NAME),
        polled=(
            Polled(FakeRdma(), 30.0, "RDMA"),
            Polled(FakeProcesses(), 30.0, "processes"),
            Polled(FakeHost(), 60.0, "host"),
        ),
    )


def _store(clock: VirtualClock) -> Store:
    store = Store(clock.now)
    for crd in definitions():
        store.create(CUSTOM_RESOURCE_DEFINITIONS, crd)
    store.create(NAMESPACES, {"metadata": {"name": "outlast-system"}})
    store.create(NODES, {"metadata": {"name": NAME}})
    return store


@cache
def _writes(seed: int = 1) -> list[tuple[float, str]]:
    """All writes of one healthy agent."""

    async def life() -> list[tuple[float, str]]:
        clock, writes = VirtualClock(), []
        agent = _agent(_store(clock), clock, seed, writes)
        async with running(agent.run()):
            await clock.sleep(HOURS * 3600)
        assert agent.judgement is not None
        assert {c.status for c in agent.judgement.conditions} == {"True"}
        return writes

    return run_virtual(life())


@pytest.mark.long
def test_ten_thousand_healthy_nodes_cost_less_than_twenty_writes_a_second() -> None:
    """Besides Leases. After the first minutes nothing is written but the heartbeat of the conditions."""
    writes = _writes()
    settled = Counter(kind for at_s, kind in writes if at_s > 900)
    share_s = HOURS * 3600 - 900
    assert settled["NodeHealth"] == 0
    assert set(settled) == {"Node", "Lease"}
    per_s = FLEET * settled["Node"] / share_s
    assert per_s < 0.6 * GOAL_PER_S
    # The heartbeat is there, and not only seldom.
    assert per_s > FLEET / (HEARTBEAT_S * (1 + JITTER)) * 0.9
    started = Counter(kind for at_s, kind in writes if at_s <= 900)
    assert started["Node"] <= 4
    assert started["NodeHealth"] <= 6


@pytest.mark.long
def test_the_lease_costs_what_its_page_says() -> None:
    """One renewal a minute: 167 a second at 10,000 nodes, spread; one may be lost before silence shows."""
    leases = [at_s for at_s, kind in _writes() if kind == "Lease"]
    per_s = FLEET * len(leases) / (HOURS * 3600)
    assert 150 < per_s < 185
    pauses = {round(b - a, 3) for a, b in pairwise(leases)}
    assert len(pauses) > len(leases) / 2
    assert max(pauses) <= LEASE_RENEW_S * (1 + JITTER) + 1


def test_silence_and_the_lease_are_a_pair() -> None:
    """A policy's default calls an agent silent after as long as its Lease says that it lasts."""
    assert RemediationPolicySpec().agent_silent_s == LEASE_DURATION_S
    assert LEASE_DURATION_S >= 2 * LEASE_RENEW_S * (1 + JITTER)


@pytest.mark.long
def test_a_fleet_that_started_together_does_not_beat_together() -> None:
    """Heartbeats of agents that were started in one second drift apart."""
    beats = [[at_s for at_s, kind in _writes(seed) if kind == "Node"][-1] for seed in (1, 2, 3)]
    assert max(beats) - min(beats) > 30
