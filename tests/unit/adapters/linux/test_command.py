"""Running a program: real children, each of which misbehaves in one way."""

import asyncio
import os
import signal
import sys

import pytest

from outlast.adapters.linux import command
from outlast.adapters.linux.command import CommandResult, run_command

pytestmark = pytest.mark.asyncio

DEADLINE_S = 10.0


async def run_python(
    script: str, *, deadline_s: float = DEADLINE_S, output_bytes_max: int = 1 << 20
) -> CommandResult:
    return await run_command(
        [sys.executable, "-I", "-S", "-c", script], deadline_s=deadline_s, output_bytes_max=output_bytes_max
    )


async def until_gone(pid: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return
            await asyncio.sleep(0.01)


async def test_a_program_that_ends_is_told_whole() -> None:
    """Exit code, both outputs, and no verdict but that."""
    result = await run_python("import sys; print('said'); sys.stderr.write('complained'); sys.exit(226)")

    assert (result.exit_code, result.output, result.errors) == (226, b"said\n", b"complained")
    assert not result.hung
    assert not result.truncated


async def test_a_program_killed_by_a_signal_has_a_negative_code() -> None:
    """As Python counts: minus the signal."""
    result = await run_python("import os; os.kill(os.getpid(), 11)")

    assert result.exit_code == -signal.SIGSEGV


async def test_a_program_that_is_not_there_is_an_error_at_once() -> None:
    """The caller tells "not installed" from "failed"."""
    with pytest.raises(FileNotFoundError):
        await run_command(["no-such-program-here"], deadline_s=1, output_bytes_max=100)


@pytest.mark.parametrize(
    "script",
    [
        "import time; print('begun', flush=True); time.sleep(600)",
        "import time, os; print('begun', flush=True); os.close(1); os.close(2); time.sleep(600)",
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('begun', flush=True); time.sleep(600)",
    ],
    ids=["silent", "closed its pipes", "ignores SIGTERM"],
)
async def test_a_program_that_hangs_is_left_at_its_deadline(script: str) -> None:
    """What it said before is kept; it is killed and reaped without anybody waiting."""
    result = await run_python(script, deadline_s=0.5)

    assert result.hung
    assert result.exit_code is None
    assert result.output == b"begun\n"
    assert 0.5 <= result.duration_s < 2.0
    async with asyncio.timeout(DEADLINE_S):
        while command.unended(sys.executable):
            await asyncio.sleep(0.01)


async def test_a_hundred_megabytes_are_cut_and_cost_the_limit() -> None:
    """The beginning is kept and the program is killed: the rest is of no use."""
    script = "import sys\nwhile True: sys.stdout.buffer.write(b'x' * 65536)"

    result = await run_python(script, output_bytes_max=100_000)

    assert result.truncated
    assert result.exit_code is None
    assert result.output == b"x" * 100_000
    assert result.duration_s < DEADLINE_S


async def test_output_of_exactly_the_limit_is_whole() -> None:
    """The limit is the most that is allowed, not the first that is too much."""
    result = await run_python("print('x' * 999)", output_bytes_max=1000)

    assert (result.exit_code, len(result.output), result.truncated) == (0, 1000, False)


async def test_a_flood_of_complaints_is_cut_too() -> None:
    """Standard error has its own limit."""
    result = await run_python("import sys\nwhile True: sys.stderr.write('y' * 65536)", output_bytes_max=100)

    assert result.truncated
    assert len(result.errors) == command.ERRORS_BYTES_MAX


async def test_what_a_program_left_running_is_ended_with_it() -> None:
    """A child of the child that holds the pipes delays nothing and stays not behind."""
    script = """
import os, time
child = os.fork()
if child == 0:
    time.sleep(600)
print(child, flush=True)
"""
    result = await run_python(script)

    assert result.exit_code == 0
    assert result.duration_s < DEADLINE_S
    await until_gone(int(result.output))


async def test_a_cancelled_caller_leaves_no_process() -> None:
    """The agent ends at once, and its tools with it."""
    argv = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]
    task = asyncio.get_running_loop().create_task(run_command(argv, deadline_s=60, output_bytes_max=1))
    await asyncio.sleep(0.05)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    async with asyncio.timeout(DEADLINE_S):
        while command.unended(sys.executable):
            await asyncio.sleep(0.01)


async def test_a_program_whose_runs_are_stuck_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run that the kernel does not let go costs memory for ever, so their number has a limit."""
    monkeypatch.setattr(command, "_unended", {1001: "dcgmi", 1002: "dcgmi"})
    monkeypatch.setattr(command, "_reap", lambda pid: False)

    result = await run_command(["/usr/bin/dcgmi"], deadline_s=1, output_bytes_max=1)

    assert result.hung
    assert b"stuck in the kernel" in result.errors


async def test_without_pidfd_the_end_is_still_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sandboxes refuse pidfd_open; then the child is looked at on a timer."""
    monkeypatch.setattr(command, "_pidfd", lambda pid: None)

    result = await run_python("print('done')")

    assert (result.exit_code, result.output) == (0, b"done\n")


async def test_the_program_is_given_what_it_is_told_and_nothing_to_read() -> None:
    """Environment as asked for, an empty stdin, a session of its own."""
    script = (
        "import os, sys; print(os.environ.get('ANSWER'), sys.stdin.read() == '', os.getsid(0) == os.getpid())"
    )

    result = await run_command(
        [sys.executable, "-c", script],
        deadline_s=DEADLINE_S,
        output_bytes_max=1000,
        environment={"ANSWER": "42"},
    )

    assert result.output == b"42 True True\n"


async def test_a_program_with_a_grace_is_asked_to_stop_and_then_killed() -> None:
    """One that works through a service must tell the service; one that does not go is killed all the same."""
    polite = "import signal, sys, time; signal.signal(15, lambda *a: sys.exit()); time.sleep(600)"
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"

    for script, grace_s in ((polite, 60.0), (stubborn, 0.3)):
        argv = [sys.executable, "-I", "-S", "-c", script]
        result = await run_command(argv, deadline_s=0.4, output_bytes_max=1, stop_grace_s=grace_s)
        assert result.hung
        async with asyncio.timeout(DEADLINE_S):
            while command.unended(sys.executable):
                await asyncio.sleep(0.01)
