"""What becomes of the dead: replayed, discarded, and never trimmed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mainspring.ids import new_id
from mainspring.spine.effects import Deferred, Done, Dropped, EffectState, Failed, Retry
from tests.conformance.hands import LEASE, Hands

DAY = 86_400.0


async def test_one_replay_gives_each_effect_the_key_that_is_asked_for_it(hands: Hands):
    tenant = await hands.tenant()
    keys = {(await hands.dead(tenant, key=f"{n}")).id: n % 2 == 0 for n in range(4)}
    asked = [(row, keys[row.id]) for row in reversed(await hands.rows(tenant))]
    async with hands.store.tenant(tenant) as tx:
        assert await hands.store.replay(tx, tenant, asked) == sorted(keys)
    assert {row.id: row.epoch for row in await hands.rows(tenant)} == keys


@pytest.mark.parametrize("new_key", [False, True])
async def test_a_replayed_effect_is_due_at_once_with_fresh_budgets(hands: Hands, new_key: bool):
    tenant = await hands.tenant()
    dead = await hands.dead(tenant, spent=2)
    assert (await hands.row(dead)).attempts == 3
    assert await hands.replay(tenant, [dead.id], new_key=new_key) == [dead.id]
    row = await hands.row(dead)
    assert (row.state, row.attempts, row.crashes, row.deferrals) == (EffectState.PENDING, 0, 0, 0)
    assert (row.outcome, row.error, row.settled_at, row.claim_id) == (None, None, None, None)
    again = await hands.claim_one()
    assert (again.attempts, again.crashes, again.reclaimed, again.deferred_seconds) == (0, 0, False, 0)
    assert again.epoch == new_key
    assert (again.idempotency_key == dead.idempotency_key) is not new_key
    assert await hands.settles(again)


async def test_a_replay_gives_back_the_right_to_run_beside_others(hands: Hands):
    tenant = await hands.tenant()
    await hands.owe_one(tenant)
    effect = await hands.claim_one()
    for alone in (False, True):
        await hands.age(LEASE + 1)
        effect = await hands.claim_one(alone=alone)
    assert effect.crashes == 2
    assert await hands.settles(effect, Failed("x"))
    await hands.replay(tenant, [effect.id])
    assert (await hands.claim_one()).crashes == 0


async def test_a_replay_forgets_a_request_to_cancel(hands: Hands):
    tenant = await hands.tenant()
    await hands.owe_one(tenant)
    effect = await hands.claim_one()
    await hands.cancel(tenant, effect.id)
    assert await hands.settles(effect, Failed("x"))
    await hands.replay(tenant, [effect.id])
    again = await hands.claim_one()
    assert await hands.settles(again, Retry("busy", after_seconds=0))
    assert (await hands.row(again)).state == EffectState.PENDING


async def test_the_attempts_from_before_a_replay_stay_on_record(hands: Hands):
    tenant = await hands.tenant()
    dead = await hands.dead(tenant, spent=1)
    await hands.replay(tenant, [dead.id], new_key=True)
    again = await hands.claim_one()
    assert await hands.settles(again, Failed("still"))
    attempts = await hands.attempts(again)
    assert [(attempt.n, attempt.epoch, attempt.outcome) for attempt in attempts] == [
        (1, 0, "retry"), (2, 0, "failed"), (3, 1, "failed"),
    ]  # fmt: skip
    assert await hands.tried(tenant, dead.id) == 1  # under the key that it has now
    await hands.replay(tenant, [dead.id], new_key=True)
    assert (await hands.claim_one()).epoch == 2
    assert await hands.tried(tenant, dead.id) is None


async def test_the_attempts_under_one_key_are_counted_together_however_often_it_is_replayed(hands: Hands):
    tenant = await hands.tenant()
    dead = await hands.dead(tenant, spent=1)
    await hands.dead(tenant, key="another")
    await hands.replay(tenant, [dead.id])
    assert await hands.settles(await hands.claim_one(), Failed("still"))
    assert await hands.tried(tenant, dead.id) == 3
    assert await hands.tried(await hands.tenant(), dead.id) is None


async def test_only_dead_effects_of_this_tenant_are_replayed(hands: Hands):
    tenant, other = await hands.tenant(), await hands.tenant()
    dead = await hands.dead(tenant, key="dead")
    theirs = await hands.dead(other, key="theirs")
    done = await hands.owe_one(tenant, key="done")
    assert await hands.settles(await hands.claim_one())
    pending = await hands.owe_one(tenant, key="pending")
    read = [await hands.row(one) for one in (theirs, (tenant, done), (tenant, pending), dead)]
    asked = [(replace(row, settled_at=read[-1].settled_at), False) for row in read]
    asked += [(row, False) for row in (*read, replace(read[-1], id=new_id()))]
    for moved in ([dead.id], []):
        async with hands.store.tenant(tenant) as tx:
            assert await hands.store.replay(tx, tenant, asked) == moved
            await hands.store.make_due(tx, [(tenant, effect) for effect in moved])
    assert await hands.replay(tenant, []) == []
    assert (await hands.row(theirs)).state == EffectState.DEAD
    assert (await hands.row((tenant, done))).state == EffectState.DONE


async def test_one_that_has_died_anew_since_it_was_read_is_not_replayed_by_what_was_decided_of_it(
    hands: Hands,
):
    """It failed at its one attempt, and would get a new key; somebody replayed it meanwhile, and that attempt may have happened."""
    tenant = await hands.tenant()
    dead = await hands.dead(tenant)
    read = await hands.row(dead)
    assert await hands.replay(tenant, [dead.id]) == [dead.id]
    assert await hands.settles(await hands.claim_one(), Failed("no such address"))
    now = await hands.row(dead)
    assert (now.state, now.epoch, now.outcome) == (read.state, read.epoch, read.outcome)
    async with hands.store.tenant(tenant) as tx:
        assert await hands.store.replay(tx, tenant, [(read, True)]) == []
    assert await hands.row(dead) == now
    async with hands.store.tenant(tenant) as tx:
        assert await hands.store.replay(tx, tenant, [(now, True)]) == [dead.id]


async def test_a_discarded_effect_is_over_and_says_why(hands: Hands):
    tenant = await hands.tenant()
    dead = await hands.dead(tenant)
    assert await hands.discard(tenant, [dead.id, dead.id], reason="customer gone") == [dead.id]
    row = await hands.row(dead)
    assert (row.state, row.outcome, row.error) == (
        EffectState.DISCARDED, "discarded(customer gone)", "no such address",
    )  # fmt: skip
    assert await hands.discard(tenant, [dead.id]) == []
    assert await hands.replay(tenant, [dead.id]) == []
    assert (await hands.row(dead)).state == EffectState.DISCARDED
    assert await hands.claim() == []


async def test_only_dead_effects_are_discarded(hands: Hands):
    tenant, other = await hands.tenant(), await hands.tenant()
    theirs = await hands.dead(other, key="theirs")
    pending = await hands.owe_one(tenant, key="pending")
    assert await hands.discard(tenant, [pending, theirs.id, new_id()]) == []
    assert (await hands.row((tenant, pending))).state == EffectState.PENDING


# retention ----------------------------------------------------------------------------------------------------


async def test_final_effects_are_trimmed_when_they_are_old_enough_and_the_rest_is_kept(hands: Hands):
    tenant = await hands.tenant()
    for key, outcome in {
        "done": Done(),
        "dropped": Dropped("x"),
        "dead": Failed("x"),
        "waits": Deferred(after_seconds=1e8),
    }.items():
        await hands.owe_one(tenant, key=key)
        assert await hands.settles(await hands.claim_one(), outcome)
    discarded = await hands.dead(tenant, key="discarded")
    await hands.discard(tenant, [discarded.id])
    await hands.owe_one(tenant, key="claimed")
    await hands.claim_one(lease=30 * DAY)
    await hands.age(7 * DAY)
    await hands.owe_one(tenant, key="late")
    assert await hands.settles(await hands.claim_one())
    assert await hands.trim(done_seconds=6 * DAY, limit=2) == 2
    assert await hands.trim(done_seconds=6 * DAY) == 1
    assert await hands.trim(done_seconds=6 * DAY) == 0
    kept = {row.key: row.state for row in await hands.rows(tenant)}
    assert kept == {
        "dead": EffectState.DEAD, "waits": EffectState.PENDING, "claimed": EffectState.CLAIMED, "late": EffectState.DONE,
    }  # fmt: skip


async def test_age_is_counted_from_the_settle_not_from_the_owing(hands: Hands):
    tenant = await hands.tenant()
    await hands.owe_one(tenant)
    await hands.age(30 * DAY)
    assert await hands.settles(await hands.claim_one())
    assert await hands.trim(done_seconds=7 * DAY) == 0


async def test_a_trimmed_effect_takes_its_attempts_along(hands: Hands):
    tenant = await hands.tenant()
    await hands.owe_one(tenant)
    assert await hands.settles(await hands.claim_one(), Retry("busy", after_seconds=0))
    effect = await hands.claim_one()
    assert await hands.settles(effect)
    assert len(await hands.attempts(effect)) == 2
    await hands.age(8 * DAY)
    assert await hands.trim(done_seconds=7 * DAY) == 1
    assert await hands.attempts(effect) == []
    assert await hands.rows(tenant) == []
    assert not await hands.settles(effect)
