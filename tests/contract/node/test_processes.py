"""What every source of processes must show; runs on a /proc tree and on the simulated processes."""

from pathlib import Path
from typing import Protocol

import pytest

from outlast.adapters.linux.processes import ProcProcesses
from outlast.model.observation import ProcessOwner, ProcessSurvey, StuckTask, Witness
from outlast.model.observation.processes import FABRIC_MANAGER, PERSISTENCE_DAEMON
from outlast.ports.node import Surveyor, Wanted
from outlast.sim.node import FakeProcesses
from tests.contract.node.hand_clock import HandClock
from tests.procfs import FakeProc

in_a_loop = pytest.mark.asyncio
POD = "0f2c5e1a-77aa-4a52-9a39-3b6cc0a6a1d2"
CONTAINER = "3f" * 32
CGROUP = (
    "0::/kubepods.slice/kubepods-burstable.slice/"
    f"kubepods-burstable-pod{POD.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope"
)
STACK = "[<0>] os_acquire_rwlock_read+0x1e/0x30 [nvidia]\n[<0>] nvidia_ioctl+0x33/0x40 [nvidia]"


class ProcessesUnderTest(Protocol):
    """A GPU node with its services and one training process, 4711."""

    source: Surveyor

    def wait(self, seconds: float) -> None: ...
    def end_service(self, name: str) -> None: ...
    def get_stuck(self, *, killed: bool) -> None: ...
    def hide_the_machine(self) -> None: ...


class Tree:
    def __init__(self, root: Path) -> None:
        self.clock = HandClock()
        self._proc = FakeProc(root / "proc")
        self._pids = {FABRIC_MANAGER: 900, PERSISTENCE_DAEMON: 901}
        for name, pid in self._pids.items():
            self._proc.add(pid, name)
        self._proc.add(4711, "python", threads={4711: "S", 4712: "S"}, cgroup=CGROUP)
        self.source = ProcProcesses(root / "proc", clock=self.clock)

    def wait(self, seconds: float) -> None:
        self.clock.wait(seconds)

    def end_service(self, name: str) -> None:
        self._proc.end(self._pids[name])

    def get_stuck(self, *, killed: bool) -> None:
        self._proc.add(
            4711,
            "python",
            state="Z" if killed else "S",
            threads={4711: "Z" if killed else "S", 4712: "D"},
            cgroup=CGROUP,
            stack=STACK,
        )

    def hide_the_machine(self) -> None:
        self._proc.end(2)


class Simulated:
    def __init__(self) -> None:
        self._fake = FakeProcesses()
        self._fake.owners[4711] = ProcessOwner(pid=4711, pod_uid=POD, container_id=CONTAINER)
        self._asleep_s: float | None = None
        self._killed = False
        self.source = self._fake

    def wait(self, seconds: float) -> None:
        if self._asleep_s is not None:
            self._asleep_s += seconds
            self._fake.stuck = [
                StuckTask(
                    pid=4711,
                    tid=4712,
                    name="python",
                    asleep_s=self._asleep_s,
                    witness=Witness.STACK,
                    zombie=self._killed,
                )
            ]

    def end_service(self, name: str) -> None:
        self._fake.services.remove(name)

    def get_stuck(self, *, killed: bool) -> None:
        self._asleep_s, self._killed = 0.0, killed

    def hide_the_machine(self) -> None:
        self._fake.whole_machine = False


@pytest.fixture(params=["proc", "simulated"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> ProcessesUnderTest:
    return Tree(tmp_path) if request.param == "proc" else Simulated()


async def look(machine: ProcessesUnderTest) -> ProcessSurvey:
    survey = await machine.source.survey(Wanted(process_ids=(4711,)))
    assert isinstance(survey, ProcessSurvey)
    return survey


@in_a_loop
async def test_services_are_seen_by_their_whole_name(machine: ProcessesUnderTest) -> None:
    """Although the kernel keeps only 15 bytes of it."""
    both = await look(machine)
    machine.end_service(FABRIC_MANAGER)
    one = await look(machine)
    await machine.source.aclose()

    assert set(both.services) == {FABRIC_MANAGER, PERSISTENCE_DAEMON}
    assert one.services == (PERSISTENCE_DAEMON,)
    assert one.whole_machine


@in_a_loop
@pytest.mark.parametrize("killed", [False, True])
async def test_a_thread_stuck_in_the_driver_is_found_also_in_a_killed_process(
    machine: ProcessesUnderTest, killed: bool
) -> None:
    """The process shows as sleeping, or as dead; only the thread's own entry tells."""
    machine.get_stuck(killed=killed)
    first = await look(machine)
    machine.wait(30)
    await look(machine)
    machine.wait(40)
    [task] = (await look(machine)).stuck
    await machine.source.aclose()

    assert first.stuck == ()
    assert (task.pid, task.tid, task.witness, task.zombie) == (4711, 4712, Witness.STACK, killed)
    assert task.asleep_s == 70


@in_a_loop
async def test_users_of_gpus_are_named(machine: ProcessesUnderTest) -> None:
    """Pod and container of each process that NVML listed."""
    [owner] = (await look(machine)).owners

    assert (owner.pid, owner.pod_uid, owner.container_id) == (4711, POD, CONTAINER)
    assert owner.key == POD


@in_a_loop
async def test_without_the_machines_processes_nothing_is_claimed(machine: ProcessesUnderTest) -> None:
    """A container without hostPID sees neither services nor the pids that NVML means."""
    machine.hide_the_machine()

    survey = await look(machine)

    assert not survey.whole_machine
    assert survey.owners == ()
