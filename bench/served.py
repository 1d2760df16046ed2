"""A server process of its own, so that its memory and its work are its own, and what is said of waits at it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import figures
import psutil
from wire import Refused, Wire

from mainspring.embedded import EmbeddedNats

START_SECONDS = 180.0  # thousands that come at once are turned away by the hundred, and come again


@dataclass
class Served:
    """A running server process."""

    port: int
    process: psutil.Process

    @property
    def megabytes(self) -> float:
        """Its resident memory."""
        return float(self.process.memory_info().rss) / (1 << 20)

    @property
    def cpu_seconds(self) -> float:
        """How long it has worked."""
        times = self.process.cpu_times()
        return float(times.user + times.system)


@contextlib.asynccontextmanager
async def serving(url: str) -> AsyncIterator[Served]:
    """Run a server on this database for the length of the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")}
    folder = Path(tempfile.mkdtemp(prefix="ms-bench-"))
    with EmbeddedNats(folder) as nats:
        try:
            environment |= {"MAINSPRING_NATS_URL": nats.url()}
            async with _serving(url, port, environment) as served:
                yield served
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.asynccontextmanager
async def _serving(url: str, port: int, environment: dict[str, str]) -> AsyncIterator[Served]:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "mainspring", "server", "run"),
        env=environment
        | {"MAINSPRING_DATABASE_URL": url, "MAINSPRING_PORT": str(port), "MAINSPRING_LOG_LEVEL": "warning"},
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        served = Served(port, psutil.Process(child.pid))
        await until(lambda: _is_ready(port), "the server was ready")
        yield served
    finally:
        child.terminate()
        try:
            await asyncio.wait_for(child.wait(), 30)
        except TimeoutError:
            child.kill()
            await child.wait()


async def _is_ready(port: int) -> bool:
    wire = Wire("127.0.0.1", port, "")
    try:
        await wire.get("/readyz")
    except (OSError, Refused, asyncio.IncompleteReadError):
        return False
    finally:
        wire.close()
    return True


def spread(seconds: list[float]) -> dict[str, float]:
    """How long it took, in milliseconds."""
    return {
        "p50": 1e3 * figures.percentile(seconds, 50),
        "p99": 1e3 * figures.percentile(seconds, 99),
        "worst": 1e3 * max(seconds),
    }


async def until(holds: Any, what: str) -> None:
    """Wait until it holds. Raises Lost."""
    until = time.monotonic() + START_SECONDS
    while True:
        held = holds()
        if (await held) if asyncio.iscoroutine(held) else held:
            return
        if time.monotonic() > until:
            raise figures.Lost(f"{START_SECONDS:.0f} s have passed and not {what}")
        await asyncio.sleep(0.1)
