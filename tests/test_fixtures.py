"""The fixtures that every other test stands on."""

from __future__ import annotations

import asyncpg
import pytest

from mainspring import migrate, roles

pytestmark = pytest.mark.slow


async def test_library_mode_is_an_ordinary_owner_with_the_spine_alone(fresh_database):
    database = await fresh_database("library")
    conn = await asyncpg.connect(**database.dsn)
    try:
        assert not await roles.is_unfit(conn, database.dsn["user"])
        assert await migrate.pending(conn, [migrate.SPINE]) == []
        assert await migrate.pending(conn, [migrate.PRODUCT]) == list(
            migrate.load(migrate.PRODUCT).migrations
        )
    finally:
        await conn.close()


async def test_server_mode_has_both_sets_and_a_login_that_must_set_its_role(fresh_database):
    database = await fresh_database("server")
    conn = await asyncpg.connect(database.url)
    try:
        assert await conn.fetchval("select current_user") == roles.LOGIN
        assert await roles.is_ready(conn, roles.LOGIN)
        await conn.execute("set role mainspring_app")
    finally:
        await conn.close()
    admin = await asyncpg.connect(**database.admin)
    try:
        assert await migrate.pending(admin, migrate.SERVER_SETS) == []
    finally:
        await admin.close()


async def test_two_databases_of_one_test_share_nothing(fresh_database):
    one, other = await fresh_database("library"), await fresh_database("library")
    assert one.name != other.name
    conn = await asyncpg.connect(**one.dsn)
    await conn.execute("create table only_here ()")
    await conn.close()
    conn = await asyncpg.connect(**other.dsn)
    assert await conn.fetchval("select to_regclass('only_here') is null")
    await conn.close()


@pytest.mark.slow
async def test_a_database_with_other_rows_is_emptied_and_used_again(databases):
    reused = False
    for _ in range(
        10
    ):  # the server's own housekeeping may alter one meanwhile, which is then rightly not used again
        first = await databases.create("server")
        conn = await asyncpg.connect(**first.admin)
        await conn.execute(
            "insert into mainspring.tenants (id, name) values (gen_random_uuid(), 'left behind')"
        )
        await databases.drop(first)
        assert conn.is_closed() or await _is_dead(conn)
        again = await databases.create("server")
        conn = await asyncpg.connect(**again.admin)
        assert await conn.fetchval("select count(*) from mainspring.tenants") == 0
        assert await conn.fetchval("select count(*) from mainspring.engine") == 1
        await conn.close()
        await databases.drop(again)
        reused = reused or again.name == first.name
    assert reused


@pytest.mark.parametrize(
    "change",
    [
        "alter table mainspring.tenants add column extra int",
        "create table public.mine ()",
        "drop policy one_tenant on mainspring.tenants",
        "alter table mainspring.tenants disable trigger all",
        "analyze mainspring.schema_migrations",
        "update mainspring.engine set engine_version = 99",
        "grant select on mainspring.tenants to public",
    ],
)
async def test_a_database_that_was_altered_is_not_used_again(databases, change):
    first = await databases.create("server")
    conn = await asyncpg.connect(**first.admin)
    await conn.execute(change)
    await conn.close()
    await databases.drop(first)
    again = await databases.create("server")
    assert again.name != first.name
    await databases.drop(again)


async def _is_dead(conn: asyncpg.Connection) -> bool:
    try:
        await conn.fetchval("select 1")
    except (asyncpg.PostgresError, asyncpg.InterfaceError):
        return True
    return False
