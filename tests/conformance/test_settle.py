"""Settling: fenced by the claim, written once, and telling whoever came late."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mainspring.ids import new_id
from mainspring.spine.effects import (
    Deferred,
    Done,
    Dropped,
    EffectKind,
    EffectState,
    Failed,
    Held,
    NewEffect,
    Outcome,
    Retry,
    Unknown,
    resolve,
)
from mainspring.spine.errors import Misuse
from tests.conformance.hands import LEASE, MAIL, Hands

ONCE = EffectKind(name="mail", idempotent=False)


@pytest.mark.parametrize(
    ("outcome", "kind", "state", "written"),
    [
        (Done(), MAIL, EffectState.DONE, "done"),
        (Done("sent to 3"), MAIL, EffectState.DONE, "sent to 3"),
        (Dropped("spent"), MAIL, EffectState.DROPPED, "dropped(spent)"),
        (Failed("no such address"), MAIL, EffectState.DEAD, "failed"),
        (Unknown("cut off"), ONCE, EffectState.DEAD, "unknown"),
    ],
)
async def test_an_outcome_that_ends_it_leaves_no_claim(
    hands: Hands, outcome: Outcome, kind: EffectKind, state: EffectState, written: str
):
    await hands.owe_one(await hands.tenant())
    effect = await hands.claim_one()
    assert await hands.settles(effect, outcome, kind=kind)
    row = await hands.row(effect)
    assert (row.state, row.outcome, row.claim_id, row.lease_until) == (state, written, None, None)
    assert row.error == getattr(outcome, "error", None)
    assert row.settled_at is not None
    await hands.age(LEASE * 1000)
    assert await hands.claim() == await hands.claim(alone=True) == []


async def test_a_retry_waits_and_comes_back_with_an_attempt_spent(hands: Hands):
    await hands.owe_one(await hands.tenant())
    effect = await hands.claim_one()
    assert await hands.settles(effect, Retry("busy", after_seconds=30))
    row = await hands.row(effect)
    assert (row.state, row.attempts, row.outcome, row.error) == (EffectState.PENDING, 1, "retry", "busy")
    assert (row.claim_id, row.lease_until, row.settled_at) == (None, None, None)
    await hands.age(25)
    assert await hands.claim() == []
    await hands.age(10)
    again = await hands.claim_one()
    assert (again.attempts, again.crashes, again.reclaimed) == (1, 0, False)
    assert again.idempotency_key == effect.idempotency_key


async def test_deferring_spends_no_attempt_and_remembers_since_when(hands: Hands):
    await hands.owe_one(await hands.tenant())
    for _ in range(3):
        effect = await hands.claim_one()
        assert await hands.settles(effect, Deferred("down", after_seconds=100))
        await hands.age(101)
    effect = await hands.claim_one()
    assert (effect.attempts, (await hands.row(effect)).deferrals) == (0, 3)
    assert 300 < effect.deferred_seconds < 320
    assert await hands.settles(effect, Retry("busy", after_seconds=0))
    assert (await hands.claim_one()).deferred_seconds == 0


async def test_a_settle_from_a_claim_that_another_has_taken_over_changes_nothing(hands: Hands):
    await hands.owe_one(await hands.tenant())
    old, new = await hands.stale()
    before = await hands.row(new)
    for outcome in (Done(), Dropped("x"), Retry("x"), Deferred(after_seconds=1), Failed("x"), Unknown("x")):
        assert not await hands.settles(old, outcome)
    assert await hands.row(new) == before
    assert [attempt.outcome for attempt in await hands.attempts(new)] == ["lease_lost"]
    assert await hands.settles(new)
    assert not await hands.settles(old)
    assert (await hands.row(new)).state == EffectState.DONE


async def test_a_late_settle_is_accepted_until_another_claims(hands: Hands):
    await hands.owe_one(await hands.tenant())
    effect = await hands.claim_one()
    await hands.age(LEASE * 10)
    assert await hands.settles(effect)
    assert await hands.claim() == []


async def test_a_claim_settles_once(hands: Hands):
    tenant = await hands.tenant()
    for key, outcome in enumerate((Done(), Retry("x", after_seconds=0), Failed("x"))):
        await hands.owe_one(tenant, key=f"{key}")
        effect = await hands.claim_one()
        assert await hands.settles(effect, outcome)
        before = await hands.row(effect)
        assert not await hands.settles(effect, Failed("again"))
        assert await hands.row(effect) == before
        for later in await hands.claim():
            assert await hands.settles(later)


async def test_the_claim_of_an_earlier_attempt_does_not_settle_a_later_one(hands: Hands):
    await hands.owe_one(await hands.tenant())
    first = await hands.claim_one()
    assert await hands.settles(first, Retry("busy", after_seconds=0))
    second = await hands.claim_one()
    assert not await hands.settles(first)
    assert (await hands.row(second)).claim_id == second.claim_id
    assert await hands.settles(second)


async def test_the_claim_from_before_a_replay_does_not_settle_after_it(hands: Hands):
    tenant = await hands.tenant()
    dead = await hands.dead(tenant)
    await hands.replay(tenant, [dead.id])
    assert not await hands.settles(dead)
    again = await hands.claim_one()
    assert not await hands.settles(dead)
    assert await hands.settles(again)


async def test_a_batch_tells_the_accepted_from_the_refused(hands: Hands):
    one, other = await hands.tenant(), await hands.tenant()
    await hands.owe_one(one, key="stale")
    old, new = await hands.stale()
    await hands.owe_one(one, key="a")
    await hands.owe_one(other, key="b")
    a, b = await hands.claim()
    settled = await hands.settle((a, Done()), (old, Done()), (b, Retry("busy")))
    assert settled.accepted == {a.id, b.id}
    assert settled.refused == {old.id}
    assert (await hands.row(new)).state == EffectState.CLAIMED


async def test_an_effect_that_is_not_there_is_refused(hands: Hands):
    tenant, stranger = await hands.tenant(), await hands.tenant()
    await hands.owe_one(tenant)
    effect = await hands.claim_one()
    for wrong in ({"id": new_id()}, {"tenant_id": stranger}, {"claim_id": new_id()}):
        assert not await hands.settles(replace(effect, **wrong))
    assert await hands.settles(effect)


async def test_a_settlement_without_a_claim_is_misuse(hands: Hands):
    # a fence that lets the empty claim through would settle rows that nobody holds
    tenant = await hands.tenant()
    await hands.owe_one(tenant)
    effect = await hands.claim_one()
    nobody: Any = None
    settlement = replace(resolve(effect, Done(), MAIL, random=0.5), claim_id=nobody)
    with pytest.raises(Misuse):
        async with hands.store.system("test") as tx:
            await hands.store.settle(tx, [settlement])
    assert (await hands.row(effect)).state == EffectState.CLAIMED


async def test_settling_nothing_is_nothing(hands: Hands):
    settled = await hands.settle()
    assert (settled.accepted, settled.refused) == (frozenset(), frozenset())


async def test_a_settle_in_a_transaction_that_is_undone_did_not_happen(hands: Hands):
    tenant = await hands.tenant()
    await hands.owe_one(tenant)
    effect = await hands.claim_one()
    with pytest.raises(ZeroDivisionError):
        async with hands.store.tenant(tenant) as tx:
            settled = await hands.store.settle(tx, [resolve(effect, Done(), MAIL, random=0.5)])
            assert settled.accepted == {effect.id}
            raise ZeroDivisionError
    assert (await hands.row(effect)).state == EffectState.CLAIMED
    assert await hands.settles(effect)


# attempts -----------------------------------------------------------------------------------------------------


async def test_a_first_attempt_that_simply_succeeds_leaves_no_record(hands: Hands):
    await hands.owe_one(await hands.tenant())
    effect = await hands.claim_one()
    assert await hands.settles(effect)
    assert await hands.attempts(effect) == []


async def test_every_other_attempt_is_recorded_in_order(hands: Hands):
    await hands.owe_one(await hands.tenant())
    first = await hands.claim_one(worker="w1")
    assert await hands.settles(first, Retry("busy", after_seconds=0))
    old, second = await hands.stale()
    assert await hands.settles(second)
    attempts = await hands.attempts(second)
    assert [(attempt.n, attempt.claim_id, attempt.worker, attempt.outcome, attempt.error) for attempt in attempts] == [
        (1, first.claim_id, "w1", "retry", "busy"),
        (2, old.claim_id, "w1", "lease_lost", None),
        (3, second.claim_id, "w2", "done", None),
    ]  # fmt: skip
    assert all(attempt.epoch == 0 and attempt.started_at <= attempt.ended_at for attempt in attempts)


async def test_what_could_not_be_tried_is_no_attempt(hands: Hands):
    # half an hour of a dead target would leave hundreds of rows that say nothing
    await hands.owe_one(await hands.tenant())
    effect = await hands.claim_one()
    assert await hands.settles(effect, Deferred("down", after_seconds=0))
    assert await hands.attempts(effect) == []
    assert ((await hands.row(effect)).outcome, (await hands.row(effect)).error) == ("deferred", "down")


async def test_what_was_tried_and_told_to_come_back_later_is_one(hands: Hands):
    await hands.owe_one(await hands.tenant())
    effect = await hands.claim_one()
    assert await hands.settles(effect, Deferred("too many", after_seconds=0, tried=True))
    [attempt] = await hands.attempts(effect)
    assert (attempt.outcome, attempt.error) == ("deferred", "too many")
    assert (await hands.row(effect)).attempts == 0


# cancelling ---------------------------------------------------------------------------------------------------


async def test_a_pending_effect_is_cancelled_at_once(hands: Hands):
    tenant = await hands.tenant()
    id_ = await hands.owe_one(tenant)
    assert await hands.cancel(tenant, id_) == EffectState.DROPPED
    assert await hands.claim() == []
    row = await hands.row((tenant, id_))
    assert (row.state, row.outcome, row.cancel_requested) == (EffectState.DROPPED, "dropped(cancelled)", True)
    assert row.settled_at is not None
    assert await hands.cancel(tenant, id_) == EffectState.DROPPED


async def test_a_claimed_effect_that_happens_all_the_same_is_done(hands: Hands):
    tenant = await hands.tenant()
    id_ = await hands.owe_one(tenant)
    effect = await hands.claim_one()
    assert await hands.cancel(tenant, id_) == EffectState.CLAIMED
    assert (await hands.row(effect)).cancel_requested
    assert await hands.settles(effect)
    assert (await hands.row(effect)).state == EffectState.DONE


@pytest.mark.parametrize(
    "outcome", [Retry("busy"), Deferred(after_seconds=5), Held("paused"), Unknown("cut off")]
)
async def test_a_cancelled_effect_that_would_be_tried_again_is_dropped_instead(
    hands: Hands, outcome: Outcome
):
    tenant = await hands.tenant()
    id_ = await hands.owe_one(tenant)
    effect = await hands.claim_one()
    await hands.cancel(tenant, id_)
    assert await hands.settles(effect, outcome)
    row = await hands.row(effect)
    assert (row.state, row.outcome, row.claim_id) == (EffectState.DROPPED, "dropped(cancelled)", None)
    await hands.age(10_000)
    assert await hands.claim() == []


async def test_what_is_held_is_not_due_however_long_it_waits(hands: Hands):
    tenant = await hands.tenant()
    await hands.owe_one(tenant)
    effect = await hands.claim_one()
    other = await hands.owe_one(tenant, key="2")
    assert await hands.settles(effect, Held("its rule is paused"))
    row = await hands.row(effect)
    assert (row.state, row.not_before, row.outcome, row.error) == (
        EffectState.PENDING,
        None,
        "held",
        "its rule is paused",
    )
    assert (row.attempts, row.deferrals, row.claim_id) == (0, 0, None)
    assert (await hands.claim_one()).id == other
    await hands.age(10 * 365 * 86_400)
    await hands.rebuild_due()
    assert [one.id for one in await hands.claim()] == [other]  # whose lease has run out
    assert await hands.cancel(tenant, effect.id) == EffectState.DROPPED


async def test_a_cancelled_effect_that_fails_for_good_is_dead(hands: Hands):
    tenant = await hands.tenant()
    id_ = await hands.owe_one(tenant)
    effect = await hands.claim_one()
    await hands.cancel(tenant, id_)
    assert await hands.settles(effect, Failed("no such address"))
    assert (await hands.row(effect)).state == EffectState.DEAD


async def test_a_request_to_cancel_outlives_its_worker(hands: Hands):
    tenant = await hands.tenant()
    id_ = await hands.owe_one(tenant)
    await hands.claim_one()
    await hands.cancel(tenant, id_)
    await hands.age(LEASE + 1)
    effect = await hands.claim_one()
    assert await hands.settles(effect, Retry("busy"))
    assert (await hands.row(effect)).state == EffectState.DROPPED


async def test_cancelling_what_is_over_or_absent_changes_nothing(hands: Hands):
    tenant = await hands.tenant()
    assert await hands.cancel(tenant, new_id()) is None
    dead = await hands.dead(tenant)
    before = await hands.row(dead)
    assert await hands.cancel(tenant, dead.id) == EffectState.DEAD
    assert await hands.row(dead) == before
    id_ = await hands.owe_one(tenant, key="2")
    assert await hands.settles(await hands.claim_one())
    assert await hands.cancel(tenant, id_) == EffectState.DONE
    assert not (await hands.row((tenant, id_))).cancel_requested


async def test_a_cancelled_effect_keeps_its_key(hands: Hands):
    tenant = await hands.tenant()
    id_ = await hands.owe_one(tenant)
    await hands.cancel(tenant, id_)
    [answer] = await hands.owe(tenant, NewEffect("mail", key="1"))
    assert (answer.id, getattr(answer, "state", None)) == (id_, EffectState.DROPPED)
