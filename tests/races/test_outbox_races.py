"""Interleavings of claims, settles and renewals on real connections, each step placed by hand."""

from __future__ import annotations

import asyncio
import random
from contextvars import Context
from uuid import UUID

import asyncpg
import pytest

from mainspring.ids import new_id
from mainspring.spine.effects import (
    Done,
    Effect,
    EffectKind,
    EffectState,
    Move,
    NewEffect,
    Retry,
    Settlement,
    resolve,
)
from mainspring.spine.engine import Spine
from mainspring.spine.events import Event, NewEvent
from mainspring.spine.ports import Owes, Settled
from mainspring.stores.postgres.rows import effect_columns, settlement_columns
from mainspring.stores.postgres.store import SQL
from tests.races.conftest import Ground

pytestmark = pytest.mark.slow

WORK = EffectKind(name="work")


def done(effect: Effect) -> Settlement:
    return resolve(effect, Done(), WORK, random=0.5)


async def settle(ground: Ground, *effects: Effect) -> Settled:
    async with ground.store.system("test") as tx:
        return await ground.store.settle(tx, [done(effect) for effect in effects])


async def waits(pending: asyncio.Task[object]) -> bool:
    """Whether a statement is still waiting for a lock after it had every chance to run."""
    finished, _ = await asyncio.wait({pending}, timeout=0.3)
    return not finished


async def test_two_claimers_share_the_rows_and_neither_waits(ground: Ground) -> None:
    await ground.owe(*(f"k{n}" for n in range(6)))
    one, two = await ground.connect(), await ground.connect()

    async with one.transaction():
        first = await ground.claim_in(one, "one", limit=3)
        async with two.transaction():
            second = await asyncio.wait_for(ground.claim_in(two, "two", limit=6), 5)

    assert (len(first), len(second)) == (3, 3)
    assert not set(first) & set(second)


async def test_a_claim_that_rolls_back_leaves_its_rows_to_the_next(ground: Ground) -> None:
    await ground.owe("a")
    one = await ground.connect()
    transaction = one.transaction()
    await transaction.start()
    assert len(await ground.claim_in(one, "one")) == 1

    assert await ground.claim("two") == []
    await transaction.rollback()

    assert [effect.key for effect in await ground.claim("two")] == ["a"]


async def test_two_reclaimers_of_one_expired_row_are_one(ground: Ground) -> None:
    await ground.owe("a")
    await ground.claim("first")
    await ground.age(61)
    one = await ground.connect()

    async with one.transaction():
        taken = await ground.claim_in(one, "one")
        meanwhile = await ground.claim("two")

    assert len(taken) == 1
    assert meanwhile == []
    row = await ground.pool.fetchrow("select worker, crashes from mainspring.effects")
    assert tuple(row) == ("one", 1)


async def test_a_renewal_just_before_the_reclaim_keeps_the_claim(ground: Ground) -> None:
    await ground.owe("a")
    [effect] = await ground.claim("first")
    await ground.age(61)

    assert await ground.store.renew([(effect.tenant_id, effect.id, effect.claim_id, 60.0)]) == frozenset()

    assert await ground.claim("second") == []


async def test_a_settle_in_flight_is_not_reclaimed(ground: Ground) -> None:
    await ground.owe("a")
    [effect] = await ground.claim("first")
    await ground.age(61)
    one = await ground.connect()

    async with one.transaction():
        await one.fetch(SQL["settle"], *settlement_columns([done(effect)]))
        assert await ground.claim("second") == []

    assert await ground.claim("second") == []
    assert await ground.states() == {"a": "done"}


@pytest.mark.slow
async def test_a_settle_that_waits_for_a_reclaim_is_refused(ground: Ground) -> None:
    await ground.owe("a")
    [effect] = await ground.claim("first")
    await ground.age(61)
    one = await ground.connect()

    transaction = one.transaction()
    await transaction.start()
    assert len(await ground.claim_in(one, "second")) == 1
    late = asyncio.create_task(settle(ground, effect))
    assert await waits(late)
    await transaction.commit()

    assert (await late).refused == {effect.id}
    assert await ground.states() == {"a": "claimed"}


async def test_a_late_settle_is_accepted_while_nobody_else_has_claimed(ground: Ground) -> None:
    await ground.owe("a")
    [effect] = await ground.claim("first")
    await ground.age(3_600)

    assert (await settle(ground, effect)).accepted == {effect.id}


async def test_a_renewal_does_not_wait_for_a_settle_and_calls_its_row_busy(ground: Ground) -> None:
    await ground.owe("a", "b")
    a, b = sorted(await ground.claim("first"), key=lambda effect: effect.key)
    one = await ground.connect()

    async with one.transaction():
        await one.fetch(SQL["settle"], *settlement_columns([done(a)]))
        renewal = ground.store.renew([(e.tenant_id, e.id, e.claim_id, 600.0) for e in (a, b)])
        lost = await asyncio.wait_for(renewal, 5)

    assert lost == frozenset()
    left = await ground.pool.fetchval(
        "select extract(epoch from lease_until - statement_timestamp())::float8 from mainspring.effects where key = 'b'"
    )
    assert left > 500


async def test_a_settle_that_waited_for_a_renewal_is_accepted(ground: Ground) -> None:
    """What it settles has been written to since its statement began: the same claim, with a longer lease."""
    await ground.owe("a", "b")
    a, b = await ground.claim()
    renewing = await ground.connect()

    async with renewing.transaction():
        await renewing.fetch(SQL["renew"], [a.tenant_id], [a.id], [a.claim_id], [600.0])
        settling = asyncio.create_task(settle(ground, a, b))
        assert await waits(settling)

    assert await settling == Settled(accepted=frozenset({a.id, b.id}), refused=frozenset())
    assert await ground.states() == {"a": "done", "b": "done"}


async def test_a_renewal_names_what_another_has_claimed(ground: Ground) -> None:
    await ground.owe("a")
    [effect] = await ground.claim("first")
    await ground.age(61)
    await ground.claim("second")

    assert await ground.store.renew([(effect.tenant_id, effect.id, effect.claim_id, 60.0)]) == {effect.id}


@pytest.mark.slow
async def test_renewals_and_settles_in_random_order_never_deadlock(ground: Ground) -> None:
    """Both write many rows: without one order of locks, and skipping in renewal, they deadlock within a second."""
    await ground.owe(*(f"k{n}" for n in range(200)))
    effects = await ground.claim("w", limit=200)
    stop = asyncio.Event()
    failures: list[BaseException] = []
    rounds = {"renew": 0, "settle": 0}

    async def renew() -> None:
        while not stop.is_set():
            shuffled = random.sample(effects, len(effects))
            await ground.store.renew([(e.tenant_id, e.id, e.claim_id, 60.0) for e in shuffled])
            rounds["renew"] += 1

    async def settle_and_return() -> None:
        conn = await ground.connect()
        while not stop.is_set():
            some = [
                Settlement(
                    tenant_id=e.tenant_id,
                    id=e.id,
                    claim_id=e.claim_id,
                    move=Move.WAIT,
                    attempts=0,
                    outcome="retry",
                    plain=True,
                )
                for e in random.sample(effects, 50)
            ]
            transaction = conn.transaction()
            await transaction.start()
            await conn.fetch(SQL["settle"], *settlement_columns(some))
            await transaction.rollback()  # the claims stay, and the next round has them to settle again
            rounds["settle"] += 1

    async def guarded(work: object) -> None:
        try:
            await work  # type: ignore[misc]
        except asyncpg.PostgresError as error:
            failures.append(error)
            stop.set()

    tasks = [
        asyncio.create_task(guarded(work())) for work in (renew, renew, settle_and_return, settle_and_return)
    ]
    await asyncio.wait(tasks, timeout=10)
    stop.set()
    await asyncio.gather(*tasks)

    assert failures == []
    assert min(rounds.values()) > 20


async def test_a_cancel_that_waits_for_a_claim_leaves_the_settle_to_decide(ground: Ground) -> None:
    await ground.owe("a")
    one = await ground.connect()
    transaction = one.transaction()
    await transaction.start()
    [claimed] = await ground.claim_in(one, "first")

    async def cancel() -> EffectState | None:
        async with ground.store.tenant(ground.tenant) as tx:
            return await ground.store.cancel(tx, ground.tenant, claimed)

    cancelling = asyncio.create_task(cancel())
    assert await waits(cancelling)
    await transaction.commit()

    assert await cancelling is EffectState.CLAIMED
    row = await ground.pool.fetchrow("select state, cancel_requested from mainspring.effects")
    assert tuple(row) == ("claimed", True)


@pytest.mark.parametrize(("outcome", "state"), [(Done(), "done"), (Retry("no"), "dropped")])
async def test_a_cancelled_claim_ends_as_what_happened(
    ground: Ground, outcome: Done | Retry, state: str
) -> None:
    await ground.owe("a")
    [effect] = await ground.claim("first")
    async with ground.store.tenant(ground.tenant) as tx:
        await ground.store.cancel(tx, ground.tenant, effect.id)

    async with ground.store.system("test") as tx:
        await ground.store.settle(tx, [resolve(effect, outcome, WORK, random=0.5)])

    assert await ground.states() == {"a": state}


async def test_a_claim_does_not_see_an_effect_cancelled_under_it(ground: Ground) -> None:
    await ground.owe("a")
    one = await ground.connect()

    async with one.transaction():
        id_ = await one.fetchval("select id from mainspring.effects")
        await one.fetchval(SQL["cancel"], ground.tenant, id_)
        assert await ground.claim("first") == []

    assert await ground.claim("first") == []
    assert await ground.states() == {"a": "dropped"}


# due_tenants: may be early, never late -----------------------------------------------------------------------


async def _next_due_is_late(ground: Ground) -> bool:
    late: bool = await ground.pool.fetchval(
        """select exists (select from mainspring.effects e left join mainspring.due_tenants d using (tenant_id, family)
           where e.state = 'pending' and (d.next_due is null or d.next_due > e.not_before))"""
    )
    return late


async def test_an_owe_that_commits_between_claim_and_raise_is_not_hidden(ground: Ground) -> None:
    await ground.owe("a")
    one = await ground.connect()
    async with one.transaction():
        found = await one.fetch(SQL["claim"], "w", ["work"], [60.0], 10, ground.tenant, 2, 1e6)
        await ground.owe("b")
        await one.execute(SQL["raise_due"], [found[0]["due_tenant"]], [found[0]["bumps"]], 1e6)

    assert not await _next_due_is_late(ground)
    assert [effect.key for effect in await ground.claim("w")] == ["b"]


async def test_an_owe_still_open_during_the_raise_is_not_hidden(ground: Ground) -> None:
    await ground.owe("a")
    owing, claiming = await ground.connect(), await ground.connect()
    owe = owing.transaction()
    await owe.start()
    await owing.fetch(
        SQL["owe"], *effect_columns([(ground.tenant, NewEffect("work", key="b"))], [new_id()]), True
    )
    async with claiming.transaction():
        found = await claiming.fetch(SQL["claim"], "w", ["work"], [60.0], 10, ground.tenant, 2, 1e6)
        # the row is locked by the open owe: the raise leaves it early, and does not wait
        raising = claiming.execute(SQL["raise_due"], [found[0]["due_tenant"]], [found[0]["bumps"]], 1e6)
        assert await asyncio.wait_for(raising, 5) == "UPDATE 0"
    await owe.commit()

    assert not await _next_due_is_late(ground)
    assert [effect.key for effect in await ground.claim("w")] == ["b"]


async def test_an_open_owe_delays_nobody_else(ground: Ground) -> None:
    """Whoever holds a tenant's due row holds up every drain: an owe takes it at the very end, not when it is called."""
    spine: Spine[object] = Spine(ground.store)  # type: ignore[arg-type]

    @spine.owes("it.happened")
    def work(event: Event) -> Owes:
        return Owes(NewEffect("work", key=f"drained {event.seq}"))

    other = new_id()
    await spine.create_tenant(other, "two")
    conn = await ground.connect()
    async with spine.transaction(conn, ground.tenant) as tx:
        await tx.owe(NewEffect("work", key="open"))
        for tenant in (ground.tenant, other):
            await asyncio.create_task(append(spine, tenant), context=Context())
        drained = await asyncio.create_task(asyncio.wait_for(spine.drain.run_once(), 3), context=Context())

    assert drained.owed == 2
    assert not await _next_due_is_late(ground)
    assert len(await ground.claim("w")) == 3


async def append(spine: Spine[object], tenant: UUID) -> None:
    async with spine.open(tenant) as tx:
        tx.append(NewEvent("it.happened"))


async def test_a_retry_makes_its_tenant_due_again(ground: Ground) -> None:
    await ground.owe("a")
    [effect] = await ground.claim("w")
    async with ground.store.system("test") as tx:
        await ground.store.settle(tx, [resolve(effect, Retry("no", after_seconds=0.0), WORK, random=0.5)])

    assert [again.attempts for again in await ground.claim("w")] == [1]


@pytest.mark.slow
async def test_owing_and_claiming_at_full_speed_never_leaves_a_tenant_late(ground: Ground) -> None:
    claimed: list[str] = []
    owed = [f"{n}" for n in range(150)]

    async def owe() -> None:
        for key in owed:
            await ground.owe(key)

    async def claim() -> None:
        while len(claimed) < len(owed):
            claimed.extend(effect.key for effect in await ground.claim("w", limit=3))

    await asyncio.wait_for(asyncio.gather(owe(), claim(), claim()), 30)

    assert sorted(claimed) == sorted(owed)
    assert not await _next_due_is_late(ground)
