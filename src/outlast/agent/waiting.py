"""Waiting for news or for time, whichever comes first, on the injected clock."""

from __future__ import annotations

import asyncio

from outlast.ports.clock import Clock


async def news_or_time(news: asyncio.Event, clock: Clock, delay_s: float | None) -> bool:
    """True when there is news, False after `delay_s`; None waits for news only. Clears the news."""
    if not news.is_set():
        if delay_s is None:
            await news.wait()
        elif delay_s > 0:
            async with asyncio.TaskGroup() as group:
                waiter = group.create_task(news.wait())
                sleeper = group.create_task(clock.sleep(delay_s))
                await asyncio.wait({waiter, sleeper}, return_when=asyncio.FIRST_COMPLETED)
                waiter.cancel()
                sleeper.cancel()
    was = news.is_set()
    news.clear()
    return was
