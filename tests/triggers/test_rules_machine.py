"""Rules that are made, edited, switched, paused and deleted while cards move and two drains work, against a model that reads the log.

A machine of Hypothesis takes the steps: changes that are begun and committed later, or never; drains that stop between reading the
log and reading the rules, and may die there. After every step, what lies below the cursor owes what the model says, once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from mainspring.boards.model import Card
from mainspring.rooms import ServerSpine
from mainspring.triggers import checks, explain, verbs
from tests.databases import Database, Databases
from tests.races.steps import Pause, Side

from .conftest import House, another_engine, house_on
from .owing import Model, drainer

T = TypeVar("T")
Run = Callable[[Awaitable[T]], T]

NAMES = ("a", "b", "c")
WHENS: tuple[dict[str, Any], ...] = (
    {"kinds": ["card.moved"], "to_states": ["ready"]},
    {"kinds": ["card.moved"], "to_states": ["doing", "shipped"]},
    {"kinds": ["card.moved"], "labels_any": ["x"]},
    {"kinds": ["card.moved", "card.labeled"], "labels_none": ["x"]},
    {"kinds": ["card.labeled"], "labels_added": ["x"]},
)
STATES = ("inbox", "ready", "doing", "shipped")
names, whens = st.sampled_from(NAMES), st.sampled_from(WHENS)


class Died(Exception):
    """A drain, or whoever changes a rule, ends before its commit."""


class RulesMachine(RuleBasedStateMachine):
    """The steps."""

    def __init__(self, run: Run[Any], database: Database) -> None:
        super().__init__()
        self.run = run
        self.stack = AsyncExitStack()
        self.house: House = run(self.stack.enter_async_context(house_on(database)))
        self.engines: tuple[ServerSpine, ServerSpine] = (self.house.spine, another_engine(self.house))
        self.cards: list[Card] = [run(self.house.card(f"c{n}")) for n in range(2)]
        self.rules: dict[str, bool] = {}  # by name, whether it is enabled
        self.held: tuple[str, Side] | None = None  # a change that is begun and not committed, and its rule
        self.drain: Side | None = None  # a drain under way
        self.model = Model()
        self.seq = 0

    @initialize()
    def begin(self) -> None:
        self.make("a", WHENS[0])

    def free(self, name: str) -> bool:
        """Whether a rule is there, and nobody is changing it."""
        return name in self.rules and (self.held is None or self.held[0] != name)

    # rules

    @rule(name=names, when=whens)
    def make(self, name: str, when: dict[str, Any]) -> None:
        if name not in self.rules:
            self.run(self.house.rule(when, name=name))
            self.rules[name] = True

    @rule(name=names, when=whens)
    def edit(self, name: str, when: dict[str, Any]) -> None:
        if self.free(name):
            self.run(self.house.rules.edit(self.house.ana, name, {"when": when}))

    @rule(name=names)
    def switch(self, name: str) -> None:
        if self.free(name):
            verb = self.house.rules.disable if self.rules[name] else self.house.rules.enable
            self.run(verb(self.house.ana, name))
            self.rules[name] = not self.rules[name]

    @rule(name=names)
    def pause_and_resume(self, name: str) -> None:
        if self.free(name) and self.rules[name]:
            self.run(self.house.rules.pause(self.house.ana, name))
            self.run(self.house.rules.resume(self.house.ana, name, owed="run"))

    @rule(name=names)
    def delete(self, name: str) -> None:
        if self.free(name):
            self.run(self.house.rules.delete(self.house.ana, name))
            del self.rules[name]

    @rule(name=names, when=whens, dies=st.booleans())
    def begin_an_edit(self, name: str, when: dict[str, Any], dies: bool) -> None:
        """Its rule is locked and its new version written, and it has read the log's head; its event is not appended yet."""
        if self.held is not None or not self.free(name):
            return

        async def change(pause: Pause) -> None:
            async with self.house.spine.open(self.house.tenant) as tx:
                rule_id = await verbs.find_rule(tx.handle, tx.tenant, name)
                assert rule_id is not None
                locked = await verbs.lock_rule(tx, rule_id)
                assert locked is not None
                body = {**locked.definition.as_json(), "when": when}
                await verbs.change_rule(
                    tx, locked, checks.definition_of(body), self.house.ana, enabled=locked.enabled
                )
                await pause()
                if dies:
                    raise Died

        self.held = name, self.run(self.started(change))
        self.run(self.step(self.held[1]))

    @rule()
    def end_the_edit(self) -> None:
        if self.held is not None:
            self.run(self.ended(self.held[1]))
            self.held = None

    # cards

    @rule(card=st.integers(0, 1), to_state=st.sampled_from(STATES))
    def move(self, card: int, to_state: str) -> None:
        self.run(self.house.move(self.cards[card], to_state))

    @rule(card=st.integers(0, 1), adds=st.booleans())
    def label(self, card: int, adds: bool) -> None:
        change = {"add": ["x"]} if adds else {"remove": ["x"]}
        self.run(self.house.boards.label_card(self.house.ana, self.cards[card].key, **change))

    # drains

    @rule(engine=st.integers(0, 1))
    def drain_a_round(self, engine: int) -> None:
        """Beside one that is under way it finds the cursor locked, and passes the tenant by."""
        drained = self.run(self.engines[engine].drain.run_once())
        assert self.drain is None or drained.events == 0

    @rule(engine=st.integers(0, 1))
    def begin_a_drain(self, engine: int) -> None:
        if self.drain is None:
            self.drain = self.run(self.started(drainer(self.engines[engine])))
            self.go_on()

    @rule()
    def go_on(self) -> None:
        """From the log to the rules; from the rules to the commit."""
        if self.drain is not None:
            self.run(self.step(self.drain))
            if self.drain.task.done():
                self.drain.task.result()
                self.drain = None

    @rule()
    def die(self) -> None:
        if self.drain is not None:
            self.run(self.killed(self.drain))
            self.drain = None

    @rule()
    def carry_out(self) -> None:
        """What is owed is done or dropped; it stays owed once."""
        if self.drain is None and self.held is None:
            self.run(self.engines[1].run_once())

    # what always holds

    @invariant()
    def what_is_drained_owes_what_the_model_says(self) -> None:
        self.run(self.compare())

    async def compare(self) -> None:
        house = self.house
        async with house.db.tenant(house.tenant) as scope:
            for event in await house.spine.store.read(scope, house.tenant, after=self.seq, limit=1_000):
                self.model.read(event)
                self.seq = event.seq
            position = await scope.fetchval("select position from mainspring.cursors")
            keys = await scope.fetch("select key from mainspring.effects where kind = 'launch'")
        assert sorted(row["key"] for row in keys) == sorted(self.model.through(position))

    def teardown(self) -> None:
        try:
            self.run(self.at_the_end())
        finally:
            self.run(self.stack.aclose())

    async def at_the_end(self) -> None:
        """Everything is drained, each verdict can be recomputed, and what was owed is done or dropped."""
        for side in (self.drain, self.held and self.held[1]):
            if side is not None:
                await self.ended(side)
        for engine in self.engines:
            await engine.run_once()
        await self.compare()
        house = self.house
        events = await house.events()
        async with house.db.tenant(house.tenant) as scope:
            explained = [
                f"{event.seq}:{one.rule_id}"
                for event in events
                for one in await explain.verdicts(scope, event)
                if one.matched
            ]
        assert sorted(explained) == sorted(self.model.through(self.seq))
        assert {state for state, _, _ in await house.launches()} <= {"done", "dropped"}

    # sides

    async def started(self, work: Any) -> Side:
        return Side(work)

    async def step(self, side: Side) -> None:
        side.go()
        await side.stands.wait()

    async def ended(self, side: Side) -> None:
        while not side.task.done():
            side.go()
            await asyncio.wait(
                {side.task, asyncio.ensure_future(side.stands.wait())}, return_when="FIRST_COMPLETED"
            )
            await asyncio.sleep(0)
        if not isinstance(side.task.exception(), Died):
            side.task.result()

    async def killed(self, side: Side) -> None:
        side.task.cancel()
        await asyncio.gather(side.task, return_exceptions=True)


@pytest.fixture
def run() -> Iterator[Run[Any]]:
    """A loop of the machine's own: its rules are not coroutines."""
    loop = asyncio.new_event_loop()
    yield loop.run_until_complete
    loop.close()


@pytest.fixture
async def database(databases: Databases) -> Database:
    """A migrated database, made in the session's own loop."""
    return await databases.create("server")


@pytest.mark.slow
def test_rules_that_change_under_way_owe_what_the_model_says(run: Run[Any], database: Database) -> None:
    run_state_machine_as_test(
        lambda: RulesMachine(run, database),
        settings=settings(
            max_examples=20, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
