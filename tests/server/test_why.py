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


async def first_line(world: World, ref: str) -> str:
    """What explain says of how things stand."""
    told = await world.get("explain", ref=ref)
    assert told["tree"]["text"] == f"{told['title']}: {told['summary']}"
    return str(told["summary"])


async def noise(world: World, **when: Any) -> None:
    """Rules that miss each move into doing, as a house has many."""
    for n in range(4):
        here = {"kinds": ["card.moved"], "boards": ["OPS", "WEB"], "to_states": ["review"], **when}
        await world.post("rules", RULE | {"name": f"noise {n}", "when": here})
    await world.post("rules", RULE | {"name": "other kind", "when": {"kinds": ["run.lost"]}})


async def story(world: World, ref: str) -> str:
    """What explain tells, as a person reads it."""
    told = await world.get("explain", ref=ref)

    def lines(node: Any) -> list[str]:
        return [node["text"], *(line for child in node["children"] for line in lines(child))]

    return "\n".join(lines(told["tree"]))


async def test_the_rule_was_off(board: World) -> None:
    await noise(board)
    await board.post(f"{RULE_PATH}/disable")
    card = await a_card(board)
    await moved(board, card)
    told = await story(board, card)
    said = "rule 'doing to echo' v2 would have matched, and is not in force: disabled"
    assert (await first_line(board, card)).endswith(f"(card.moved): {said}")
    assert (
        told.count("not in force") == 2
    )  # on the first line, and under the move; the card's creation is none of its business
    assert told.index(f"\n{said}") < told.index("\nrule 'noise 0' v1: no: to_states")
    assert "for other kinds of event: rule 'other kind'" in told


async def test_the_event_is_older_than_the_rule(board: World) -> None:
    await noise(board)
    await board.post(f"{RULE_PATH}/disable")
    await board.call("PATCH", RULE_PATH, json={"when": {"kinds": ["card.deleted"]}})
    card = await a_card(board)
    await move(board, card)
    await board.post("rules", RULE | {"name": "young"})
    await board.settle()
    said = "rule 'young' would have matched, and is not in force: created after event"
    assert said in await first_line(board, card)
    assert f"\n{said}" in await story(board, card)


async def test_the_rule_was_changed_after_the_event(board: World) -> None:
    await noise(board)
    await board.call("PATCH", RULE_PATH, json={"when": {"kinds": ["card.moved"], "to_states": ["todo"]}})
    card = await a_card(board)
    await move(board, card)
    await board.settle()
    await board.call("PATCH", RULE_PATH, json={"when": RULE["when"]})
    missed = "rule 'doing to echo' v2: no: to_states: it went to doing, the rule asks for todo"
    assert f"{missed}; v3 would have matched, and was made after event" in await first_line(board, card)
    await board.post(f"{RULE_PATH}/disable")
    await move(board, card, "todo")
    await board.settle()
    await board.call("PATCH", RULE_PATH, json={"when": {"kinds": ["card.moved"]}})
    await board.post(f"{RULE_PATH}/enable")
    would = "rule 'doing to echo' v6 would have matched, and is not in force: changed after event"
    assert would in await first_line(board, card)


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
    near = "rule 'labelled' v1: no: labels_all: the card bears no label, the rule asks for all of go"
    assert (await first_line(board, card)).endswith(f"(card.moved): {near}")


async def test_the_board_was_another_among_rules_for_other_moves(board: World) -> None:
    await board.post("boards", {"key": "WEB", "name": "Web", "states": [{"name": "todo"}, {"name": "doing"}]})
    await noise(board)
    card = str((await board.post("cards", {"board": "WEB", "title": "t"}))["key"])
    await moved(board, card)
    near = "rule 'doing to echo' v1: no: boards: the card is on WEB, the rule asks for OPS"
    assert (await first_line(board, card)).endswith(f"(card.moved): {near}")


async def test_a_field_was_another(board: World) -> None:
    when = {"kinds": ["card.moved"], "fields": {"team": ["a", "b"], "urgent": True}}
    await board.post("rules", RULE | {"name": "fields", "when": when})
    await noise(board)
    await board.call("PATCH", RULE_PATH, json={"when": {"kinds": ["card.moved"], "labels_all": ["go"]}})
    card = await a_card(board, fields={"team": "c", "urgent": True})
    await moved(board, card)
    said = "fields: the card has team = c, the rule asks for team = a or b, urgent = true"
    assert (await first_line(board, card)).endswith(f"(card.moved): rule 'fields' v1: no: {said}")


async def test_the_rule_rested(board: World) -> None:
    await options(board, cooldown_seconds=600)
    card = await a_card(board)
    await moved(board, card)
    await moved(board, card)
    assert "dropped(cooldown_seconds: the rule fired on OPS-1 0 s ago, and rests 600 s)" in await story(
        board, card
    )
    assert "run of echo is waiting for a runner" in await first_line(board, card)
    await (await board.runner("echo")).work("cancelled")
    await moved(board, card)
    resting = "rule 'doing to echo' v2: dropped(cooldown_seconds: the rule fired on OPS-1"
    assert f"(card.moved): {resting}" in await first_line(board, card)


async def test_the_rule_was_paused_by_its_limit(board: World) -> None:
    await options(board, max_per_hour=1)
    one, two = await a_card(board), await a_card(board)
    await moved(board, one)
    await moved(board, two)
    because = "max_per_hour: it fired once within the hour, and 1 is allowed"
    assert f"held until its rule is resumed: the rule is paused: {because}" in await story(board, two)
    held = f"1 effect owed, held until its rule is resumed: the rule is paused: {because}"
    assert await first_line(board, two) == held
    told = await story(board, f"rule:{RULE['name']}")
    assert f"rule 'doing to echo' v2 (paused: {because})" in told


async def test_the_rule_was_paused_by_hand_and_what_it_owed_given_up(board: World) -> None:
    await board.post(f"{RULE_PATH}/pause", {"because": "too loud"})
    card = await a_card(board)
    await moved(board, card)
    assert "held until its rule is resumed: the rule is paused: too loud" in await first_line(board, card)
    await board.post(f"{RULE_PATH}/resume", {"owed": "discard"})
    assert "rule 'doing to echo' v1: dropped(given up when the rule was resumed)" in await first_line(
        board, card
    )


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
    assert await first_line(board, card) == "1 effect owed, run of echo is waiting for a runner"


async def test_it_was_too_long_ago(board: World, admin: Any) -> None:
    await options(board, max_event_age_seconds=60)
    card = await a_card(board)
    await move(board, card)
    await age(admin, 90.0, {**DEADLINES, **PRODUCT_DEADLINES})
    await board.settle()
    assert (
        "dropped(max_event_age_seconds: the event was 90 s old, and the rule takes 60 s)"
        in await first_line(board, card)
    )


async def test_the_agent_is_paused_or_no_runner_came(board: World) -> None:
    card = await a_card(board)
    await moved(board, card)
    assert await first_line(board, card) == "run of echo is waiting for a runner"
    await board.post("agents/echo/pause")
    assert await first_line(board, card) == "run of echo is waiting: echo is paused"
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
    assert await first_line(board, card) == "run of echo is waiting for a runner with gpu"
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
    first, second = ("one", "two") if "rule 'two' v1): dropped" in told else ("two", "one")
    spent = f"dropped(label spent by rule '{first}', event "
    assert f"owes launch (rule '{second}' v1): {spent}" in told
    assert await first_line(board, card) == "run of echo is waiting for a runner"
    await (await board.runner("echo")).work("cancelled")
    await board.settle()
    said = f"nothing is owed and nothing is dead: rule '{second}' v1: {spent}"
    assert (await first_line(board, card)).startswith(said)


async def test_a_person_had_pinned_the_card(board: World) -> None:
    await board.services.agents.create(board.actors["operator"], handle="other")
    await board.post("rules", RULE | {"name": "pin", "do": {"promote": {"agent": "echo"}}})
    card = await a_card(board, agent="other")
    await moved(board, card)
    assert "owes promote (rule 'pin' v1): dropped(pinned to other by hand)" in await story(board, card)
    await (await board.runner("echo")).work("cancelled")
    await board.settle()
    assert "rule 'pin' v1: dropped(pinned to other by hand)" in await first_line(board, card)


async def test_who_was_assigned_is_told_from_whom_to_whom(board: World) -> None:
    card = await a_card(board)
    await board.post(f"cards/{card}/assign", {"agent": "echo"})
    assert "OPS-1 changed agent nobody → echo by operator" in await story(board, card)


async def test_a_finished_card_is_not_asked_why_nothing_followed_its_last_step(board: World) -> None:
    card = await a_card(board)
    await moved(board, card)
    await (await board.runner("echo")).work("done", result="fixed")
    await board.settle()
    assert await first_line(board, card) == "nothing is owed and nothing is dead"
    await board.post(
        "rules", RULE | {"name": "off", "when": {"kinds": ["card.moved"], "to_states": ["todo"]}}
    )
    await board.post("rules/off/disable")
    await move(board, card, "todo")
    await board.settle()
    said = "rule 'off' v2 would have matched, and is not in force: disabled"
    assert (await first_line(board, card)).endswith(said)


async def test_of_what_was_done_so_long_ago_that_its_effects_are_gone_nothing_is_said(
    board: World, admin: Any
) -> None:
    card = await a_card(board)
    await moved(board, card)
    await (await board.runner("echo")).work("cancelled")
    await board.settle()
    await admin.execute("delete from mainspring.effects where tenant_id = $1", board.tenant)
    assert await first_line(board, card) == "nothing is owed and nothing is dead"


async def test_a_chain_of_runs_ended_at_its_depth(board: World) -> None:
    from dataclasses import replace

    from mainspring.spine.events import Cause

    await board.post("rules", RULE | {"name": "again", "when": {"kinds": ["run.done"], "states": ["doing"]}})
    card = await a_card(board)
    deep = replace(board.actors["member"], cause=Cause(seq=1, depth=7))
    await board.services.boards.move_card(deep, card, "doing")
    await board.settle()
    await (await board.runner("echo")).work("done")
    await board.settle()
    said = "(run.done): rule 'again' v1: no: depth: 8 causes deep, and from 8 on no rule acts"
    assert (await first_line(board, card)).endswith(said)


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
    assert (await first_line(board, card)).endswith(f"rule 'doing to echo' v1: no: {said[term]}")
