"""Breakers: what a claim takes of a target that is down, of one that may be tried, and of their neighbours."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from mainspring.spine.breaker import FORGOTTEN_SECONDS, Breaker, BreakerRow
from mainspring.spine.effects import (
    CRASHES_ALONE,
    DEFER_LIMIT_SECONDS,
    Deferred,
    Done,
    Effect,
    NewEffect,
    Retry,
)
from mainspring.spine.errors import BadData
from mainspring.spine.ports import BreakerChange
from tests.conformance.hands import LEASE, Hands

SMTP, SMS = "smtp", "sms"
DOWN = Breaker(failures=5, trips=1)
OPEN_SECONDS = 30.0


async def opened(hands: Hands, tenant: UUID, target: str = SMTP, *, seconds: float = OPEN_SECONDS) -> None:
    await written(hands, tenant, DOWN, target, open_seconds=seconds, error="refused")


async def written(
    hands: Hands,
    tenant: UUID,
    breaker: Breaker,
    target: str = SMTP,
    *,
    open_seconds: float | None = None,
    error: str | None = None,
) -> None:
    change = BreakerChange(target=(tenant, target), breaker=breaker, open_seconds=open_seconds, error=error)
    async with hands.store.system("test") as tx:
        await hands.store.lock_breakers(tx, [(tenant, target)])
        await hands.store.write_breakers(tx, [change])


async def breakers(hands: Hands, tenant: UUID) -> list[BreakerRow]:
    async with hands.store.tenant(tenant) as tx:
        return await hands.store.breakers(tx, tenant)


def keys(effects: list[Effect]) -> str:
    return "".join(effect.key for effect in effects)


async def owe(hands: Hands, tenant: UUID, names: str, target: str = SMTP) -> None:
    for key in names:
        await hands.owe_one(tenant, key=key, target=target)


# keeping them -------------------------------------------------------------------------------------------------


async def test_a_target_that_never_failed_stands_clean_and_leaves_no_row(hands: Hands):
    tenant = await hands.tenant()
    async with hands.store.system("test") as tx:
        assert await hands.store.lock_breakers(tx, [(tenant, SMTP)]) == {(tenant, SMTP): Breaker()}
        await hands.store.write_breakers(tx, [BreakerChange(target=(tenant, SMTP), breaker=Breaker())])
    assert await breakers(hands, tenant) == []


async def test_a_breaker_is_what_was_written_of_it(hands: Hands):
    tenant = await hands.tenant()
    await written(hands, tenant, Breaker(failures=2), error="refused")
    [row] = await breakers(hands, tenant)
    assert (row.target, row.failures, row.trips, row.open_until, row.down_since) == (SMTP, 2, 0, None, None)
    await opened(hands, tenant)
    [row] = await breakers(hands, tenant)
    assert (row.failures, row.trips, row.error) == (5, 1, "refused")
    assert row.open_until is not None
    assert row.down_since is not None
    assert OPEN_SECONDS - 1 < (row.open_until - row.down_since).total_seconds() < OPEN_SECONDS + 1


async def test_down_since_is_the_first_time_in_a_row(hands: Hands):
    tenant = await hands.tenant()
    await opened(hands, tenant)
    [before] = await breakers(hands, tenant)
    await written(hands, tenant, Breaker(failures=5, trips=2), open_seconds=60)
    [row] = await breakers(hands, tenant)
    assert (row.down_since, row.trips) == (before.down_since, 2)
    assert row.open_until != before.open_until
    assert row.error == "refused"


async def test_without_a_time_it_stays_open_as_long_as_it_was(hands: Hands):
    tenant = await hands.tenant()
    await opened(hands, tenant)
    [before] = await breakers(hands, tenant)
    await written(hands, tenant, DOWN)
    assert [row.open_until for row in await breakers(hands, tenant)] == [before.open_until]


async def test_a_breaker_is_one_tenants(hands: Hands):
    one, other = await hands.tenant(), await hands.tenant()
    await owe(hands, one, "a")
    await owe(hands, other, "b")
    await opened(hands, one)
    assert keys(await hands.claim()) == "b"
    assert await breakers(hands, other) == []


async def test_what_happens_to_a_locked_breaker_is_undone_with_its_transaction(hands: Hands):
    tenant = await hands.tenant()
    await written(hands, tenant, Breaker(failures=2))
    with pytest.raises(ZeroDivisionError):
        async with hands.store.system("test") as tx:
            await hands.store.lock_breakers(tx, [(tenant, SMTP), (tenant, SMS)])
            await hands.store.write_breakers(tx, [BreakerChange(target=(tenant, SMTP), breaker=Breaker())])
            raise ZeroDivisionError
    assert [(row.target, row.failures) for row in await breakers(hands, tenant)] == [(SMTP, 2)]


async def test_two_who_see_the_first_failure_at_once_count_two(hands: Hands):
    tenant = await hands.tenant()

    async def one_more() -> None:
        async with hands.store.system("test") as tx:
            found = await hands.store.lock_breakers(tx, [(tenant, SMTP)])
            more = Breaker(failures=found[tenant, SMTP].failures + 1)
            await hands.store.write_breakers(tx, [BreakerChange(target=(tenant, SMTP), breaker=more)])

    await asyncio.gather(one_more(), one_more(), one_more())
    assert [row.failures for row in await breakers(hands, tenant)] == [3]


async def test_an_error_that_no_column_takes_is_refused(hands: Hands):
    tenant = await hands.tenant()
    with pytest.raises(BadData):
        await written(hands, tenant, DOWN, open_seconds=1, error="\x00")


async def test_what_nothing_has_happened_to_for_long_is_forgotten(hands: Hands):
    tenant = await hands.tenant()
    await opened(hands, tenant)
    await written(hands, tenant, Breaker(failures=1), SMS)

    async def forgotten() -> int:
        async with hands.store.system("test") as tx:
            return await hands.store.forget_breakers(tx, idle_seconds=FORGOTTEN_SECONDS)

    assert await forgotten() == 0
    await hands.age(FORGOTTEN_SECONDS + OPEN_SECONDS + 1)
    assert await forgotten() == 2
    assert await breakers(hands, tenant) == []


# claims while it is open --------------------------------------------------------------------------------------


async def test_a_target_that_is_down_is_skipped_and_its_neighbours_are_not(hands: Hands):
    tenant = await hands.tenant()
    await owe(hands, tenant, "abc")
    await owe(hands, tenant, "x", SMS)
    await owe(hands, tenant, "y", "")
    await opened(hands, tenant)
    assert keys(await hands.claim()) == "xy"
    assert await hands.claim() == []


async def test_failures_that_have_not_opened_it_hold_nobody_up(hands: Hands):
    tenant = await hands.tenant()
    await owe(hands, tenant, "ab")
    await written(hands, tenant, Breaker(failures=4))
    claimed = await hands.claim()
    assert keys(claimed) == "ab"
    assert [(e.doubted, e.probe, e.down_seconds) for e in claimed] == [(True, False, None)] * 2


async def test_an_effect_of_a_target_that_works_is_neither_probe_nor_doubted(hands: Hands):
    tenant = await hands.tenant()
    await owe(hands, tenant, "a")
    effect = await hands.claim_one()
    assert (effect.doubted, effect.probe, effect.down_seconds, effect.deferrals) == (False, False, None, 0)


async def test_when_its_time_is_up_the_earliest_alone_tries(hands: Hands):
    tenant = await hands.tenant()
    await owe(hands, tenant, "abc")
    await opened(hands, tenant)
    await hands.age(OPEN_SECONDS + 1)
    effect = await hands.claim_one()
    assert (effect.key, effect.probe, effect.doubted, effect.down_seconds) == ("a", True, True, None)
    assert await hands.claim() == []
    [row] = await breakers(hands, tenant)
    held = await hands.row(effect)
    assert row.open_until is not None
    assert held.lease_until is not None
    assert (
        abs((row.open_until - held.lease_until).total_seconds()) < 1
    )  # nobody else tries as long as the probe may


async def test_a_probe_that_never_answers_is_followed_by_another(hands: Hands):
    tenant = await hands.tenant()
    await owe(hands, tenant, "ab")
    await opened(hands, tenant)
    await hands.age(OPEN_SECONDS + 1)
    assert (await hands.claim_one()).key == "a"
    await hands.age(LEASE + 1)
    claimed = {effect.key: effect for effect in await hands.claim(worker="w2")}
    assert (claimed["a"].reclaimed, claimed["a"].probe, claimed["a"].down_seconds) == (True, False, 0.0)
    assert claimed["b"].probe


async def test_a_probe_that_moved_back_lets_the_next_one_try(hands: Hands):
    tenant = await hands.tenant()
    await owe(hands, tenant, "ab")
    await opened(hands, tenant)
    tried = ""
    for _ in range(3):
        await hands.age(OPEN_SECONDS + 1)
        effect = await hands.claim_one()
        tried += effect.key
        assert await hands.settles(effect, Deferred("down", after_seconds=0))
        await opened(hands, tenant)
    assert tried == "aba"


async def test_whoever_was_claimed_when_it_opened_is_told_when_it_is_reclaimed(hands: Hands):
    tenant = await hands.tenant()
    await owe(hands, tenant, "a")
    await hands.claim_one()
    await opened(hands, tenant, seconds=LEASE + OPEN_SECONDS)
    await hands.age(LEASE + 1)
    again = await hands.claim_one(worker="w2")
    assert again.reclaimed
    assert again.down_seconds is not None
    assert OPEN_SECONDS - 3 < again.down_seconds < OPEN_SECONDS


async def test_a_target_that_works_again_has_its_rows_claimed_in_their_order(hands: Hands):
    tenant = await hands.tenant()
    await owe(hands, tenant, "abc")
    await opened(hands, tenant)
    assert await hands.claim() == []
    await written(hands, tenant, Breaker(), open_seconds=0)
    assert keys(await hands.claim()) == "abc"


async def test_in_a_tenant_with_a_target_that_is_down_no_more_is_claimed_than_its_share(hands: Hands):
    first, second = await hands.tenant(), await hands.tenant()
    for target in (SMS, "fax", ""):
        for n in range(4):
            await hands.owe_one(first, key=f"{target}{n}", target=target)
    await owe(hands, second, "abcd")
    await opened(hands, first)
    for limit in (2, 4):
        claimed = await hands.claim(limit=limit)
        assert len(claimed) == limit
        assert {effect.tenant_id for effect in claimed} == {first, second}


async def test_the_earliest_of_all_targets_come_first(hands: Hands):
    tenant = await hands.tenant()
    for key, target in (("a", SMS), ("b", ""), ("c", "fax"), ("d", SMS), ("e", "")):
        await hands.owe_one(tenant, key=key, target=target)
    await opened(hands, tenant)
    assert keys(await hands.claim(limit=3)) == "abc"
    assert keys(await hands.claim(limit=3)) == "de"


async def test_a_tenant_behind_many_others_is_served_in_its_turn(hands: Hands):
    """Those with a target that is down are looked at apart, and must not always come last."""
    tenants = [await hands.tenant() for _ in range(6)]
    await opened(hands, tenants[2])
    for tenant in tenants:
        await owe(hands, tenant, "a", SMS)
    served = []
    for _ in range(3):
        served += [effect.tenant_id for effect in await hands.claim(limit=2)]
    assert sorted(served[:4]) == tenants[:4]


async def test_a_row_that_must_run_alone_waits_for_its_target_too(hands: Hands):
    tenant = await hands.tenant()
    await owe(hands, tenant, "a")
    effect = await hands.claim_one()
    for n in range(CRASHES_ALONE):
        await hands.age(LEASE + 1)
        effect = await hands.claim_one(alone=n + 1 >= CRASHES_ALONE)
    assert await hands.settles(effect, Deferred(after_seconds=0))
    await opened(hands, tenant)
    assert await hands.claim(alone=True) == []
    assert not (await hands.store.due(["mail"])).alone
    await hands.age(OPEN_SECONDS + 1)
    assert (await hands.store.due(["mail"])).alone
    effect = await hands.claim_one(alone=True)
    assert (effect.probe, effect.down_seconds) == (True, None)


# when there is nothing to look for ----------------------------------------------------------------------------


async def test_a_tenant_whose_rows_all_wait_for_a_target_is_not_looked_at_until_it_is_tried(hands: Hands):
    if hands.subject.store.__class__.__name__ == "MemoryStore":
        pytest.skip("claims look at the rows themselves here")
    tenant = await hands.tenant()
    await owe(hands, tenant, "ab")
    await opened(hands, tenant)
    assert (await hands.store.due(["mail"])).effects
    assert await hands.claim() == []
    assert not (await hands.store.due(["mail"])).effects
    assert await hands.rebuild_due() == 0
    await hands.age(OPEN_SECONDS + 1)
    assert (await hands.store.due(["mail"])).effects
    assert (await hands.claim_one()).key == "a"


async def test_a_probe_that_fails_sooner_than_its_lease_has_its_tenant_looked_at_sooner(hands: Hands):
    tenant = await hands.tenant()
    await owe(hands, tenant, "ab")
    await opened(hands, tenant)
    await hands.age(OPEN_SECONDS + 1)
    effect = await hands.claim_one()
    assert await hands.claim() == []
    assert await hands.settles(effect, Retry("refused", after_seconds=5))
    await opened(hands, tenant, seconds=5)
    await hands.age(6)
    assert (await hands.claim_one()).key == "b"
    assert await hands.rebuild_due() == 0


async def test_ordinary_traffic_beside_an_open_breaker_never_makes_the_index_late(hands: Hands):
    tenant = await hands.tenant()
    await owe(hands, tenant, "ab")
    await owe(hands, tenant, "x", SMS)
    await opened(hands, tenant)
    effect = await hands.claim_one()
    assert await hands.settles(effect, Retry("busy", after_seconds=10))
    assert await hands.claim() == []
    assert await hands.rebuild_due() == 0
    await hands.age(11)
    assert (await hands.claim_one()).key == "x"
    assert await hands.claim() == []
    assert await hands.rebuild_due() == 0
    await hands.age(OPEN_SECONDS)
    assert (await hands.claim_one()).key == "a"


# and nothing waits for ever -----------------------------------------------------------------------------------


async def test_what_has_waited_for_its_target_as_long_as_anything_may_is_handed_out_to_be_buried(
    hands: Hands,
):
    tenant = await hands.tenant()
    await owe(hands, tenant, "ab")
    await opened(hands, tenant, seconds=DEFER_LIMIT_SECONDS + 1000)
    await hands.age(DEFER_LIMIT_SECONDS - 10)
    await owe(hands, tenant, "c")
    assert await hands.claim() == []
    await hands.age(20)
    await owe(hands, tenant, "d")  # whoever brings its tenant to be looked at
    claimed = await hands.claim()
    assert keys(claimed) == "ab"
    for effect in claimed:
        assert effect.down_seconds is not None
        assert effect.deferred_seconds > DEFER_LIMIT_SECONDS
        assert not effect.probe


async def test_waiting_is_counted_from_when_the_row_was_due_and_the_target_down(hands: Hands):
    tenant = await hands.tenant()
    await owe(hands, tenant, "a")
    await hands.age(1000)
    await opened(hands, tenant)
    await hands.age(OPEN_SECONDS + 70)
    effect = await hands.claim_one()
    assert 95 < effect.deferred_seconds < 105


async def test_claims_carry_how_often_they_were_deferred(hands: Hands):
    tenant = await hands.tenant()
    await owe(hands, tenant, "a")
    for n in range(3):
        effect = await hands.claim_one()
        assert effect.deferrals == n
        assert await hands.settles(effect, Deferred(after_seconds=0))


async def test_a_kind_that_nobody_here_executes_is_no_probe(hands: Hands):
    tenant = await hands.tenant()
    await hands.owe(tenant, NewEffect("ship", key="s", target=SMTP))
    await owe(hands, tenant, "m")
    await opened(hands, tenant)
    await hands.age(OPEN_SECONDS + 1)
    effect = await hands.claim_one("mail")
    assert (effect.key, effect.probe) == ("m", True)
    assert await hands.settles(effect, Done())
