"""Somebody keeps a transaction open that has seen all rows as they were (a backup, a forgotten console): nothing dead may be removed.

What a claim of a full batch costs is counted in pages, before and after thousands were claimed and settled behind that snapshot.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any
from uuid import UUID

import pytest

from mainspring.db import BATCH as BY_KEY
from mainspring.db import COMMAND
from mainspring.spine.effects import DEFER_LIMIT_SECONDS, Done, EffectKind, resolve
from mainspring.stores.postgres.store import SQL
from tests.races.conftest import Ground

pytestmark = pytest.mark.slow

BATCH = 200
ROUNDS = 20
WORK = EffectKind(name="work")


class Undo(Exception):
    """Ends a transaction that is not to be committed."""


async def told_of_a_claim(ground: Ground) -> dict[str, Any]:
    """Carry a claim out as the engine does in a backlog, and undo it; return what the database tells of it."""
    claim = ("w", ["work"], [60.0], BATCH, UUID(int=0), 2, DEFER_LIMIT_SECONDS)
    with contextlib.suppress(Undo):
        async with ground.store.db.system("test", budget=BY_KEY) as tx:
            told = await tx.fetchval(f"explain (analyze, buffers, format json) {SQL['claim']}", *claim)
            raise Undo
    [plan] = json.loads(told)
    assert plan["Plan"]["Actual Rows"] == BATCH
    return dict(plan)


async def pages_of_a_claim(ground: Ground) -> int:
    """Return how many pages a claim looks at."""
    plan = (await told_of_a_claim(ground))["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


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
    holding = await ground.connect()
    await holding.execute("begin isolation level repeatable read, read only")
    assert await holding.fetchval("select count(*) from mainspring.effects where state = 'pending'")
    before = await pages_of_a_claim(ground)
    for _ in range(ROUNDS):
        await carried_out(ground)

    assert await pages_of_a_claim(ground) < 2 * before
    assert await holding.fetchval("select count(*) from mainspring.effects where state = 'pending'") == (
        (ROUNDS + 2) * BATCH
    )
    await holding.execute("rollback")


async def test_no_plan_of_ours_is_compiled(ground: Ground) -> None:
    """Where PostgreSQL can: with scans switched off every plan seems dear enough for it, and a claim then takes seconds."""
    await ground.owe(*[f"{n:05}" for n in range(BATCH)])
    assert "JIT" not in await told_of_a_claim(ground)
    for budget in (BY_KEY, COMMAND):
        async with ground.store.db.system("test", budget=budget) as tx:
            assert await tx.fetchval("show jit") == "off"
