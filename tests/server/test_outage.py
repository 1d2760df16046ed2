"""While the database is away, requests say so and lose nothing; when it is back, so are we."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from mainspring import wiring
from mainspring.config import Settings
from mainspring.server.problems import MEDIA_TYPE
from mainspring.spine.drain import ENGINE_VERSION

pytestmark = pytest.mark.slow

CUT = """
select pg_terminate_backend(pid) from pg_stat_activity
 where datname = current_database() and usename = 'mainspring_login'
"""


async def test_cut_connections_are_503_or_nothing_and_then_gone(board, admin):
    answers = []
    for n in range(20):
        if n % 4 == 0:
            await admin.fetch(CUT)
        answers += await asyncio.gather(
            *(board.call("POST", "cards", json={"board": "OPS", "title": f"{n}"}) for _ in range(4)),
            board.call("GET", "cards"),
        )
    assert {answer.status_code for answer in answers} <= {200, 201, 503}
    for answer in answers:
        if answer.status_code == 503:
            assert answer.headers["content-type"] == MEDIA_TYPE
            assert answer.headers["retry-after"] == "1"
            assert answer.json()["retryable"] is True
    made = sum(answer.status_code == 201 for answer in answers)
    there = await admin.fetchval("select count(*) from mainspring.cards where tenant_id = $1", board.tenant)
    assert there >= made > 0
    await board.settle()
    assert (await board.get("verify"))["ok"]


async def test_a_server_is_not_ready_while_its_database_is_away(world, admin, monkeypatch):
    pool = world.services.pool
    await pool.expire_connections()
    async with asyncio.timeout(30):
        assert (await world.client.get("/readyz")).status_code == 200

    async def refused(*_args, **_more):
        raise ConnectionRefusedError("nobody listens")

    monkeypatch.setattr(asyncpg.connect_utils, "_connect", refused)
    await pool.expire_connections()
    await admin.fetch(CUT)
    answer = await world.client.get("/readyz?verbose")
    assert answer.status_code == 503
    assert answer.json()["checks"]["database"] != "ok"
    asked = await world.call("GET", "cards")
    assert (asked.status_code, asked.json()["code"]) == (503, "unavailable")
    monkeypatch.undo()
    assert (await world.client.get("/readyz")).status_code == 200


async def test_an_older_server_serves_on_while_newer_ones_take_over(world, admin):
    await admin.execute("update mainspring.engine set engine_version = engine_version + 1")
    try:
        ready = await world.client.get("/readyz?verbose")
        assert (ready.status_code, ready.json()["checks"]["engine_version"]) == (
            200,
            {"ours": ENGINE_VERSION, "schema": ENGINE_VERSION + 1},
        )
        with pytest.raises(wiring.CannotStart, match="upgrade this server"):
            await wiring.check(world.services.pool)
        await admin.execute(
            """insert into mainspring.schema_migrations ("set", version, name, sha256) values ('product', 9999, 'next', 'x')"""
        )
        verbose = await world.client.get("/readyz?verbose")
        assert verbose.status_code == 200
        assert "product/9999_next" in verbose.json()["checks"]["schema"]["refused"]
        with pytest.raises(wiring.CannotStart, match="migrated by a newer one"):
            await wiring.check(world.services.pool)
    finally:
        await admin.execute("delete from mainspring.schema_migrations where version = 9999")
        await admin.execute("update mainspring.engine set engine_version = engine_version - 1")


async def test_a_build_that_is_refused_leaves_no_connection(fresh_database):
    database = await fresh_database("empty")
    admin = await asyncpg.connect(**database.admin)
    with pytest.raises(wiring.CannotStart):
        await wiring.build(Settings(database_url=database.url))
    left = (
        "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    )
    try:
        assert await admin.fetchval(left) == 0
    finally:
        await admin.close()


async def test_the_settings_leases_reach_the_engine(services):
    assert services.spine.kinds["launch"].lease_seconds == services.settings.lease_seconds_transactional
    assert {one.name for one in services.spine.obligations} == {
        "rules",
        "dispatch",
        "reflect",
        "deliveries",
        "notes",
    }
