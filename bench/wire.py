"""A client of few bytes: thousands of them wait in this process without being what is measured."""

from __future__ import annotations

import asyncio
import json
from typing import Any


class Refused(Exception):
    """The server answered with an error; `status` says which."""

    def __init__(self, asked: str, status: int, text: str) -> None:
        super().__init__(f"{asked}: {status} {text}")
        self.status = status


class Wire:
    """One kept connection to the server, as one bearer."""

    def __init__(self, host: str, port: int, token: str) -> None:
        self._host, self._port, self._token = host, port, token
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def post(self, path: str, body: Any) -> Any:
        """Send a command under /api/v1; return the answer. Raises Refused."""
        return await self._ask("POST", f"/api/v1{path}", json.dumps(body).encode())

    async def fetch(self, path: str) -> Any:
        """Ask for something under /api/v1; return the answer. Raises Refused."""
        return await self._ask("GET", f"/api/v1{path}", b"")

    async def get(self, path: str) -> str:
        """Return the text that stands at a path of the server."""
        status, text = await self._exchange("GET", path, b"")
        if status >= 400:
            raise Refused(f"GET {path}", status, text.decode())
        return text.decode()

    async def _ask(self, method: str, path: str, body: bytes) -> Any:
        status, text = await self._exchange(method, path, body)
        if status >= 400:
            raise Refused(f"{method} {path}", status, text.decode())
        return json.loads(text)

    async def _exchange(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        if self._writer is None or self._writer.is_closing():
            self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        assert self._reader is not None
        self._writer.write(
            f"{method} {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {self._token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        head = await self._reader.readuntil(b"\r\n\r\n")
        status, length = int(head.split(b" ", 2)[1]), 0
        for line in head.split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        return status, await self._reader.readexactly(length)

    def close(self) -> None:
        """Hang up."""
        if self._writer is not None:
            self._writer.close()
