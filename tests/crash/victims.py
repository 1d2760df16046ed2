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
from mainspring.fabric.refs import SEQ_MAX
from mainspring.faultpoints import FaultPoint
from mainspring.operators.model import Replay
from mainspring.rooms import Actor
from mainspring.spine.drain import Drained
from mainspring.wiring import Services

Deed = Literal[
    "move",
    "drain",
    "work",
    "claim",
    "complete",
    "replay",
    "post",
    "settle",
    "start",
    "inbox",
    "ack",
    "tell",
    "listen",
]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """The same of messages: who posts what, under which name, or which session does it."""

    deed: Deed
    by: Actor
    text: str = "hello"
    request_id: str = "r"
    session: UUID | None = None
    claim_id: UUID | None = None
    deliveries: tuple[UUID, ...] = ()


def settings(database_url: str, **nats: str) -> Settings:
    """The same for every process: leases that run out while a frozen one still holds its locks."""
    return Settings(
        **nats,  # type: ignore[arg-type]
        database_url=database_url,
        pool_size=6,
        lease_seconds_transactional=LEASE_SECONDS,
        lease_seconds_external=LEASE_SECONDS,
        floor_tick_seconds=0.5,
        session_lease_seconds=LEASE_SECONDS,
    )


async def say(services: Services, talk: Talk) -> None:
    """Do it, as the server's routes do it."""
    sessions = services.talk.sessions
    held = None if talk.session is None or talk.claim_id is None else (talk.session, talk.claim_id)
    match talk.deed:
        case "post":
            await services.talk.chat.post(
                talk.by,
                "general",
                topic=None,
                blocks=[{"type": "text", "text": talk.text}],
                mentions=[],
                request_id=talk.request_id,
            )
        case "start":
            await sessions.start(talk.by, takeover=True)
        case "settle":
            assert held is not None
            await sessions.settle(talk.by, *held, turn=1)
        case "inbox":
            assert held is not None
            await sessions.inbox(talk.by, *held)
        case "ack":
            assert held is not None
            await sessions.ack(talk.by, *held, ids=talk.deliveries, refused={}, turn=None)
        case other:
            raise AssertionError(f"{other} is nothing that is done to messages")


async def do(services: Services, task: Task | Talk) -> None:
    """Do it, as the server's routes and loops do it."""
    if isinstance(task, Talk):
        await say(services, task)
        return
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
        case "tell":
            assert services.relay is not None
            await services.boards.move_card(task.by, task.card, "doing")
            await services.relay.run_once()
        case "listen":  # to what the test publishes meanwhile. It takes all of that for done, so it has nothing open when it is met
            assert services.listener is not None
            services.listener.drained(Drained(events=0, owed=0, reached={tenant: SEQ_MAX}))
            await services.listener.start()
            await asyncio.sleep(_PATIENCE_SECONDS)
        case "replay":
            assert task.run is not None
            await services.desk.decide(task.by, [task.run], Replay())
        case other:
            raise AssertionError(f"{other} is nothing that is done to a card")


def _live(database_url: str, fault: str, task: Task | Talk, tell: Connection, nats: dict[str, str]) -> None:
    tell.send(asyncio.run(_lived(settings(database_url, **nats), fault, task)))


async def _lived(settings: Settings, fault: str, task: Task | Talk) -> str:
    services = await (wiring.assemble(settings) if settings.nats_url else wiring.build(settings))
    faultpoints.arm(fault)
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

    async def killed(self) -> None:
        """Return once it was killed; fail when it has ended otherwise."""
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while self.process.exitcode is None:  # noqa: ASYNC110 - the kernel tells nobody here
                await asyncio.sleep(0.01)
        assert self.process.exitcode == -signal.SIGKILL, f"{self.point} was never reached"

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

    def __init__(self, database_url: str, nats: dict[str, str]) -> None:
        self._database_url = database_url
        self._nats = nats
        self._all: list[Victim] = []

    async def freeze(self, point: FaultPoint, task: Task | Talk) -> Victim:
        """Start one, and return it stopped at that point."""
        victim = self._start(point, task, "stop")
        await victim.frozen()
        return victim

    async def kill(self, point: FaultPoint, task: Task | Talk) -> Victim:
        """Start one, and return when it was killed at that point."""
        victim = self._start(point, task, "kill")
        await victim.killed()
        return victim

    def _start(self, point: FaultPoint, task: Task | Talk, action: str) -> Victim:
        hears, tell = _forked.Pipe(duplex=False)
        fault = f"{point}:{action}"
        process = _forked.Process(
            target=_live, args=(self._database_url, fault, task, tell, self._nats), daemon=True
        )
        process.start()
        tell.close()
        victim = Victim(point, process, hears)
        self._all.append(victim)
        return victim

    def end(self) -> None:
        """Leave none behind."""
        for victim in self._all:
            with contextlib.suppress(ProcessLookupError):
                victim.process.kill()
            victim.process.join(5)


@contextlib.contextmanager
def victims(database_url: str, **nats: str) -> Iterator[Victims]:
    """A place to freeze processes in, that leaves none behind; with a fabric when it is told where that is."""
    place = Victims(database_url, nats)
    try:
        yield place
    finally:
        place.end()
