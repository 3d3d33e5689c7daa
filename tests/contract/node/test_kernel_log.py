"""What every `KernelLog` must do; runs on each way to the real one and on the simulated one."""

from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from outlast.adapters.linux.position import Position, encode_position
from outlast.model.observation import KernelLogCaughtUp, KernelLogGap, KernelRecord
from tests.contract.node.logs import (
    ChainLog,
    FifoLog,
    FileLog,
    JournalLog,
    LogUnderTest,
    RingLog,
    SimulatedLog,
    SyslogFileLog,
    read_to_end,
    take,
)

pytestmark = pytest.mark.asyncio

BOOT = "11111111-1111-4111-8111-111111111111"
OTHER_BOOT = "22222222-2222-4222-8222-222222222222"


def line(sequence: int, text: str = "x") -> bytes:
    return f"4,{sequence},{sequence * 10},c;{text} {sequence}".encode()


def numbers(items: list[object]) -> list[int]:
    return [int(item.text.split()[-1]) for item in items if isinstance(item, KernelRecord)]


def gaps(items: list[object]) -> list[KernelLogGap]:
    return [item for item in items if isinstance(item, KernelLogGap)]


LOGS = {
    "file": FileLog,
    "fifo": FifoLog,
    "simulated": SimulatedLog,
    "syslog": RingLog,
    "journal": JournalLog,
    "syslog file": SyslogFileLog,
    "chain": ChainLog,
}
NUMBERED = ("file", "fifo", "simulated", "chain")
"""Logs whose records have numbers without holes."""


def made(name: str, folder: Path) -> Iterator[LogUnderTest]:
    under_test = LOGS[name](folder)
    yield under_test
    under_test.close()


@pytest.fixture(params=LOGS)
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LogUnderTest]:
    yield from made(request.param, tmp_path)


@pytest.fixture(params=NUMBERED)
def numbered(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LogUnderTest]:
    yield from made(request.param, tmp_path)


async def test_a_first_start_delivers_everything_there_is_as_replayed(log: LogUnderTest) -> None:
    """What was in the log before is delivered in order, marked, and closed by "caught up"."""
    log.put(line(5), line(6))

    items = await read_to_end(log.start(BOOT))

    assert numbers(items) == [5, 6]
    assert all(item.replayed for item in items if isinstance(item, KernelRecord))
    assert isinstance(items[-1], KernelLogCaughtUp)
    assert items[-1].replayed == 2


async def test_what_comes_after_the_end_is_live(log: LogUnderTest) -> None:
    """A record written while the reader follows arrives by itself and is not marked as replayed."""
    log.put(line(5))
    async with aclosing(log.start(BOOT).records()) as records:
        await take(records, 2)
        log.put(line(6, "live"))
        (record,) = await take(records, 1)

    assert isinstance(record, KernelRecord)
    assert (record.text, record.timestamp_us, record.priority) == ("live 6", 60, 4)
    assert not record.replayed


async def test_a_restart_continues_behind_the_saved_position(log: LogUnderTest) -> None:
    """No record twice, none left out."""
    log.put(line(5), line(6))
    await read_to_end(log.start(BOOT))
    log.put(line(7))

    items = await read_to_end(log.start(BOOT))

    assert numbers(items) == [7]
    assert not gaps(items)


async def test_without_a_saved_position_records_come_again(log: LogUnderTest) -> None:
    """A full disk costs repeated work, never a record."""
    log.put(line(5))
    log.state.full = True
    await read_to_end(log.start(BOOT))

    assert numbers(await read_to_end(log.start(BOOT))) == [5]


async def test_a_position_of_another_boot_is_ignored(log: LogUnderTest) -> None:
    """Sequence numbers start again at each boot."""
    log.state.content = log.position(OTHER_BOOT, 900)
    log.put(line(5))

    items = await read_to_end(log.start(BOOT))

    assert numbers(items) == [5]
    assert not gaps(items)


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\x00{", b'{"boot_id": 3}', b'{"boot_id":"x","sequence":-1}', b'{"a":' + b"[" * 60_000],
    ids=["empty", "binary", "wrong type", "below zero", "nested without end"],
)
async def test_a_corrupt_position_starts_at_the_oldest_and_says_so(log: LogUnderTest, content: bytes) -> None:
    """Fail towards reading too much."""
    log.state.content = content
    log.put(line(5))

    items = await read_to_end(log.start(BOOT))

    assert numbers(items) == [5]
    assert [gap.lost for gap in gaps(items)] == [0]
    assert "unreadable" in gaps(items)[0].reason


async def test_a_jump_of_the_sequence_is_a_counted_gap(numbered: LogUnderTest) -> None:
    """Lost records are counted exactly, before the record behind them."""
    numbered.put(line(5), line(9))

    items = await read_to_end(numbered.start(BOOT))

    assert [type(item) for item in items] == [KernelRecord, KernelLogGap, KernelRecord, KernelLogCaughtUp]
    assert gaps(items)[0].lost == 3


async def test_records_lost_while_nobody_read_are_counted(numbered: LogUnderTest) -> None:
    """The saved position tells how many were overwritten in between."""
    numbered.state.content = encode_position(Position(BOOT, 5))
    numbered.put(line(9))

    items = await read_to_end(numbered.start(BOOT))

    assert [gap.lost for gap in gaps(items)] == [3]


async def test_garbage_is_counted_once_and_followed_by_the_next_good_record(numbered: LogUnderTest) -> None:
    """Bytes that are no record give a gap; the number they used up is not counted a second time."""
    numbered.put(line(5), b"\x00\x01 garbage \xff", line(7))

    items = await read_to_end(numbered.start(BOOT))

    assert numbers(items) == [5, 7]
    assert sum(gap.lost for gap in gaps(items)) == 1


async def test_records_with_flag_c_are_never_joined(numbered: LogUnderTest) -> None:
    """All driver output carries `c`; each record stands alone."""
    numbered.put(b"4,1,10,c;first", b"4,2,11,c;second")

    items = await read_to_end(numbered.start(BOOT))

    assert [item.text for item in items if isinstance(item, KernelRecord)] == ["first", "second"]


async def test_a_position_beyond_the_newest_record_does_not_hide_what_follows(log: LogUnderTest) -> None:
    """A wrong position is marked, and from then on everything is delivered."""
    log.state.content = log.position(BOOT, 1000)
    log.put(line(5))
    async with aclosing(log.start(BOOT).records()) as records:
        items: list[object] = []
        while not any(isinstance(item, KernelLogCaughtUp) for item in items):
            items += await take(records, 1)
        log.put(line(6))
        while 6 not in numbers(items):
            items += await take(records, 1)

    assert any("1000" in gap.reason or "saved position" in gap.reason for gap in gaps(items))
