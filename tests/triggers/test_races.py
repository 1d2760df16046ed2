"""Rule changes, events, drains and launches at once, on real connections."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from mainspring.boards import verbs as board_verbs
from mainspring.rooms import ServerSpine
from mainspring.spine.events import NewEvent
from mainspring.triggers import checks, verbs
from mainspring.triggers.model import Definition

from .conftest import House

T = TypeVar("T")
MOVED = {"kinds": ["card.moved"], "to_states": ["ready"]}
RULE: Definition = checks.definition_of({"name": "r", "when": MOVED, "do": {"launch": {"agent": "echo"}}})


def elsewhere(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Run it as another request would be: outside of the transaction that is open here."""
    return asyncio.create_task(work, context=Context())


async def blocked(house: House) -> None:
    """Return once somebody waits for a row lock."""
    waits = False
    while not waits:
        async with house.db.tenant(house.tenant) as scope:
            waits = await scope.fetchval(
                "select exists (select from pg_locks where not granted and locktype in ('transactionid', 'tuple'))"
            )


async def agreed(house: House) -> int:
    """Check that a launch is owed exactly where explain says that a rule in force matched; return how many are."""
    matched = [
        f"{event.seq}:{one.rule_id}"
        for event in await house.events()
        for one in (await house.verdicts(event)).values()
        if one.matched
    ]
    assert sorted(await house.keys()) == sorted(matched)
    return len(matched)


async def test_a_rule_that_commits_after_an_event_never_judges_it(house: House) -> None:
    card = await house.card()
    async with house.spine.open(house.tenant) as tx:  # its author has read the head already
        await verbs.create_rule(tx, RULE, house.ana, enabled=True)
        await elsewhere(_move_and_drain(house, card))
    await house.spine.run_once()
    assert await agreed(house) == 0
    await house.move(card, "inbox")
    await house.move(card, "ready")
    await house.spine.run_once()
    assert await agreed(house) == 1


async def _move_and_drain(house: House, card: Any) -> None:
    await house.move(card, "ready")
    await house.spine.drain.run_once()


async def test_an_event_that_commits_after_a_rule_is_judged_by_it(house: House) -> None:
    card = await house.card()
    await house.spine.run_once()
    async with house.spine.open(house.tenant) as tx:
        locked = await board_verbs.lock_card(tx, card.id)
        assert locked is not None
        await board_verbs.move_card(tx, locked, "ready", house.ana, runs=house.runs)
        await elsewhere(_create_and_drain(house))
    await house.spine.run_once()
    assert await agreed(house) == 1


async def _create_and_drain(house: House) -> None:
    await house.rule(MOVED)
    await house.spine.drain.run_once()


async def test_two_engines_each_remember_rules_and_neither_is_stale(house: House, other: ServerSpine) -> None:
    card = await house.card()
    for n, engine in enumerate([house.spine, other] * 3):
        await house.rule(MOVED, name=f"r{n}")
        await house.move(card, "ready")
        await house.move(card, "inbox")
        await engine.drain.run_once()
        if n % 2:
            await house.rules.disable(house.ana, f"r{n - 1}")
    assert await agreed(house) == sum([1, 2, 2, 3, 3, 4])


@pytest.mark.slow
async def test_rules_events_and_drains_at_once_agree_on_every_verdict(
    house: House, other: ServerSpine
) -> None:
    cards = [await house.card(f"c{n}", labels=["a"] if n % 2 else []) for n in range(4)]

    async def move(card: Any) -> None:
        for n in range(12):
            await house.move(card, "ready" if n % 2 == 0 else "inbox")

    async def change(n: int) -> None:
        for turn in range(3):
            await house.rule(MOVED | {"labels_any": ["a", "b"]} if n else MOVED, name=f"r{n}{turn}")
            await house.rules.disable(house.ana, f"r{n}{turn}")
            await house.rules.enable(house.ana, f"r{n}{turn}")
            await house.rules.edit(house.ana, f"r{n}{turn}", {"when": {"kinds": ["card.moved"]}})

    done = asyncio.Event()

    async def drain(engine: ServerSpine) -> None:
        while not done.is_set():
            await engine.drain.run_once()

    drains = [asyncio.create_task(drain(engine)) for engine in (house.spine, other)]
    await asyncio.gather(*(move(card) for card in cards), *(change(n) for n in range(2)))
    done.set()
    await asyncio.gather(*drains)
    await house.spine.drain.run_once()
    assert await agreed(house) > 0


async def test_two_launches_on_one_label_spend_it_once(house: House, other: ServerSpine) -> None:
    when = {"kinds": ["card.moved"], "labels_all": ["go"]}
    for n in range(4):
        await house.rule(when, name=f"r{n}", consume_label=True)
    cards = [await house.card(f"c{n}", labels=["go"]) for n in range(4)]
    for card in cards:
        await house.move(card, "ready")
    await house.spine.drain.run_once()
    await asyncio.gather(house.spine.run_once(), other.run_once())
    assert sorted(run["card_id"] for run in await house.queued()) == sorted(card.id for card in cards)
    outcomes = [outcome for _, outcome, _ in await house.launches()]
    assert (outcomes.count("launched echo"), outcomes.count("dropped(label spent)")) == (4, 12)


async def test_whoever_disables_a_rule_waits_for_the_launch_under_way(house: House) -> None:
    rule = await house.rule(MOVED)
    async with house.spine.open(house.tenant) as tx:
        launched_by = await verbs.rule_in_force(tx, rule.id, 1, event_seq=1)
        assert not isinstance(launched_by, verbs.Gone)
        off = elsewhere(house.rules.disable(house.ana, "r"))
        await elsewhere(blocked(house))
        assert not off.done()
    assert (await off).version == 2
    async with house.spine.open(house.tenant) as tx:
        assert await verbs.rule_in_force(tx, rule.id, 1, event_seq=1) == verbs.Gone("rule disabled")


async def test_a_launch_that_waited_for_the_one_who_disables_sees_it_disabled(house: House) -> None:
    rule = await house.rule(MOVED)

    async def launch() -> Any:
        async with house.spine.open(house.tenant) as tx:
            return await verbs.rule_in_force(tx, rule.id, 1, event_seq=1)

    async with house.spine.open(house.tenant) as tx:
        locked = await verbs.lock_rule(tx, rule.id)
        assert locked is not None
        await verbs.change_rule(tx, locked, locked.definition, house.ana, enabled=False)
        waiting = elsewhere(launch())
        await elsewhere(blocked(house))
    assert await waiting == verbs.Gone("rule disabled")


async def test_an_editor_who_waited_sees_what_the_other_wrote(house: House) -> None:
    rule = await house.rule(MOVED)
    async with house.spine.open(house.tenant) as tx:
        locked = await verbs.lock_rule(tx, rule.id)
        assert locked is not None
        await verbs.change_rule(tx, locked, replace(locked.definition, name="s"), house.ana, enabled=True)
        second = elsewhere(house.rules.disable(house.ana, str(rule.id)))
        await elsewhere(blocked(house))
    after = await second
    assert (after.version, after.definition.name, after.enabled) == (3, "s", False)


async def test_a_rule_that_was_made_in_a_transaction_that_failed_never_was(house: House) -> None:
    with pytest.raises(ZeroDivisionError):
        async with house.spine.open(house.tenant) as tx:
            await verbs.create_rule(tx, RULE, house.ana, enabled=True)
            tx.append(NewEvent("custom.x"))
            raise ZeroDivisionError
    await house.move(await house.card(), "ready")
    await house.spine.run_once()
    assert await house.rules.list(house.tenant) == []
    assert await agreed(house) == 0
