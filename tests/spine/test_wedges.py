"""What once held an effect for ever: each of these left a row claimed, its lease renewed, and nobody told."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import Context
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from mainspring.db import Scope
from mainspring.ids import new_id
from mainspring.spine.effects import Done, Effect, Failed, NewEffect, Outcome, Retry
from mainspring.spine.engine import Spine, SpineSettings
from mainspring.spine.errors import BadData
from mainspring.spine.events import JSON_DEPTH_MAX, NewEvent
from mainspring.spine.ports import Settled
from mainspring.stores.postgres import PostgresStore


class Shaky(PostgresStore):
    """A store whose next settles break in a way that nobody has listed."""

    breaks = 0

    async def settle(self, tx: Scope, settlements: Any) -> Settled:
        if self.breaks:
            self.breaks -= 1
            raise RuntimeError("not on any list")
        return await super().settle(tx, settlements)


@pytest.fixture
async def pool(fresh_database: Callable[..., Awaitable[Any]]) -> AsyncIterator[Any]:
    database = await fresh_database("library")
    async with asyncpg.create_pool(**database.dsn, min_size=1, max_size=6) as pool:
        yield pool


@asynccontextmanager
async def engine(pool: Any, **settings: Any) -> AsyncIterator[tuple[Spine[Scope], UUID]]:
    store = Shaky(pool)
    spine: Spine[Scope] = Spine(store, SpineSettings(tick_seconds=0.2, grace_seconds=1, **settings))
    tenant = new_id()
    await spine.create_tenant(tenant, "one")
    yield spine, tenant


async def owe(spine: Spine[Scope], tenant: UUID, *keys: str, kind: str = "work") -> None:
    async with spine.open(tenant) as tx:
        for key in keys:
            await tx.owe(NewEffect(kind, key=key))


async def states(pool: Any) -> dict[str, str]:
    return dict(await pool.fetch("select key, state from mainspring.effects"))


@pytest.mark.parametrize(
    "outcome",
    [Failed(ValueError("an error is not a text")), Retry(ValueError("nor here")), Done(5)],  # type: ignore[arg-type]
    ids=["failed", "retry", "done"],
)
async def test_an_outcome_that_does_not_say_why_in_text_is_a_dead_letter(pool: Any, outcome: Outcome) -> None:
    async with engine(pool) as (spine, tenant):

        @spine.effect("work")
        async def work(_: Effect) -> Outcome:
            return outcome

        await owe(spine, tenant, "a")
        await asyncio.wait_for(spine.run_once(), 10)

        assert await states(pool) == {"a": "dead"}
        assert spine.worker.in_hand == 0


async def test_an_unlisted_error_of_a_settle_is_pinned_to_its_row_and_lets_it_go(pool: Any) -> None:
    async with engine(pool) as (spine, tenant):

        @spine.effect("work", lease_seconds=600)
        async def work(_: Effect) -> Outcome:
            return Done()

        await owe(spine, tenant, "a", "b", "c")
        assert isinstance(spine.store, Shaky)
        spine.store.breaks = 2  # the batch, then its first row
        await asyncio.wait_for(spine.worker.run_once(), 10)

        assert sorted((await states(pool)).values()) == ["claimed", "done", "done"]
        assert spine.worker.in_hand == 0


@pytest.mark.slow
async def test_a_connection_that_ends_during_a_settle_costs_nothing(pool: Any) -> None:
    async with engine(pool) as (spine, tenant):

        @spine.effect("work")
        async def work(_: Effect) -> Outcome:
            return Done()

        await owe(spine, tenant, *(f"{n}" for n in range(50)))
        settle, cut = spine.store.settle, iter([True])

        async def cut_off(tx: Scope, settlements: Any) -> Settled:
            if next(cut, False):
                async with pool.acquire() as other:
                    await other.execute("select pg_terminate_backend($1)", tx.conn.get_server_pid())
            return await settle(tx, settlements)

        spine.store.settle = functools.partial(cut_off)  # type: ignore[method-assign]
        await asyncio.wait_for(spine.worker.run_once(), 20)

        assert set((await states(pool)).values()) == {"done"}


@pytest.mark.slow
async def test_a_standby_is_an_outage_and_not_the_end_of_the_settler(pool: Any) -> None:
    async with engine(pool) as (spine, tenant):
        executed = asyncio.Event()

        @spine.effect("work")
        async def work(_: Effect) -> Outcome:
            async with pool.acquire() as conn:
                await conn.execute(
                    f'alter database "{await conn.fetchval("select current_database()")}" '
                    "set default_transaction_read_only = on"
                )
            await pool.expire_connections()
            executed.set()
            return Done()

        await owe(spine, tenant, "a")
        running = asyncio.create_task(spine.worker.run_once())
        await executed.wait()
        conn = await pool.acquire()
        await conn.execute("set default_transaction_read_only = off")
        await conn.execute(
            f'alter database "{await conn.fetchval("select current_database()")}" '
            "set default_transaction_read_only = off"
        )
        await pool.release(conn)
        await pool.expire_connections()
        await asyncio.wait_for(running, 20)

        assert await states(pool) == {"a": "done"}


@pytest.mark.slow
async def test_a_log_that_is_held_stops_nobody_elses_settles(pool: Any) -> None:
    """A burial appends to its tenant's log, and waits while somebody holds that; the others' outcomes do not."""
    async with engine(pool) as (spine, tenant):
        other = new_id()
        await spine.create_tenant(other, "two")

        @spine.effect("work")
        async def work(effect: Effect) -> Outcome:
            return Failed("no") if effect.tenant_id == tenant else Done()

        await owe(spine, tenant, "dies")
        await owe(spine, other, "a", "b")
        async with pool.acquire() as conn, conn.transaction():
            await conn.execute("update mainspring.log_heads set head = head where tenant_id = $1", tenant)
            running = asyncio.create_task(spine.worker.run_once())
            await asyncio.wait({running}, timeout=1)
            meanwhile = await states(pool)
        await asyncio.wait_for(running, 20)

        assert meanwhile == {"dies": "claimed", "a": "done", "b": "done"}
        assert (await states(pool))["dies"] == "dead"


async def test_tenants_with_only_foreign_kinds_starve_nobody(pool: Any) -> None:
    async with engine(pool) as (spine, _):

        @spine.effect("work")
        async def work(_: Effect) -> Outcome:
            return Done()

        tenants = sorted(new_id() for _ in range(230))
        async with spine.store.system("test") as tx:
            await spine.store.owe_drained(tx, [(tenant, NewEffect("foreign", key="x")) for tenant in tenants])
            await spine.store.owe_drained(tx, [(tenants[-1], NewEffect("work", key="mine"))])
        taken = [await spine.worker.run_once() for _ in range(3)]

        assert sum(taken) == 1


async def test_a_tenant_is_served_in_turn_and_not_by_when_its_row_was_due(pool: Any) -> None:
    async with engine(pool, slots=100) as (spine, _):
        served: list[UUID] = []

        @spine.effect("work")
        async def work(effect: Effect) -> Outcome:
            served.append(effect.tenant_id)
            return Done()

        tenants = [new_id() for _ in range(150)]
        async with spine.store.system("test") as tx:
            owed = [(tenant, NewEffect("work", key=f"{n}")) for n in range(5) for tenant in tenants]
            await spine.store.owe_drained(tx, owed)
        for _ in range(2):
            await spine.worker.run_once()

        assert set(served) == set(tenants)


@pytest.mark.slow
async def test_one_lonely_row_and_one_long_effect_do_not_stall_the_others(pool: Any) -> None:
    async with engine(pool) as (spine, tenant):
        long, release, quick = asyncio.Event(), asyncio.Event(), asyncio.Event()

        @spine.effect("work")
        async def work(effect: Effect) -> Outcome:
            if effect.key == "long":
                long.set()
                await release.wait()
            elif effect.key == "quick":
                quick.set()
            return Done()

        await owe(spine, tenant, "lonely", "long")
        await pool.execute("update mainspring.effects set crashes = 2 where key = 'lonely'")
        async with spine.running():
            await asyncio.wait_for(long.wait(), 10)
            await asyncio.create_task(owe(spine, tenant, "quick"), context=Context())
            await asyncio.wait_for(quick.wait(), 20)
            release.set()


async def test_three_tenants_with_a_hole_do_not_use_up_every_round(pool: Any) -> None:
    async with engine(pool) as (spine, tenant):

        @spine.owes("it.happened")
        def nothing(_: object) -> Any:
            from mainspring.spine.ports import NotOwed

            return NotOwed("test")

        broken = sorted(new_id() for _ in range(3))
        for one in (*broken, tenant):
            await spine.create_tenant(one, "x") if one != tenant else None
            async with spine.open(one) as tx:
                for _ in range(205):
                    tx.append(NewEvent("it.happened"))
        await pool.execute("delete from mainspring.events where seq = 1 and tenant_id = any($1)", broken)
        for _ in range(4):
            await spine.drain.run_once()

        position = await pool.fetchval("select position from mainspring.cursors where tenant_id = $1", tenant)
        assert position >= 200


async def test_json_that_nests_too_deep_to_be_read_is_refused_when_it_is_written(pool: Any) -> None:
    deep: Any = "x"
    for _ in range(JSON_DEPTH_MAX + 1):
        deep = [deep]
    flat = {"a": [{"[": "{{{[[["}] * 200}
    async with engine(pool) as (spine, tenant):
        with pytest.raises(BadData):
            async with spine.open(tenant) as tx:
                tx.append(NewEvent("it.happened", data={"deep": deep}))
        with pytest.raises(BadData):
            async with spine.open(tenant) as tx:
                await tx.owe(NewEffect("work", key="deep", payload={"deep": deep}))

        async with spine.open(tenant) as tx:
            tx.append(NewEvent("it.happened", data=flat))
        assert (await spine.drain.run_once()).events == 1


async def test_a_transactional_executor_that_takes_too_long_is_undone_and_tried_again(pool: Any) -> None:
    async with engine(pool) as (spine, tenant):

        @spine.transactional_effect("work", timeout_seconds=0.05)
        async def work(_: Effect, __: Any) -> Outcome:
            await asyncio.Event().wait()
            return Done()

        await owe(spine, tenant, "a")
        await asyncio.wait_for(spine.worker.run_once(), 10)

        row = await pool.fetchrow("select state, attempts, outcome from mainspring.effects")
        assert tuple(row) == ("pending", 1, "unknown")


async def test_a_task_that_is_cancelled_before_its_first_step_leaves_its_slot_free(pool: Any) -> None:
    async with engine(pool) as (spine, tenant):

        @spine.effect("work")
        async def work(_: Effect) -> Outcome:
            return Done()

        await owe(spine, tenant, "a")
        await spine.worker.take()
        await spine.worker.stop(grace_seconds=0)

        assert spine.worker.in_hand == 0
