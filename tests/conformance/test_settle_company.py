"""A store may have a shorter way for a batch that simply succeeded: what becomes of a row must not depend on its company."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from mainspring.spine.effects import Deferred, Done, Effect, EffectState, NewEffect, Retry
from tests.conformance.hands import LEASE, Hands

OWN = {"id", "key", "created_at", "settled_at", "not_before"}


async def waited(hands: Hands, keys: str) -> list[Effect]:
    """Claim effects of one tenant that were each deferred once before, with the reason noted on the row."""
    await hands.owe(await hands.tenant(), *(NewEffect("mail", key=key) for key in keys))
    await hands.settle(*((effect, Deferred("not yet", after_seconds=0.0)) for effect in await hands.claim()))
    await hands.age(1)
    return sorted(await hands.claim(), key=lambda effect: effect.key)


async def told(hands: Hands, effect: Effect) -> dict[str, Any]:
    return {name: value for name, value in asdict(await hands.row(effect)).items() if name not in OWN}


async def test_a_row_that_succeeds_looks_the_same_alone_and_beside_a_failure(hands: Hands):
    alone, beside, failing = await waited(hands, "123")
    await hands.settle((alone, Done()))
    await hands.settle((beside, Done()), (failing, Retry("busy", after_seconds=30)))
    assert await told(hands, alone) == await told(hands, beside)
    row = await hands.row(alone)
    assert (row.state, row.outcome, row.error, row.deferrals) == (EffectState.DONE, "done", None, 1)
    assert await hands.attempts(alone) == await hands.attempts(beside)


async def test_of_a_batch_that_succeeded_only_what_another_has_taken_is_refused(hands: Hands):
    await hands.owe(await hands.tenant(), *(NewEffect("mail", key=key) for key in "12"))
    lost, kept = sorted(await hands.claim(), key=lambda effect: effect.key)
    await hands.settle((kept, Done()))
    await hands.age(LEASE * 2)
    [taken] = await hands.claim()
    settled = await hands.settle((kept, Done()), (lost, Done()))
    assert settled.refused == {kept.id, lost.id}
    assert (await hands.row(taken)).claim_id == taken.claim_id
    assert (await hands.settle((taken, Done()))).accepted == {taken.id}
