"""What /proc shows of stuck tasks and of owners, in the shapes that kernels and container runtimes give."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.adapters.linux.cgroup import owner_of
from outlast.adapters.linux.processes import ProcProcesses
from outlast.model.observation import ProcessSurvey, StuckTask, Witness
from outlast.ports.node import Wanted
from tests.contract.node.hand_clock import HandClock
from tests.procfs import FakeProc

in_a_loop = pytest.mark.asyncio
UID = "0f2c5e1a-77aa-4a52-9a39-3b6cc0a6a1d2"
UNDERSCORED = UID.replace("-", "_")
HASH = "a1b2c3d4" * 4
BOX = "3f" * 32

CGROUPS = [
    ("cgroupfs", f"0::/kubepods/burstable/pod{UID}/{BOX}", UID, BOX, ""),
    ("guaranteed", f"0::/kubepods/pod{UID}/{BOX}", UID, BOX, ""),
    (
        "containerd by systemd",
        f"0::/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/cri-containerd-{BOX}.scope",
        UID,
        BOX,
        "",
    ),
    (
        "cri-o by systemd",
        f"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UNDERSCORED}.slice/crio-{BOX}.scope/container",
        UID,
        BOX,
        "",
    ),
    ("docker", f"0::/kubepods/burstable/pod{UID}/docker-{BOX}.scope", UID, BOX, ""),
    (
        "seen from inside a pod",
        f"0::/../../kubepods-pod{UNDERSCORED}.slice/cri-containerd-{BOX}.scope",
        UID,
        BOX,
        "",
    ),
    (
        "kubelet below a root",
        f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UNDERSCORED}.slice/cri-containerd-{BOX}.scope",
        UID,
        BOX,
        "",
    ),
    (
        "containerd with the wrong driver",
        f"0::/system.slice/containerd.service/kubepods-burstable-pod{UNDERSCORED}.slice:cri-containerd:{BOX}",
        UID,
        BOX,
        "",
    ),
    ("static pod", f"0::/kubepods/burstable/pod{HASH}/{BOX}", HASH, BOX, ""),
    (
        "version 1",
        f"12:memory:/kubepods/burstable/pod{UID}/{BOX}\n11:cpu,cpuacct:/kubepods/burstable/pod{UID}/{BOX}\n0::/",
        UID,
        BOX,
        "",
    ),
    ("docker alone", f"0::/system.slice/docker-{BOX}.scope", "", BOX, ""),
    (
        "slurm, version 2",
        "0::/system.slice/slurmstepd.scope/job_1234/step_0/user/task_0",
        "",
        "",
        "slurm/1234",
    ),
    ("slurm, version 1", "9:devices:/slurm/uid_1000/job_77/step_batch\n0::/", "", "", "slurm/77"),
    ("slurm, several daemons", "4:memory:/slurm_node7/uid_1000/job_5/step_0", "", "", "slurm/5"),
    ("a service", "0::/system.slice/nvidia-dcgm.service", "", "", ""),
    ("nothing", "", "", "", ""),
    ("a name that only looks like it", "0::/user.slice/podcast-0f2c5e1a/myjob_12", "", "", ""),
]


@pytest.mark.parametrize(("text", "pod", "box", "job"), [c[1:] for c in CGROUPS], ids=[c[0] for c in CGROUPS])
def test_the_owner_is_in_the_name_of_the_cgroup(text: str, pod: str, box: str, job: str) -> None:
    """Both cgroup versions, both drivers of the kubelet, the common runtimes, and Slurm."""
    owner = owner_of(4711, text)
    assert (owner.pod_uid, owner.container_id, owner.job) == (pod, box, job)


class Bench:
    """A /proc, and the adapter on it."""

    def __init__(self, root: Path, pids: tuple[int, ...] = ()) -> None:
        self.proc = FakeProc(root / "proc")
        self.clock = HandClock()
        self.pids = pids
        self.source = ProcProcesses(root / "proc", clock=self.clock, tasks_max=8, owners_max=5)

    async def look(self, after_s: float = 0.0) -> ProcessSurvey:
        self.clock.wait(after_s)
        return await self.source.survey(Wanted(process_ids=self.pids))

    async def stuck_after(self, *waits_s: float) -> tuple[StuckTask, ...]:
        survey = await self.look()
        for wait_s in waits_s:
            survey = await self.look(wait_s)
        await self.source.aclose()
        return survey.stuck


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@in_a_loop
async def test_sleep_elsewhere_is_none_of_ours(bench: Bench) -> None:
    """The stack names the driver it sleeps in: a slow disk or network file system is not NVIDIA's."""
    bench.proc.add(50, "nvidia-smi", state="D", stack="[<0>] rpc_wait_bit_killable+0x1 [sunrpc]")
    assert await bench.stuck_after(30, 40) == ()


@in_a_loop
async def test_a_task_that_runs_between_samples_is_not_stuck(bench: Bench) -> None:
    """Asleep each time one looks, as every busy reader of a disk is: its switches tell."""
    stack = "[<0>] uvm_ioctl+0x1 [nvidia_uvm]"
    bench.proc.add(50, "train", state="D", stack=stack, switches=10)
    await bench.look()
    bench.proc.add(50, "train", state="D", stack=stack, switches=11)
    assert (await bench.look(40)).stuck == ()
    [task] = (await bench.look(40)).stuck
    await bench.source.aclose()
    assert task.asleep_s == 40


@in_a_loop
@pytest.mark.parametrize("stack", [None, ""])
async def test_without_stacks_the_program_or_its_open_device_is_the_witness(
    bench: Bench, stack: str | None
) -> None:
    """A kernel that keeps stacks to itself: what talks only to the driver sleeps in it."""
    bench.proc.add(50, "nvidia-smi", state="D", stack=stack)
    bench.proc.add(51, "python", state="D", stack=stack, devices=("/dev/null", "/dev/nvidia0"))
    bench.proc.add(52, "dd", state="D", stack=stack, devices=("/dev/sda",))
    found = {task.pid: task.witness for task in await bench.stuck_after(70)}
    assert found == {50: Witness.NAME, 51: Witness.DEVICE}


@in_a_loop
async def test_a_reused_pid_is_another_process(bench: Bench) -> None:
    """Its sleep begins anew."""
    stack = "[<0>] nvidia_ioctl+0x1 [nvidia]"
    bench.proc.add(50, "nvidia-smi", state="D", stack=stack, started=100)
    await bench.look()
    await bench.look(60)
    bench.proc.add(50, "nvidia-smi", state="D", stack=stack, started=900)
    survey = await bench.look(30)
    await bench.source.aclose()
    assert survey.stuck == ()


@in_a_loop
async def test_hostile_names_and_garbage_break_nothing(bench: Bench) -> None:
    """A name may hold brackets and spaces and imitate a whole line."""
    bench.proc.add(60, ") D 1 1 (x", state="S")
    bench.proc.add(61, "a) Z (b", state="S")
    bench.proc.add(65, "nvidia\x1b[2J\nsmi", state="D", stack="[<0>] nvidia_ioctl+0x1 [nvidia]")
    bench.proc.set("62/stat", "")
    bench.proc.set("63/stat", "63 (x")
    bench.proc.set("64/stat", "sixty (x) D 1")
    await bench.look()
    survey = await bench.look(30)
    await bench.source.aclose()
    assert survey.readable
    assert [task.name for task in survey.stuck] == ["nvidia\\x1b[2J smi"]


@in_a_loop
async def test_more_threads_than_one_pass_may_look_at_wait_for_the_next(tmp_path: Path) -> None:
    """Bounded work a pass; nobody is left out for ever."""
    bench = Bench(tmp_path, pids=(100, 200))
    bench.proc.add(100, "train", threads=dict.fromkeys(range(100, 108), "S"))
    stack = "[<0>] nvidia_ioctl+0x1 [nvidia]"
    bench.proc.add(200, "train", threads={200: "S", 201: "D"}, stack=stack)
    found = await bench.stuck_after(30, 30, 30, 30)
    assert [task.tid for task in found] == [201]


@in_a_loop
async def test_owners_outlive_their_process_for_an_hour(tmp_path: Path) -> None:
    """The kernel log names a pid after its process is gone; a later process of that pid is another."""
    bench = Bench(tmp_path, pids=(4711,))
    bench.proc.add(4711, "train", cgroup=f"0::/kubepods/pod{UID}/{BOX}", started=100)
    [running] = (await bench.look()).owners
    bench.proc.end(4711)
    bench.pids = ()
    [ended] = (await bench.look(1800)).owners
    late = (await bench.look(1801)).owners

    assert (running.pod_uid, running.ended) == (UID, False)
    assert (ended.pod_uid, ended.ended) == (UID, True)
    assert late == ()


@in_a_loop
async def test_owners_are_bounded(tmp_path: Path) -> None:
    """The oldest are forgotten first."""
    pids = tuple(range(1000, 1008))
    bench = Bench(tmp_path, pids=pids)
    for pid in pids:
        bench.proc.add(pid, "train")
    assert len((await bench.look()).owners) == 5


@in_a_loop
async def test_a_proc_that_cannot_be_listed_says_so(tmp_path: Path) -> None:
    """Nothing is concluded from it."""
    survey = await ProcProcesses(tmp_path / "none", clock=HandClock()).survey(Wanted())
    assert not survey.readable
    assert survey.message
