"""The stores under test, each with what only a test may do to it: let time pass, damage it, look older.

A new store is one more fixture, named in `any_subject`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

import asyncpg
import pytest

from mainspring import db
from mainspring.spine.ports import Store
from mainspring.stores.memory import MemoryStore
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.deadlines import age

if TYPE_CHECKING:
    from tests.databases import Database, Databases


class Subject(Protocol):
    """A store and its levers."""

    store: Store[Any]
    concurrent: bool  # two transactions can be open at once
    adopts: bool  # a transaction can be opened on a connection of the caller's

    async def empty(self) -> None:
        """Remove every row."""

    async def age(self, seconds: float) -> None:
        """Let time pass."""

    async def set_engine_version(self, version: int) -> None:
        """Make the rows those of another version of the engine."""

    async def lose_event(self, tenant: UUID, seq: int) -> None:
        """Tear a hole into a log."""

    async def forget_due(self) -> int:
        """Lose the index of due tenants, if there is one; return how many entries were lost."""

    def connection(self) -> AbstractAsyncContextManager[Any]:
        """Open what `Store.adopt` takes, as a library user would."""


class MemorySubject:
    """The store in memory."""

    concurrent = False
    adopts = True

    def __init__(self) -> None:
        self.store = MemoryStore()

    async def empty(self) -> None:
        pass  # it is new

    async def age(self, seconds: float) -> None:
        self.store.age(seconds)

    async def set_engine_version(self, version: int) -> None:
        self.store.engine_version = version

    async def lose_event(self, tenant: UUID, seq: int) -> None:
        async with self.store.system("test") as tx:
            tx.tables.events.remove((tenant, seq))

    async def forget_due(self) -> int:
        return 0

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        yield None


class PostgresSubject:
    """The store on PostgreSQL: the library's, in its user's own role, or the server's behind row-level security."""

    concurrent = True

    def __init__(self, pool: Any, admin: Any, *, roles: bool) -> None:
        self.store = PostgresStore(pool, roles=roles)
        self.adopts = not roles
        self._pool = pool
        self._admin = admin

    async def empty(self) -> None:
        await self._admin.execute(_EMPTY)

    async def age(self, seconds: float) -> None:
        await age(self._admin, seconds)

    async def set_engine_version(self, version: int) -> None:
        await self._admin.execute("update mainspring.engine set engine_version = $1", version)

    async def lose_event(self, tenant: UUID, seq: int) -> None:
        await self._admin.execute(
            "delete from mainspring.events where tenant_id = $1 and seq = $2", tenant, seq
        )

    async def forget_due(self) -> int:
        status = await self._admin.execute("update mainspring.due_tenants set next_due = 'infinity'")
        return int(status.split()[-1])

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        async with self._pool.acquire() as conn:
            yield conn


_EMPTY = """
delete from mainspring.effects;
delete from mainspring.breakers;
delete from mainspring.due_tenants;
delete from mainspring.events;
delete from mainspring.cursors;
delete from mainspring.log_heads;
delete from mainspring.tenants;
update mainspring.engine set engine_version = 1;
"""


@pytest.fixture
def memory() -> MemorySubject:
    """The store in memory."""
    return MemorySubject()


@pytest.fixture(scope="session")
async def library(databases: Databases) -> AsyncIterator[PostgresSubject]:
    """PostgreSQL as a library user has it: his own pool, no roles."""
    database = await databases.create("library")
    async with asyncpg.create_pool(min_size=1, max_size=4, **database.dsn) as pool, _admin(database) as admin:
        yield PostgresSubject(pool, admin, roles=False)


@pytest.fixture(scope="session")
async def server(databases: Databases) -> AsyncIterator[PostgresSubject]:
    """PostgreSQL as the server has it: roles, row-level security."""
    database = await databases.create("server")
    pool = await db.create_pool(max_size=4, **database.dsn)
    async with pool, _admin(database) as admin:
        yield PostgresSubject(pool, admin, roles=True)


@asynccontextmanager
async def _admin(database: Database) -> AsyncIterator[Any]:
    admin = await asyncpg.connect(**database.admin)
    try:
        yield admin
    finally:
        await admin.close()


@pytest.fixture(params=["memory", "library", "server"])
def any_subject(request: pytest.FixtureRequest) -> Subject:
    """Each store in turn, by the name of its fixture."""
    made: Subject = request.getfixturevalue(request.param)
    return made


@pytest.fixture
async def subject(any_subject: Subject) -> Subject:
    """Each store in turn, empty."""
    await any_subject.empty()
    return any_subject
