"""Claims: who gets what is due, in which order, and what becomes of it when he does not come back."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextvars import Context
from uuid import UUID

import pytest

from mainspring.spine.effects import (
    CRASHES_ALONE,
    Deferred,
    Done,
    EffectState,
    NewEffect,
    Retry,
)
from tests.conformance.hands import LEASE, Hands


async def test_a_claimed_effect_carries_all_that_its_executor_needs(hands: Hands):
    tenant = await hands.tenant()
    id_ = await hands.owe_one(tenant, key="42", payload={"to": "a"}, event_seq=9, target="smtp")
    effect = await hands.claim_one(worker="w7")
    assert (effect.tenant_id, effect.id, effect.kind, effect.key) == (tenant, id_, "mail", "42")
    assert (effect.payload, effect.event_seq, effect.target) == ({"to": "a"}, 9, "smtp")
    assert (effect.attempts, effect.crashes, effect.epoch, effect.reclaimed) == (0, 0, 0, False)
    assert effect.deferred_seconds == 0
    row = await hands.row(effect)
    assert (row.state, row.claim_id, row.worker) == (EffectState.CLAIMED, effect.claim_id, "w7")
    assert row.lease_until is not None


async def test_a_claimed_effect_is_not_claimed_again_while_its_lease_lasts(hands: Hands):
    await hands.owe_one(await hands.tenant())
    await hands.claim_one()
    await hands.age(LEASE - 5)
    assert await hands.claim(worker="w2") == []


async def test_only_the_asked_kinds_are_claimed_each_with_its_own_lease(hands: Hands):
    tenant = await hands.tenant()
    await hands.owe(tenant, *(NewEffect(kind, key="1") for kind in ("mail", "ship", "fax")))
    claimed = await hands.claim("mail", "fax")
    assert {effect.kind for effect in claimed} == {"mail", "fax"}
    assert {effect.kind for effect in await hands.claim("ship", lease=LEASE * 10)} == {"ship"}
    await hands.age(LEASE + 1)
    assert {effect.kind for effect in await hands.claim("mail", "ship", "fax")} == {"mail", "fax"}


async def test_offered_effects_are_not_claimed_to_be_executed(hands: Hands):
    tenant = await hands.tenant()
    await hands.owe_one(tenant, family="offered", key="offered")
    await hands.owe_one(tenant, key="executed")
    assert [effect.key for effect in await hands.claim()] == ["executed"]


async def test_no_more_is_claimed_than_asked_for_and_the_earliest_first(hands: Hands):
    tenant = await hands.tenant()
    for key in "abcde":
        await hands.owe_one(tenant, key=key)
    assert [effect.key for effect in await hands.claim(limit=2)] == ["a", "b"]
    assert [effect.key for effect in await hands.claim(limit=2)] == ["c", "d"]
    assert [effect.key for effect in await hands.claim(limit=2)] == ["e"]
    assert await hands.claim(limit=2) == []


async def test_every_row_gets_a_claim_of_its_own(hands: Hands):
    tenant = await hands.tenant()
    await hands.owe(tenant, *(NewEffect("mail", key=f"{n}") for n in range(5)))
    claims = {effect.claim_id for effect in await hands.claim()}
    assert len(claims) == 5


async def test_two_workers_never_get_the_same_row(hands: Hands):
    tenant = await hands.tenant()
    await hands.owe(tenant, *(NewEffect("mail", key=f"{n}") for n in range(40)))
    rounds = await asyncio.gather(*(hands.claim(limit=10, worker=f"w{n}") for n in range(8)))
    claimed = Counter(effect.id for effects in rounds for effect in effects)
    assert set(claimed.values()) == {1}
    for _ in range(4):  # rows that were locked for a moment are left for the next claim
        claimed.update(effect.id for effect in await hands.claim(limit=40))
    assert len(claimed) == 40
    assert set(claimed.values()) == {1}


# fairness -----------------------------------------------------------------------------------------------------


async def loud_and_quiet(hands: Hands, loud: int, quiet: int, backlog: int) -> tuple[list[UUID], list[UUID]]:
    """Tenants with a backlog, then (so that they come last in every order) tenants with one effect each."""
    crowds = []
    for number, rows in ((loud, backlog), (quiet, 1)):
        tenants = [await hands.tenant() for _ in range(number)]
        async with hands.store.system("test") as tx:
            owed = [(tenant, NewEffect("mail", key=f"{n}")) for tenant in tenants for n in range(rows)]
            await hands.store.owe_drained(tx, owed)
        crowds.append(tenants)
    return crowds[0], crowds[1]


@pytest.mark.slow
async def test_ten_thousand_rows_of_one_tenant_do_not_delay_the_one_row_of_another(hands: Hands):
    _, [quiet] = await loud_and_quiet(hands, 1, 1, backlog=10_000)
    claimed = await hands.claim(limit=10)
    assert quiet in {effect.tenant_id for effect in claimed}


async def test_each_quiet_tenant_is_served_before_a_loud_one_is_served_twice(hands: Hands):
    loud, quiet = await loud_and_quiet(hands, 15, 5, backlog=30)
    served: set[UUID] = set()
    after = None
    for _ in range(2):  # 20 tenants, 10 slots
        claimed = await hands.claim(limit=10, after=after)
        assert len({effect.tenant_id for effect in claimed}) == 10
        served |= {effect.tenant_id for effect in claimed}
        after = max(effect.tenant_id for effect in claimed)
    assert served == set(loud) | set(quiet)


async def test_with_one_slot_tenants_take_turns(hands: Hands):
    loud, quiet = await loud_and_quiet(hands, 2, 1, backlog=5)
    turns: list[UUID] = []
    for _ in range(6):
        effect = await hands.claim_one(limit=1, after=turns[-1] if turns else None)
        turns.append(effect.tenant_id)
    assert turns == [*loud, *quiet, *loud, loud[0]]


async def test_whoever_takes_the_last_claimed_as_last_served_serves_everybody(hands: Hands):
    # a worker knows no more than the list it was given
    loud, quiet = await loud_and_quiet(hands, 8, 4, backlog=40)
    served: set[UUID] = set()
    after = None
    for _ in range(12):
        claimed = await hands.claim(limit=3, after=after)
        assert len(claimed) == 3
        after = claimed[-1].tenant_id
        served |= {effect.tenant_id for effect in claimed}
    assert served == set(loud) | set(quiet)


async def test_a_tenant_with_only_effects_of_other_kinds_does_not_hide_its_neighbour(hands: Hands):
    # two programs with kinds of their own on one database; the slots of this one are nearly full
    first, second = await hands.tenant(), await hands.tenant()
    await hands.owe_one(first, kind="someone elses")
    await hands.owe_one(second)
    assert [effect.tenant_id for effect in await hands.claim(limit=1)] == [second]


async def test_a_tenant_with_only_rows_that_must_run_alone_does_not_hide_its_neighbour(hands: Hands):
    first, second = await hands.tenant(), await hands.tenant()
    await hands.owe_one(first)
    await crash(hands, times=CRASHES_ALONE)
    effect = await hands.claim_one(alone=True)
    assert await hands.settles(effect, Deferred(after_seconds=0))
    await hands.owe_one(second)
    assert [effect.tenant_id for effect in await hands.claim(limit=1)] == [second]


# leases -------------------------------------------------------------------------------------------------------


async def crash(hands: Hands, *, times: int, worker: str = "doomed") -> None:
    """Let the only due row end its workers so often, as workers ask for it."""
    claimed = await hands.claim_one(worker=worker)
    for crashes in range(1, times + 1):
        await hands.age(LEASE + 1)
        if crashes < times:
            claimed = await hands.claim_one(worker=worker, alone=crashes >= CRASHES_ALONE)
            assert claimed.crashes == crashes


async def test_an_expired_claim_is_taken_over_and_counted_as_a_crash(hands: Hands):
    await hands.owe_one(await hands.tenant())
    old, new = await hands.stale()
    assert (new.reclaimed, new.crashes, new.attempts) == (True, 1, 0)
    assert new.claim_id != old.claim_id
    row = await hands.row(new)
    assert (row.worker, row.crashes, row.claim_id) == ("w2", 1, new.claim_id)


async def test_the_end_of_a_lost_claim_is_recorded(hands: Hands):
    await hands.owe_one(await hands.tenant())
    old, new = await hands.stale()
    [attempt] = await hands.attempts(new)
    assert (attempt.n, attempt.claim_id, attempt.worker, attempt.outcome) == (
        1,
        old.claim_id,
        "w1",
        "lease_lost",
    )
    assert attempt.started_at <= attempt.ended_at


async def test_a_taken_over_claim_has_a_lease_of_its_own(hands: Hands):
    await hands.owe_one(await hands.tenant())
    await hands.stale()
    await hands.age(LEASE - 5)
    assert await hands.claim(alone=True) == await hands.claim() == []
    await hands.age(10)
    await hands.claim_one(alone=True)


async def test_from_its_second_crash_on_a_row_is_only_claimed_alone(hands: Hands):
    tenant = await hands.tenant()
    await hands.owe_one(tenant, key="poison")
    await crash(hands, times=CRASHES_ALONE)
    await hands.owe(tenant, NewEffect("mail", key="innocent 1"), NewEffect("mail", key="innocent 2"))
    assert [effect.key for effect in await hands.claim()] == ["innocent 1", "innocent 2"]
    poison = await hands.claim_one(alone=True)
    assert (poison.key, poison.crashes, poison.reclaimed) == ("poison", CRASHES_ALONE, True)


async def test_asking_for_one_alone_gets_no_ordinary_row(hands: Hands):
    tenant = await hands.tenant()
    await hands.owe_one(tenant, key="1")
    assert await hands.claim(alone=True) == []
    await hands.claim_one()
    await hands.age(LEASE + 1)
    assert await hands.claim(alone=True) == []  # its first crash: an ordinary claim takes it over
    assert (await hands.claim_one()).crashes == 1


async def test_a_row_that_waits_after_crashing_is_still_only_claimed_alone(hands: Hands):
    await hands.owe_one(await hands.tenant())
    await crash(hands, times=CRASHES_ALONE)
    assert await hands.settles(await hands.claim_one(alone=True), Retry("busy", after_seconds=30))
    await hands.age(31)
    assert await hands.claim() == []
    again = await hands.claim_one(alone=True)
    assert (again.crashes, again.attempts, again.reclaimed) == (CRASHES_ALONE, 1, False)


async def test_rows_that_run_alone_come_one_at_a_time_earliest_first(hands: Hands):
    tenant = await hands.tenant()
    for key in "ab":
        await hands.owe_one(tenant, key=key)
        await crash(hands, times=CRASHES_ALONE)
        assert await hands.settles(await hands.claim_one(alone=True), Deferred(after_seconds=0))
    assert [effect.key for effect in await hands.claim(alone=True, limit=10)] == ["a"]
    assert [effect.key for effect in await hands.claim(alone=True, limit=10)] == ["b"]
    assert await hands.claim(alone=True, limit=10) == []


async def test_an_expired_row_is_taken_over_though_its_tenant_has_a_backlog(hands: Hands):
    # a backlog that never ends must not keep a lost row from being done
    tenant = await hands.tenant()
    await hands.owe_one(tenant, key="lost")
    await hands.claim_one()
    await hands.owe(tenant, *(NewEffect("mail", key=f"{n}") for n in range(20)))
    await hands.age(LEASE + 1)
    assert "lost" in {effect.key for effect in await hands.claim(limit=3)}


# renewal ------------------------------------------------------------------------------------------------------


async def test_a_renewed_claim_lasts_from_the_renewal_on(hands: Hands):
    await hands.owe_one(await hands.tenant())
    effect = await hands.claim_one()
    for _ in range(5):
        await hands.age(LEASE - 5)
        assert await hands.renew(effect) == frozenset()
    await hands.age(LEASE - 5)
    assert await hands.claim() == []
    await hands.age(10)
    assert (await hands.claim_one()).reclaimed


async def test_a_claim_whose_lease_ran_out_is_ours_until_another_takes_it(hands: Hands):
    await hands.owe_one(await hands.tenant())
    effect = await hands.claim_one()
    await hands.age(LEASE * 10)
    assert await hands.renew(effect) == frozenset()
    assert await hands.claim() == []


async def test_a_claim_is_lost_when_another_has_taken_it_or_it_is_settled(hands: Hands):
    tenant = await hands.tenant()
    await hands.owe_one(tenant)
    old, new = await hands.stale()
    await hands.owe_one(tenant, key="2")
    settled = await hands.claim_one()
    assert await hands.settles(settled)
    await hands.owe_one(tenant, key="3")
    waiting = await hands.claim_one()
    assert await hands.settles(waiting, Retry("busy"))
    await hands.owe_one(tenant, key="4")
    kept = await hands.claim_one()
    assert await hands.renew(settled, waiting, kept) == {settled.id, waiting.id}
    assert await hands.renew(old) == {old.id}
    assert await hands.renew(new) == frozenset()


async def test_a_lost_renewal_leaves_the_new_claim_its_own_lease(hands: Hands):
    await hands.owe_one(await hands.tenant())
    old, new = await hands.stale()
    assert await hands.renew(old, lease=LEASE * 100) == {old.id}
    await hands.age(LEASE + 1)
    assert (await hands.claim_one(alone=True)).crashes == new.crashes + 1


async def test_renewing_nothing_is_nothing(hands: Hands):
    assert await hands.renew() == frozenset()


async def test_a_row_that_somebody_holds_is_busy_not_lost(hands: Hands):
    tenant = await hands.tenant()
    await hands.owe(tenant, NewEffect("mail", key="1"), NewEffect("mail", key="2"))
    held, free = await hands.claim()
    renewal: asyncio.Task[frozenset[UUID]] | None = None
    with pytest.raises(ZeroDivisionError):
        async with hands.store.tenant(tenant) as tx:
            await hands.store.cancel(tx, tenant, held.id)
            # a task of its own: a renewal is a transaction of its own, and must not wait for this one
            renewal = asyncio.create_task(hands.renew(held, free, lease=LEASE * 10), context=Context())
            if hands.subject.concurrent:
                assert await renewal == frozenset()
            raise ZeroDivisionError
    assert renewal is not None
    assert await renewal == frozenset()
    # the free one was renewed, the held one was left as it was
    row = await hands.row(free)
    assert row.lease_until is not None
    if hands.subject.concurrent:
        assert row.lease_until > (await hands.row(held)).lease_until


# what is due anywhere -----------------------------------------------------------------------------------------


async def due(hands: Hands) -> tuple[bool, bool, bool]:
    found = await hands.store.due(["mail"])
    return found.lagging, found.effects, found.alone


async def test_nothing_is_due_in_an_empty_store(hands: Hands):
    await hands.tenant()
    assert await due(hands) == (False, False, False)


async def test_a_lagging_tenant_is_due_until_it_is_drained(hands: Hands):
    tenant = await hands.tenant()
    await hands.append(tenant, "order.paid")
    assert await due(hands) == (True, False, False)
    async with hands.store.system("test") as tx:
        [cursor] = await hands.store.lock_lagging(tx, after=None, limit=1, engine_version=1)
        await hands.store.advance(tx, [(cursor, 1)], engine_version=1)
    assert await due(hands) == (False, False, False)


async def test_an_effect_is_due_when_its_time_has_come_until_it_is_claimed(hands: Hands):
    await hands.owe_one(await hands.tenant(), delay_seconds=60)
    assert await hands.claim() == []
    assert await due(hands) == (False, False, False)
    await hands.age(61)
    assert await due(hands) == (False, True, False)
    effect = await hands.claim_one()
    assert await hands.claim() == []  # a claim that came away with less than it wanted looks at nothing again
    assert await due(hands) == (False, False, False)
    assert await hands.settles(effect, Done())
    assert await due(hands) == (False, False, False)


async def test_an_expired_claim_is_due(hands: Hands):
    await hands.owe_one(await hands.tenant())
    await hands.claim_one()
    await hands.claim()
    await hands.age(LEASE + 1)
    assert await due(hands) == (False, True, False)


async def test_a_row_that_must_run_alone_is_due_alone(hands: Hands):
    await hands.owe_one(await hands.tenant())
    await crash(hands, times=CRASHES_ALONE)
    assert (await due(hands))[2]
    effect = await hands.claim_one(alone=True)
    assert not (await due(hands))[2]
    assert await hands.settles(effect, Deferred(after_seconds=30))
    assert not (await due(hands))[2]
    await hands.age(31)
    assert (await due(hands))[2]


async def test_a_lost_index_of_due_tenants_is_found_and_rebuilt(hands: Hands):
    one, other = await hands.tenant(), await hands.tenant()
    await hands.owe_one(one)
    await hands.owe_one(other, delay_seconds=60)
    assert await hands.rebuild_due() == 0
    lost = await hands.subject.forget_due()
    assert await hands.rebuild_due() == lost
    assert await hands.rebuild_due() == 0
    await hands.claim_one()
    await hands.age(61)
    assert len(await hands.claim()) == 2


async def test_ordinary_traffic_never_makes_the_index_of_due_tenants_late(hands: Hands):
    tenant = await hands.tenant()
    await hands.owe_one(tenant, key="1", delay_seconds=30)
    await hands.claim()
    await hands.owe_one(tenant, key="2")
    effect = await hands.claim_one()
    await hands.claim()
    assert await hands.settles(effect, Retry("busy", after_seconds=10))
    assert await hands.rebuild_due() == 0
    await hands.claim()
    assert await hands.rebuild_due() == 0
    await hands.age(11)
    assert [effect.key for effect in await hands.claim()] == ["2"]
