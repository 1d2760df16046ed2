"""The stores under test, each with what only a test may do to it: let time pass, damage it, look older.

A new store is a class like these and one more line in `SUBJECTS`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

import asyncpg
import pytest

from mainspring import db
from mainspring.spine.ports import Store
from mainspring.stores.memory import MemoryStore
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.deadlines import age

if TYPE_CHECKING:
    from tests.conftest import Database, Databases, Mode


class Subject(Protocol):
    """A store and its levers."""

    store: Store[Any]
    concurrent: bool  # two transactions can be open at once

    async def age(self, seconds: float) -> None:
        """Let time pass."""

    async def set_engine_version(self, version: int) -> None:
        """Make the rows those of another version of the engine."""

    async def forget_due(self) -> int:
        """Lose the index of due tenants, if there is one; return how many entries were lost."""

    def connection(self) -> AbstractAsyncContextManager[Any]:
        """Open what `Store.adopt` takes, as a library user would."""


class MemorySubject:
    """The store in memory."""

    concurrent = False

    def __init__(self) -> None:
        self.store = MemoryStore()

    async def age(self, seconds: float) -> None:
        self.store.age(seconds)

    async def set_engine_version(self, version: int) -> None:
        self.store.engine_version = version

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
        self._pool = pool
        self._admin = admin

    async def empty(self) -> None:
        await self._admin.execute(_EMPTY)

    async def age(self, seconds: float) -> None:
        await age(self._admin, seconds)

    async def set_engine_version(self, version: int) -> None:
        await self._admin.execute("update mainspring.engine set engine_version = $1", version)

    async def forget_due(self) -> int:
        status = await self._admin.execute("update mainspring.due_tenants set next_due = 'infinity'")
        return int(status.split()[-1])

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        async with self._pool.acquire() as conn:
            yield conn


_EMPTY = """
delete from mainspring.effects;
delete from mainspring.due_tenants;
delete from mainspring.events;
delete from mainspring.cursors;
delete from mainspring.log_heads;
delete from mainspring.tenants;
update mainspring.engine set engine_version = 1;
"""


@asynccontextmanager
async def memory(_databases: Databases | None) -> AsyncIterator[Subject]:
    """The store in memory."""
    yield MemorySubject()


@asynccontextmanager
async def library(databases: Databases | None) -> AsyncIterator[Subject]:
    """PostgreSQL as a library user has it: his own pool, no roles."""
    database = await _database(databases, "library")
    async with asyncpg.create_pool(min_size=1, max_size=4, **database.dsn) as pool:
        async with _postgres(pool, database, roles=False) as subject:
            yield subject


@asynccontextmanager
async def server(databases: Databases | None) -> AsyncIterator[Subject]:
    """PostgreSQL as the server has it: roles, row-level security."""
    database = await _database(databases, "server")
    pool = await db.create_pool(max_size=4, **database.dsn)
    try:
        async with _postgres(pool, database, roles=True) as subject:
            yield subject
    finally:
        await pool.close()


_made: dict[tuple[int, Mode], Database] = {}


async def _database(databases: Databases | None, mode: Mode) -> Database:
    """One database a mode for the whole session, emptied before each test: cheaper than one a test."""
    assert databases is not None
    if (id(databases), mode) not in _made:
        _made[id(databases), mode] = await databases.create(mode)
    return _made[id(databases), mode]


@asynccontextmanager
async def _postgres(pool: Any, database: Database, *, roles: bool) -> AsyncIterator[PostgresSubject]:
    admin = await asyncpg.connect(**database.admin)
    try:
        subject = PostgresSubject(pool, admin, roles=roles)
        await subject.empty()
        yield subject
    finally:
        await admin.close()


SUBJECTS = {"memory": memory, "postgres": library, "postgres-server": server}


@pytest.fixture(params=SUBJECTS)
def store_name(request: pytest.FixtureRequest) -> str:
    """Each store's name in turn."""
    return str(request.param)


@pytest.fixture
def databases_if_any(request: pytest.FixtureRequest, store_name: str) -> Databases | None:
    """A server, started only for a store that needs one."""
    return None if store_name == "memory" else request.getfixturevalue("databases")


@pytest.fixture
async def subject(store_name: str, databases_if_any: Databases | None) -> AsyncIterator[Subject]:
    """Each store in turn, empty."""
    async with SUBJECTS[store_name](databases_if_any) as made:
        yield made
