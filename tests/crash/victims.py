"""A server's inside in a process of its own, that does one thing and is stopped in the middle of it, at a fault point.

All are forked from one process that has imported everything, since each of them is frozen for as long as the database
lets it hold its locks: side by side they take as long as one.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from mainspring import faultpoints, wiring
from mainspring.agents.model import Completion
from mainspring.agents.runners import ClaimRequest
from mainspring.config import Settings
from mainspring.db import gather_closed
from mainspring.faultpoints import FaultPoint
from mainspring.operators.model import Replay
from mainspring.rooms import Actor
from mainspring.wiring import Services

Deed = Literal["move", "drain", "work", "claim", "complete", "replay"]
LEASE_SECONDS = 2.0
_PATIENCE_SECONDS = 90.0

_forked = multiprocessing.get_context("forkserver")
_forked.set_forkserver_preload([__name__])


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is to be done, to which things of which tenant."""

    deed: Deed
    by: Actor
    card: str
    claim: ClaimRequest
    agents: frozenset[UUID]
    run: UUID | None = None
    claim_id: UUID | None = None


def settings(database_url: str) -> Settings:
    """The same for every process: leases that run out while a frozen one still holds its locks."""
    return Settings(
        database_url=database_url,
        pool_size=6,
        lease_seconds_transactional=LEASE_SECONDS,
        lease_seconds_external=LEASE_SECONDS,
        floor_tick_seconds=0.5,
    )


async def do(services: Services, task: Task) -> None:
    """Do it, as the server's routes and loops do it."""
    tenant = task.by.tenant_id
    match task.deed:
        case "move":
            await services.boards.move_card(task.by, task.card, "doing")
        case "drain":
            await services.spine.drain.run_once()
        case "work":
            await services.spine.worker.run_once()
        case "claim":
            await services.runners.claim(task.claim)
        case "complete":
            assert task.run is not None
            assert task.claim_id is not None
            done = Completion(outcome="done")
            await services.runners.complete(tenant, task.run, task.claim_id, done, agents=task.agents)
        case "replay":
            assert task.run is not None
            await services.desk.decide(task.by, [task.run], Replay())


def _live(database_url: str, point: FaultPoint, task: Task, tell: Connection) -> None:
    tell.send(asyncio.run(_lived(database_url, point, task)))


async def _lived(database_url: str, point: FaultPoint, task: Task) -> str:
    services = await wiring.build(settings(database_url))
    faultpoints.arm(f"{point}:stop")
    try:
        await do(services, task)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        await gather_closed(services.pool, timeout_seconds=1.0)
    return "done"


@dataclass(slots=True)
class Victim:
    """A process that was stopped where it was told to be."""

    point: FaultPoint
    process: Any
    hears: Connection

    @property
    def state(self) -> str:
        """What the kernel says: T for stopped."""
        try:
            return (
                Path(f"/proc/{self.process.pid}/stat")
                .read_text(encoding="utf-8")
                .rpartition(")")[2]
                .split()[0]
            )
        except FileNotFoundError:
            return "gone"

    async def frozen(self) -> None:
        """Return once it is stopped; fail when it has ended instead."""
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while self.state != "T":
                assert not self.hears.poll(), f"{self.point} was never reached: {self.hears.recv()}"
                await asyncio.sleep(0.01)

    async def go_on(self) -> str:
        """Let it run on to its end; return what came of what it did."""
        os.kill(self.process.pid, signal.SIGCONT)
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while not self.hears.poll():  # noqa: ASYNC110 - it is another process's pipe
                await asyncio.sleep(0.01)
        said: str = self.hears.recv()
        return said


class Victims:
    """Those that were started."""

    def __init__(self, database_url: str) -> None:
        self._database_url = database_url
        self._all: list[Victim] = []

    async def freeze(self, point: FaultPoint, task: Task) -> Victim:
        """Start one, and return it stopped at that point."""
        hears, tell = _forked.Pipe(duplex=False)
        process = _forked.Process(target=_live, args=(self._database_url, point, task, tell), daemon=True)
        process.start()
        tell.close()
        victim = Victim(point, process, hears)
        self._all.append(victim)
        await victim.frozen()
        return victim

    def end(self) -> None:
        """Leave none behind."""
        for victim in self._all:
            with contextlib.suppress(ProcessLookupError):
                victim.process.kill()
            victim.process.join(5)


@contextlib.contextmanager
def victims(database_url: str) -> Iterator[Victims]:
    """A place to freeze processes in, that leaves none behind."""
    place = Victims(database_url)
    try:
        yield place
    finally:
        place.end()
