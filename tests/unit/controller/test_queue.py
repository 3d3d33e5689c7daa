"""The set of nodes to look at."""

from __future__ import annotations

import asyncio

import pytest

from outlast.controller.queue import STALE_TIMES_MAX, DirtyQueue, Lane


@pytest.mark.asyncio
async def test_a_node_waits_once_however_often_it_is_marked() -> None:
    """Ten events are one look."""
    queue = DirtyQueue(4)
    for _ in range(10):
        queue.mark("n1", Lane.RECORD)
    assert await queue.take() == ("n1", Lane.RECORD)
    queue.done("n1")
    assert queue.is_idle


@pytest.mark.asyncio
async def test_nodes_to_block_go_first() -> None:
    """Safety before bookkeeping."""
    queue = DirtyQueue(4)
    queue.mark("record", Lane.RECORD)
    queue.mark("block", Lane.BLOCK)
    assert await queue.take() == ("block", Lane.BLOCK)


@pytest.mark.asyncio
async def test_a_node_that_becomes_urgent_changes_lanes() -> None:
    """And is not looked at twice for it."""
    queue = DirtyQueue(4)
    queue.mark("n1", Lane.RECORD)
    queue.mark("n1", Lane.BLOCK)
    assert await queue.take() == ("n1", Lane.BLOCK)
    assert len(queue) == 0


@pytest.mark.asyncio
async def test_a_node_at_work_is_not_given_to_another_worker() -> None:
    """What happens meanwhile is looked at afterwards."""
    queue = DirtyQueue(4)
    queue.mark("n1", Lane.BLOCK)
    await queue.take()
    queue.mark("n1", Lane.RECORD)
    assert len(queue) == 0
    queue.done("n1")
    assert await queue.take() == ("n1", Lane.RECORD)


@pytest.mark.asyncio
async def test_records_leave_room_for_blocks() -> None:
    """However many records wait, a node to block finds a worker."""
    queue = DirtyQueue(1)
    for name in ("a", "b"):
        queue.mark(name, Lane.RECORD)
    await queue.take()
    waiting = asyncio.ensure_future(queue.take())
    await asyncio.sleep(0)
    assert not waiting.done()
    queue.mark("sick", Lane.BLOCK)
    assert await waiting == ("sick", Lane.BLOCK)


@pytest.mark.asyncio
async def test_records_wait_while_a_burst_is_being_blocked() -> None:
    """As many blocks in flight as there are record slots hold records back; a few do not."""
    queue = DirtyQueue(2)
    for name in ("a", "b"):
        queue.mark(name, Lane.BLOCK)
        await queue.take()
    queue.mark("record", Lane.RECORD)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(queue.take())
        await asyncio.sleep(0)
        assert not waiting.done()
        queue.done("a")
        assert await waiting == ("record", Lane.RECORD)


@pytest.mark.asyncio
async def test_the_earlier_due_time_counts_and_a_look_cancels_it() -> None:
    """A node is not looked at again for a time that an earlier look has overtaken."""
    queue = DirtyQueue(4)
    queue.mark_at("n1", 10.0)
    queue.mark_at("n1", 5.0)
    queue.mark_at("n1", 7.0)
    assert queue.release_due(4.9) == 0
    assert queue.release_due(5.0) == 1
    await queue.take()
    queue.done("n1")
    assert queue.release_due(100.0) == 0


@pytest.mark.asyncio
async def test_a_cancelled_worker_loses_no_node() -> None:
    """Leadership lost and won again: what waited still waits."""
    queue = DirtyQueue(4)
    worker = asyncio.ensure_future(queue.take())
    await asyncio.sleep(0)
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
    queue.mark("n1", Lane.BLOCK)
    async with asyncio.timeout(1):
        assert await queue.take() == ("n1", Lane.BLOCK)


@pytest.mark.asyncio
async def test_looks_leave_no_times_behind() -> None:
    """A node that is looked at a thousand times has one due time, and the queue remembers about one."""
    queue = DirtyQueue(4)
    for look in range(10_000):
        queue.mark("a", Lane.RECORD)
        name, _ = await queue.take()
        queue.done(name)
        queue.mark_at("a", 180.0 + look)
    assert len(queue._heap) <= STALE_TIMES_MAX + 3
    assert queue.release_due(180.0 + 9998) == 0
    assert queue.release_due(180.0 + 9999) == 1
