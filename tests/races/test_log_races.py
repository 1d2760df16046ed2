"""Interleavings of appends and drains on real connections."""

from __future__ import annotations

import asyncio
import random

import asyncpg
import pytest

from mainspring.ids import new_id
from mainspring.spine.drain import ENGINE_VERSION, Drain
from mainspring.spine.effects import NewEffect
from mainspring.spine.engine import Spine
from mainspring.spine.errors import Misuse, Transient
from mainspring.spine.events import Event, NewEvent
from mainspring.spine.ports import Owes
from mainspring.stores.postgres.rows import event_columns
from mainspring.stores.postgres.store import SQL
from tests.races.conftest import Ground

pytestmark = pytest.mark.slow


def spine_of(ground: Ground) -> Spine[object]:
    spine: Spine[object] = Spine(ground.store)  # type: ignore[arg-type]

    @spine.owes("it.happened")
    def work(event: Event) -> Owes:
        return Owes(NewEffect("work", key=f"{event.seq}", event_seq=event.seq))

    return spine


async def append(conn: asyncpg.Connection, ground: Ground, *kinds: str) -> list[int]:
    rows = await conn.fetch(SQL["append"], ground.tenant, *event_columns([NewEvent(kind) for kind in kinds]))
    return [row["seq"] for row in rows]


async def test_a_late_committer_is_never_passed_over(ground: Ground) -> None:
    """The lock on the head makes the order of seqs the order of commits: nobody can commit behind a drained seq."""
    spine = spine_of(ground)
    late, quick = await ground.connect(), await ground.connect()
    transaction = late.transaction()
    await transaction.start()
    assert await append(late, ground, "it.happened") == [1]

    overtaking = asyncio.create_task(append(quick, ground, "it.happened"))
    done, _ = await asyncio.wait({overtaking}, timeout=0.3)
    assert not done
    assert (await spine.drain.run_once()).events == 0
    await transaction.commit()

    assert await overtaking == [2]
    assert (await spine.drain.run_once()).events == 2


async def test_a_rollback_leaves_no_hole(ground: Ground) -> None:
    spine = spine_of(ground)
    conn = await ground.connect()
    transaction = conn.transaction()
    await transaction.start()
    await append(conn, ground, "it.happened", "it.happened")
    await transaction.rollback()

    assert await append(conn, ground, "it.happened") == [1]
    assert (await spine.drain.run_once()).owed == 1


async def test_an_append_of_an_old_snapshot_is_transient_and_writes_nothing(ground: Ground) -> None:
    spine = spine_of(ground)
    conn, other = await ground.connect(), await ground.connect()
    old = conn.transaction(isolation="repeatable_read")
    await old.start()
    await conn.fetchval("select 1 from mainspring.log_heads")
    await append(other, ground, "it.happened")

    with pytest.raises(Transient):
        async with spine.transaction(conn, ground.tenant) as tx:
            tx.append(NewEvent("it.happened"))
    await old.rollback()

    assert await ground.pool.fetchval("select count(*) from mainspring.events") == 1


async def test_a_second_drain_takes_other_tenants_and_waits_for_none(ground: Ground) -> None:
    spine = spine_of(ground)
    other = new_id()
    await spine.create_tenant(other, "two")
    for tenant in (ground.tenant, other):
        async with spine.open(tenant) as tx:
            tx.append(NewEvent("it.happened"))
    conn = await ground.connect()

    async with conn.transaction():
        held = await conn.fetch(SQL["lock_lagging"], ground.tenant, 1, 1)
        assert len(held) == 1
        drained = await asyncio.wait_for(spine.drain.run_once(), 5)

    assert drained.events == 1
    assert (await spine.drain.run_once()).events == 1


async def test_appends_go_on_while_a_drain_is_open(ground: Ground) -> None:
    spine = spine_of(ground)
    async with spine.open(ground.tenant) as tx:
        tx.append(NewEvent("it.happened"))
    conn = await ground.connect()

    async with conn.transaction():
        await conn.fetch(SQL["lock_lagging"], ground.tenant, 1, 1)
        async with asyncio.timeout(5), spine.open(ground.tenant) as tx:
            tx.append(NewEvent("it.happened"))

    assert (await spine.drain.run_once()).events == 2


async def test_an_older_engine_does_not_drain(ground: Ground) -> None:
    """It might not know what a new kind owes; it leaves the log to the newer ones."""
    spine = spine_of(ground)
    async with spine.open(ground.tenant) as tx:
        tx.append(NewEvent("it.happened"))
    await ground.pool.execute("update mainspring.engine set engine_version = $1", ENGINE_VERSION + 1)

    assert (await spine.drain.run_once()).events == 0

    newer = Drain(ground.store, spine._obligations, engine_version=ENGINE_VERSION + 1)  # type: ignore[arg-type]
    assert (await newer.run_once()).events == 1


async def test_a_tenant_without_a_log_refuses_the_change_with_its_event(ground: Ground) -> None:
    spine = spine_of(ground)

    with pytest.raises(Misuse, match="no log"):
        async with spine.open(new_id()) as tx:
            tx.append(NewEvent("it.happened"))


async def test_a_tenant_with_a_hole_in_its_log_stands_still_and_the_others_go_on(ground: Ground) -> None:
    spine = spine_of(ground)
    other = new_id()
    await spine.create_tenant(other, "two")
    for tenant in (ground.tenant, ground.tenant, other):
        async with spine.open(tenant) as tx:
            tx.append(NewEvent("it.happened"))
    await ground.pool.execute("delete from mainspring.events where tenant_id = $1 and seq = 1", ground.tenant)

    assert (await spine.drain.run_once()).events == 1

    positions = dict(await ground.pool.fetch("select tenant_id, position from mainspring.cursors"))
    assert positions == {ground.tenant: 0, other: 1}


@pytest.mark.slow
async def test_under_rollbacks_killed_appenders_and_aborted_rounds_every_event_owes_one_effect(
    ground: Ground,
) -> None:
    spine = spine_of(ground)
    dice = random.Random(7)
    committed = 0

    async def appender() -> None:
        nonlocal committed
        conn = await ground.connect()
        for _ in range(60):
            transaction = conn.transaction()
            await transaction.start()
            await append(conn, ground, *["it.happened"] * dice.randint(1, 3))
            if dice.random() < 0.1:
                await transaction.rollback()
            else:
                await transaction.commit()
                committed += 1

    async def killed() -> None:
        for _ in range(15):
            conn = await ground.connect()
            await conn.execute("begin")
            await append(conn, ground, "it.happened")
            conn.terminate()
            await asyncio.wait_for(spine.drain.run_once(), 10)

    async def drainer() -> None:
        conn = await ground.connect()
        while not finished.is_set():
            await spine.drain.run_once()
            async with conn.transaction():
                await conn.fetch(
                    SQL["lock_lagging"], ground.tenant, 10, 1
                )  # an aborted round: locks, then nothing

    finished = asyncio.Event()
    drains = [asyncio.create_task(drainer()) for _ in range(2)]
    await asyncio.gather(appender(), appender(), appender(), killed())
    finished.set()
    await asyncio.gather(*drains)
    while (await spine.drain.run_once()).events:
        pass

    head, events, top, effects, keys = await ground.pool.fetchrow(
        """select (select head from mainspring.log_heads), (select count(*) from mainspring.events),
                  (select max(seq) from mainspring.events), (select count(*) from mainspring.effects),
                  (select count(distinct key) from mainspring.effects)"""
    )
    assert committed > 100
    assert head == events == top == effects == keys
