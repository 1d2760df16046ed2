"""Tenants are walls: what a login, a scope and a reused connection may see."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from mainspring import db
from mainspring.ids import new_id
from mainspring.spine.engine import Spine
from mainspring.spine.errors import BadData, Misuse
from mainspring.spine.events import NewEvent
from mainspring.stores.postgres import PostgresStore


class House:
    """A server database with two tenants, one event each."""

    def __init__(self, database: Any, pool: Any) -> None:
        self.database = database
        self.pool = pool
        self.store = PostgresStore(pool, roles=True)
        self.db = self.store.db
        self.spine: Spine[db.Scope] = Spine(self.store)
        self.one, self.two = new_id(), new_id()

    async def furnish(self) -> None:
        for tenant in (self.one, self.two):
            await self.spine.create_tenant(tenant, str(tenant))
            async with self.spine.open(tenant) as tx:
                tx.append(NewEvent("it.happened"))


@pytest.fixture
async def house(fresh_database: Callable[..., Awaitable[Any]]) -> AsyncIterator[House]:
    database = await fresh_database("server")
    pool = await db.create_pool(max_size=2, **database.dsn)
    house = House(database, pool)
    await house.furnish()
    yield house
    await pool.close()


async def tables(house: House) -> list[str]:
    async with house.db.system("test") as scope:
        found = await scope.fetch(
            "select relname from pg_class where relnamespace = 'mainspring'::regnamespace and relkind = 'r'"
        )
    return sorted(row["relname"] for row in found)


async def test_the_login_alone_reads_no_table(house: House) -> None:
    for table in await tables(house):
        async with house.pool.acquire() as conn:
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await conn.fetchval(f"select count(*) from mainspring.{table}")

    assert await db.unscoped_read_is_refused(house.pool)


async def test_a_login_above_the_walls_is_found_out(house: House) -> None:
    pool = await asyncpg.create_pool(**house.database.admin, min_size=1, max_size=1)
    try:
        assert not await db.unscoped_read_is_refused(pool)
    finally:
        await pool.close()


async def test_every_table_with_a_tenant_has_a_forced_wall(house: House) -> None:
    async with house.db.system("test") as scope:
        open_ones = await scope.fetch(
            """select relname from pg_class
               where relnamespace = 'mainspring'::regnamespace and relkind = 'r'
                 and not (relrowsecurity and relforcerowsecurity)"""
        )

    assert sorted(row["relname"] for row in open_ones) == ["engine", "schema_migrations"]


async def test_every_foreign_key_stays_in_its_tenant(house: House) -> None:
    """A plain one would accept another tenant's id, and tell by its error whether that exists."""
    async with house.db.system("test") as scope:
        loose = await scope.fetch(
            """select conrelid::regclass::text as at, conname from pg_constraint c
               where contype = 'f' and connamespace = 'mainspring'::regnamespace
                 and confrelid <> 'mainspring.tenants'::regclass
                 and not exists (select from pg_attribute a
                                 where a.attrelid = c.conrelid and a.attnum = c.conkey[1] and a.attname = 'tenant_id')"""
        )

    assert loose == []


async def test_a_tenant_scope_sees_its_own_rows_and_no_others(house: House) -> None:
    async with house.db.tenant(house.one) as scope:
        seen = await scope.fetch("select tenant_id from mainspring.events")
        others = await scope.fetch("select 1 from mainspring.events where tenant_id = $1", house.two)

    assert [row["tenant_id"] for row in seen] == [house.one]
    assert others == []


async def test_a_tenant_scope_cannot_write_into_another_tenant(house: House) -> None:
    async with house.db.tenant(house.one) as scope:
        moved = await scope.execute(
            "update mainspring.log_heads set head = 99 where tenant_id = $1", house.two
        )
    assert moved == 0

    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        async with house.db.tenant(house.one) as scope:
            await scope.execute(
                "insert into mainspring.cursors (tenant_id, name) values ($1, 'x')", house.two
            )


async def test_an_append_for_another_tenant_writes_nothing_and_says_so(house: House) -> None:
    with pytest.raises(Misuse):
        async with house.store.tenant(house.one) as scope:
            await house.store.append(scope, house.two, [NewEvent("it.happened")])


async def test_a_reused_connection_without_a_scope_sees_nothing(house: House) -> None:
    """There the unset tenant is '', not NULL; it must read nothing, and not fail to parse."""
    async with house.db.tenant(house.one) as scope:
        await scope.fetch("select 1 from mainspring.events")

    async with house.pool.acquire() as conn, conn.transaction():
        await conn.execute(f"set local role {db.APP_ROLE}")
        assert await conn.fetchval("select current_setting('mainspring.tenant', true)") == ""
        assert await conn.fetchval("select count(*) from mainspring.events") == 0


@pytest.mark.parametrize("end", ["commit", "error"])
async def test_nothing_of_a_scope_outlives_it(house: House, end: str) -> None:
    for _ in range(3):
        try:
            async with house.db.tenant(house.one) as scope:
                if end == "error":
                    await scope.fetch("select 1 / 0")
        except BadData:
            assert end == "error"
        async with house.pool.acquire() as conn:
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await conn.fetchval("select count(*) from mainspring.events")


async def test_a_scope_inside_a_scope_is_misuse(house: House) -> None:
    async with house.db.tenant(house.one):
        with pytest.raises(Misuse):
            async with house.db.system("test"):
                pass
        with pytest.raises(Misuse):
            async with house.spine.open(house.two):
                pass


async def test_as_system_sees_all_inside_and_one_tenant_after(house: House) -> None:
    async def count(scope: db.Scope) -> int:
        seen: int = await scope.fetchval("select count(*) from mainspring.events")
        return seen

    async with house.db.tenant(house.one) as scope:
        assert await count(scope) == 1
        async with scope.as_system("test"):
            assert await count(scope) == 2
        assert await count(scope) == 1


async def test_an_error_inside_as_system_is_the_error_that_is_seen(house: House) -> None:
    with pytest.raises(BadData, match="division by zero"):
        async with house.db.tenant(house.one) as scope, scope.as_system("test"):
            await scope.fetch("select 1 / 0")


async def test_the_engine_carries_a_tenant_through_its_walls(house: House) -> None:
    """Drain and claim work as the system, executors as their tenant: the walls hold on the way, too."""
    from mainspring.spine.effects import Done, Effect, NewEffect
    from mainspring.spine.events import Event
    from mainspring.spine.ports import Owes
    from mainspring.spine.transaction import Transaction

    seen: dict[UUID, int] = {}

    @house.spine.owes("it.happened")
    def look(event: Event) -> Owes:
        return Owes(NewEffect("look", key=str(event.seq), event_seq=event.seq))

    @house.spine.transactional_effect("look")
    async def run(effect: Effect, tx: Transaction[db.Scope]) -> Done:
        seen[effect.tenant_id] = await tx.handle.fetchval("select count(*) from mainspring.events")
        return Done()

    await house.spine.run_once()

    assert seen == {house.one: 1, house.two: 1}
