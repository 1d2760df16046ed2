"""A whole server's inside on a real database; each test has a tenant of its own, with a person, a channel, and agents as asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from fastapi import FastAPI

from mainspring import wiring
from mainspring.agents.tokens import add_account
from mainspring.boards.model import BoardState, Card, NewCard
from mainspring.chat import verbs
from mainspring.chat.build import ChatRoom
from mainspring.chat.model import Delivery, Message, Session, Speaking
from mainspring.chat.service import Posted
from mainspring.config import Settings
from mainspring.db import create_pool
from mainspring.ids import new_id
from mainspring.migrations.deadlines import DEADLINES
from mainspring.rooms import Actor
from mainspring.server.app import create_app
from mainspring.stores.postgres.deadlines import DEADLINES as ENGINES
from mainspring.stores.postgres.deadlines import age
from mainspring.wiring import Services
from tests.databases import Database

LEASE_SECONDS = 30.0
WAITING_SECONDS_MAX = (
    30.0  # for a deed to come to the row it should wait for: one that asks for no lock never does
)
_WAITING = "select count(*) from pg_locks where not granted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """A server's inside, its loops not started: tests call `run_once`."""

    services: Services
    admin: asyncpg.Connection

    @property
    def room(self) -> ChatRoom:
        return self.services.talk

    async def age(self, seconds: float, *only: str) -> None:
        """Let time pass for all deadlines, or those of some tables."""
        every = {**DEADLINES, **ENGINES}
        await age(self.admin, seconds, {table: every[table] for table in only or every})


@asynccontextmanager
async def home_on(database: Database) -> AsyncIterator[Home]:
    """A server's inside on this database."""
    pool = await create_pool(max_size=12, **database.dsn)
    admin = await asyncpg.connect(**database.admin)
    services = wiring.join(Settings(database_url="postgresql:///", session_lease_seconds=LEASE_SECONDS), pool)
    try:
        yield Home(services=services, admin=admin)
    finally:
        await admin.close()
        await pool.close()


@pytest.fixture(scope="session")
async def home(databases) -> AsyncIterator[Home]:
    """One migrated database for all tests of this room."""
    database = await databases.create("server")
    async with home_on(database) as made:
        yield made
    await databases.drop(database)


@pytest.fixture(scope="session")
def described(home: Home) -> FastAPI:
    """One for all: the framework describes every route anew for each app that it makes."""
    return create_app(home.services)


@pytest.fixture
def app(described: FastAPI) -> FastAPI:
    """The app, and no server that closes."""
    described.state.closing = asyncio.Event()
    return described


@dataclass(slots=True)
class Reader:
    """An agent's program, as the server sees it: one session, and what it has read."""

    place: Place
    actor: Actor
    session: Session
    read: list[tuple[UUID, int]] = field(default_factory=list)

    @property
    def _service(self) -> Any:
        return self.place.home.room.sessions

    async def inbox(self) -> Sequence[Delivery]:
        _, found = await self._service.inbox(self.actor, self.session.id, self.session.claim_id)
        return found

    async def texts(self) -> list[str]:
        return [delivery.message.text for delivery in await self.inbox()]

    async def ack(
        self,
        *ids: UUID,
        turn: int | None = None,
        refused: Mapping[UUID, str] | None = None,
    ) -> int:
        settled: int = await self._service.ack(
            self.actor, self.session.id, self.session.claim_id, ids=ids, refused=refused or {}, turn=turn
        )
        return settled

    async def read_all(self) -> list[str]:
        """Read and ack until nothing is left; return the texts."""
        texts: list[str] = []
        while found := await self.inbox():
            texts += [delivery.message.text for delivery in found]
            self.read += [(delivery.message.id, delivery.message.revision) for delivery in found]
            await self.ack(*(delivery.id for delivery in found))
        return texts

    async def beat(self, turn: int | None = None) -> Session:
        renewed: Session = await self._service.heartbeat(
            self.actor, self.session.id, self.session.claim_id, turn=turn
        )
        return renewed

    async def settle(self, turn: int) -> Session:
        settled: Session = await self._service.settle(
            self.actor, self.session.id, self.session.claim_id, turn=turn
        )
        return settled

    async def end(self, *, errored: bool = False) -> Session:
        ended: Session = await self._service.end(
            self.actor, self.session.id, self.session.claim_id, errored=errored, reason="the test says so"
        )
        return ended

    def speaking(self, turn: int | None) -> Speaking:
        return Speaking(session_id=self.session.id, claim_id=self.session.claim_id, turn=turn)

    async def post(self, text: str, *, turn: int | None = 1, **more: Any) -> Posted:
        return await self.place.post(text, by=self.actor, speaking=self.speaking(turn), **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A tenant with a person and the channel `general`."""

    home: Home
    tenant: UUID
    anna: Actor

    async def agent(
        self, handle: str, *, subscribed: bool | None = True, channel: str = "general", wake: bool = False
    ) -> Actor:
        """Make an agent, a member of the channel unless `subscribed` is None."""
        made = await self.home.services.agents.create(self.anna, handle=handle, slots=1, wake=wake)
        actor = Actor(tenant_id=self.tenant, account_id=made.agent.id, kind="agent", handle=handle)
        if subscribed is not None:
            await self.home.room.chat.join(self.anna, channel, handle, subscribed=subscribed)
        return actor

    async def person(self, handle: str) -> Actor:
        async with self.home.services.db.tenant(self.tenant) as scope:
            account = await add_account(scope, self.tenant, "human", handle, handle.title())
        assert account is not None
        return Actor(tenant_id=self.tenant, account_id=account.id, kind="human", handle=handle)

    async def session(self, agent: Actor, *, takeover: bool = False) -> Reader:
        started = await self.home.room.sessions.start(agent, takeover=takeover)
        return Reader(self, agent, started.session)

    async def reader(self, handle: str, *, subscribed: bool | None = True) -> Reader:
        """Make an agent that subscribes, and begin its session."""
        return await self.session(await self.agent(handle, subscribed=subscribed))

    async def post(
        self,
        text: str,
        *,
        by: Actor | None = None,
        topic: str | None = None,
        channel: str = "general",
        mentions: Sequence[str] = (),
        request_id: str | None = None,
        final: bool = False,
        speaking: Speaking | None = None,
    ) -> Posted:
        return await self.home.room.chat.post(
            by or self.anna,
            channel,
            topic=topic,
            blocks=[{"type": "text", "text": text}],
            mentions=mentions,
            request_id=request_id or str(new_id()),
            final=final,
            speaking=speaking,
        )

    async def drain(self) -> None:
        """Let everything happen that is due now."""
        await self.home.services.spine.run_once()

    async def effects(self, *kinds: str) -> list[dict[str, Any]]:
        rows = await self.home.admin.fetch(
            "select e.*, a.handle as recipient from mainspring.effects e"
            " left join mainspring.accounts a on a.tenant_id = e.tenant_id and a.id = e.recipient_id"
            " where e.tenant_id = $1 and ($2::text[] = '{}' or e.kind = any($2)) order by e.event_seq, e.id",
            self.tenant,
            list(kinds),
        )
        return [dict(row) for row in rows]

    async def owed(self, message: Message) -> dict[str, str]:
        """Return who is owed a message, and how."""
        return {
            row["recipient"]: row["kind"]
            for row in await self.effects("deliver", "steer")
            if row["payload"] and str(message.id) in row["payload"]
        }

    async def events(self, *kinds: str) -> list[dict[str, Any]]:
        rows = await self.home.admin.fetch(
            "select * from mainspring.events where tenant_id = $1 and ($2::text[] = '{}' or kind = any($2)) order by seq",
            self.tenant,
            list(kinds),
        )
        return [dict(row) for row in rows]

    async def message(self, message_id: UUID) -> Message:
        async with self.home.services.db.tenant(self.tenant) as scope:
            [found] = await verbs.reads.read_messages(scope, self.tenant, [message_id])
        return found

    async def ended(self, sessions: Collection[Reader]) -> None:
        """Let the sessions' leases run out, and the net find them."""
        await self.home.age(LEASE_SECONDS + 1)
        await self.home.room.nets.end_lost()
        assert all([not (await self._session(one.session.id)).is_live for one in sessions])

    async def card(self) -> Card:
        """A card of a board of its own, whose channel nobody has opened yet."""
        services = self.home.services
        await services.boards.create_board(
            self.anna, key="OPS", name="Operations", states=[BoardState(name="todo")], reflect={}
        )
        return await services.boards.create_card(self.anna, "OPS", NewCard(title="a card"))

    async def in_turn(self, channel: str, *deeds: Coroutine[Any, Any, Any]) -> list[Any]:
        """Let all of them wait for a channel's row at once, in this order; return what each came to, errors among it."""
        racing: list[asyncio.Task[Any]] = []
        async with self.home.admin.transaction():
            await self.home.admin.fetch(
                "select from mainspring.channels where tenant_id = $1 and name = $2 for no key update",
                self.tenant,
                channel,
            )
            for n, deed in enumerate(deeds):
                racing.append(asyncio.create_task(deed))
                # only from a second connection is it seen who waits: this one is in its transaction
                async with self.home.services.pool.acquire() as conn, asyncio.timeout(WAITING_SECONDS_MAX):
                    while await conn.fetchval(_WAITING) <= n:  # noqa: ASYNC110 - the database wakes nobody when one waits
                        await asyncio.sleep(0)
        return await asyncio.gather(*racing, return_exceptions=True)

    async def _session(self, session_id: UUID) -> Session:
        async with self.home.services.db.tenant(self.tenant) as scope:
            [found] = await verbs.read_sessions(scope, self.tenant, [session_id])
        return found


@pytest.fixture
async def place(home: Home) -> AsyncIterator[Place]:
    yield await make_place(home)
    # nets look at all tenants: leave nothing for the next test's
    await home.admin.execute("update mainspring.agents set wake = false where wake")
    await home.age(LEASE_SECONDS + 1)
    await home.room.nets.end_lost()


async def make_place(home: Home) -> Place:
    """A fresh tenant."""
    tenant = new_id()
    await home.services.spine.create_tenant(tenant, "test")
    async with home.services.db.tenant(tenant) as scope:
        account = await add_account(scope, tenant, "human", "anna", "Anna")
    assert account is not None
    anna = Actor(tenant_id=tenant, account_id=account.id, kind="human", handle="anna")
    await home.room.chat.create_channel(
        anna, name="general", purpose="", visibility="open", post_policy="members"
    )
    return Place(home=home, tenant=tenant, anna=anna)
