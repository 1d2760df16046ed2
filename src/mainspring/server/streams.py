"""Server-sent events: takes a stream of the log, leaves it told to one client until either side goes.

Every event's `id` is its seq, and the id moves on even where there is nothing to tell, so that whoever comes back goes on from
where they were, at any process. If we die here the client comes back with the last id that it saw.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any, Final, assert_never

from fastapi import Response
from starlette.types import Receive, Scope, Send

from mainspring.operators.tails import Batch, Ended, Quiet, Stream, Tails

PING_SECONDS: Final = 15.0
WRITE_SECONDS: Final = 30.0
RETRY_MILLISECONDS: Final = (500, 3_000)
MEDIA_TYPE: Final = "text/event-stream"
_PING: Final = b": ping\n\n"


class EventStream(Response):
    """Sends chunks as they come; ends when the client leaves, or takes nothing for too long."""

    media_type = MEDIA_TYPE

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        *,
        held: AbstractContextManager[object],
        write_seconds: float = WRITE_SECONDS,
    ) -> None:
        """`chunks` is closed and `held` is let go of at the end, however it comes."""
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._chunks = chunks
        self._held = held
        self._write_seconds = write_seconds

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one client."""
        with self._held:
            await self._serve(receive, send)

    async def _serve(self, receive: Receive, send: Send) -> None:
        writing = asyncio.ensure_future(self._write(send))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait({writing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (writing, leaving):
                task.cancel()
            results = await asyncio.gather(writing, leaving, return_exceptions=True)
        if isinstance(results[0], Exception):
            raise results[0]

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for chunk in self._chunks:
                async with asyncio.timeout(self._write_seconds):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            pass  # nobody reads at the other end: there is nobody to tell either
        finally:
            await self._chunks.aclose()


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def told(
    tails: Tails,
    stream: Stream,
    *,
    reset_to: int | None,
    recheck: Callable[[], Awaitable[str | None]],
    ping_seconds: float = PING_SECONDS,
) -> AsyncGenerator[bytes, None]:
    """Yield what a stream tells, as text of server-sent events.

    Args:
        reset_to: the reader was beyond the log's head, which is this: what he has seen is not what is there.
        recheck: asks for the role that the reader's token has now, before each page of what has been missed.
    """
    yield f"retry: {_retry()}\nid: {stream.position}\n\n".encode()
    if reset_to is not None:
        yield control("reset", {"reason": "beyond_head", "head": reset_to}, seq=reset_to)
    try:
        while not (tails.is_live(stream) or stream.is_over):
            if stream.allowed(await recheck()):
                yield chunk(await tails.catch_up(stream))
            else:
                stream.end("unauthorized")
        while True:
            match await stream.next(within_seconds=ping_seconds):
                case Batch() as batch:
                    yield chunk(batch)
                case Quiet():
                    yield _PING
                case Ended(reason):
                    yield end(reason)
                    return
                case other:
                    assert_never(other)
    finally:
        tails.leave(stream)


def chunk(batch: Batch) -> bytes:
    """Return a batch as text: its events, and an id for what of the log was passed over."""
    parts = [b"id: %d\ndata: %b\n\n" % (line.seq, line.text) for line in batch.lines]
    if not batch.lines or batch.lines[-1].seq != batch.through:
        parts.append(b"id: %d\n\n" % batch.through)
    return b"".join(parts)


def control(event: str, data: dict[str, Any], *, seq: int | None = None, retry: int | None = None) -> bytes:
    """Return a message that is no event of the log."""
    lines = [f"event: {event}"]
    lines += [] if seq is None else [f"id: {seq}"]
    lines += [] if retry is None else [f"retry: {retry}"]
    return "\n".join([*lines, f"data: {json.dumps(data)}", "", ""]).encode()


def end(reason: str) -> bytes:
    """Return the last message of a stream."""
    if reason == "slow":  # behind the last id that was sent nothing is lost: the log is there
        return control("reset", {"reason": reason}, retry=_retry())
    return control("bye", {"reason": reason}, retry=_retry())


def _retry() -> int:
    """Return after how many milliseconds to come back: not all at once."""
    return random.randint(*RETRY_MILLISECONDS)  # noqa: S311
