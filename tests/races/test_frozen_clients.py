"""A client that stops in the middle of a statement: no time-out of the database ends its transaction, and what it has locked is freed
all the same."""

from __future__ import annotations

import asyncio
import time

import asyncpg
import pytest

from mainspring.db import create_pool, end_frozen
from tests.databases import Database

pytestmark = pytest.mark.slow

LOCK = "select from mainspring.engine for update"
WAITING = "select exists (select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database())"


@pytest.fixture
async def database(fresh_database) -> Database:
    made: Database = await fresh_database("library")
    return made


async def stopped(database: Database) -> asyncpg.Connection:
    """A connection whose client has prepared a statement inside a transaction, and does nothing more."""
    conn: asyncpg.Connection = await asyncpg.connect(**database.dsn)
    await conn.execute("set idle_in_transaction_session_timeout = '100ms'; set statement_timeout = '100ms'")
    await conn.execute("begin")
    await conn.execute(LOCK)
    await conn.prepare("select 1")  # parsed and described; what runs it never comes
    return conn


async def test_what_a_client_holds_that_stopped_in_a_statement_is_freed(database: Database) -> None:
    frozen = await stopped(database)
    other = await asyncpg.connect(**database.dsn)
    await asyncio.sleep(0.5)
    with pytest.raises(asyncpg.LockNotAvailableError):  # neither time-out has come by
        await other.execute(f"{LOCK} nowait")
    pool = await create_pool(max_size=1, **database.dsn)
    assert await end_frozen(pool, after_seconds=3600) == 0
    assert await end_frozen(pool, after_seconds=0.3) == 1
    until = time.monotonic() + 20
    while not frozen.is_closed():
        assert time.monotonic() < until
        await asyncio.sleep(0.01)
    await other.execute(f"{LOCK} nowait")
    await other.close()
    await pool.close()


async def test_who_only_waits_between_statements_or_for_a_lock_is_left_alone(database: Database) -> None:
    holds, waits = [await asyncpg.connect(**database.dsn) for _ in range(2)]
    await holds.execute("begin")
    await holds.execute(LOCK)
    waiting = asyncio.create_task(waits.execute(LOCK))
    pool = await create_pool(max_size=1, **database.dsn)
    async with asyncio.timeout(20):
        while not await pool.fetchval(WAITING):  # noqa: ASYNC110 - the database wakes nobody when one waits
            await asyncio.sleep(0)
    assert await end_frozen(pool, after_seconds=0.0) == 0
    await holds.execute("commit")
    await waiting
    for conn in (holds, waits):
        await conn.close()
    await pool.close()
