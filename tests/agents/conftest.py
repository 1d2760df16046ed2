"""The agents room on a real database: a tenant of its own for each test, with a person, agents and a board with a card."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import asyncpg
import pytest
import uvicorn
from fastapi import FastAPI

from mainspring.agents.asking import Ask, NewAsk
from mainspring.agents.build import AgentsRoom, build
from mainspring.agents.model import Completion, NewRun, RunPolicy
from mainspring.agents.runners import Beat, Claimed, ClaimRequest, Completed
from mainspring.agents.tokens import Holder, add_account
from mainspring.agents.verbs import RunVerbs
from mainspring.agents.views import Work
from mainspring.boards import verbs as boards
from mainspring.boards.model import BoardState, Card, NewCard
from mainspring.boards.service import BoardService
from mainspring.chat.asks import MessageAskService
from mainspring.db import Database, create_pool
from mainspring.ids import new_id
from mainspring.migrations.deadlines import DEADLINES
from mainspring.operators.deeds import DeedService
from mainspring.rooms import Actor, ServerSpine
from mainspring.server.app import create_app
from mainspring.spine.engine import Spine
from mainspring.spine.retry import Backoff
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.deadlines import age

POLICY = RunPolicy(
    lease_seconds=60, attempts_max=3, backoff=Backoff(base_seconds=5, factor=3, cap_seconds=600)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """A server's inside: database, engine, the room."""

    db: Database
    admin: asyncpg.Connection
    spine: ServerSpine
    room: AgentsRoom
    boards: BoardService

    async def age(self, seconds: float, *, only: str | None = None) -> None:
        """Let time pass for this room's deadlines, or those of one table: that waits for nobody while it holds a row."""
        await age(self.admin, seconds, DEADLINES if only is None else {only: DEADLINES[only]})


@pytest.fixture(scope="session")
async def home(databases) -> AsyncIterator[Home]:
    """One migrated database for all tests of this room; each test has its own tenant in it."""
    database = await databases.create("server")
    pool = await create_pool(max_size=12, **database.dsn)
    admin = await asyncpg.connect(**database.admin)
    store = PostgresStore(pool, roles=True)
    spine: ServerSpine = Spine(store)
    verbs = RunVerbs(boards)
    room = build(spine, store.db, verbs, boards, POLICY, tick_seconds=1.0)
    yield Home(db=store.db, admin=admin, spine=spine, room=room, boards=BoardService(spine, store.db, verbs))
    await admin.close()
    await pool.close()
    await databases.drop(database)


@dataclass(slots=True)
class Runner:
    """A runner process as the server sees it."""

    home: Home
    holder: Holder
    name: str = "laptop"
    incarnation: UUID = field(default_factory=new_id)

    async def claim(
        self,
        *,
        slots: Sequence[int] = (0,),
        agents: Sequence[str] = (),
        wait_seconds: float = 0.0,
        capacity: int | None = None,
        labels: Sequence[str] = (),
    ) -> Claimed:
        request = ClaimRequest(
            tenant_id=self.holder.actor.tenant_id,
            token_id=self.holder.token_id,
            runner=self.name,
            incarnation=self.incarnation,
            agents=frozenset(agents),
            slots=tuple(slots),
            capacity=capacity,
            labels=frozenset(labels),
        )
        return await self.home.room.runners.claim(request, wait_seconds=wait_seconds)

    async def take(self, **asked: Any) -> Work:
        claimed = await self.claim(**asked)
        assert claimed.work is not None
        return claimed.work

    async def heartbeat(self, work: Work, *asks: Ask) -> Beat:
        return await self.home.room.runners.heartbeat(
            self.holder.actor.tenant_id,
            work.run.id,
            work.run.claim_id,
            agents=self.holder.agents,
            asks=[ask.id for ask in asks],
        )

    async def begin(self, **asked: Any) -> Work:
        """Take a run, and begin it."""
        work = await self.take(**asked)
        await self.heartbeat(work)
        return work

    async def ask(
        self,
        work: Work,
        question: str = "Go on?",
        *options: str,
        timeout_seconds: float | None = None,
        request_id: UUID | None = None,
    ) -> Ask:
        new = NewAsk(
            request_id=request_id or new_id(),
            question=question,
            options=options,
            timeout_seconds=timeout_seconds,
        )
        return await self.home.room.runners.ask(
            self.holder.actor.tenant_id, work.run.id, work.run.claim_id, new, agents=self.holder.agents
        )

    async def log(self, work: Work, lines: Sequence[str], *, offset: int | None = None) -> tuple[int, bool]:
        return await self.home.room.runners.append_log(
            self.holder.actor.tenant_id,
            work.run.id,
            work.run.claim_id,
            lines,
            agents=self.holder.agents,
            offset=offset,
        )

    async def complete(self, work: Work, outcome: Any = "done", **more: Any) -> Completed:
        return await self.home.room.runners.complete(
            self.holder.actor.tenant_id,
            work.run.id,
            work.run.claim_id,
            Completion(outcome=outcome, **more),
            agents=self.holder.agents,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A tenant with an operator, a card, and agents as they are asked for."""

    home: Home
    tenant: UUID
    admin: Actor
    card: Card

    @property
    def room(self) -> AgentsRoom:
        return self.home.room

    async def agent(self, handle: str = "coder", *, slots: int = 1) -> UUID:
        return (await self.room.agents.create(self.admin, handle=handle, slots=slots)).agent.id

    async def queue(self, agent: UUID, *, card: bool = True, **more: Any) -> UUID:
        new = NewRun(
            **{
                "agent_id": agent,
                "card_id": self.card.id if card else None,
                "effect_kind": "launch",
                "effect_key": str(new_id()),
                "event_seq": 1,
                "rule_id": None,
                "rule_version": None,
                "card_state_version": 1,
                "prompt": "do it",
                "trigger": {"kind": "card.created", "summary": "a card was made"},
                "depth": 1,
                **more,
            }
        )
        async with self.home.spine.open(self.tenant) as tx:
            return await self.room.verbs.queue_run(tx, new)

    async def runner(self, *agents: str, name: str = "laptop") -> Runner:
        _, secret = await self.room.tokens.create(self.admin, kind="runner", agents=agents)
        holder = await self.room.tokens.authenticate(secret)
        assert holder is not None
        return Runner(self.home, holder, name)

    async def somebody_waits_for_a_lock(self) -> None:
        """Return once a statement in this database waits for another's row."""
        asked = "select exists (select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database())"
        while not await self.home.admin.fetchval(asked):  # noqa: ASYNC110 - the database wakes nobody when one waits
            await asyncio.sleep(0)

    async def state(self, run_id: UUID) -> str:
        return str((await self.room.runs.get(self.tenant, run_id)).run.state)

    async def events(self, run_id: UUID) -> list[dict[str, Any]]:
        async with self.home.db.tenant(self.tenant) as scope:
            rows = await scope.fetch(
                "select kind, data, actor_id, cause_seq, via, depth, trust from mainspring.events"
                " where tenant_id = $1 and subject = $2 order by seq",
                self.tenant,
                str(run_id),
            )
        return [dict(row.items()) for row in rows]

    async def events_of(self, subject: UUID, kind: str) -> list[dict[str, Any]]:
        return [event for event in await self.events(subject) if event["kind"] == kind]

    async def kinds(self, run_id: UUID) -> list[str]:
        return [event["kind"] for event in await self.events(run_id)]


@pytest.fixture
async def place(home: Home) -> AsyncIterator[Place]:
    yield await make_place(home)
    # sweeps look at all tenants: leave nothing for the next test's
    await home.admin.execute(
        "update mainspring.runs set state = 'cancelled', lease_until = null, ended_at = clock_timestamp()"
        " where state in ('claimed', 'running')"
    )


async def make_place(home: Home) -> Place:
    """A fresh tenant."""
    tenant = new_id()
    await home.spine.create_tenant(tenant, "test")
    async with home.db.tenant(tenant) as scope:
        account = await add_account(scope, tenant, "human", "admin", "Admin")
    assert account is not None
    admin = Actor(tenant_id=tenant, account_id=account.id, kind="human", handle="admin")
    await home.boards.create_board(
        admin,
        key="OPS",
        name="Operations",
        states=[BoardState(name="backlog"), BoardState(name="doing")],
        reflect={},
    )
    card = await home.boards.create_card(admin, "OPS", NewCard(title="a card"))
    return Place(home=home, tenant=tenant, admin=admin, card=card)


class Listening(uvicorn.Server):
    """A server that says when it listens, and leaves signals alone."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets=None):
        await super().startup(sockets)
        self.ready.set()

    def capture_signals(self):
        return nullcontext()


@dataclass(frozen=True, slots=True)
class Served:
    """A server that listens: its address, and how it says to its polls that it closes."""

    url: str
    closing: asyncio.Event

    def close(self) -> None:
        self.closing.set()


@pytest.fixture(scope="session")
def whole_app(home: Home) -> FastAPI:
    """The room's part of a server. One for all: the framework describes every route anew for each app that it makes."""
    room = home.room
    services = SimpleNamespace(
        agents=room.agents,
        runs=room.runs,
        asks=room.asks,
        runners=room.runners,
        tokens=room.tokens,
        audit=DeedService(home.db),
        talk=SimpleNamespace(asks=MessageAskService(home.spine, home.db)),
    )
    return create_app(services)  # type: ignore[arg-type]


@pytest.fixture
def app(whole_app: FastAPI) -> FastAPI:
    """The same, not closing yet."""
    whole_app.state.closing = asyncio.Event()
    return whole_app


@pytest.fixture
async def served(app: FastAPI) -> AsyncIterator[Served]:
    """The app on a real socket."""
    server = Listening(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off"))
    sock = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    await server.ready.wait()
    yield Served(f"http://127.0.0.1:{sock.getsockname()[1]}", app.state.closing)
    app.state.closing.set()
    server.should_exit = True
    await serving
