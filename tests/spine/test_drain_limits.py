"""However much one tenant's events owe, and however long they take to judge: a round ends, and the others have their turn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from mainspring.spine.drain import Drain
from mainspring.spine.effects import NewEffect
from mainspring.spine.engine import Spine
from mainspring.spine.errors import Transient
from mainspring.spine.events import Event
from mainspring.spine.judging import JUDGING_SECONDS_MAX, OWED_MAX, TURN_SECONDS
from mainspring.spine.ports import NotOwed, Owes, Verdict
from tests.conformance.hands import Hands

ROWS = 1_000  # OWED_MAX is five of these
EVENTS = 12

assert OWED_MAX == 5 * ROWS


@dataclass
class Rules:
    """An obligation that owes many rows an event, and notes which events it was asked about. `seconds` pass at each, on `now`."""

    rows: int = 1
    seconds: float = 0.0
    breaks_at: frozenset[int] = frozenset()
    name: str = "rules"
    kinds: frozenset[str] | None = None
    now: float = 0.0
    asked: list[int] = field(default_factory=list)
    loaded_max: int | None = None
    loud_fails: bool = False

    async def load(self, _tx: Any, events: Sequence[Event]) -> None:
        if self.loaded_max is not None and len(events) > self.loaded_max:
            raise Transient("idle for too long")
        if self.loud_fails and any(event.kind == "loud" for event in events):
            raise Transient("idle for too long")

    def judge(self, event: Event, _context: None) -> Verdict:
        self.asked.append(event.seq)
        self.now += self.seconds
        if event.kind == "quiet":
            return NotOwed("kinds")
        if event.seq in self.breaks_at:
            raise LookupError("a defect")
        return Owes(*(NewEffect("stamp", key=f"{event.seq}:{n}") for n in range(self.rows)))


def drain(hands: Hands, rules: Rules) -> Drain[Any]:
    return Drain(hands.store, [rules], engine_version=2, clock=lambda: rules.now)


async def test_an_obligation_is_asked_about_one_event_more_than_are_taken(hands: Hands):
    tenant = await hands.tenant()
    await hands.append(tenant, *["loud"] * EVENTS)
    rules, taken = Rules(rows=ROWS), []
    drained = drain(hands, rules)
    while (round_ := await drained.run_once()).events:
        taken.append((round_.events, round_.owed))
        drained.look_everywhere()
    assert taken == [(5, 5 * ROWS), (5, 5 * ROWS), (2, 2 * ROWS)]
    assert rules.asked == [*range(1, 7), *range(6, 12), *range(11, 13)]


async def test_so_it_is_where_an_event_breaks_it(hands: Hands):
    tenant = await hands.tenant()
    await hands.append(tenant, *["loud"] * EVENTS)
    rules = Rules(rows=ROWS, breaks_at=frozenset({2}))
    round_ = await drain(hands, rules).run_once()
    assert (round_.events, round_.owed) == (5, 4 * ROWS + 1)
    assert rules.asked == [1, 2, 1, 2, 2, 3, 4, 5, 6]
    assert [row.key for row in await hands.rows(tenant, kind="event")] == ["2#rules"]


@pytest.mark.parametrize("called", [False, True], ids=["all are looked at", "a commit has said of both"])
async def test_a_round_that_has_enough_of_one_tenant_is_followed_by_one_for_the_next(
    hands: Hands, called: bool
):
    loud, quiet = await hands.tenant(), await hands.tenant()
    await hands.append(loud, *["loud"] * EVENTS)
    await hands.append(quiet, "quiet")
    drained = drain(hands, Rules(rows=ROWS))
    if called:
        drained._everywhere = False
        drained.call(loud)
        drained.call(quiet)
    await drained.run_once()
    assert [cursor.tenant_id for cursor in await hands.lagging()] == [loud, quiet]
    await drained.run_once()
    assert [cursor.tenant_id for cursor in await hands.lagging()] == [loud]


@pytest.mark.parametrize("breaks_at", [frozenset[int](), frozenset({1})], ids=["whole", "around poison"])
async def test_a_round_that_has_judged_for_long_enough_keeps_what_it_has(
    hands: Hands, breaks_at: frozenset[int]
):
    loud, quiet = await hands.tenant(), await hands.tenant()
    await hands.append(loud, *["loud"] * EVENTS)
    await hands.append(quiet, "quiet")
    drained = drain(hands, Rules(seconds=JUDGING_SECONDS_MAX / 2 + 0.1, breaks_at=breaks_at))
    # whatever breaks was judged twice: within the first round's time comes no other
    assert (await drained.run_once()).events == (1 if breaks_at else 2)
    assert (await drained.run_once()).events == 2  # the quiet one, and one of the loud one's
    assert [cursor.tenant_id for cursor in await hands.lagging()] == [loud]


async def test_an_event_that_takes_longer_than_a_round_may_is_taken_alone(hands: Hands):
    await hands.append(await hands.tenant(), *["loud"] * 3)
    drained = drain(hands, Rules(seconds=2 * JUDGING_SECONDS_MAX))
    assert [(await drained.run_once()).events for _ in range(4)] == [1, 1, 1, 0]


async def test_others_on_this_loop_have_their_turns_while_a_round_judges(hands: Hands):
    await hands.append(await hands.tenant(), *["loud"] * EVENTS)
    rules = Rules(seconds=2 * TURN_SECONDS)
    seen = set[int]()

    async def watch() -> None:
        while True:
            seen.add(len(rules.asked))
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    assert (await drain(hands, rules).run_once()).events == EVENTS
    watching.cancel()
    assert seen >= set(range(EVENTS + 1))


async def test_what_fails_is_tried_again_with_half_as_much_behind_another_tenant(hands: Hands):
    loud, quiet = await hands.tenant(), await hands.tenant()
    await hands.append(loud, *["loud"] * 200)
    await hands.append(quiet, "quiet")
    rules = Rules(loaded_max=60)
    drained = drain(hands, rules)
    with pytest.raises(Transient):
        await drained.run_once()
    with pytest.raises(Transient):
        await drained.run_once()
    # a quarter of what one tenant may have, and the quiet one's first
    assert (await drained.run_once()).events == 1 + 50
    assert [cursor.tenant_id for cursor in await hands.lagging()] == [loud]
    failed = 0
    while await hands.lagging():
        try:
            await drained.run_once()
        except Transient:
            failed += 1
    assert failed == 2
    assert sorted(rules.asked) == sorted([*range(1, 201), 1])


async def test_a_tenant_whose_every_round_fails_keeps_no_other_from_being_drained(hands: Hands):
    loud, quiet = await hands.tenant(), await hands.tenant()
    await hands.append(loud, *["loud"] * 3)
    await hands.append(quiet, "quiet")
    drained = drain(hands, Rules(loud_fails=True))
    for _ in range(12):
        with suppress(Transient):
            await drained.run_once()
    assert [cursor.tenant_id for cursor in await hands.lagging()] == [loud]


async def test_after_failures_it_comes_back_to_whole_rounds(hands: Hands):
    spine: Spine[Any] = Spine(hands.store)
    tenant = await hands.tenant()
    drained = spine.drain
    await hands.append(tenant, *["loud"] * 400)
    drained._halvings = 3
    sizes = []
    while (round_ := await drained.run_once()).events:
        sizes.append(round_.events)
    assert sizes == [25, 50, 100, 200, 25]
