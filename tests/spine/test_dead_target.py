"""Two budgets, on every store: a target that is down costs its effects nothing, and an effect that breaks its target stops nobody."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from mainspring.spine.breaker import FAILURES_MAX, OPEN, BreakerRow
from mainspring.spine.effects import (
    DEFER_LIMIT_SECONDS,
    Done,
    Effect,
    EffectRow,
    Failed,
    NewEffect,
    Outcome,
    Retry,
)
from mainspring.spine.engine import Spine, SpineSettings
from mainspring.spine.errors import BadData, Transient
from mainspring.spine.events import Event, NewEvent
from mainspring.spine.ports import Owes
from tests.conformance.hands import LEASE, Hands

MAX_ATTEMPTS = FAILURES_MAX + 2
STUCK = 30.0
SLOTS = 8


@dataclass
class Office:
    """A program that sends mails through one server, and faxes beside it. What they answer can be changed."""

    spine: Spine[Any]
    hands: Hands
    tenant: UUID
    down: bool = False
    poison: frozenset[str] = frozenset()
    tried: list[str] = field(default_factory=list)
    answer: Outcome | Exception = field(default_factory=lambda: Retry("connection refused"))

    async def send(self, effect: Effect) -> Outcome:
        self.tried.append(effect.key)
        if self.down or effect.key in self.poison:
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer
        return Done()

    async def owe(self, *names: str, kind: str = "mail", **more: Any) -> None:
        async with self.spine.open(self.tenant) as tx:
            for key in names:
                await tx.owe(NewEffect(kind, key=key, **more))

    async def run(self) -> list[str]:
        """Do what is due; return what was tried."""
        self.tried.clear()
        async with asyncio.timeout(STUCK):
            await self.spine.run_once()
        return list(self.tried)

    async def after(self, seconds: float) -> list[str]:
        await self.hands.age(seconds)
        return await self.run()

    async def rows(self) -> dict[str, EffectRow]:
        return {row.key: row for row in await self.hands.rows(self.tenant, limit=1000)}

    async def states(self) -> dict[str, int]:
        return Counter(row.state.value for row in (await self.rows()).values())

    async def breaker(self) -> BreakerRow | None:
        async with self.hands.store.tenant(self.tenant) as tx:
            found = await self.hands.store.breakers(tx, self.tenant)
        return found[0] if found else None


@pytest.fixture
async def office(hands: Hands) -> Office:
    spine: Spine[Any] = Spine(hands.store, SpineSettings(grace_seconds=0, slots=SLOTS), name="w1")
    made = Office(spine, hands, await hands.tenant())
    spine.effect("mail", target="smtp", max_attempts=MAX_ATTEMPTS, lease_seconds=LEASE)(made.send)
    spine.effect("fax", lease_seconds=LEASE)(made.send)
    return made


async def broken(office: Office) -> None:
    """Let the mail server be found down."""
    office.down = True
    await office.run()
    for _ in range(3):
        await office.after(60)
    breaker = await office.breaker()
    assert breaker is not None
    assert breaker.trips


@pytest.mark.slow
async def test_thirty_minutes_of_a_dead_target_dead_letter_nothing(office: Office):
    office.down = True
    names = [str(n) for n in range(20)]
    await office.owe(*names)
    await office.run()
    tries = 0
    for _ in range(30):
        tries += len(await office.after(60))
    rows = await office.rows()
    assert await office.states() == {"pending": 20}
    assert max(row.attempts for row in rows.values()) < MAX_ATTEMPTS
    assert sum(row.attempts for row in rows.values()) <= FAILURES_MAX  # between them all
    assert tries <= 40  # one probe at a time, less often the longer it lasts
    office.down = False
    await office.after(OPEN.cap_seconds * 1.2 + 1)
    await office.after(3600 * 1.2)  # the probes of half an hour were each moved back
    assert await office.states() == {"done": 20}
    assert await office.breaker() is None


async def test_a_dead_target_is_found_down_by_the_first_few_failures_though_many_fail_at_once(office: Office):
    office.down = True
    await office.owe(*"abcdefgh")
    assert len(await office.run()) == SLOTS
    rows = await office.rows()
    assert sum(row.attempts for row in rows.values()) == FAILURES_MAX
    assert sum(row.deferrals for row in rows.values()) == SLOTS - FAILURES_MAX
    assert {row.error for row in rows.values()} == {"connection refused"}


async def test_one_poison_payload_as_the_oldest_does_not_keep_its_neighbours_waiting(office: Office):
    await office.owe("poison")
    office.poison = frozenset({"poison"})
    await office.run()
    while (breaker := await office.breaker()) is None or not breaker.trips:
        await office.after(3600 * 1.2)
    await office.owe(*"abc")
    assert await office.run() == []
    await office.after(OPEN.cap_seconds * 1.2 + 1)
    assert [(await office.rows())[key].state.value for key in "abc"] == ["done"] * 3
    assert await office.breaker() is None


async def test_a_poison_probe_moves_back_and_the_next_one_tries(office: Office):
    office.poison = frozenset({"poison"})
    await office.owe("poison", *"abc")
    await broken(office)
    office.down = False
    tried: list[str] = []
    for _ in range(5):
        tried += await office.after(OPEN.cap_seconds * 1.2 + 1)
    assert {"a", "b", "c"} <= set(tried)
    states = {key: row.state.value for key, row in (await office.rows()).items()}
    assert states == {"poison": "pending", "a": "done", "b": "done", "c": "done"}


@pytest.mark.slow
async def test_a_poison_payload_among_those_that_work_is_dead_by_its_own_attempts(office: Office):
    office.poison = frozenset({"poison"})
    await office.owe("poison")
    for n in range(40):
        await office.owe(f"good {n}")
        await office.after(3600 * 1.2)
    poison = (await office.rows())["poison"]
    assert (poison.state.value, poison.outcome, poison.attempts) == ("dead", "exhausted", MAX_ATTEMPTS)
    assert await office.states() == {"dead": 1, "done": 40}


async def test_a_target_that_is_down_for_good_sends_what_waits_to_the_desk(office: Office):
    names = [str(n) for n in range(30)]
    await office.owe(*names)
    await broken(office)
    await office.owe("young")
    for _ in range(2):
        await office.after(DEFER_LIMIT_SECONDS / 2 + 600)
        await office.owe("younger") if "younger" not in await office.rows() else None
    for _ in range(5):
        await office.after(3600 * 1.2)
    rows = await office.rows()
    assert {rows[key].outcome for key in [*names, "young"]} == {"target_down"}
    assert {rows[key].state.value for key in [*names, "young"]} == {"dead"}
    assert rows["younger"].state.value == "pending"
    assert sum(event.kind == "effect.dead" for event in await office.hands.read(office.tenant)) == 31
    assert (await office.hands.replay(office.tenant, [rows["0"].id])) == [rows["0"].id]
    office.down = False
    await office.after(OPEN.cap_seconds * 1.2 + 1)
    assert (await office.rows())["0"].state.value == "done"


async def test_what_other_targets_are_owed_goes_on(office: Office):
    await office.owe(*"mnopq")
    await broken(office)
    office.down = False
    await office.owe("f", kind="fax")
    await office.owe("other", target="backup")
    await office.owe("m2")
    assert sorted(await office.run()) == ["f", "other"]


async def test_an_effect_has_its_kinds_target_unless_it_names_its_own(office: Office):
    def receipt(event: Event) -> Owes:
        return Owes(NewEffect("mail", key="drained"), NewEffect("mail", key="other", target="backup"))

    office.spine.owes("order.paid")(receipt)
    await office.owe("owed")
    await office.owe("f", kind="fax")
    async with office.spine.open(office.tenant) as tx:
        tx.append(NewEvent("order.paid"))
    await office.run()
    rows = await office.rows()
    assert {key: row.target for key, row in rows.items()} == {
        "owed": "smtp",
        "drained": "smtp",
        "other": "backup",
        "f": "",
    }


@pytest.mark.parametrize("answer", [Transient("down"), TimeoutError(), OSError("unreachable"), Retry("busy")])
async def test_whatever_may_pass_counts_against_the_target(office: Office, answer: Outcome | Exception):
    office.answer = answer
    await office.owe(*"abcde")
    await broken(office)


@pytest.mark.parametrize("answer", [Failed("no such address"), BadData("not a mail")])
async def test_what_is_definite_says_nothing_against_the_target(office: Office, answer: Outcome | Exception):
    office.answer, office.down = answer, True
    await office.owe(*"abcdefgh")
    await office.run()
    assert await office.states() == {"dead": 8}
    assert await office.breaker() is None


async def test_a_probe_that_fails_for_good_lets_the_next_one_try_at_once(office: Office):
    await office.owe(*"abcdef")
    await broken(office)
    office.answer = Failed("no such address")
    await office.after(OPEN.cap_seconds * 1.2 + 1)
    await office.after(3600 * 1.2)
    assert await office.states() == {"dead": 6}


@pytest.mark.slow
async def test_failures_with_a_success_between_them_never_open_it(office: Office):
    office.poison = frozenset(f"bad {n}" for n in range(40))
    office.answer = Retry(
        "connection refused", after_seconds=3600
    )  # none comes back meanwhile, however slow the machine
    for n in range(40):
        await office.owe(f"bad {n}")
        await office.run()
        if n % (FAILURES_MAX - 1) == 0:
            await office.owe(f"good {n}")
            await office.run()
        breaker = await office.breaker()
        assert breaker is None or not breaker.trips


async def test_a_worker_that_is_stopped_hands_its_probe_back(office: Office):
    await office.owe(*"abcde")
    await broken(office)
    begun = asyncio.Event()

    async def hang(effect: Effect) -> Outcome:
        begun.set()
        return await asyncio.Event().wait() and Done()

    other: Spine[Any] = Spine(office.hands.store, SpineSettings(grace_seconds=0), name="w2")
    other.effect("mail", target="smtp", lease_seconds=LEASE)(hang)
    await office.hands.age(OPEN.cap_seconds * 1.2 + 1)
    async with asyncio.timeout(STUCK), other.running():
        await begun.wait()
    office.down = False
    assert await office.run() != []  # not only when the probe's lease would have run out


async def test_who_owes_without_knowing_the_kind_owes_without_a_target(hands: Hands):
    tenant = await hands.tenant()
    spine: Spine[Any] = Spine(hands.store)
    async with spine.open(tenant) as tx:
        await tx.owe(NewEffect("mail", key="1"))
    [row] = await hands.rows(tenant)
    assert row.target == ""
