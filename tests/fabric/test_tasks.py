"""A task that takes a cancellation for somebody else's ends all the same."""

from __future__ import annotations

import asyncio

from mainspring.fabric.tasks import ended


async def test_a_cancellation_that_was_swallowed_is_said_again() -> None:
    swallowed: list[int] = []

    async def stubborn() -> None:
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                swallowed.append(1)
                if len(swallowed) > 2:
                    raise

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await ended(task, None)
    assert task.cancelled()
    assert len(swallowed) == 3
