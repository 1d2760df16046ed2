"""Promotion: a rule pins a card, and never over what a person has pinned."""

from __future__ import annotations

import asyncio

import pytest

from mainspring.rooms import ServerSpine

from .conftest import House

MOVED = {"kinds": ["card.moved"], "to_states": ["ready"]}


async def pin(house: House, card: object) -> str | None:
    found = await house.boards.get_card(house.tenant, card.key)  # type: ignore[attr-defined]
    return found.agent.handle if found.agent else None


async def test_a_promotion_pins_the_card_and_the_pin_dispatches_it(house: House) -> None:
    rule = await house.promotion(MOVED)
    card = await house.card(board="OPS")
    await house.move(card, "ready")
    await house.spine.run_once()
    moved, promoted = await house.last("card.moved"), await house.last("card.promoted")
    assert await house.launches("promote") == [("done", "pinned OPS-1 to echo", None)]
    assert (promoted.data["card"]["agent"], promoted.data["actor"]["kind"]) == ("echo", "system")
    assert promoted.data["changed"]["agent"] == {"from": None, "to": "echo"}
    assert (promoted.cause_seq, promoted.via, promoted.depth) == (moved.seq, (rule.id,), 1)
    [run] = await house.queued()
    assert (run["agent_id"], run["event_seq"], run["via"], run["depth"]) == (
        house.echo.account_id,
        promoted.seq,
        [rule.id],
        2,
    )
    assert run["effect_key"] == f"dispatch:{card.id}:{promoted.data['card']['version']}"


async def test_a_person_who_is_quicker_wins(house: House) -> None:
    await house.promotion(MOVED)
    card = await house.card()
    await house.move(card, "ready")
    await house.spine.drain.run_once()
    await house.boards.assign_card(house.ana, card.key, agent="flaky")
    await house.spine.run_once()
    assert await house.outcomes("promote") == ["dropped(pinned to flaky meanwhile)"]
    assert await pin(house, card) == "flaky"


async def test_a_pin_that_a_person_took_away_meanwhile_is_not_set_again(house: House) -> None:
    await house.promotion({"kinds": ["card.labeled"]}, agent="flaky")
    card = await house.card(agent="echo")
    await house.boards.label_card(house.ana, card.key, add=["x"])
    await house.spine.drain.run_once()
    await house.boards.assign_card(house.ana, card.key, agent=None)
    await house.spine.run_once()
    assert await house.outcomes("promote") == ["dropped(unpinned meanwhile)"]


@pytest.mark.parametrize("how", ["created", "assigned"])
async def test_a_pin_that_was_set_by_hand_before_stays(house: House, how: str) -> None:
    await house.promotion(MOVED)
    card = await house.card(agent="flaky" if how == "created" else None)
    if how == "assigned":
        await house.boards.assign_card(house.ana, card.key, agent="flaky")
        await house.boards.assign_card(house.ana, card.key, assignee="ana")  # touches no pin
    await house.move(card, "ready")
    await house.spine.run_once()
    assert await house.outcomes("promote") == ["dropped(pinned to flaky by hand)"]
    assert await pin(house, card) == "flaky"


async def test_what_a_rule_pinned_another_may_pin_anew(house: House) -> None:
    await house.promotion(MOVED, name="first")
    await house.promotion({"kinds": ["card.moved"], "to_states": ["doing"]}, name="then", agent="flaky")
    card = await house.card()
    await house.move(card, "ready")
    await house.spine.run_once()
    await house.boards.assign_card(house.ana, card.key, assignee="ana")
    await house.move(card, "doing")
    await house.spine.run_once()
    assert await pin(house, card) == "flaky"
    await house.move(card, "ready")
    await house.move(card, "inbox")
    await house.spine.run_once()
    assert await pin(house, card) == "echo"


async def test_pinned_to_the_agent_already_is_no_change(house: House) -> None:
    await house.promotion(MOVED)
    card = await house.card(agent="echo")
    await house.move(card, "ready")
    await house.spine.run_once()
    assert await house.outcomes("promote") == ["dropped(pinned to echo already)"]
    assert "card.promoted" not in [event.kind for event in await house.events()]


async def test_a_promotion_spends_a_label_and_asks_again_where_told_to(house: House) -> None:
    when = {"kinds": ["card.moved"], "labels_all": ["go"]}
    await house.promotion(when, consume_label=True, recheck=True)
    card, other = await house.card(labels=["go"]), await house.card("other", labels=["go"])
    await house.move(card, "ready")
    await house.move(other, "ready")
    await house.spine.drain.run_once()
    await house.boards.label_card(house.ana, other.key, remove=["go"])
    await house.spine.run_once()
    assert sorted(map(str, await house.outcomes("promote"))) == [
        "dropped(no longer matches: labels_all)",
        "pinned WEB-1 to echo",
    ]
    assert (await house.boards.get_card(house.tenant, card.key)).labels == frozenset()


async def test_promotions_have_the_same_limits(house: House) -> None:
    await house.promotion(MOVED, max_per_hour=1)
    for n in range(3):
        await house.move(await house.card(f"c{n}"), "ready")
    await house.spine.run_once()
    assert sorted(state for state, *_ in await house.launches("promote")) == ["done", "pending", "pending"]
    await house.rules.resume(house.ana, "p", owed="run")
    await house.spine.run_once()
    assert [state for state, *_ in await house.launches("promote")] == ["done"] * 3


async def test_a_run_without_a_card_and_a_deleted_card_are_pinned_to_nobody(house: House) -> None:
    await house.promotion({"kinds": ["run.queued"]}, agent="flaky")
    await house.rule({"kinds": ["card.deleted"]}, prompt="x")
    card = await house.card()
    await house.boards.delete_card(house.ana, card.key)
    await house.spine.run_once()
    assert await house.outcomes("promote") == ["dropped(there is no card to pin)"]


async def test_two_promotions_at_once_pin_once(house: House, other: ServerSpine) -> None:
    for n in range(4):
        await house.promotion(MOVED, name=f"p{n}", agent="echo" if n % 2 else "flaky")
    cards = [await house.card(f"c{n}") for n in range(4)]
    for card in cards:
        await house.move(card, "ready")
    await house.spine.drain.run_once()
    await asyncio.gather(house.spine.run_once(), other.run_once())
    outcomes = [str(outcome) for outcome in await house.outcomes("promote")]
    assert sum(outcome.startswith("pinned ") for outcome in outcomes) == 4
    assert len([event for event in await house.events() if event.kind == "card.promoted"]) == 4
