"""Every order in which a rule's author, a mover of cards and a drain can take their steps; every order of two launches on one card."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from mainspring.boards import verbs as board_verbs
from mainspring.boards.model import Card
from mainspring.rooms import ServerSpine
from mainspring.spine.effects import Effect, Outcome, resolve
from mainspring.spine.ports import ClaimRequest
from mainspring.triggers import checks, explain, verbs
from mainspring.triggers.effects import LAUNCH
from mainspring.triggers.launch import Launcher
from tests.races.steps import Pause, Work, orders, play

from .conftest import House
from .owing import Model, drainer

pytestmark = pytest.mark.slow

READY = {"kinds": ["card.moved"], "to_states": ["ready"]}
MOVED_ON = {"kinds": ["card.moved"], "to_states": ["ready", "shipped"]}


@pytest.fixture
async def watch(house: House) -> AsyncIterator[asyncpg.Connection]:
    conn = await asyncpg.connect(**house.admin)
    yield conn
    await conn.close()


# A rule's author (R), somebody who moves a card (M), and a drain (D) -----------------------------------------------


BOTH = checks.definition_of(
    {"name": "gone and made", "when": MOVED_ON, "do": {"launch": {"agent": "echo", "prompt": "p"}}}
)


def author(house: House, edited: UUID, made: list[UUID]) -> Work:
    """Edits a rule, and makes another or deletes it, in one transaction: a pause between its events and its commit."""

    async def work(pause: Pause) -> None:
        async with house.db.unit(house.tenant):
            async with house.spine.open(house.tenant) as tx:
                rule = await verbs.lock_rule(tx, edited)
                assert rule is not None
                terms = rule.definition.terms
                flipped = replace(terms, to_states=frozenset({"ready", "shipped"} - terms.to_states))
                definition = replace(rule.definition, terms=flipped)
                await verbs.change_rule(tx, rule, definition, house.ana, enabled=True)
                if made:
                    old = await verbs.lock_rule(tx, made.pop())
                    assert old is not None
                    await verbs.delete_rule(tx, old, house.ana)
                else:
                    made.append((await verbs.create_rule(tx, BOTH, house.ana, enabled=True)).id)
            await pause()

    return work


def mover(house: House, card: Card, to_state: str) -> Work:
    """Moves the card, to where one version of the edited rule waits for it."""

    async def work(pause: Pause) -> None:
        async with house.db.unit(house.tenant):
            await house.move(card, to_state)
            await pause()

    return work


def differs(schedule: str) -> bool:
    """Whether it is no other schedule said differently: who appends second waits for the first one's commit, whenever it began."""
    return "".join(side for side in schedule if side != "D") in {"RRMM", "MMRR", "RMRM", "MRMR"}


async def test_in_every_order_of_author_mover_and_drain_the_version_in_force_judges(
    house: House, other: ServerSpine, watch: asyncpg.Connection
) -> None:
    card = await house.card()
    edited = (await house.rule(READY, name="edited")).id
    engines, made, model = (house.spine, other), list[UUID](), Model()
    schedules = [schedule for schedule in orders({"R": 2, "M": 2, "D": 3}) if differs(schedule)]
    assert len(schedules) == 140
    seq = 0
    for n, schedule in enumerate(schedules):
        works = {
            "R": author(house, edited, made),
            "M": mover(house, card, ("ready", "shipped")[n % 2]),
            "D": drainer(engines[n // 2 % 2]),
        }
        await play(schedule, works, watch)
        await engines[n % 2].drain.run_once()
        async with house.db.tenant(house.tenant) as scope:
            for event in await house.spine.store.read(scope, house.tenant, after=seq, limit=100):
                model.read(event)
                seq = event.seq
            keys = [row["key"] for row in await scope.fetch("select key from mainspring.effects")]
        assert sorted(keys) == sorted(model.through(seq)), schedule
    owed = model.through(seq)
    assert len(owed) > 100
    moves = [event for event in await house.events() if event.kind == "card.moved"]
    async with house.db.tenant(house.tenant) as scope:
        explained = {
            f"{event.seq}:{one.rule_id}"
            for event in moves
            for one in await explain.verdicts(scope, event)
            if one.matched
        }
    assert explained == owed


# Two launches on one card (A and B) ---------------------------------------------------------------------------------


class Stepwise:
    """A room's verbs, with a pause before each of those that a launch locks and writes by."""

    def __init__(self, verbs_: Any, pause: Pause, *names: str) -> None:
        self._verbs = verbs_
        self._pause = pause
        self._names = names

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._verbs, name)
        if name not in self._names:
            return verb

        async def paused(*args: Any, **more: Any) -> Any:
            await self._pause()
            return await verb(*args, **more)

        return paused


def launcher(house: House, effect: Effect) -> Work:
    """Holds the rule; locks the card and decides; queues the run, settles and commits."""

    async def work(pause: Pause) -> Outcome:
        run = Launcher(
            house.spine.store,
            Stepwise(board_verbs, pause, "lock_card"),
            Stepwise(house.runs, pause, "queue_run"),
        )
        async with house.spine.open(house.tenant) as tx:
            outcome = await run(effect, tx)
            settled = resolve(effect, outcome, LAUNCH, random=0.5)
            assert (await house.spine.store.settle(tx.handle, [settled])).accepted == {effect.id}
        return outcome

    return work


ONE_LAUNCH = {
    "one label": ({"consume_label": True}, {"consume_label": True}, "dropped(label spent)"),
    "no run beside another": ({"while_running": "skip"}, {"while_running": "skip"}, "dropped(while_running"),
    "a rule that does not mind, and one that does": ({}, {"while_running": "skip"}, "dropped(while_running"),
    "one waits": ({"while_running": "queue_one"}, {"while_running": "queue_one"}, "deferred"),
    "one rule, resting": ({"cooldown_seconds": 600}, None, "dropped(cooldown_seconds"),
    "one rule, once an hour": ({"max_per_hour": 1}, None, "held"),
}


@pytest.mark.parametrize("name", ONE_LAUNCH)
async def test_in_every_order_of_two_launches_on_a_card_one_gives_way(
    house: House, watch: asyncpg.Connection, name: str
) -> None:
    one, two, gives_way = ONE_LAUNCH[name]
    when = READY | {"labels_all": ["go"]}
    schedules = list(orders({"A": 3, "B": 3}))
    assert len(schedules) == 20
    for schedule in schedules:
        card = await house.card(schedule, labels=["go"])
        await house.rule(when, name="one", **one)
        if two is not None:
            await house.rule(when, name="two", **two)
        for _ in range(2 if two is None else 1):
            await house.move(card, "ready")
            await house.move(card, "inbox")
        await house.spine.drain.run_once()
        claim = ClaimRequest(worker="w", lease_seconds={"launch": 60.0}, limit=2)
        first, second = sorted((await house.spine.store.claim(claim)).effects, key=lambda one: one.id)
        await play(schedule, {"A": launcher(house, first), "B": launcher(house, second)}, watch)
        outcomes = (await house.outcomes())[-2:]
        waits = [outcome for outcome in outcomes if str(outcome).startswith(gives_way)]
        launched = outcomes.count("launched echo")
        # a rule that does not mind launches beside the other's run, if it comes second
        assert (launched, len(waits)) == (1, 1) or ({} in (one, two) and launched == 2), (schedule, outcomes)
        assert len([run for run in await house.queued() if run["card_id"] == card.id]) == launched
        for rule in ("one", "two")[: 1 if two is None else 2]:
            await house.rules.delete(house.ana, rule)
        await house.later(
            seconds=60
        )  # what was put off is given up with its rule, and not claimed in the next order
        await house.spine.run_once()
        await house.end_runs()
