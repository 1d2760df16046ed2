"""Long polls: work that ends early, empty-handed, when its client leaves or the server closes.

A plain handler is not cancelled when its client leaves; a claim would then be made for nobody. If we die here, the work's
transaction rolls back, or its lease runs out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

T = TypeVar("T")


async def or_gone(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """Await `work`; cancel it, and return None, when the client leaves or the server closes.

    Work that is done in the same moment counts as done: its result is returned and never dropped.
    """
    closing: asyncio.Event = request.app.state.closing
    doing = asyncio.ensure_future(work)
    ends = (asyncio.ensure_future(_left(request)), asyncio.ensure_future(closing.wait()))
    try:
        await asyncio.wait({doing, *ends}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            doing.cancel()
            # a commit that was already under way may still have made it
            await asyncio.wait({doing})
        return None if doing.cancelled() else doing.result()
    finally:
        for task in (doing, *ends):
            task.cancel()
        await asyncio.gather(doing, *ends, return_exceptions=True)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
