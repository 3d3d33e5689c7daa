"""Application errors: harmless one by one, telling when different jobs meet the same GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.health.catalogue import load
from outlast.health.verdict.state import (
    OWNERS_MAX,
    REPEATS_MAX,
    SUSPICIONS_MAX,
    ApplicationRule,
    Settings,
)
from outlast.model.health import FaultClass
from outlast.model.observation import ProcessOwner, ProcessSurvey
from tests.unit.health.builders import Scene

BLOCK = Settings(application_rule=ApplicationRule.BLOCK)


def job(scene: Scene, number: int, gpu: int = 0, code: int = 31, text: str = "MMU Fault") -> None:
    """A job of its own meets an error an hour after the last one."""
    scene.time_s += 3600
    scene.owners(**{f"pod-{number}": 1000 + number})
    scene.xid(gpu, code, text, pid=1000 + number)
    scene.wait(6)


def test_two_jobs_make_a_suspicion_and_a_third_blocks() -> None:
    """Two ask for a deep check, three keep new work away; nobody is drained."""
    scene = Scene(settings=BLOCK)
    job(scene, 1)
    assert scene.answer.deep_check == ()
    job(scene, 2)
    assert scene.answer.deep_check == (scene.gpu(0),)
    assert scene.status.faults == ()
    job(scene, 3)
    assert (scene.fault.code, scene.fault.fault_class) == ("gpu/suspect", FaultClass.TRANSIENT)


def test_in_shadow_the_third_job_is_said_and_blocks_nothing() -> None:
    """The default tells how it would have judged."""
    scene = Scene()
    for number in range(4):
        job(scene, number)
    scene.poll()
    assert scene.status.faults == ()
    assert scene.says()[0] == "Healthy"
    assert "enough to block" in scene.verdict().message
    assert scene.gpu(0) in scene.answer.deep_check


def test_off_is_off() -> None:
    """An operator who does not want the rule hears nothing of it."""
    scene = Scene(settings=Settings(application_rule=ApplicationRule.OFF))
    for number in range(4):
        job(scene, number)
    assert scene.answer.deep_check == ()
    assert scene.state.repeats == ()


def test_one_job_on_two_gpus_is_software() -> None:
    """However often such jobs come, no GPU is suspected."""
    scene = Scene(settings=BLOCK)
    for number in range(5):
        scene.time_s += 3600
        scene.owners(**{f"pod-{number}": 1000 + number})
        for gpu in range(8):
            scene.xid(gpu, 13, pid=1000 + number)
        scene.wait(6)
    assert (scene.status.faults, scene.answer.deep_check) == ((), ())


def test_the_same_job_counts_once() -> None:
    """A program that crashes and starts again for a day is one job."""
    scene = Scene(settings=BLOCK)
    for _ in range(20):
        job(scene, 1)
    assert scene.answer.deep_check == ()


def test_jobs_that_fail_alike_on_several_gpus_run_bad_software() -> None:
    """One-GPU jobs of a broken image fail wherever they run."""
    scene = Scene(settings=BLOCK)
    for number in range(8):
        job(scene, number, gpu=number % 2)
    assert scene.status.faults == ()


def test_clients_that_die_together_are_one_job() -> None:
    """MPS: one fault ends the processes of many pods, and says no more than one job's."""
    scene = Scene(settings=BLOCK)
    scene.owners(**{f"pod-{number}": 1000 + number for number in range(8)})
    for number in range(8):
        scene.xid(0, 31, pid=1000 + number)
    scene.wait(6)
    assert scene.answer.deep_check == ()


def test_unknown_processes_close_in_time_are_one_job() -> None:
    """Nobody knows whose they were: ten minutes apart they may be the same."""
    scene = Scene(settings=BLOCK)
    for _ in range(6):
        scene.time_s += 500
        scene.xid(0, 31, pid=5)
        scene.wait(6)
    assert scene.answer.deep_check == ()
    scene.time_s += 3000
    scene.xid(0, 31, pid=9)
    scene.wait(6)
    assert scene.answer.deep_check == (scene.gpu(0),)


def test_different_units_of_a_gpu_are_no_pattern() -> None:
    """13 counts where it names the same part of the chip."""
    units = ["(GPC 0, TPC 1, SM 0)", "(GPC 3, TPC 2, SM 1)", "(GPC 5, TPC 0, SM 0)"]
    apart, same = Scene(settings=BLOCK), Scene(settings=BLOCK)
    for number, unit in enumerate(units):
        job(apart, number, code=13, text=f"Graphics SM Warp Exception on {unit}: Out Of Range Address")
        job(same, number, code=13, text=f"Graphics SM Warp Exception on {units[0]}: Out Of Range Address")
    assert apart.status.faults == ()
    assert same.fault.code == "gpu/suspect"


def test_a_day_later_it_is_forgotten() -> None:
    """Counts and suspicions last a day of running."""
    scene = Scene(settings=BLOCK)
    job(scene, 1)
    job(scene, 2)
    scene.time_s += 90_000
    job(scene, 3)
    assert scene.answer.deep_check == ()


def test_a_killed_program_is_never_counted() -> None:
    """45 is also printed when somebody deletes a pod."""
    scene = Scene(settings=BLOCK)
    for number in range(5):
        job(scene, number, code=45, text="Ch 00000008")
    assert (scene.answer.deep_check, scene.state.repeats) == ((), ())


def test_counts_survive_a_restart_and_a_reboot() -> None:
    """What was counted is not lost with the process, and a wall clock has no say in it."""
    scene = Scene(settings=BLOCK)
    job(scene, 1)
    scene.restart()
    job(scene, 2)
    scene.wall_step_s = -1e6
    scene.reboot()
    scene.poll(6)
    job(scene, 3)
    assert scene.fault.code == "gpu/suspect"


def test_a_suspicion_ends_a_day_after_the_last_error() -> None:
    """The block needs a quiet day and a GPU that answers."""
    scene = Scene(settings=BLOCK)
    for number in range(3):
        job(scene, number)
    scene.poll(4)
    assert scene.says()[0] == "Faulty"
    scene.time_s += 86_400
    scene.poll(8)
    assert scene.says()[0] == "Healthy"


@pytest.mark.parametrize("pods", [3000])
def test_the_memory_of_jobs_is_bounded(pods: int) -> None:
    """Any number of processes and jobs fits."""
    scene = Scene()
    scene.tell(ProcessSurvey(owners=tuple(ProcessOwner(pid=n, pod_uid=f"p{n}") for n in range(pods))))
    for number in range(300):
        scene.time_s += 11
        scene.xid(number % 8, 31, pid=number)
        scene.wait(6)
    assert len(scene.state.owners) <= OWNERS_MAX
    assert len(scene.state.repeats) <= REPEATS_MAX
    assert len(scene.state.suspicions) <= SUSPICIONS_MAX


COLUMNS = (
    "code,name,class,scope,severity,rung,urgency,role,rank,subsystem,reason,proof,expiry_s,text,"
    "count_min,count_window_s\n"
)


def test_a_site_says_how_many_of_a_code_make_a_fault(tmp_path: Path) -> None:
    """A count in a catalogue file is honoured within its window, per GPU: two in an hour are too few."""
    file = tmp_path / "ours.csv"
    file.write_text(
        f"{COLUMNS}43,GR_EXCEPTION,Transient,GPU,warning,BlockNewWork,now,leader,10,GPU,GpuStuck,Readable,"
        "0,Ours stop too often.,3,3600\n"
    )
    scene = Scene(catalogue=load(file))
    for gpu, seconds in ((0, 0), (0, 1000), (1, 10), (0, 3000)):
        scene.time_s += seconds
        scene.xid(gpu, 43)
        scene.wait(6)
    assert scene.status.faults == ()
    scene.time_s += 100
    scene.xid(0, 43)
    assert (scene.fault.code, scene.fault.gpu and scene.fault.gpu.pci_address) == ("xid/43", scene.gpu(0))


def test_a_site_says_how_many_jobs_are_a_pattern(tmp_path: Path) -> None:
    """For a program's code the count is of jobs."""
    file = tmp_path / "ours.csv"
    file.write_text(
        f"{COLUMNS}31,MMU,Application,GPU,warning,Watch,never,application,19,GPU,ApplicationError,JobEnd,"
        "600,A page fault.,5,86400\n"
    )
    scene = Scene(settings=BLOCK, catalogue=load(file))
    for number in range(4):
        job(scene, number)
    assert scene.status.faults == ()
    job(scene, 4)
    assert scene.fault.code == "gpu/suspect"
