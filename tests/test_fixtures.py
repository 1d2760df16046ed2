"""The fixtures that every other test stands on."""

from __future__ import annotations

import asyncpg

from mainspring import migrate, roles


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
