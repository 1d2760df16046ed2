"""Why did nothing happen? Each answer that explain gives to somebody who moved a card and waited."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.migrations.deadlines import DEADLINES as PRODUCT_DEADLINES
from mainspring.stores.postgres.deadlines import DEADLINES, age
from tests.server.conftest import RULE, World

RULE_PATH = f"rules/{RULE['name']}"


async def options(world: World, **given: Any) -> None:
    """Give the rule these options."""
    answer = await world.call("PATCH", RULE_PATH, json={"options": given})
    assert answer.status_code == 200, answer.text


async def a_card(world: World, **more: Any) -> str:
    made = await world.post("cards", {"board": "OPS", "title": "mend it", **more})
    return str(made["key"])


async def move(world: World, card: str, to: str = "doing") -> None:
    await world.post(f"cards/{card}/move", {"state": to})


async def moved(world: World, card: str) -> None:
    """Move it into doing, from wherever it is, and let all that follows happen."""
    await move(world, card, "todo")
    await move(world, card)
    await world.settle()


async def story(world: World, ref: str) -> str:
    """What explain tells, as a person reads it."""
    told = await world.get("explain", ref=ref)

    def lines(node: Any) -> list[str]:
        return [node["text"], *(line for child in node["children"] for line in lines(child))]

    return "\n".join(lines(told["tree"]))


async def test_the_rule_was_off(board: World) -> None:
    await board.post(f"{RULE_PATH}/disable")
    card = await a_card(board)
    await moved(board, card)
    assert "rule 'doing to echo' v2: no: not in force: disabled" in await story(board, card)


async def test_the_event_is_older_than_the_rule(board: World) -> None:
    card = await a_card(board)
    await move(board, card)
    await board.post("rules", RULE | {"name": "young"})
    await board.settle()
    assert "rule 'young': no: not in force: created after event" in await story(board, card)


async def test_a_label_was_missing_and_the_board_another(board: World) -> None:
    await board.post("boards", {"key": "WEB", "name": "Web", "states": [{"name": "todo"}, {"name": "doing"}]})
    await board.post(
        "rules", RULE | {"name": "labelled", "when": {"kinds": ["card.moved"], "labels_all": ["go"]}}
    )
    card = str((await board.post("cards", {"board": "WEB", "title": "t"}))["key"])
    await moved(board, card)
    told = await story(board, card)
    assert "labels_all: the card bears no label, the rule asks for all of go" in told
    assert "boards: the card is on WEB, the rule asks for OPS" in told


async def test_a_field_was_another(board: World) -> None:
    when = {"kinds": ["card.moved"], "fields": {"team": ["a", "b"], "urgent": True}}
    await board.post("rules", RULE | {"name": "fields", "when": when})
    card = await a_card(board, fields={"team": "c", "urgent": True})
    await moved(board, card)
    assert "fields: the card has team = c, the rule asks for team = a or b, urgent = true" in await story(
        board, card
    )


async def test_the_rule_rested(board: World) -> None:
    await options(board, cooldown_seconds=600)
    card = await a_card(board)
    await moved(board, card)
    await moved(board, card)
    assert "dropped(cooldown_seconds: the rule fired on OPS-1 0 s ago, and rests 600 s)" in await story(
        board, card
    )


async def test_the_rule_was_paused_by_its_limit(board: World) -> None:
    await options(board, max_per_hour=1)
    one, two = await a_card(board), await a_card(board)
    await moved(board, one)
    await moved(board, two)
    because = "max_per_hour: it fired 1 times within the hour, and 1 are allowed"
    assert f"held until its rule is resumed: the rule is paused: {because}" in await story(board, two)
    told = await story(board, f"rule:{RULE['name']}")
    assert f"rule 'doing to echo' v2 (paused: {because})" in told


async def test_the_rule_was_paused_by_hand_and_what_it_owed_given_up(board: World) -> None:
    await board.post(f"{RULE_PATH}/pause", {"because": "too loud"})
    card = await a_card(board)
    await moved(board, card)
    assert "held until its rule is resumed: the rule is paused: too loud" in await story(board, card)
    await board.post(f"{RULE_PATH}/resume", {"owed": "discard"})
    assert "dropped(given up when the rule was resumed)" in await story(board, card)


async def test_a_run_was_still_going(board: World) -> None:
    await options(board, while_running="skip")
    card = await a_card(board)
    await moved(board, card)
    await moved(board, card)
    assert "dropped(while_running: a run of echo on OPS-1 has not ended)" in await story(board, card)
    await options(board, while_running="queue_one")
    await moved(board, card)
    assert "while_running: a run of echo on OPS-1 has not ended" in await story(board, card)
    assert "owed, tried again at" in await story(board, card)


async def test_it_was_too_long_ago(board: World, admin: Any) -> None:
    await options(board, max_event_age_seconds=60)
    card = await a_card(board)
    await move(board, card)
    await age(admin, 90.0, {**DEADLINES, **PRODUCT_DEADLINES})
    await board.settle()
    assert "dropped(max_event_age_seconds: the event was 90 s old, and the rule takes 60 s)" in await story(
        board, card
    )


async def test_the_agent_is_paused_or_no_runner_came(board: World) -> None:
    card = await a_card(board)
    await moved(board, card)
    assert "is waiting for a runner" in await story(board, card)
    await board.post("agents/echo/pause")
    assert "is waiting: echo is paused" in await story(board, card)
    [finding] = [one for one in (await board.get("doctor"))["findings"] if one["check"] == "runners"]
    assert "1 queued for echo and it is paused" in finding["said"]


async def test_no_runner_has_what_the_launch_asks_for(board: World) -> None:
    launch = RULE["do"]["launch"] | {"runner_labels": ["GPU"]}
    answer = await board.call("PATCH", RULE_PATH, json={"do": {"launch": launch}})
    assert answer.json()["do"]["launch"]["runner_labels"] == ["gpu"]
    runner = await board.runner("echo")
    assert await runner.claim() is None
    card = await a_card(board)
    await moved(board, card)
    assert await runner.claim() is None
    assert "is waiting for a runner with gpu" in await story(board, card)
    [finding] = [one for one in (await board.get("doctor"))["findings"] if one["check"] == "runners"]
    assert "1 queued for echo and no runner with gpu" in finding["said"]


async def test_another_rule_took_the_label(board: World) -> None:
    when = {"kinds": ["card.moved"], "labels_all": ["go"]}
    for name in ("one", "two"):
        await board.post("rules", RULE | {"name": name, "when": when, "options": {"consume_label": True}})
    card = await a_card(board, labels=["go"])
    await board.post(f"{RULE_PATH}/disable")
    await move(board, card)
    await board.settle()
    told = await story(board, card)
    assert told.count("done: launched echo") == 1
    assert "v1): dropped(label spent)" in told


async def test_a_person_had_pinned_the_card(board: World) -> None:
    await board.services.agents.create(board.actors["operator"], handle="other")
    await board.post("rules", RULE | {"name": "pin", "do": {"promote": {"agent": "echo"}}})
    card = await a_card(board, agent="other")
    await moved(board, card)
    assert "owes promote (rule 'pin' v1): dropped(pinned to other by hand)" in await story(board, card)


@pytest.mark.parametrize("term", ["min_trust", "depth"])
async def test_it_was_not_trusted_or_too_deep(board: World, term: str) -> None:
    from dataclasses import replace

    from mainspring.spine.events import Cause, Trust

    cause = Cause(seq=1, depth=8) if term == "depth" else Cause(seq=1, trust=Trust.STRANGER)
    card = await a_card(board)
    await board.services.boards.move_card(replace(board.actors["member"], cause=cause), card, "doing")
    await board.settle()
    told = await story(board, card)
    said = {
        "depth": "depth: 8 causes deep, and from 8 on no rule acts",
        "min_trust": "min_trust: it is trusted as stranger, the rule asks for agent",
    }
    assert said[term] in told
