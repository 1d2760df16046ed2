"""A real HTTP server on loopback that answers as a test tells it to, and remembers what it was sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True)
class Received:
    """One request, as it came."""

    line: str
    headers: dict[str, str]
    body: bytes


Writing: TypeAlias = Callable[[asyncio.StreamWriter], Awaitable[None]]


def plain(status: int, said: bytes = b"", **headers: str) -> Writing:
    """Answer with this status, at once and whole."""

    async def write(to: asyncio.StreamWriter) -> None:
        lines = [f"HTTP/1.1 {status} X", f"content-length: {len(said)}", "connection: close"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        to.write("\r\n".join([*lines, "", ""]).encode() + said)

    return write


def endless(status: int) -> Writing:
    """Answer, and never come to the end of it."""

    async def write(to: asyncio.StreamWriter) -> None:
        to.write(f"HTTP/1.1 {status} X\r\ncontent-length: 1000000\r\n\r\nbeginning".encode())
        await to.drain()
        await asyncio.Event().wait()

    return write


def flood(status: int) -> Writing:
    """Answer with far more than anybody wants to read."""

    async def write(to: asyncio.StreamWriter) -> None:
        to.write(f"HTTP/1.1 {status} X\r\ntransfer-encoding: chunked\r\n\r\n".encode())
        while True:
            to.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
            await to.drain()

    return write


async def silence(_to: asyncio.StreamWriter) -> None:
    """Say nothing, for ever."""
    await asyncio.Event().wait()


async def hang_up(_to: asyncio.StreamWriter) -> None:
    """Say nothing, and close."""


async def nonsense(to: asyncio.StreamWriter) -> None:
    """Answer with what is no HTTP."""
    to.write(b"220 smtp ready\r\n")


@dataclass
class HookServer:
    """What was received, and how the next requests are answered; the last answer stays."""

    port: int = 0
    received: list[Received] = field(default_factory=list)
    answers: list[Writing] = field(default_factory=lambda: [plain(204)])
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def url(self, host: str = "127.0.0.1", path: str = "/hook?x=1") -> str:
        return f"http://{host}:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            line, *lines = head.rstrip().split("\r\n")
            headers = {name.lower(): value for name, value in (one.split(": ", 1) for one in lines)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            self.received.append(Received(line, headers, body))
            self.arrived.set()
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            await answer(writer)
            await writer.drain()
        writer.close()


@asynccontextmanager
async def hook_server() -> AsyncIterator[HookServer]:
    """Run one for the length of a block; whoever still hangs on it is let go then."""
    made = HookServer()
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        with suppress(asyncio.CancelledError):
            await made.serve(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
