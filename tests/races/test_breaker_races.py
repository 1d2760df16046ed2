"""Breakers where PostgreSQL decides: who gets the probe when two want it, and what is read while ten thousand rows wait."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import UUID

import pytest

from mainspring.spine.breaker import Breaker
from mainspring.spine.effects import DEFER_LIMIT_SECONDS, NewEffect
from mainspring.spine.ports import BreakerChange
from mainspring.stores.postgres.store import SQL
from tests.races.conftest import Ground

pytestmark = pytest.mark.slow

DOWN = Breaker(failures=5, trips=1)


async def owe(ground: Ground, *keys: str, target: str = "smtp") -> None:
    async with ground.store.system("test") as tx:
        effects = [(ground.tenant, NewEffect("work", key=key, target=target)) for key in keys]
        await ground.store.owe_drained(tx, effects)


async def write(ground: Ground, breaker: Breaker, *, seconds: float) -> None:
    target = (ground.tenant, "smtp")
    async with ground.store.system("test") as tx:
        await ground.store.lock_breakers(tx, [target])
        change = BreakerChange(target=target, breaker=breaker, open_seconds=seconds)
        await ground.store.write_breakers(tx, [change])


async def test_two_workers_at_once_take_one_probe(ground: Ground) -> None:
    await owe(ground, "a", "b", "c")
    await write(ground, DOWN, seconds=0)
    one, other = await ground.connect(), await ground.connect()
    async with one.transaction():
        first = await ground.claim_in(one, "w1")
        async with other.transaction():
            second = await ground.claim_in(other, "w2")
    assert (len(first), len(second)) == (1, 0)
    assert await ground.claim("w3") == []


async def test_many_workers_at_once_take_one_probe(ground: Ground) -> None:
    await owe(ground, *(str(n) for n in range(20)))
    for _ in range(10):
        await write(ground, DOWN, seconds=0)
        claimed = await asyncio.gather(*(ground.claim(f"w{n}") for n in range(5)))
        assert sum(map(len, claimed)) == 1


async def test_a_breaker_that_is_being_written_lets_nobody_through_and_holds_nobody_up(
    ground: Ground,
) -> None:
    await owe(ground, "a")
    await owe(ground, "x", target="sms")
    await write(ground, DOWN, seconds=0)
    writing = await ground.connect()
    async with writing.transaction():
        await writing.fetch(SQL["lock_breakers"], [ground.tenant], ["smtp"])
        assert [effect.key for effect in await ground.claim()] == ["x"]
    assert [effect.key for effect in await ground.claim()] == ["a"]


async def test_a_recovery_between_a_claim_and_its_look_ahead_is_not_hidden(ground: Ground) -> None:
    """The claim finds nothing but rows that wait, and is about to say: look here again when the target is tried."""
    await owe(ground, "a")
    await write(ground, DOWN, seconds=600)
    claiming = await ground.connect()
    async with claiming.transaction():
        found = await claiming.fetch(SQL["claim"], "w", ["work"], [60.0], 10, UUID(int=0), 2, 1e6)
        await write(ground, Breaker(), seconds=0)
        await claiming.execute(SQL["raise_due"], [found[0]["due_tenant"]], [found[0]["bumps"]], 1e6)
    assert [effect.key for effect in await ground.claim()] == ["a"]


async def test_a_recovery_that_waits_for_the_look_ahead_undoes_it(ground: Ground) -> None:
    await owe(ground, "a")
    await write(ground, DOWN, seconds=600)
    claiming = await ground.connect()
    async with claiming.transaction():
        found = await claiming.fetch(SQL["claim"], "w", ["work"], [60.0], 10, UUID(int=0), 2, 1e6)
        await claiming.execute(SQL["raise_due"], [found[0]["due_tenant"]], [found[0]["bumps"]], 1e6)
        recovering = asyncio.create_task(write(ground, Breaker(), seconds=0))
        await until_waiting(ground)
    await recovering
    assert [effect.key for effect in await ground.claim()] == ["a"]


async def until_waiting(ground: Ground) -> None:
    """Wait until a statement waits for a lock."""
    asked = "select exists (select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database())"
    async with asyncio.timeout(10):
        while not await ground.pool.fetchval(asked):  # noqa: ASYNC110 - the database has no event for it
            await asyncio.sleep(0.01)


# what is read ------------------------------------------------------------------------------------------------


async def crowd(ground: Ground) -> None:
    """Ten thousand rows that wait for smtp, and behind them a few for others."""
    await ground.pool.execute(
        """
        insert into mainspring.effects (tenant_id, id, kind, family, key, target, payload, state, not_before)
        select $1, gen_random_uuid(), 'work', 'executed', 'w' || n, 'smtp', '{}', 'pending', clock_timestamp()
        from generate_series(1, 10000) n
        """,
        ground.tenant,
    )
    await owe(ground, "x", target="sms")
    await owe(ground, "y", target="")
    await write(ground, DOWN, seconds=600)
    await ground.pool.execute("analyze mainspring.effects")


async def rows_read(conn: Any, name: str, *args: Any, table: str = "effects") -> int:
    """Run a statement, undo it; return how many rows of a table its scans went through."""
    transaction = conn.transaction()
    await transaction.start()
    plan = json.loads(await conn.fetchval(f"explain (analyze, format json) {SQL[name]}", *args))
    await transaction.rollback()
    return sum(scanned(plan[0]["Plan"], table))


def scanned(node: dict[str, Any], table: str) -> list[int]:
    inner = [n for child in node.get("Plans", ()) for n in scanned(child, table)]
    if node.get("Relation Name") != table or "Scan" not in node["Node Type"]:
        return inner
    each = (
        node["Actual Rows"]
        + node.get("Rows Removed by Filter", 0)
        + node.get("Rows Removed by Index Recheck", 0)
    )
    return [*inner, int(each * node["Actual Loops"])]


async def test_what_waits_is_not_walked_over(ground: Ground) -> None:
    await crowd(ground)
    conn = await ground.connect()
    claim = ("w", ["work"], [60.0], 50, UUID(int=0), 2, DEFER_LIMIT_SECONDS)
    assert await rows_read(conn, "claim", *claim) < 50
    assert await rows_read(conn, "claim_alone", "w", ["work"], [60.0], 2, DEFER_LIMIT_SECONDS) < 50
    assert sorted(effect.key for effect in await ground.claim()) == ["x", "y"]
    bumps = await ground.pool.fetchval("select bumps from mainspring.due_tenants")
    assert await rows_read(conn, "raise_due", [ground.tenant], [bumps], DEFER_LIMIT_SECONDS) < 50


async def test_a_probe_is_found_without_reading_those_behind_it(ground: Ground) -> None:
    await crowd(ground)
    await write(ground, DOWN, seconds=0)
    conn = await ground.connect()
    claim = ("w", ["work"], [60.0], 50, UUID(int=0), 2, DEFER_LIMIT_SECONDS)
    assert await rows_read(conn, "claim", *claim) < 50
    claimed = await ground.claim()
    assert [effect.probe for effect in claimed].count(True) == 1
    assert len(claimed) == 3
