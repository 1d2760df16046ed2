"""One effect that really kills every process that carries it out ends as one dead letter, and costs its neighbours nothing."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from mainspring.ids import new_id
from mainspring.spine.effects import CRASHES_ALONE, CRASHES_MAX, Done, Effect, NewEffect, Outcome
from mainspring.spine.engine import Spine
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.deadlines import age

pytestmark = [pytest.mark.processes, pytest.mark.slow]

NEIGHBOURS = 30
_forked = multiprocessing.get_context("forkserver")
_forked.set_forkserver_preload([__name__])


async def _carry_out(dsn: dict[str, Any]) -> None:
    async with asyncpg.create_pool(**dsn, min_size=1, max_size=4) as pool:
        spine: Spine[Any] = Spine(PostgresStore(pool))
        under_way = asyncio.Event()

        @spine.effect("work", lease_seconds=60)
        async def work(effect: Effect) -> Outcome:
            if effect.key == "poison":
                under_way.set()
                os.kill(os.getpid(), signal.SIGKILL)
            await pool.execute("insert into public.did (key) values ($1)", effect.key)
            return Done()

        while (await spine.run_once()).executed:
            pass


def carry_out(dsn: dict[str, Any]) -> None:
    """Do all that is due, and end; or be killed by it."""
    asyncio.run(_carry_out(dsn))


async def test_an_effect_that_kills_every_process_is_one_dead_letter_and_its_neighbours_are_done(
    fresh_database: Callable[..., Awaitable[Any]],
) -> None:
    database = await fresh_database("library")
    conn = await asyncpg.connect(**database.dsn)
    admin = await asyncpg.connect(**database.admin)
    try:
        await admin.execute("create table public.did (key text); grant all on public.did to public")
        tenant = new_id()
        async with asyncpg.create_pool(**database.dsn, min_size=1, max_size=2) as pool:
            store = PostgresStore(pool)
            async with store.system("test") as tx:
                await store.create_tenant(tx, tenant, "one")
                neighbours = [NewEffect("work", key=f"n{n:02}") for n in range(NEIGHBOURS)]
                owed = [*neighbours[:10], NewEffect("work", key="poison"), *neighbours[10:]]
                await store.owe_drained(tx, [(tenant, effect) for effect in owed])
        ends: list[int | None] = []
        while len(ends) < 12:
            process = _forked.Process(target=carry_out, args=(database.dsn,))
            process.start()
            await asyncio.to_thread(process.join, 60)
            ends.append(process.exitcode)
            if process.exitcode == 0 and len(ends) > CRASHES_MAX:
                break
            await age(admin, 120)  # the leases of the dead run out
        assert ends.count(-signal.SIGKILL) == CRASHES_MAX
        rows = await conn.fetch(
            "select key, state, attempts, crashes, error from mainspring.effects order by key"
        )
        [poison] = [row for row in rows if row["key"] == "poison"]
        assert (poison["state"], poison["crashes"]) == ("dead", CRASHES_MAX)
        assert {(row["state"], row["attempts"]) for row in rows if row["key"] != "poison"} == {("done", 0)}
        assert (
            max(row["crashes"] for row in rows if row["key"] != "poison") <= CRASHES_ALONE
        )  # then each runs alone
        assert await conn.fetchval("select count(distinct key) from public.did") == NEIGHBOURS
        told = await conn.fetch(
            "select data->'effect'->>'key' from mainspring.events where kind = 'effect.dead'"
        )
        assert [row[0] for row in told] == ["poison"]
    finally:
        await conn.close()
        await admin.close()
