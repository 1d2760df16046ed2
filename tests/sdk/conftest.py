"""A wire to talk over, and a runner on it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mainspring.sdk import Runner
from tests.sdk.wire_server import PATIENCE_SECONDS, WireServer, serving


@pytest.fixture
def wire() -> Iterator[WireServer]:
    """The other end."""
    with serving() as server:
        yield server


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """Where the runner of this test keeps its results."""
    return tmp_path / "spool"


@pytest.fixture
def runner(wire: WireServer, spool: Path) -> Runner:
    """A runner with no agent yet."""
    return Runner(
        url=wire.url, token="ms_runner_secret", name="laptop", spool=spool, wait_seconds=5, grace_seconds=5
    )


async def seen(wait: Callable[..., Any], *args: Any) -> None:
    """Wait in a thread for something that another thread signals."""
    await asyncio.wait_for(asyncio.to_thread(wait, *args), PATIENCE_SECONDS)


class AtWork:
    """A runner that serves beside the test; leaving the block drains it and raises what it raised."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    async def __aenter__(self) -> Runner:
        self._task = asyncio.create_task(self._runner.serve())
        return self._runner

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            return
        self._runner.drain()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._task


def no_thread_is_left() -> bool:
    """Whether the liveness threads of all runners are gone."""
    return not [thread for thread in threading.enumerate() if thread.name == "mainspring-liveness"]
