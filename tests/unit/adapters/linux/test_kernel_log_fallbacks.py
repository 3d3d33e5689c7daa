"""The other ways to the kernel log, and the chain over them: what is lost is said, nothing comes twice."""

import asyncio
import errno
import os
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from outlast.adapters.linux.journal import JournalKernelLog
from outlast.adapters.linux.kernel_log import DevKmsg
from outlast.adapters.linux.kernel_log_chain import KernelLogChain, Source
from outlast.adapters.linux.log_file import LogFile
from outlast.adapters.linux.machine import LinuxMachine
from outlast.adapters.linux.syslog_ring import TURNED_OVER, SyslogCall, SyslogRing
from outlast.model.observation import KernelLogCaughtUp, KernelLogGap, KernelLogLost, KernelRecord
from outlast.ports.node import KernelLogItem
from outlast.sim.node import MemoryStateFile
from tests.contract.node.logs import JournalLog, RealTime, RingLog, read_to_end, take

pytestmark = pytest.mark.asyncio

DEVKMSG_SWITCH = Path("/proc/sys/kernel/printk_devkmsg")
BOOT = "11111111-1111-4111-8111-111111111111"
XID = "NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus."


def texts(items: list[KernelLogItem]) -> list[str]:
    return [item.text for item in items if isinstance(item, KernelRecord)]


async def until(records: AsyncIterator[KernelLogItem], kind: type, tries: int = 50) -> list[KernelLogItem]:
    """Items up to and with the first of this kind."""
    items: list[KernelLogItem] = []
    while not items or not isinstance(items[-1], kind):
        assert len(items) < tries
        items += await take(records, 1)
    return items


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def printed(text: str) -> None:
    """Into this machine's kernel log."""
    with Path("/dev/kmsg").open("wb", buffering=0) as device:
        device.write(text.encode())


def moved(path: Path) -> Path:
    """The file under another name, as a rotation leaves it."""
    return path.rename(path.with_suffix(".log.1"))


def kmsg(number: int, text: str = "x") -> bytes:
    return f"4,{number},{number * 10},c;{text} {number}".encode()


# --- syslog(2)


async def test_a_ring_that_turned_over_between_two_looks_is_a_gap() -> None:
    """Without numbers nobody knows how much was lost, so it is said and every level is probed."""
    ring = RingLog()
    ring.put(*(kmsg(n) for n in range(1, 9)))
    async with aclosing(ring.start(BOOT).records()) as records:
        await until(records, KernelLogCaughtUp)
        ring.content = b""
        ring.put(*(kmsg(n) for n in range(20, 24)))
        items = await take(records, 5)

    assert items[0] == KernelLogGap(lost=0, reason=TURNED_OVER)
    assert texts(items) == ["x 20", "x 21", "x 22", "x 23"]


async def test_a_ring_that_moved_on_delivers_only_what_is_new() -> None:
    """Old lines fall out at the front; the place is found by the last lines known."""
    ring = RingLog()
    ring.put(*(kmsg(n, "same") for n in range(1, 6)))
    async with aclosing(ring.start(BOOT).records()) as records:
        await until(records, KernelLogCaughtUp)
        ring.content = ring.content[ring.content.index(b"\n") + 1 :]
        ring.put(kmsg(6, "same"))
        (record,) = await take(records, 1)

    assert texts([record]) == ["same 6"]


async def test_a_last_line_that_grows_comes_again() -> None:
    """The kernel may continue a line after it was read."""
    ring = RingLog()
    ring.put(kmsg(1), kmsg(2), kmsg(3))
    async with aclosing(ring.start(BOOT).records()) as records:
        await until(records, KernelLogCaughtUp)
        ring.content = ring.content[:-1] + b" ... and more\n"
        ring.put(kmsg(4))
        items = await take(records, 2)

    assert texts(items) == ["x 3 ... and more", "x 4"]


async def test_a_record_of_user_space_keeps_its_facility() -> None:
    """So that it is never believed."""
    ring = RingLog()
    ring.put(b"12,1,10,-;" + XID.encode())

    (record,) = [i for i in await read_to_end(ring.start(BOOT)) if isinstance(i, KernelRecord)]

    assert record.facility == 1


async def test_a_refused_call_is_said_once_and_tried_again() -> None:
    """With what to do about it."""
    answers = iter([OSError(errno.EPERM, "x"), OSError(errno.EPERM, "x"), b"<4>[    1.000000] back\n"])

    def read_all() -> bytes:
        answer = next(answers, b"<4>[    1.000000] back\n")
        if isinstance(answer, OSError):
            raise answer
        return answer

    ring = SyslogRing(state=MemoryStateFile(), boot_id=BOOT, clock=RealTime(rate=1000), read_all=read_all)
    async with aclosing(ring.records()) as records:
        items = await take(records, 3)

    assert isinstance(items[0], KernelLogLost)
    assert "CAP_SYSLOG" in items[0].message
    assert texts(items) == ["back"]
    assert items[2] == KernelLogCaughtUp(replayed=1)


@contextmanager
def user_records_unlimited() -> Iterator[None]:
    """The kernel drops most user records by default; restored afterwards."""
    before = DEVKMSG_SWITCH.read_text().strip()
    DEVKMSG_SWITCH.write_text("on\n")  # Without the newline the kernel refuses.
    try:
        yield
    finally:
        DEVKMSG_SWITCH.write_text(f"{before}\n")


@pytest.mark.skipif(
    not os.access("/dev/kmsg", os.W_OK) or os.geteuid() != 0, reason="needs root and /dev/kmsg"
)
async def test_the_real_ring_delivers_what_was_written_to_it() -> None:
    """The system call of this machine, and a record through its real buffer."""
    text = f"outlast test {os.getpid()} {os.urandom(4).hex()}"
    ring = SyslogRing(state=MemoryStateFile(), boot_id=BOOT, clock=RealTime(rate=20), read_all=SyslogCall())
    with user_records_unlimited():
        async with aclosing(ring.records()) as records:
            await until(records, KernelLogCaughtUp, tries=1_000_000)
            printed(f"<4>{text}\n")
            found: list[KernelRecord] = []
            while not found:
                found = [i for i in await take(records, 1) if isinstance(i, KernelRecord) and i.text == text]

    assert not found[0].replayed
    assert found[0].facility == 1
    device_log = DevKmsg(state=MemoryStateFile(), boot_id=BOOT, clock=RealTime())
    same = [i for i in await read_to_end(device_log) if isinstance(i, KernelRecord) and i.text == text]
    assert same[0].timestamp_us == found[0].timestamp_us


# --- journal


async def test_a_journalctl_that_dies_is_a_loss_and_the_next_goes_on_behind_it(tmp_path: Path) -> None:
    """No entry twice, none left out, and "caught up" tells that the log is back."""
    journal = JournalLog(tmp_path)
    journal.put(kmsg(1))
    async with aclosing(journal.start(BOOT, rate=20).records()) as records:
        await until(records, KernelLogCaughtUp)
        journal.put(kmsg(2))
        await take(records, 1)
        for child in _children():
            os.kill(child, signal.SIGKILL)
        (lost,) = await take(records, 1)
        journal.put(kmsg(3))
        items = await take(records, 2)

    assert isinstance(lost, KernelLogLost)
    assert "journalctl ended" in lost.message
    assert texts(items) == ["x 3"]
    assert isinstance(items[1], KernelLogCaughtUp)


async def test_the_child_ends_with_its_reader(tmp_path: Path) -> None:
    """Closing the iterator leaves no process behind."""
    journal = JournalLog(tmp_path)
    journal.put(kmsg(1))
    async with aclosing(journal.start(BOOT).records()) as records:
        await until(records, KernelLogCaughtUp)
        journal.put(kmsg(2))
        await take(records, 1)
        assert _children()
    async with asyncio.timeout(5):
        while _children():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("complaint", "words"),
    [("No journal files were found.", "No journal files"), ("Something else broke", "Something else broke")],
)
async def test_a_journal_that_cannot_be_read_is_lost_with_its_words(
    complaint: str, words: str, tmp_path: Path
) -> None:
    """Silence of a missing journal is not a log without faults."""
    journal = JournalLog(tmp_path)
    journal.entries.with_suffix(".fail").write_text(complaint)
    async with aclosing(journal.start(BOOT).records()) as records:
        (lost,) = await take(records, 1)

    assert isinstance(lost, KernelLogLost)
    assert words in lost.message


async def test_a_journal_without_a_line_of_this_boot_is_lost(tmp_path: Path) -> None:
    """Each boot prints lines, so such a journal does not hold the kernel's."""
    async with aclosing(JournalLog(tmp_path).start(BOOT).records()) as records:
        (lost,) = await take(records, 1)

    assert isinstance(lost, KernelLogLost)
    assert "no line of the kernel" in lost.message


async def test_no_journalctl_is_said(tmp_path: Path) -> None:
    """A container image need not have it."""
    journal = JournalKernelLog(
        state=MemoryStateFile(), boot_id=BOOT, clock=RealTime(), command=(str(tmp_path / "none"),)
    )
    async with aclosing(journal.records()) as records:
        (lost,) = await take(records, 1)

    assert isinstance(lost, KernelLogLost)
    assert "cannot be started" in lost.message


async def test_garbage_of_a_journal_is_a_counted_gap(tmp_path: Path) -> None:
    """And the next good entry comes."""
    journal = JournalLog(tmp_path)
    journal.put(kmsg(1))
    with journal.entries.open("ab") as file:
        file.write(b"\x00 nonsense\n")
    journal.put(kmsg(2))

    items = await read_to_end(journal.start(BOOT))

    assert texts(items) == ["x 1", "x 2"]
    assert [item.lost for item in items if isinstance(item, KernelLogGap)] == [1]


@pytest.mark.skipif(shutil.which("journalctl") is None, reason="no journalctl")
async def test_the_real_journalctl_takes_our_arguments(tmp_path: Path) -> None:
    """On a machine without a journal it says so, and that is what the reader says."""
    journal = JournalKernelLog(state=MemoryStateFile(), boot_id=BOOT, clock=RealTime(), folder=tmp_path)
    async with aclosing(journal.records()) as records:
        (lost,) = await take(records, 1)

    assert isinstance(lost, KernelLogLost)
    assert "journal" in lost.message
    assert "unrecognized option" not in lost.message


def _children() -> list[int]:
    """Our own processes that run the journalctl of the tests and have not ended."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        for pid in (task / "children").read_text().split():
            if b"journalctl.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found += [int(pid)]
    return found


# --- a log file


@pytest.fixture
def kern(tmp_path: Path) -> Path:
    path = tmp_path / "kern.log"
    path.write_text(f"Nov 30 12:00:00 h kernel: [    1.000000] {XID}\n")
    return path


def follower(path: Path, state: MemoryStateFile | None = None) -> LogFile:
    return LogFile(state=state or MemoryStateFile(), boot_id=BOOT, clock=RealTime(rate=100), path=path)


async def test_a_rotated_file_is_followed_into_the_next(kern: Path) -> None:
    """The end of the old one first, then the new one from its beginning."""
    async with aclosing(follower(kern).records()) as records:
        await until(records, KernelLogCaughtUp)
        old = moved(kern)
        append(old, f"Nov 30 12:00:01 h kernel: {XID} end of the old\n")
        (last,) = await take(records, 1)
        append(kern, f"Nov 30 12:00:02 h kernel: {XID} new\n")
        (first,) = await take(records, 1)

    assert texts([last, first]) == [f"{XID} end of the old", f"{XID} new"]


async def test_a_cut_file_is_read_from_its_beginning_and_said(kern: Path) -> None:
    """As copytruncate does it: what was written in between may be gone."""
    async with aclosing(follower(kern).records()) as records:
        await until(records, KernelLogCaughtUp)
        os.truncate(kern, 0)
        items = await until(records, KernelLogGap)
        append(kern, f"Nov 30 12:00:02 h kernel: {XID} new\n")
        items += await until(records, KernelRecord)

    assert texts(items) == [f"{XID} new"]


async def test_only_this_boots_part_of_a_file_is_history(kern: Path) -> None:
    """What stands before the newest banner of a kernel is of another boot."""
    append(kern, "Nov 30 12:01:00 h kernel: [    0.000000] Linux version 6.1.0\n")
    append(kern, "Nov 30 12:01:01 h evil: Linux version 6.1.0\n")
    append(kern, f"Nov 30 12:01:09 h kernel: {XID} this boot\n")

    items = await read_to_end(follower(kern))

    assert texts(items) == [f"{XID} this boot"]


async def test_a_program_cannot_write_as_the_kernel(kern: Path) -> None:
    """Without the kernel's tag the record says that user space wrote it."""
    os.truncate(kern, 0)
    append(kern, f"Nov 30 12:00:00 h root: {XID}\nNov 30 12:00:00  {XID}\n")

    items = await read_to_end(follower(kern))

    assert [item.facility for item in items if isinstance(item, KernelRecord)] == [1, 1]


async def test_a_file_replaced_while_nobody_read_is_said(kern: Path) -> None:
    """The saved place is in a file that is not there any more."""
    state = MemoryStateFile()
    await read_to_end(follower(kern, state))
    moved(kern)
    append(kern, f"Nov 30 12:00:02 h kernel: {XID} new\n")

    items = await read_to_end(follower(kern, state))

    assert texts(items) == [f"{XID} new"]
    assert "cut or replaced" in next(i.reason for i in items if isinstance(i, KernelLogGap))


async def test_a_missing_file_and_a_folder_are_lost_in_words(tmp_path: Path) -> None:
    """And looked for again."""
    for path, words in ((tmp_path / "absent", "does not exist"), (tmp_path, "no regular file")):
        async with aclosing(follower(path).records()) as records:
            (lost,) = await take(records, 1)
        assert isinstance(lost, KernelLogLost)
        assert words in lost.message or "cannot be read" in lost.message


# --- the chain


class Scripted:
    """A source that is told when it is there."""

    def __init__(self) -> None:
        self.there = True
        self.records_now: list[KernelRecord] = []
        self.news = asyncio.Event()
        self.saved = 0

    def write(self, number: int) -> None:
        self.records_now.append(
            KernelRecord(sequence=number, timestamp_us=number, priority=4, text=f"x {number}")
        )
        self.news.set()

    def vanish(self) -> None:
        self.there = False
        self.news.set()

    async def records(self) -> AsyncIterator[KernelLogItem]:
        if not self.there:
            yield KernelLogLost(message="it is away")
            await asyncio.Event().wait()
        for record in tuple(self.records_now):
            yield KernelRecord(
                sequence=record.sequence,
                timestamp_us=record.timestamp_us,
                priority=4,
                text=record.text,
                replayed=True,
            )
        done = len(self.records_now)
        yield KernelLogCaughtUp(replayed=done)
        while True:
            self.news.clear()
            while done < len(self.records_now):
                yield self.records_now[done]
                done += 1
            if not self.there:
                yield KernelLogLost(message="it is away")
                await asyncio.Event().wait()
            await self.news.wait()

    def save_position(self) -> None:
        self.saved += 1


def chain_of(best: Scripted, next_best: Scripted, state: MemoryStateFile | None = None) -> KernelLogChain:
    sources = [Source("best", lambda: best), Source("next", lambda: next_best)]
    return KernelLogChain(sources, state=state or MemoryStateFile(), boot_id=BOOT, clock=RealTime(rate=200))


async def test_the_best_source_that_answers_is_on_and_named() -> None:
    """The message of "caught up" says which."""
    best, other = Scripted(), Scripted()
    best.there = False
    other.write(1)
    async with aclosing(chain_of(best, other).records()) as records:
        items = await take(records, 2)

    assert items[1] == KernelLogCaughtUp(replayed=1, source="next")


async def test_a_lost_source_is_replaced_without_a_record_twice() -> None:
    """The next one has the same lines; only those that are new come."""
    best, other = Scripted(), Scripted()
    for source in (best, other):
        source.write(1)
        source.write(2)
    async with aclosing(chain_of(best, other).records()) as records:
        await until(records, KernelLogCaughtUp)
        best.vanish()
        other.write(3)
        items = await until(records, KernelLogCaughtUp)

    assert texts(items) == ["x 3"]
    assert items[-1] == KernelLogCaughtUp(replayed=3, source="next")


async def test_the_best_source_comes_back_on_and_misses_nothing() -> None:
    """It is tried again now and then while another one is on."""
    best, other = Scripted(), Scripted()
    best.there = False
    other.write(1)
    async with aclosing(chain_of(best, other).records()) as records:
        await until(records, KernelLogCaughtUp)
        best.write(1)
        best.write(2)
        best.there = True
        items = await until(records, KernelLogCaughtUp)
        best.write(3)
        items += await take(records, 1)

    assert texts(items) == ["x 2", "x 3"]


async def test_when_all_are_lost_it_is_said_once_with_all_reasons() -> None:
    """And the first that returns is taken."""
    best, other = Scripted(), Scripted()
    best.there = other.there = False
    async with aclosing(chain_of(best, other).records()) as records:
        (lost,) = await take(records, 1)
        other.there = True
        other.write(1)
        items = await take(records, 2)

    assert lost == KernelLogLost(message="it is away")
    assert texts(items) == ["x 1"]


async def test_a_restart_on_another_source_repeats_nothing() -> None:
    """The chain remembers the newest time that was judged, whichever source told it."""
    state = MemoryStateFile()
    best, other = Scripted(), Scripted()
    best.there = False
    other.write(1)
    first = chain_of(best, other, state)
    async with aclosing(first.records()) as records:
        await until(records, KernelLogCaughtUp)
        first.save_position()
    best.there = True
    best.write(1)
    best.write(2)

    async with aclosing(chain_of(best, other, state).records()) as records:
        items = await until(records, KernelLogCaughtUp)

    assert texts(items) == ["x 2"]
    assert other.saved == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="needs CAP_SYSLOG")
async def test_without_the_device_this_machines_log_comes_by_the_system_call(tmp_path: Path) -> None:
    """The real chain of the agent, where /dev/kmsg is not mounted."""
    boot_id, clock = LinuxMachine(Path("/")).facts().boot_id, RealTime()
    common: dict[str, Any] = {"state": MemoryStateFile(), "boot_id": boot_id, "clock": clock}
    sources = [
        Source("device", lambda: DevKmsg(**common, path=tmp_path / "kmsg")),
        Source("syslog(2)", lambda: SyslogRing(**common)),
    ]
    chain = KernelLogChain(sources, state=MemoryStateFile(), boot_id=boot_id, clock=clock)

    items = await read_to_end(chain)

    assert items[-1] == KernelLogCaughtUp(replayed=len(texts(items)), source="syslog(2)")
    assert texts(items)
