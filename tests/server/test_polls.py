"""Long polls end with their work, their client or their server, and never drop a result."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from mainspring.server.polls import or_gone


class Asked:
    """A request whose client leaves when told to."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.closing = asyncio.Event()
        self.app = SimpleNamespace(state=SimpleNamespace(closing=self.closing))

    async def receive(self) -> dict[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}


async def never(begun: asyncio.Event, ended: list[str]) -> str:
    try:
        begun.set()
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        ended.append("cancelled")
        raise
    return "never"


async def test_the_works_result_is_the_answer():
    async def work() -> str:
        return "a run"

    assert await or_gone(Asked(), work()) == "a run"


async def test_the_works_error_is_the_requests():
    async def work() -> str:
        raise LookupError("gone")

    with pytest.raises(LookupError):
        await or_gone(Asked(), work())


@pytest.mark.parametrize("end", ["left", "closing"])
async def test_who_leaves_ends_the_work(end):
    asked, begun, ended = Asked(), asyncio.Event(), []
    poll = asyncio.create_task(or_gone(asked, never(begun, ended)))
    await begun.wait()
    getattr(asked, end).set()
    assert await poll is None
    assert ended == ["cancelled"]


async def test_work_that_cannot_be_stopped_any_more_is_not_lost():
    """A commit under way when the client leaves has happened: what it claimed is answered, and not thrown away."""
    asked, begun = Asked(), asyncio.Event()

    async def work() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "committed"
        return "never"

    poll = asyncio.create_task(or_gone(asked, work()))
    await begun.wait()
    asked.left.set()
    assert await poll == "committed"


async def test_a_cancelled_request_leaves_no_task_behind():
    asked, begun, ended = Asked(), asyncio.Event(), []
    before = asyncio.all_tasks()
    poll = asyncio.create_task(or_gone(asked, never(begun, ended)))
    await begun.wait()
    poll.cancel()
    with pytest.raises(asyncio.CancelledError):
        await poll
    assert ended == ["cancelled"]
    assert asyncio.all_tasks() == before
