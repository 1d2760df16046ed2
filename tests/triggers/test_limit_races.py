"""Limits under two workers at once, and a resume that meets a row on its way to be held, on real connections."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from mainspring.rooms import ServerSpine
from mainspring.spine.effects import Held, resolve
from mainspring.spine.ports import ClaimRequest
from mainspring.triggers import verbs
from mainspring.triggers.launch import LAUNCH

from .conftest import House
from .test_limits import lower_ceiling
from .test_races import blocked, elsewhere

pytestmark = pytest.mark.slow

CREATED = {"kinds": ["card.created"]}
MOVED = {"kinds": ["card.moved"], "to_states": ["ready"]}


async def at_once(house: House, other: ServerSpine) -> Counter[str]:
    """Drain, let two workers carry it all out beside each other; return what came of it, by its first words."""
    await house.spine.drain.run_once()
    await asyncio.gather(house.spine.run_once(), other.run_once())
    return Counter(str(outcome).split(":")[0] for outcome in await house.outcomes())


async def flap(house: House, *, times: int) -> None:
    """One card that comes into ready so often."""
    card = await house.card()
    for _ in range(times):
        await house.move(card, "ready")
        await house.move(card, "inbox")


@pytest.mark.slow
async def test_as_many_as_may_be_within_the_hour_and_one_pause(house: House, other: ServerSpine) -> None:
    await house.rule(CREATED, max_per_hour=3)
    for n in range(12):
        await house.card(f"c{n}")
    assert await at_once(house, other) == {"launched echo": 3, "held": 9}
    changes = [event.data["change"] for event in await house.events() if event.kind == "rule.changed"]
    assert changes == ["created", "paused"]
    assert (await house.rules.resume(house.ana, "r", owed="run")).held == 9
    assert await at_once(house, other) == {"launched echo": 12}


async def test_one_launch_within_the_cooldown(house: House, other: ServerSpine) -> None:
    await house.rule(MOVED, cooldown_seconds=600)
    await flap(house, times=8)
    assert await at_once(house, other) == {"launched echo": 1, "dropped(cooldown_seconds": 7}


async def test_no_run_beside_another_of_one_rule_or_of_two(house: House, other: ServerSpine) -> None:
    """The rule's lock keeps its own launches apart, the card's those of the other rule."""
    await house.rule(MOVED, name="a", while_running="skip")
    await house.rule(MOVED, name="b", while_running="skip")
    await flap(house, times=6)
    assert await at_once(house, other) == {"launched echo": 1, "dropped(while_running": 11}


async def test_one_runs_one_waits_and_the_rest_give_way(house: House, other: ServerSpine) -> None:
    await house.rule(MOVED, while_running="queue_one", prompt="{{event.seq}}")
    await flap(house, times=8)
    found = await at_once(house, other)
    assert found["launched echo"] == 1
    assert found["deferred"] <= 1
    assert found.total() == 8
    await house.end_runs()
    await house.later(seconds=60)
    await at_once(house, other)
    latest = max(
        event.seq
        for event in await house.events()
        if event.kind == "card.moved" and event.data["to"] == "ready"
    )
    prompts = [int(run["prompt"]) for run in await house.queued()]
    assert len(prompts) <= 2
    assert max(prompts) == latest  # whoever was first, the last of them was not lost


@pytest.mark.parametrize("per_hour", [1, 3])
async def test_the_ceiling_of_an_agent_is_never_passed(
    house: House, other: ServerSpine, per_hour: int
) -> None:
    for engine in (house.spine, other):
        lower_ceiling(engine, per_hour)
    for name in ("a", "b", "c"):
        await house.rule(CREATED, name=name)
    for n in range(4):
        await house.card(f"c{n}")
    assert await at_once(house, other) == {"launched echo": per_hour, "deferred": 12 - per_hour}


async def test_a_row_that_is_on_its_way_to_be_held_is_set_free_all_the_same(house: House) -> None:
    """Whoever holds a row does so under the rule's lock: a resume comes before or after, and never in between."""
    rule = await house.rule(MOVED)
    await house.rules.pause(house.ana, "r")
    await house.move(await house.card(), "ready")
    await house.spine.drain.run_once()
    claimed = await house.spine.store.claim(ClaimRequest(worker="w", lease_seconds={"launch": 60.0}, limit=1))
    [effect] = claimed.effects
    async with house.spine.open(house.tenant) as tx:
        found = await verbs.rule_in_force(tx, rule.id, 1, event_seq=effect.event_seq or 0)
        assert found == verbs.OnHold("by ana")
        resumed = elsewhere(house.rules.resume(house.ana, "r", owed="run"))
        await elsewhere(blocked(house))
        held = resolve(effect, Held("the rule is paused: by ana"), LAUNCH, random=0.5)
        assert (await house.spine.store.settle(tx.handle, [held])).accepted == {effect.id}
    assert (await resumed).held == 1
    await house.spine.run_once()
    assert await house.outcomes() == ["launched echo"]


async def test_a_launch_that_waited_for_a_pause_is_held(house: House) -> None:
    rule = await house.rule(MOVED)

    async def launch() -> object:
        async with house.spine.open(house.tenant) as tx:
            return await verbs.rule_in_force(tx, rule.id, 1, event_seq=1)

    async with house.spine.open(house.tenant) as tx:
        locked = await verbs.lock_rule(tx, rule.id)
        assert locked is not None
        await verbs.pause_rule(tx, locked, "stop", house.ana)
        waiting = elsewhere(launch())
        await elsewhere(blocked(house))
    assert await waiting == verbs.OnHold("stop")
