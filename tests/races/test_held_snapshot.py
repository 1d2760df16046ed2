"""Somebody keeps a transaction open that has seen all rows as they were (a backup, a forgotten console): nothing dead may be removed.

What a claim of a full batch costs is counted in pages, before and after thousands were claimed and settled behind that snapshot.
"""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest

from mainspring.spine.effects import DEFER_LIMIT_SECONDS, Done, EffectKind, resolve
from mainspring.stores.postgres.store import SQL
from tests.races.conftest import Ground

pytestmark = pytest.mark.slow

BATCH = 200
ROUNDS = 20
WORK = EffectKind(name="work")


async def pages_of_a_claim(conn: Any) -> int:
    """Carry a claim out and undo it; return how many pages it looked at."""
    claim = ("w", ["work"], [60.0], BATCH, UUID(int=0), 2, DEFER_LIMIT_SECONDS)
    transaction = conn.transaction()
    await transaction.start()
    # as the engine plans it in a backlog
    await conn.execute(
        "set local plan_cache_mode = force_custom_plan; set local enable_seqscan = off;"
        " set local enable_hashjoin = off; set local enable_mergejoin = off"
    )
    told = await conn.fetchval(f"explain (analyze, buffers, format json) {SQL['claim']}", *claim)
    await transaction.rollback()
    [plan] = json.loads(told)
    assert plan["Plan"]["Actual Rows"] == BATCH
    pages: int = plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]
    return pages


async def carried_out(ground: Ground) -> None:
    claimed = await ground.claim(limit=BATCH)
    assert len(claimed) == BATCH
    async with ground.store.system("settle") as tx:
        settled = await ground.store.settle(tx, [resolve(one, Done(), WORK, random=0.5) for one in claimed])
    assert not settled.refused


async def test_behind_a_snapshot_that_is_held_a_full_claim_costs_less_than_twice_as_much(
    ground: Ground,
) -> None:
    await ground.owe(*[f"{n:05}" for n in range((ROUNDS + 2) * BATCH)])
    holding, asking = await ground.connect(), await ground.connect()
    await holding.execute("begin isolation level repeatable read, read only")
    assert await holding.fetchval("select count(*) from mainspring.effects where state = 'pending'")
    before = await pages_of_a_claim(asking)
    for _ in range(ROUNDS):
        await carried_out(ground)

    assert await pages_of_a_claim(asking) < 2 * before
    assert await holding.fetchval("select count(*) from mainspring.effects where state = 'pending'") == (
        (ROUNDS + 2) * BATCH
    )
    await holding.execute("rollback")
