"""The reader of /dev/kmsg itself: being refused, coming back, floods, hostile input, the real device."""

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import aclosing, suppress
from pathlib import Path

import pytest

from outlast.adapters.linux.kernel_log import RETRY_MAX_S, DevKmsg
from outlast.adapters.linux.machine import LinuxMachine
from outlast.adapters.linux.state_file import AtomicFile
from outlast.model.observation import (
    KERNEL_LINE_BYTES_MAX,
    KernelLogCaughtUp,
    KernelLogGap,
    KernelLogLost,
    KernelRecord,
)
from tests.contract.node.logs import FifoLog, FileLog, RealTime, read_to_end, take

pytestmark = pytest.mark.asyncio

SAMPLES = Path(__file__).parents[3] / "data" / "kmsg-samples.tsv"
BOOT = "11111111-1111-4111-8111-111111111111"


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[FifoLog]:
    log = FifoLog(tmp_path)
    yield log
    log.close()


async def test_a_missing_device_is_said_once_and_found_when_it_appears(tmp_path: Path) -> None:
    """The reader keeps trying with growing pauses, and "caught up" tells that the log is back."""
    clock = RealTime(rate=10_000)
    log = DevKmsg(state=AtomicFile(tmp_path / "p"), boot_id=BOOT, clock=clock, path=tmp_path / "kmsg")
    async with aclosing(log.records()) as records:
        (lost,) = await take(records, 1)
        waiting = asyncio.get_running_loop().create_future()

        async def wait_for_tries() -> None:
            async with asyncio.timeout(10):
                while len(clock.slept) < 10:
                    await asyncio.sleep(0)
            (tmp_path / "kmsg").write_bytes(b"4,1,2,c;back\n")
            waiting.set_result(None)

        async with asyncio.TaskGroup() as group:
            group.create_task(wait_for_tries())
            record, caught_up = await take(records, 2)

    assert isinstance(lost, KernelLogLost)
    assert "mount the host's /dev/kmsg" in lost.message
    assert clock.slept[:3] == [0.5, 1.0, 2.0]
    assert max(clock.slept) == RETRY_MAX_S
    assert isinstance(record, KernelRecord)
    assert caught_up == KernelLogCaughtUp(replayed=1)


async def test_something_that_is_no_kernel_log_is_lost_not_spun_on(tmp_path: Path) -> None:
    """A folder, or a device that is always at its end, is refused with a sentence and a pause."""
    for path in (tmp_path, Path("/dev/null"), Path("/dev/zero")):
        log = DevKmsg(state=AtomicFile(tmp_path / "p"), boot_id=BOOT, clock=RealTime(), path=path)
        async with aclosing(log.records()) as records:
            item = (await take(records, 1))[0]
            while isinstance(item, KernelLogGap):
                item = (await take(records, 1))[0]
        assert isinstance(item, KernelLogLost)
        assert "cannot be read" in item.message


async def test_a_replaced_file_is_read_from_its_beginning(tmp_path: Path) -> None:
    """A log file that is truncated or swapped is another log: said, and read whole."""
    log = FileLog(tmp_path)
    log.put(b"4,900,2,c;before")
    async with aclosing(log.start(BOOT).records()) as records:
        await take(records, 2)
        log.path.write_bytes(b"4,1,2,c;a\n")
        gap, record = await take(records, 2)

    assert isinstance(gap, KernelLogGap)
    assert isinstance(record, KernelRecord)
    assert (gap.lost, record.sequence) == (0, 1)


async def test_a_line_of_a_megabyte_is_cut_counted_and_passed(fifo: FifoLog) -> None:
    """A hostile line costs its own tail and nothing else."""
    reader = fifo.start(BOOT)
    writer = threading.Thread(
        target=_write_all, args=(fifo.path, b"4,1,2,c;" + b"A" * 2**20 + b"\n4,2,3,c;next\n"), daemon=True
    )
    async with aclosing(reader.records()) as records:
        (caught_up,) = await take(records, 1)
        writer.start()
        items = await take(records, 3)
    writer.join(10)

    assert isinstance(caught_up, KernelLogCaughtUp)
    long, cut, after = sorted(items, key=lambda item: getattr(item, "sequence", 1.5))
    assert isinstance(long, KernelRecord)
    assert len(long.text) < KERNEL_LINE_BYTES_MAX
    assert isinstance(cut, KernelLogGap)
    assert cut.lost == 1
    assert after == KernelRecord(sequence=2, timestamp_us=3, priority=4, flags="c", text="next")


async def test_truncated_and_binary_records_are_counted_and_never_raise(fifo: FifoLog) -> None:
    """Whatever arrives, the next good record is delivered."""
    fifo.put(b"4,1,2,c;good", b"4,2", bytes(range(11, 256)) * 8, b" ORPHAN=property", b"4,4,2,c;good")

    items = await read_to_end(fifo.start(BOOT))

    assert [item.sequence for item in items if isinstance(item, KernelRecord)] == [1, 4]
    assert sum(item.lost for item in items if isinstance(item, KernelLogGap)) == 2


async def test_every_collected_line_arrives_byte_for_byte(fifo: FifoLog) -> None:
    """What real machines printed is what the platform reads: nothing is trimmed, joined or decoded away."""
    rows = [row.split(b"\t", 3)[3] for row in SAMPLES.read_bytes().splitlines()[1:]]
    bodies = [line.partition(b";")[2] if line.startswith(b"4,") else line for line in rows]
    fifo.put(*(b"4,%d,%d,-;%b" % (number, number, body) for number, body in enumerate(bodies, 1)))

    items = await read_to_end(fifo.start(BOOT))

    records = [item for item in items if isinstance(item, KernelRecord)]
    assert [item.text.encode() for item in records] == bodies
    assert not [item for item in items if isinstance(item, KernelLogGap)]


async def test_a_flood_leaves_the_loop_responsive(fifo: FifoLog) -> None:
    """While 100,000 records go through, every other task gets a turn after some hundred records."""
    count = 100_000
    flood = b"".join(b"4,%d,%d,c;NVRM: record %d\n" % (n, n, n) for n in range(count))
    reader = fifo.start(BOOT)
    writer = threading.Thread(target=_write_all, args=(fifo.path, flood), daemon=True)
    seen, between_turns = 0, [0]

    async def other_task() -> None:
        while seen < count:
            before = seen
            await asyncio.sleep(0)
            between_turns.append(seen - before)

    async with aclosing(reader.records()) as records, asyncio.timeout(100), asyncio.TaskGroup() as group:
        group.create_task(other_task())
        writer.start()
        async for item in records:
            seen += isinstance(item, KernelRecord)
            if seen == count:
                break
    writer.join(10)

    assert seen == count
    assert max(between_turns) < 1000


async def test_closing_the_iterator_lets_go_of_the_device(fifo: FifoLog) -> None:
    """No descriptor and no loop callback stays behind."""
    before = _open_descriptors()

    await read_to_end(fifo.start(BOOT))

    assert _open_descriptors() == before


def _open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _write_all(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
    finally:
        os.close(fd)


# The machine's own kernel log.

KMSG = Path("/dev/kmsg")
DEVKMSG_SWITCH = Path("/proc/sys/kernel/printk_devkmsg")


def _kmsg_is_readable() -> bool:
    with suppress(OSError):
        os.close(os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK))
        return True
    return False


def _print(*messages: bytes) -> None:
    with KMSG.open("wb", buffering=0) as device:
        for message in messages:
            device.write(message)


@pytest.fixture
def unlimited_writes() -> Iterator[None]:
    """Let user space write to the kernel log without a rate limit, and put the switch back."""
    before = DEVKMSG_SWITCH.read_text().strip()
    DEVKMSG_SWITCH.write_text("on\n")  # Without the newline the kernel refuses.
    try:
        yield
    finally:
        DEVKMSG_SWITCH.write_text(f"{before}\n")


@pytest.mark.root
@pytest.mark.skipif(
    not (_kmsg_is_readable() and os.access(DEVKMSG_SWITCH, os.W_OK)),
    reason="this machine's /dev/kmsg may not be read and written here: run as root outside a container",
)
@pytest.mark.usefixtures("unlimited_writes")
async def test_the_real_device_delivers_what_user_space_writes_with_its_facility(tmp_path: Path) -> None:
    """A forged Xid arrives at once and byte for byte, but never as facility 0, the kernel's own."""
    text = f"NVRM: Xid (PCI:0000:02:00): 79, forged by pid {os.getpid()}\nsecond line, caf\u00e9 \\x41"
    state = AtomicFile(tmp_path / "position")
    log = DevKmsg(state=state, boot_id=LinuxMachine().facts().boot_id, clock=RealTime())
    async with aclosing(log.records()) as records, asyncio.timeout(30):
        async for item in records:
            if isinstance(item, KernelLogCaughtUp):
                break
        assert item.replayed > 0
        _print(b"<4>" + text.encode() + b"\n")
        async for item in records:
            if isinstance(item, KernelRecord) and str(os.getpid()) in item.text:
                break
        log.save_position()
    again = await read_to_end(DevKmsg(state=state, boot_id=LinuxMachine().facts().boot_id, clock=RealTime()))

    assert item.text == text
    assert item.facility == 1
    assert not item.replayed
    assert not any(isinstance(old, KernelRecord) and old.sequence <= item.sequence for old in again)


@pytest.mark.root
@pytest.mark.skipif(
    not (_kmsg_is_readable() and os.access(DEVKMSG_SWITCH, os.W_OK)),
    reason="this machine's /dev/kmsg may not be read and written here: run as root outside a container",
)
@pytest.mark.usefixtures("unlimited_writes")
async def test_records_that_the_real_ring_overwrote_are_counted(tmp_path: Path) -> None:
    """A reader that is too slow learns exactly how many records it missed."""
    log = DevKmsg(state=AtomicFile(tmp_path / "p"), boot_id=LinuxMachine().facts().boot_id, clock=RealTime())
    async with aclosing(log.records()) as records, asyncio.timeout(60):
        last = None
        async for item in records:
            if isinstance(item, KernelLogCaughtUp):
                break
            last = item.sequence if isinstance(item, KernelRecord) else last
        _print(*[b"<7>outlast test: " + b"x" * 900 + b"\n"] * 3000)
        gap = (await take(records, 1))[0]
        record = (await take(records, 1))[0]

    assert isinstance(gap, KernelLogGap)
    assert isinstance(record, KernelRecord)
    assert last is not None
    assert gap.lost == record.sequence - last - 1
    assert "overwritten" in gap.reason
