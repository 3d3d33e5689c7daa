"""`outlast check` as a process: a /sys tree, a kernel log, NVIDIA's bindings on a fake library."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outlast.health.checks.declaration import KnownGpu
from outlast.health.verdict import Moment, Settings, start, to_bytes
from tests.cuda import FakeCuda
from tests.left_out import leave_out
from tests.nvml import FakeNvml
from tests.nvml.frozen import frozen_mount, why_not
from tests.sysfs import FakeSysfs

BOOT = "0d1cfb9c-4d0e-4a36-9d38-7d0a4c1f7a01"
WAIT_S = 60.0
NOBODY = 65534
FELL_OFF = "GPU has fallen off the bus."


class Box:
    """One machine in a folder."""

    def __init__(self, folder: Path, *, model: str = "H100", gpus: int = 8) -> None:
        self.folder = folder
        self.nvml = FakeNvml(folder).machine(model, gpus=gpus)
        self.sysfs = FakeSysfs(folder / "host")
        for address in self.nvml.addresses():
            self.sysfs.add_gpu(address)
        self.sysfs.set_proc("sys/kernel/random/boot_id", f"{BOOT}\n")
        self.log = folder / "kmsg"
        self.log.touch()
        self.cuda = FakeCuda(folder, self.nvml.addresses()).set("memory", 40 << 20)
        libraries = f"{self.nvml.environment['LD_LIBRARY_PATH']}:{self.cuda.folder}"
        self.environment = {
            **os.environ,
            **self.nvml.environment,
            **self.cuda.environment,
            "LD_LIBRARY_PATH": libraries,
        }
        self.took_s = 0.0
        self._sequence = 0

    def xid(self, gpu: int, code: int, text: str) -> None:
        """A line of the driver, some seconds after boot."""
        self._sequence += 1
        where = self.nvml.address(gpu)[:-2]
        with self.log.open("a") as file:
            file.write(f"4,{self._sequence},{5_000_000 + self._sequence},c;")
            file.write(f"NVRM: Xid (PCI:{where}): {code}, {text}\n")

    def run(self, *arguments: str, prefix: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        """The verb, as a person would start it."""
        command = [*prefix, sys.executable, "-m", "outlast", "check", "--host-root", str(self.sysfs.root)]
        command += ["--proc-root", str(self.sysfs.root / "proc"), "--kernel-log", str(self.log)]
        command += ["--state-dir", str(self.folder / "state"), *arguments]
        start_s = time.monotonic()
        done = subprocess.run(
            command, check=False, env=self.environment, capture_output=True, text=True, timeout=WAIT_S
        )
        self.took_s = time.monotonic() - start_s
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def page(self, *arguments: str, code: int) -> dict[str, Any]:
        """The JSON of a run that has to end with this exit code."""
        done = self.run("--json", *arguments)
        assert done.returncode == code, done.stdout + done.stderr
        page = json.loads(done.stdout)
        assert page["exitCode"] == code
        return page


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


def verdicts(page: dict[str, Any]) -> list[str]:
    return [gpu["verdict"] for gpu in page["gpus"]]


def test_a_healthy_machine_is_a_table_and_exit_0(box: Box) -> None:
    """One row a GPU, one a subsystem, the sentence of what to do, and no colour codes in a pipe."""
    done = box.run("--expected-gpus", "8")

    assert done.returncode == 0, done.stdout
    assert "8 of 8 GPUs are healthy" in done.stdout
    assert "Nothing to do." in done.stdout
    rows = [line for line in done.stdout.splitlines() if "H100 80GB HBM3" in line]
    assert [row.split()[0] for row in rows] == list("01234567")
    assert all("+ healthy" in row and "idle" in row for row in rows)
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert done.stderr == ""


def test_the_json_has_its_version_and_stable_keys(box: Box) -> None:
    """Scripts read it; each GPU says who it is."""
    page = box.page(code=0)

    assert (page["apiVersion"], page["kind"], page["verdict"]) == ("outlast.dev/cli/v1", "Check", "Healthy")
    assert set(page) == {
        "apiVersion", "kind", "level", "host", "checkedAt", "durationSeconds", "verdict", "exitCode",
        "headline", "advice", "gpus", "subsystems", "faults", "faultsDropped", "sources", "tests", "slow",
        "lookedAt",
        "driverVersion", "instanceType", "bootId",
    }  # fmt: skip
    assert page["gpus"][3] == {
        "index": 3,
        "pciAddress": "0000:40:1c.0",
        "model": "NVIDIA H100 80GB HBM3",
        "uuid": "GPU-00000000-0000-0000-0000-000000000003",
        "serial": "1653022000003",
        "verdict": "Healthy",
        "reason": "GpusHealthy",
        "what": "41 C, idle",
    }
    assert {row["condition"] for row in page["subsystems"]} >= {"GPUReady", "GPUMonitorReady", "HostReady"}


def test_a_lost_gpu_is_a_fault_with_its_kernel_line(box: Box) -> None:
    """The log's past says what happened, NVML that it is still so: one fault, the others are healthy."""
    box.xid(5, 79, FELL_OFF)
    box.nvml.action("nvmlDeviceGetHandleByPciBusId_v2", "ret:15", gpu=5)

    page = box.page("--expected-gpus", "8", code=1)

    assert verdicts(page) == ["Healthy"] * 5 + ["Faulty"] + ["Healthy"] * 2
    lost = page["gpus"][5]
    assert (lost["pciAddress"], lost["reason"]) == (box.nvml.address(5), "GpuFellOffBus")
    assert [row["fault"]["code"] for row in page["faults"]] == ["xid/79"]
    assert FELL_OFF in page["faults"][0]["fault"]["evidence"][0]["text"]
    assert "reboot" in page["advice"]


def test_a_kernel_line_of_the_past_alone_is_unknown_and_has_an_age(box: Box) -> None:
    """All GPUs answer now: it may long be over, so neither green nor a fault."""
    box.xid(2, 79, FELL_OFF)

    page = box.page(code=3)
    shown = box.run().stdout

    assert verdicts(page).count("Unknown") == 1
    assert page["gpus"][2]["reason"] == "AwaitingProof"
    assert page["faults"][0]["ageSeconds"] > 0
    assert "first seen" in shown
    assert "not proven to be over" in shown


def test_an_application_error_of_the_past_is_nothing(box: Box) -> None:
    """Xid 13 belongs to a program."""
    box.xid(2, 13, "pid=77, name=python, Graphics SM Warp Exception")

    assert box.page(code=0)["faults"] == []


@pytest.mark.parametrize("how", ["said by a person", "by machine type"])
def test_seven_of_eight_is_a_fault(box: Box, how: str) -> None:
    """Nobody drives a machine that is short of a GPU for years without being told."""
    box.sysfs.unplug(box.nvml.address(7))
    arguments = ["--expected-gpus", "8"]
    if how == "by machine type":
        arguments = []
        box.sysfs.set_proc("../sys/devices/virtual/dmi/id/sys_vendor", "Amazon EC2\n")
        box.sysfs.set_proc("../sys/devices/virtual/dmi/id/product_name", "p5.48xlarge\n")

    page = box.page(*arguments, code=1)

    assert page["faults"][0]["reason"] == "GpuMissing"
    assert "7 of 8" in page["headline"]


def test_a_hung_driver_costs_its_deadline_and_is_a_fault_of_nobody(box: Box) -> None:
    """NVML hangs at GPU 3: the check ends, says so, and calls no GPU healthy that did not answer."""
    box.nvml.action("nvmlDeviceGetUUID", "hang", gpu=3)

    page = box.page(code=1)

    assert box.took_s < 20
    assert page["faults"][0]["reason"] == "DiagnosticsHung"
    silent = next(gpu for gpu in page["gpus"] if gpu["pciAddress"] == box.nvml.address(3))
    assert silent["verdict"] == "Unknown"
    assert "Faulty" not in verdicts(page)


def test_its_own_deadline_holds_whatever_hangs(box: Box) -> None:
    """`--timeout` is for all of it."""
    box.nvml.action("nvmlInitWithFlags", "hang")

    page = box.page("--timeout", "1", code=1)

    assert box.took_s < 6
    assert "deadline" in str(page["sources"])
    assert set(verdicts(page)) == {"Unknown"}


@pytest.mark.root
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_worker_that_cannot_be_killed_does_not_hold_it(box: Box, tmp_path: Path) -> None:
    """Uninterruptible sleep in the driver: the check prints its page and is gone."""
    with frozen_mount(tmp_path) as mount:
        box.nvml.action("nvmlDeviceGetUUID", f"dstate:{mount.trap}", gpu=0)
        page = box.page(code=1)

    assert box.took_s < 25
    assert page["faults"][0]["reason"] == "DiagnosticsHung"


def test_without_the_library_nothing_is_green(box: Box, tmp_path: Path) -> None:
    """GPUs on the bus that nobody can ask: unknown, with what to do about it."""
    box.environment["LD_LIBRARY_PATH"] = str(tmp_path)

    page = box.page(code=3)

    assert set(verdicts(page)) == {"Unknown"}
    assert "libnvidia-ml" in page["advice"]


def test_no_gpu_at_all_says_where_it_looked(tmp_path: Path) -> None:
    """Never green on a machine that has nothing to check."""
    box = Box(tmp_path, gpus=0)

    done = box.run()

    assert done.returncode == 3
    assert "No NVIDIA device found" in done.stdout
    assert "Looked at" in done.stdout
    assert str(box.sysfs.root / "sys/bus/pci/devices") in done.stdout
    assert "healthy; no fault" not in done.stdout


def test_gpus_of_a_virtual_machine_are_not_ours_to_judge(box: Box) -> None:
    """vfio: on the bus, and given away."""
    for address in box.nvml.addresses():
        box.sysfs.bind(address, "vfio-pci")

    page = box.page(code=3)

    assert set(verdicts(page)) == {None}
    assert "virtual machines" in page["headline"]


def test_one_gpu_only_is_not_failed_by_another(box: Box) -> None:
    """A prolog of a job that got GPU 0 does not fail for GPU 6, and one that got 6 does."""
    box.nvml.set("gpu.6.recovery_action", 1)

    assert verdicts(box.page("--gpu", "0,1", code=0)) == ["Healthy"] * 2
    assert verdicts(box.page("--gpu", box.nvml.address(6), code=1)) == ["Faulty"]
    assert verdicts(box.page("--gpu", "GPU-00000000-0000-0000-0000-000000000006", code=1)) == ["Faulty"]


def test_a_gpu_that_is_not_here_is_a_mistake_in_one_sentence(box: Box) -> None:
    """Exit 2, with what is here."""
    done = box.run("--gpu", "11")

    assert done.returncode == 2
    assert "no GPU '11' here" in done.stderr
    assert done.stdout == ""


def test_unknown_may_be_let_through(box: Box, tmp_path: Path) -> None:
    """A site decides that "could not tell" takes jobs; a fault still does not."""
    box.environment["LD_LIBRARY_PATH"] = str(tmp_path)

    done = box.run("--fail-on", "fault")

    assert done.returncode == 0
    assert "UNKNOWN" in done.stdout


def test_a_missing_kernel_log_is_said_and_never_green(box: Box) -> None:
    """What was not looked at is unknown."""
    box.log.unlink()

    page = box.page(code=3)

    assert set(verdicts(page)) == {"Healthy"}
    assert page["verdict"] == "Unknown"
    log = next(source for source in page["sources"] if source["name"] == "kernel log")
    assert log["seen"] == "failed"


def test_a_faulty_gpu_is_found_without_root(box: Box) -> None:
    """Whoever may not read the kernel log still learns what NVML knows, and why the rest is unknown."""
    box.nvml.set("gpu.6.recovery_action", 1)
    prefix: list[str] = []
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            leave_out("the check without root's rights", "`apt-get install util-linux`")
        os.chown(box.log, NOBODY, NOBODY)
        prefix = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search,-syslog,-sys_admin"]
    box.log.chmod(0o600 if prefix else 0)

    done = box.run("--json", prefix=prefix)

    page = json.loads(done.stdout)
    log = next(source for source in page["sources"] if source["name"] == "kernel log")
    assert (done.returncode, log["seen"]) == (1, "failed")
    assert "root" in log["message"]
    assert verdicts(page).count("Healthy") == 7


def test_it_goes_on_from_the_memory_of_this_machines_agent(box: Box) -> None:
    """What the agent knew (a GPU that is gone) a check beside it knows too; it changes nothing of it."""
    state = box.folder / "state"
    state.mkdir()
    known = tuple(
        KnownGpu(pci_address=address, serial=f"{1653022000000 + index}")
        for index, address in enumerate(box.nvml.addresses())
    )
    fresh = start(BOOT, "", Settings(), Moment(datetime.now(UTC), 0.0))
    content = to_bytes(msgspec.structs.replace(fresh, learned_gpus=8, known_gpus=known))
    (state / "judge.json").write_bytes(content)
    box.sysfs.unplug(box.nvml.address(2))

    page = box.page(code=1)

    assert page["faults"][0]["fault"]["gpu"]["pciAddress"] == box.nvml.address(2)
    assert {file.name for file in state.iterdir()} == {"judge.json", "check.lock"}
    assert (state / "judge.json").read_bytes() == content


def outcomes(page: dict[str, Any], test: str) -> list[str]:
    return [row["outcome"] for row in page["tests"] if row["test"] == test]


def test_quick_opens_each_gpu_once(box: Box) -> None:
    """A context on every idle GPU, through the driver's own library, without torch."""
    page = box.page(code=0)

    assert outcomes(page, "context") == ["Passed"] * 8
    assert {row["engine"] for row in page["tests"]} == {"CUDA driver 13.0"}
    assert {row["test"] for row in page["tests"]} == {"context"}


def test_a_gpu_that_nvml_finds_well_and_cuda_cannot_use_is_a_fault(box: Box) -> None:
    """Only an active check sees it."""
    box.cuda.action("cuMemsetD32_v2", "ret:719", gpu=4)

    page = box.page(code=1)

    assert [gpu["index"] for gpu in page["gpus"] if gpu["verdict"] == "Faulty"] == [4]
    assert page["faults"][0]["reason"] == "GpuRefusesWork"


def test_a_gpu_in_use_is_left_alone_and_healthy(box: Box) -> None:
    """A check beside a running job: looked at, not touched, said."""
    box.nvml.set("gpu.2.process_ids", "4711")

    page = box.page(code=0)
    shown = box.run().stdout

    assert outcomes(page, "context").count("NotTested") == 1
    assert "1 process" in shown
    assert "1 processes" not in shown
    assert "7 of 8" in shown
    assert "process 4711 uses it" in shown


def test_a_context_that_never_comes_is_unknown(box: Box) -> None:
    """A hang is neither good nor bad, and its GPU is not vouched for."""
    box.cuda.action("cuInit", "hang")

    page = box.page("--timeout", "6", code=3)

    assert set(verdicts(page)) == {"Unknown"}
    assert box.took_s < 20


def test_standard_finds_bad_memory_and_names_what_it_could_not_test(tmp_path: Path) -> None:
    """A stuck bit on GPU 1; without torch and DCGM the products are named as not tested."""
    box = Box(tmp_path, gpus=2)
    box.cuda.set("gpu.1.stuck", "4000001:3")

    page = box.page("--level", "standard", code=1)

    assert outcomes(page, "memory-pattern") == ["Passed", "Failed"]
    assert outcomes(page, "peer-copy") != []
    assert [row["reason"] for row in page["faults"]] == ["MemoryTestFailed"]
    gemm = [row for row in page["tests"] if row["test"] == "gemm-checksum"]
    assert {row["notTested"] for row in gemm} == {"NoEngine"}
    assert all("torch" in row["why"] for row in gemm)


def test_standard_is_not_green_with_a_test_left_out(tmp_path: Path) -> None:
    """Exit 3 and the reason; a site may let it pass."""
    box = Box(tmp_path, gpus=1)

    page = box.page("--level", "standard", code=3)

    assert "gemm-checksum" in page["headline"]
    assert verdicts(page) == ["Healthy"]
    assert box.run("--level", "standard", "--fail-on", "fault").returncode == 0


def test_two_checks_do_not_fight(box: Box) -> None:
    """Standard and deep want the GPUs for themselves; quick looks and leaves them alone."""
    state = box.folder / "state"
    state.mkdir()
    with (state / "check.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused = box.run("--level", "standard")
        page = box.page(code=0)

    assert refused.returncode == 2
    assert "another check" in refused.stderr
    assert page["tests"] == []
