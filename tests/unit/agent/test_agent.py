"""The whole agent on one simulated node: real parsers, real judge, real HTTP."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator

import pytest

from outlast.model.cluster import LEASES, NODES
from outlast.model.health import NODE_HEALTHS, FaultClass, FaultState
from outlast.model.names import GPU_FABRIC_READY, GPU_MONITOR_READY, GPU_READY, HOST_READY, RDMA_READY
from outlast.model.observation import HostSurvey, KernelRecord, Survey
from outlast.ports.cluster import Patch, PatchType
from outlast.ports.node import KernelLogItem, Polled, Wanted
from outlast.sim.apiserver.faults import Fault, Match
from outlast.sim.node import FakeKernelLog, MemoryStateFile
from tests.unit.agent.rig import NAME, Rig, rig

pytestmark = pytest.mark.asyncio


async def test_a_healthy_node_becomes_ready_by_a_completed_check() -> None:
    """All five conditions are True after the first complete survey, and NodeHealth says what was found."""
    async with rig() as there, there.running():
        for type_ in (GPU_READY, GPU_FABRIC_READY, RDMA_READY, GPU_MONITOR_READY, HOST_READY):
            await there.until_condition(type_, "True")
        health = await there.until_health(lambda health: health.checked_at is not None)
        assert (health.gpu_count, health.rdma_found, health.state) == ("8/8", 32, "Healthy")
        assert health.checked_at is not None


async def test_a_gpu_off_the_bus_is_published_and_clears_only_after_a_reboot() -> None:
    """Xid 79 makes GPUReady False at once; after a reboot it is Unknown until proven, then True."""
    async with rig() as there, there.running():
        await there.until_condition(GPU_READY, "True")
        there.xid(3, 79, "GPU has fallen off the bus.")
        await there.until_condition(GPU_READY, "False", "GpuFellOffBus")
        [fault] = (await there.until_health(lambda health: bool(health.faults))).faults
        assert (fault.code, fault.fault_class) == ("xid/79", FaultClass.REBOOT_CURES)
        assert fault.gpu is not None
        assert fault.gpu.serial == "gpu-0-3"
        there.reboot()
        await there.until_condition(GPU_READY, "Unknown", "AwaitingProof")
        await there.until_condition(GPU_READY, "True")
        assert (await there.health()).faults == ()


async def test_a_restart_of_the_agent_loses_no_fault_and_moves_no_transition_time() -> None:
    """Faults, their ids and lastTransitionTime survive the process."""
    async with rig() as there:
        async with there.running():
            await there.until_condition(GPU_READY, "True")
            there.xid(0, 48, "DBE")
            before = await there.until_condition(GPU_READY, "False")
            [fault] = (await there.until_health(lambda health: bool(health.faults))).faults
        async with there.running() as agent:

            async def written() -> bool:
                return agent.node_health.writes > 0

            await there.until(written)
            after = await there.condition(GPU_READY)
            assert (after.status, after.last_transition_time) == ("False", before.last_transition_time)
            [same] = (await there.health()).faults
            assert (same.id, same.state) == (fault.id, FaultState.OPEN)


async def test_a_restart_without_memory_reads_its_transition_times_back() -> None:
    """An agent that lost its disk learns from its own Node since when a status has been so."""
    async with rig() as there:
        async with there.running():
            before = await there.until_condition(GPU_READY, "True")
        there.memory = MemoryStateFile()
        await there.clock.sleep(60)
        async with there.running() as agent:
            await there.until(lambda: _wrote(agent.node_health))
            await there.until(lambda: _wrote(agent.conditions))
            after = await there.condition(GPU_READY)
            assert (after.status, after.last_transition_time) == ("True", before.last_transition_time)


async def _wrote(publisher: object) -> bool:
    return bool(getattr(publisher, "writes", 0))


async def test_a_programs_fault_changes_no_object() -> None:
    """Xid 13 leads to no write at all, before and after the hold-back."""
    async with rig() as there, there.running() as agent:
        await there.until_condition(GPU_READY, "True")
        await there.until(lambda: _wrote(agent.node_health))
        await there.clock.sleep(5)
        writes = (agent.conditions.writes, agent.node_health.writes)
        there.xid(0, 13, "Graphics Exception")
        await there.clock.sleep(60)
        assert agent.judgement is not None
        assert [recent.code for recent in agent.judgement.state.recent] == ["xid/13"]
        assert (agent.conditions.writes, agent.node_health.writes) == writes


async def test_a_hung_tool_fails_closed_while_the_kernel_log_goes_on() -> None:
    """GPUMonitorReady is False after one missed deadline; a lost GPU is still seen meanwhile."""
    async with rig() as there, there.running():
        await there.until_condition(GPU_MONITOR_READY, "True")
        there.nvml.hanging.add("")
        await there.until_condition(GPU_MONITOR_READY, "False", "DiagnosticsHung")
        assert (await there.condition(GPU_READY)).status == "True"
        there.xid(2, 79)
        await there.until_condition(GPU_READY, "False", "GpuFellOffBus")
        there.nvml.hanging.clear()
        await there.until_condition(GPU_MONITOR_READY, "True")


async def test_a_missing_efa_device_is_published_and_ends() -> None:
    """RDMAReady is False while one of 32 is gone."""
    async with rig() as there, there.running():
        await there.until_condition(RDMA_READY, "True")
        there.hardware.unplugged.add(there.hardware.efa[3])
        await there.until_condition(RDMA_READY, "False", "EfaMissing")
        there.hardware.unplugged.clear()
        await there.until_condition(RDMA_READY, "True")


async def test_conditions_that_another_writer_reverted_are_written_again() -> None:
    """A writer that replaces the whole list does not get the last word."""
    async with rig() as there, there.running():
        await there.until_condition(GPU_READY, "True")
        there.xid(0, 79)
        await there.until_condition(GPU_READY, "False")
        await there.writer.patch(
            NODES, NAME, Patch(PatchType.MERGE, {"status": {"conditions": []}}), subresource="status"
        )
        again = await there.until_condition(GPU_READY, "False", "GpuFellOffBus")
        assert again.last_transition_time is not None


async def test_other_conditions_and_fields_are_left_alone() -> None:
    """Our patch touches our four entries and nothing else."""
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "fine"}
    async with rig() as there:
        await there.writer.patch(
            NODES, NAME, Patch(PatchType.STRATEGIC, {"status": {"conditions": [ready]}}), subresource="status"
        )
        async with there.running():
            await there.until_condition(GPU_READY, "True")
            node = await there.node()
            kept = node.condition("Ready")
            assert kept is not None
            assert (kept.status, kept.reason) == ("True", "KubeletReady")
            assert [c.type for c in node.status.conditions].count("Ready") == 1
            assert len(node.status.conditions) == 6


async def test_nothing_is_lost_while_the_api_server_is_away() -> None:
    """Faults that happen during an outage are published when it ends, as they are then."""
    async with rig() as there, there.running():
        await there.until_condition(GPU_READY, "True")
        there.server.faults.add(Match(verb="write"), Fault(disconnect=True))
        there.xid(0, 79)
        there.xid(1, 48)
        await there.clock.sleep(40)
        assert (await there.condition(GPU_READY)).status == "True"
        there.server.faults.clear()
        await there.until_condition(GPU_READY, "False", "GpuFellOffBus")
        await there.until(lambda: _has_faults(there, 2))


async def _has_faults(there: Rig, count: int) -> bool:
    return len((await there.health()).faults) == count


async def test_a_refusal_is_said_once_and_retried(capsys: pytest.CaptureFixture[str]) -> None:
    """Without rights the agent says which are missing, goes on trying, and recovers by itself."""
    async with rig() as there:
        there.server.faults.add(Match(verb="write", plural="nodes"), Fault(status=403))
        async with there.running():
            await there.until(lambda: _has_faults(there, 0))
            await there.clock.sleep(60)
            there.server.faults.clear()
            await there.until_condition(GPU_READY, "True")
    printed = capsys.readouterr().out
    assert printed.count("cannot write") == 1
    assert "Forbidden" in printed
    assert "writing works again" in printed


async def test_a_deleted_node_health_is_made_again() -> None:
    """Somebody deletes the object; the next change brings it back whole."""
    async with rig() as there, there.running() as agent:
        await there.until(lambda: _wrote(agent.node_health))
        await there.writer.delete(NODE_HEALTHS, NAME)
        there.xid(0, 79)
        await there.until(lambda: _has_faults(there, 1))
        assert (await there.health()).gpus_expected == 8


async def test_a_node_health_that_is_deleted_on_a_quiet_node_comes_back() -> None:
    """Nothing changes on the node, and still the object is there again after a heartbeat, or as it was."""
    async with rig(heartbeat_s=20.0) as there, there.running() as agent:
        await there.until(lambda: _has_counts(there, 8))
        await there.writer.delete(NODE_HEALTHS, NAME)
        await there.until(lambda: _has_counts(there, 8))
        lie = Patch(PatchType.MERGE, {"status": {"gpusExpected": 3}})
        await there.writer.patch(NODE_HEALTHS, NAME, lie, subresource="status")
        await there.until(lambda: _has_counts(there, 8))
        writes = agent.node_health.writes
        await there.clock.sleep(100.0)
        assert agent.node_health.writes == writes


async def _has_counts(there: Rig, expected: int) -> bool:
    return (await there.health()).gpus_expected == expected


async def test_a_node_that_was_replaced_under_its_name_gets_its_conditions() -> None:
    """The uid in the patch refuses the old Node's writes; the agent learns the new uid."""
    async with rig() as there, there.running():
        await there.until_condition(GPU_READY, "True")
        await there.writer.delete(NODES, NAME)
        await there.writer.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NAME}})
        there.xid(0, 79)
        await there.until_condition(GPU_READY, "False", "GpuFellOffBus")


async def test_fields_that_end_are_removed_from_node_health() -> None:
    """A merge patch forgets nothing by itself: faults that are over leave the object."""
    async with rig() as there, there.running():
        await there.until_condition(GPU_READY, "True")
        there.hardware.change(there.gpu(0), recovery_action=1)
        await there.until(lambda: _has_faults(there, 1))
        there.hardware.change(there.gpu(0), recovery_action=0)
        await there.until(lambda: _has_faults(there, 0))


async def test_the_heartbeat_follows_completed_checks() -> None:
    """While checks complete the heartbeat moves; while NVML hangs it stands still."""
    async with rig(heartbeat_s=30.0) as there, there.running() as agent:
        first = await there.until_condition(GPU_READY, "True")

        async def moved() -> bool:
            beat = (await there.condition(GPU_READY)).last_heartbeat_time
            assert beat is not None
            assert first.last_heartbeat_time is not None
            return beat > first.last_heartbeat_time

        await there.until(moved)
        there.nvml.hanging.add("")
        await there.until_condition(GPU_MONITOR_READY, "False")
        await there.clock.sleep(10)
        writes = agent.conditions.writes
        await there.clock.sleep(80)
        assert agent.conditions.writes == writes


async def test_the_lease_is_renewed() -> None:
    """outlast-agent-<node> says that the agent lives."""
    async with rig(lease_renew_s=10.0) as there, there.running():
        seen = set()

        async def renewed() -> bool:
            leases = await there.writer.list(LEASES, "outlast-system")
            seen.update(
                lease.spec.renew_time for lease in leases if lease.metadata.name == f"outlast-agent-{NAME}"
            )
            return len(seen) >= 3

        await there.until(renewed)


async def test_the_first_words_of_an_agent_are_not_ignorance() -> None:
    """A restart publishes nothing before it has looked, so no condition flips through Unknown."""
    async with rig() as there:
        async with there.running():
            await there.until_condition(GPU_READY, "True")
        there.memory = MemoryStateFile()
        there.nvml.hanging.add("")
        async with there.running():
            await there.clock.sleep(3)
            assert (await there.condition(GPU_READY)).status == "True"
            await there.until_condition(GPU_MONITOR_READY, "False", "DiagnosticsHung")


async def test_a_flood_of_lines_is_gathered_into_few_writes() -> None:
    """Ten thousand lines of one burst cost a handful of writes, and the cause stays first."""
    async with rig() as there, there.running() as agent:
        await there.until_condition(GPU_READY, "True")
        writes = agent.node_health.writes
        there.xid(0, 79, "the cause")
        for number in itertools.count():
            there.xid(0, 45, f"Ch {number}")
            if number % 500 == 0:
                await asyncio.sleep(0)
            if number == 10_000:
                break
        await there.until_condition(GPU_READY, "False", "GpuFellOffBus")
        await there.clock.sleep(20)
        assert agent.node_health.writes - writes <= 10
        [fault] = (await there.health()).faults
        assert "the cause" in fault.evidence[0].text


async def test_a_full_disk_costs_no_health() -> None:
    """State cannot be saved; everything is published all the same, and history is judged again."""
    async with rig() as there:
        there.memory.full = True
        async with there.running():
            await there.until_condition(GPU_READY, "True")
            there.xid(0, 79)
            await there.until_condition(GPU_READY, "False")
        async with there.running():
            condition = await there.until_condition(GPU_READY, "Unknown", "AwaitingProof")
            assert condition.message


async def test_the_state_of_a_fault_is_open_until_the_machine_restarts() -> None:
    """Open in its own boot, waiting for proof in the next."""
    async with rig() as there, there.running():
        await there.until_condition(GPU_READY, "True")
        there.xid(0, 79)
        await there.until(lambda: _has_faults(there, 1))
        assert (await there.health()).faults[0].state is FaultState.OPEN
        there.reboot()
        await there.until_condition(GPU_READY, "Unknown", "AwaitingProof")
        health = await there.health()
        assert health.faults[0].state is FaultState.AWAITING_PROOF
        assert health.boot_id == there.machine.boot_id


async def test_lines_from_user_space_are_ignored_and_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A root process of a container cannot make a fault, nor fill the agent's log."""
    async with rig() as there, there.running() as agent:
        await there.until_condition(GPU_READY, "True")
        for _ in range(200):
            there.kernel.write(f"NVRM: Xid (PCI:{there.gpu(0)[:-2]}): 79, x", priority=12)
        await there.clock.sleep(20)
        assert (await there.condition(GPU_READY)).status == "True"
        assert agent.judgement is not None
        assert agent.judgement.state.untrusted == 200
    assert capsys.readouterr().out.count("user space") == 1


async def test_a_programs_fault_is_in_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing happens to the node, and whoever looks finds what was seen."""
    async with rig() as there, there.running():
        await there.until_condition(GPU_READY, "True")
        there.xid(0, 31, "MMU Fault")
        await there.clock.sleep(10)
    assert "xid/31" in capsys.readouterr().out


async def test_a_bus_that_cannot_be_read_does_not_clear_a_hung_tool() -> None:
    """Not knowing which GPUs to ask is no clean answer: the hang stands until NVML has really answered."""
    async with rig() as there, there.running() as agent:
        await there.until_condition(GPU_READY, "True")
        there.nvml.hanging.add("")
        await there.until_condition(GPU_MONITOR_READY, "False", "DiagnosticsHung")
        there.nvml.hanging.clear()
        there.pci.message = "/sys is not mounted"
        await there.clock.sleep(10 * there.options.poll_interval_s)
        assert agent.judgement is not None and not agent.judgement.state.pci.readable
        condition = await there.condition(GPU_MONITOR_READY)
        assert (condition.status, condition.reason) == ("False", "DiagnosticsHung")


class _Breaks:
    """A source with a bug of ours, until it is mended."""

    def __init__(self) -> None:
        self.mended = False
        self.asked = 0

    async def survey(self, wanted: Wanted) -> Survey:
        self.asked += 1
        if not self.mended:
            raise AttributeError("a sentence from a device")
        return HostSurvey()

    async def aclose(self) -> None:
        """Nothing is held."""


async def test_a_source_that_fails_by_itself_ends_nothing() -> None:
    """The agent goes on, asks it again, and takes back the monitor's word until it works."""
    source = _Breaks()
    async with rig() as there:
        there.polled = (Polled(source, 1.0, "disks"),)
        async with there.running():
            said = await there.until_condition(GPU_MONITOR_READY, "Unknown", "DiagnosticsFailed")
            assert "asking disks (AttributeError in test_agent.py line " in said.message
            there.xid(3, 79)
            await there.until_condition(GPU_READY, "False", "GpuFellOffBus")
            asked = source.asked
            source.mended = True
            await there.until_condition(GPU_MONITOR_READY, "True")
            assert source.asked > asked > 0


async def test_a_line_that_our_reader_trips_over_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log counts as lost, the rest goes on, and reading begins again where it was."""
    real = FakeKernelLog.records
    trips = iter([True])

    async def shaky(log: FakeKernelLog) -> AsyncGenerator[KernelLogItem, None]:
        async for item in real(log):
            if isinstance(item, KernelRecord) and next(trips, False):
                raise UnicodeError("a sentence from the log")
            yield item

    monkeypatch.setattr(FakeKernelLog, "records", shaky)
    async with rig() as there, there.running():
        await there.until_condition(GPU_MONITOR_READY, "True")
        there.kernel.write("anything")
        said = await there.until_condition(GPU_MONITOR_READY, "Unknown", "KernelLogBlind")
        assert "reading the kernel log failed (UnicodeError in test_agent.py line " in said.message
        await there.until_condition(GPU_MONITOR_READY, "True")
        there.xid(3, 79)
        await there.until_condition(GPU_READY, "False", "GpuFellOffBus")
