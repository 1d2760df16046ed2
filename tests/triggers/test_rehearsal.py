"""A rule tried out on what has happened: the drain's own verdicts, its limits played through, and no effect."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.rooms import Invalid, NotFound
from mainspring.triggers.rehearsal import Rehearsal

from .conftest import House
from .test_limits import again

MOVED = {"kinds": ["card.moved"], "to_states": ["ready"]}
LAUNCH = {"launch": {"agent": "echo", "prompt": "{{card.title}}"}}


async def tried(
    house: House,
    when: dict[str, Any] = MOVED,
    do: dict[str, Any] = LAUNCH,
    *,
    last: int = 200,
    **options: Any,
) -> Rehearsal:
    return await house.rules.test_unsaved(
        house.tenant, {"when": when, "do": do, "options": options}, last=last
    )


def hits(rehearsal: Rehearsal) -> list[tuple[str, bool, str | None]]:
    return [(one.subject, one.happens, one.then) for one in rehearsal.lines if one.verdict.matched]


async def test_every_event_has_its_verdict_and_nothing_is_done(house: House) -> None:
    card = await house.card()
    await house.move(card, "ready")
    await house.move(card, "doing")
    before = await house.events()
    rehearsal = await tried(house)
    assert [one.seq for one in rehearsal.lines] == [event.seq for event in before]
    assert hits(rehearsal) == [("WEB-1", True, "launch echo")]
    [miss] = [one for one in rehearsal.lines if one.verdict.failed_term == "to_states"]
    assert miss.verdict.why_text == "to_states: it went to doing, the rule asks for ready"
    shown = rehearsal.as_json()
    assert (shown["events"], shown["matched"], shown["would_happen"]) == (3, 1, 1)
    assert shown["missed_by"] == {"kinds": 1, "to_states": 1}
    await house.spine.run_once()
    assert await house.launches() == []
    assert await house.rules.list(house.tenant) == []


async def test_a_saved_rule_is_tried_as_it_is_now_on_events_from_before_it(house: House) -> None:
    card = await house.card()
    await house.move(card, "ready")
    await house.rule(MOVED | {"boards": ["OPS"]})
    await house.rules.edit(house.ana, "r", {"when": MOVED})
    await house.rules.disable(house.ana, "r")
    assert hits(await house.rules.test(house.tenant, " R ", last=200)) == [("WEB-1", True, "launch echo")]
    assert len((await house.rules.test(house.tenant, "r", last=2)).lines) == 2
    with pytest.raises(NotFound):
        await house.rules.test(house.tenant, "none", last=2)


async def test_it_says_what_the_drain_did(house: House) -> None:
    """Of events behind the rule, the rehearsal's matches are the launches that are owed."""
    rule = await house.rule(MOVED | {"labels_none": ["no"]})
    for n in range(3):
        card = await house.card(f"c{n}", labels=["no"] if n == 1 else [])
        await again(house, card)
    await house.spine.drain.run_once()
    rehearsal = await house.rules.test(house.tenant, "r", last=200)
    assert sorted(await house.keys()) == sorted(
        f"{one.seq}:{rule.id}" for one in rehearsal.lines if one.verdict.matched
    )


async def test_limits_are_played_through(house: House) -> None:
    one, two = await house.card("one"), await house.card("two")
    for card in (one, one, two):
        await again(house, card)
    resting = hits(await tried(house, cooldown_seconds=600))
    assert [(subject, happens) for subject, happens, _ in resting] == [
        ("WEB-1", True),
        ("WEB-1", False),
        ("WEB-2", True),
    ]
    assert (resting[1][2] or "").startswith("dropped: cooldown_seconds: the rule fired on WEB-1")
    often = hits(await tried(house, max_per_hour=2))
    assert [happens for _, happens, _ in often] == [True, True, False]
    assert (often[2][2] or "").startswith("held: the rule would be paused: max_per_hour")


async def test_a_prompt_that_could_not_be_filled_is_told(house: House) -> None:
    await house.move(await house.card(), "ready")
    asks = {"launch": {"agent": "echo", "prompt": "{{card.fields.url}}"}}
    [(_, happens, then)] = hits(await tried(house, do=asks))
    assert (happens, "{{card.fields.url}}" in (then or "")) == (False, True)
    assert hits(await tried(house, do={"promote": {"agent": "echo"}})) == [("WEB-1", True, "pin to echo")]


async def test_what_could_never_fire_is_refused_and_what_is_odd_remarked_on(house: House) -> None:
    with pytest.raises(Invalid):
        await tried(house, {"boards": ["NONE"]})
    with pytest.raises(Invalid):
        await tried(house, MOVED, {"launch": {"agent": "nobody"}})
    assert [remark.pointer for remark in (await tried(house, {"boards": ["WEB", "NONE"]})).remarks] == [
        "/when/boards"
    ]


async def test_more_events_than_are_read_at_once(house: House) -> None:
    card = await house.card()
    for _ in range(60):
        await again(house, card)
    rehearsal = await tried(house, last=1_000)
    assert len(hits(rehearsal)) == 60
    assert [one.seq for one in rehearsal.lines] == list(range(1, len(rehearsal.lines) + 1))
