"""Which processes count as workers that could not be killed; on a /proc of our own."""

from pathlib import Path

from outlast.adapters.linux.leaks import leaked_workers

KILLED, CALM = "0000000000000100", "0000000000000000"


def process(proc: Path, pid: int, *tasks: tuple[str, str], comm: str = "outlast-nvml") -> None:
    folder = proc / str(pid)
    for number, (state, pending) in enumerate(tasks):
        task = folder / "task" / str(pid + number)
        task.mkdir(parents=True)
        (task / "status").write_text(
            f"Name:\t{comm}\nState:\t{state} (words)\nSigPnd:\t{pending}\nShdPnd:\t{CALM}\n"
        )
    (folder / "comm").write_text(comm + "\n")


def test_a_killed_worker_in_uninterruptible_sleep_is_leaked(tmp_path: Path) -> None:
    """SIGKILL waits and the task sleeps on."""
    process(tmp_path, 41, ("D", KILLED))

    assert leaked_workers(tmp_path) == (41,)


def test_a_zombie_whose_thread_still_sleeps_is_leaked(tmp_path: Path) -> None:
    """The process looks dead and still holds the GPU."""
    process(tmp_path, 41, ("Z", CALM), ("D", KILLED))

    assert leaked_workers(tmp_path) == (41,)


def test_living_ended_and_foreign_processes_are_not_leaked(tmp_path: Path) -> None:
    """A worker at work, one that sleeps for the disk without being killed, a zombie, and strangers."""
    process(tmp_path, 41, ("S", CALM))
    process(tmp_path, 42, ("D", CALM))
    process(tmp_path, 43, ("Z", KILLED))
    process(tmp_path, 44, ("D", KILLED), comm="python3")

    assert leaked_workers(tmp_path) == ()


def test_a_proc_that_changes_or_lies_never_raises(tmp_path: Path) -> None:
    """Processes vanish between listing and reading, and files can hold anything."""
    (tmp_path / "41").mkdir()
    process(tmp_path, 42, ("D", "not a number"))
    (tmp_path / "43").write_text("a file")
    process(tmp_path, 44, ("D", KILLED))
    (tmp_path / "44" / "task" / "44" / "status").write_bytes(b"\xff\x00:::")

    assert leaked_workers(tmp_path) == ()
    assert leaked_workers(tmp_path / "nowhere") == ()
