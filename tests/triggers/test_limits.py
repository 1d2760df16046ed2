"""Limits of rules: what is too old, what comes too soon, what would run beside another, and how often an agent may start."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mainspring.boards.model import CardEdit
from mainspring.rooms import ServerSpine
from mainspring.spine.effects import EffectState
from mainspring.spine.events import NewEvent
from mainspring.triggers import limits
from mainspring.triggers.launch import Launcher
from mainspring.triggers.limits import Pace, Pass, Resting, TooOften, TooOld, paced, rated
from mainspring.triggers.model import Options

from .conftest import House

MOVED = {"kinds": ["card.moved"], "to_states": ["ready"]}


async def again(house: House, card: Any) -> None:
    """The card comes into ready once more."""
    await house.move(card, "inbox")
    await house.move(card, "ready")


# The decisions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "pace", "limit"),
    [
        ({}, {"event_age_seconds": 1e9, "rested_seconds": 0.0}, Pass),
        ({"max_event_age_seconds": 60}, {"event_age_seconds": 60.0}, Pass),
        ({"max_event_age_seconds": 60}, {"event_age_seconds": 61.0}, TooOld),
        ({"cooldown_seconds": 60}, {}, Pass),
        ({"cooldown_seconds": 60}, {"rested_seconds": 59.0}, Resting),
        ({"cooldown_seconds": 60}, {"rested_seconds": 60.0}, Pass),
    ],
)
def test_age_and_cooldown(options: dict[str, Any], pace: dict[str, Any], limit: type[Any]) -> None:
    assert isinstance(paced(Options(**options), Pace(**pace)), limit)


def test_the_rate_is_how_many_may_fire_within_the_hour() -> None:
    assert rated(Options(), Pace(fired=1_000)) == Pass()
    assert rated(Options(max_per_hour=3), Pace(fired=2)) == Pass()
    assert isinstance(rated(Options(max_per_hour=3), Pace(fired=3)), TooOften)


def test_a_resume_waives_age_and_rate_and_not_the_cooldown() -> None:
    options = Options(max_event_age_seconds=1, cooldown_seconds=60, max_per_hour=1)
    assert paced(options, Pace(event_age_seconds=9), waived=True) == Pass()
    assert rated(options, Pace(fired=9), waived=True) == Pass()
    assert isinstance(paced(options, Pace(rested_seconds=1), waived=True), Resting)


# Age ------------------------------------------------------------------------------------------------------------


async def test_what_happened_too_long_ago_is_not_acted_upon(house: House) -> None:
    await house.rule(MOVED, name="old", max_event_age_seconds=60)
    await house.rule(MOVED, name="any")
    card = await house.card()
    await house.move(card, "ready")
    await house.spine.drain.run_once()
    await house.later(seconds=90)
    await house.spine.run_once()
    assert await house.outcomes() == [
        "dropped(max_event_age_seconds: the event was 90 s old, and the rule takes 60 s)",
        "launched echo",
    ]
    await again(house, card)
    await house.spine.run_once()
    assert (await house.outcomes())[2:] == ["launched echo", "launched echo"]


# Cooldown -------------------------------------------------------------------------------------------------------


async def test_a_rule_rests_on_a_card_after_it_fired_on_it(house: House) -> None:
    await house.rule(MOVED, cooldown_seconds=60)
    card, other = await house.card(), await house.card("other")
    await house.move(card, "ready")
    await house.spine.run_once()
    await house.later(seconds=20)
    await again(house, card)
    await house.move(other, "ready")  # another card is none of its rest
    await house.spine.run_once()
    assert await house.outcomes() == [
        "launched echo",
        "dropped(cooldown_seconds: the rule fired on WEB-1 20 s ago, and rests 60 s)",
        "launched echo",
    ]
    await house.later(seconds=41)
    await again(house, card)
    await house.spine.run_once()
    assert (await house.outcomes())[-1] == "launched echo"


async def test_what_launched_nobody_begins_no_rest(house: House) -> None:
    await house.rule(MOVED, cooldown_seconds=60, recheck=True)
    card = await house.card()
    await house.move(card, "ready")
    await house.spine.drain.run_once()
    await house.move(card, "inbox")
    await house.spine.run_once()
    await house.move(card, "ready")
    await house.spine.run_once()
    assert await house.outcomes() == ["dropped(no longer matches: to_states)", "launched echo"]


async def test_a_replay_waives_age_and_cooldown(house: House) -> None:
    await house.rule(
        MOVED, name="r", max_event_age_seconds=60, cooldown_seconds=600, prompt="{{card.fields.url}}"
    )
    card = await house.card()
    await house.move(card, "ready")
    await house.spine.run_once()
    [(state, *_)] = await house.launches()
    assert state == "dead"
    await house.boards.edit_card(house.ana, card.key, CardEdit(fields={"url": "x"}))
    await again(house, card)
    await house.spine.run_once()
    await house.later(seconds=120)
    await replay_dead(house)
    await house.spine.run_once()
    assert await house.outcomes() == ["launched echo", "launched echo"]


async def replay_dead(house: House) -> None:
    from mainspring.spine import desk

    by = desk.By(actor_id=house.ana.account_id, actor=house.ana.snapshot())
    async with house.spine.open(house.tenant) as tx:
        dead = await house.spine.store.effects(tx.handle, house.tenant, state=EffectState.DEAD)
        await desk.replay(house.spine.store, tx, [row.id for row in dead], new_key=None, by=by)


# While a run lives ----------------------------------------------------------------------------------------------


async def test_skip_launches_nobody_beside_a_run_that_has_not_ended(house: House) -> None:
    await house.rule(MOVED, while_running="skip")
    card, other = await house.card(), await house.card("other")
    await house.move(card, "ready")
    await again(house, card)
    await house.move(other, "ready")
    await house.spine.run_once()
    assert sorted(map(str, await house.outcomes())) == [
        "dropped(while_running: a run of echo on WEB-1 has not ended)",
        "launched echo",
        "launched echo",
    ]
    await house.end_runs()
    await again(house, card)
    await house.spine.run_once()
    assert (await house.outcomes())[-1] == "launched echo"


async def test_whoever_launched_the_run_it_is_a_run_and_another_agents_is_none(house: House) -> None:
    await house.rule(MOVED, name="a")
    card = await house.card()
    await house.move(card, "ready")
    await house.spine.run_once()
    await house.rules.disable(house.ana, "a")
    await house.rule(MOVED, name="b", while_running="skip")
    await house.rule(MOVED, name="c", while_running="skip", agent="flaky")
    await again(house, card)
    await house.spine.run_once()
    assert (await house.outcomes())[1:] == [
        "dropped(while_running: a run of echo on WEB-1 has not ended)",
        "launched flaky",
    ]


async def test_a_skipped_launch_spends_no_label(house: House) -> None:
    await house.rule(
        {"kinds": ["card.moved"], "labels_all": ["go"]}, while_running="skip", consume_label=True
    )
    card = await house.card(labels=["go"])
    await house.move(card, "ready")
    await house.spine.run_once()
    await house.boards.label_card(house.ana, card.key, add=["go"])
    await again(house, card)
    await house.spine.run_once()
    assert (await house.boards.get_card(house.tenant, card.key)).labels == {"go"}
    assert len(await house.queued()) == 1


async def test_queue_one_lets_the_latest_wait_and_no_other(house: House) -> None:
    await house.rule(MOVED, while_running="queue_one", prompt="{{event.seq}}")
    card = await house.card()
    await house.move(card, "ready")
    await house.spine.run_once()
    for _ in range(4):
        await again(house, card)
    await house.spine.run_once()
    assert sorted(await house.launches(), key=str) == [
        ("done", "launched echo", None),
        *[("dropped", "dropped(while_running: a later launch takes its place)", None)] * 3,
        ("pending", "deferred", "while_running: a run of echo on WEB-1 has not ended"),
    ]
    await house.end_runs()
    await house.later(seconds=10)
    await house.spine.run_once()
    [first, second] = await house.queued()
    assert second["prompt"] == str((await house.last("card.moved")).seq)
    assert (first["state"], second["state"]) == ("done", "queued")
    assert second["exclusive"]


async def test_one_that_was_told_to_run_however_old_gives_its_place_to_none_that_was_not(
    house: House,
) -> None:
    """The other may yet be dropped for its age; then neither would have run."""
    await house.rule(MOVED, while_running="queue_one", max_event_age_seconds=600)
    card = await house.card()
    await house.move(card, "ready")
    await house.spine.run_once()
    await house.rules.pause(house.ana, "r")
    await again(house, card)
    await house.spine.run_once()
    await house.rules.resume(house.ana, "r", owed="run")
    await house.spine.run_once()  # waits for the run, and was told to run
    await again(house, card)
    await house.spine.run_once()
    await house.later(seconds=40)
    await house.spine.run_once()
    await house.later(seconds=700)
    await house.spine.run_once()
    await house.end_runs()
    await house.later(seconds=60)
    await house.spine.run_once()
    assert (await house.outcomes()).count("launched echo") == 2


async def test_one_that_was_replayed_gives_its_place_to_none_that_is_only_owed(house: House) -> None:
    """What is replayed has age, cooldown and rate waived, and the other may yet be dropped by them; then neither would have run."""
    await house.rule(
        MOVED,
        name="r",
        while_running="queue_one",
        max_event_age_seconds=600,
        prompt="{{card.fields.url}}",
    )
    await house.rule({"kinds": ["card.labeled"], "labels_added": ["go"]}, name="other")
    card = await house.card()
    await house.move(card, "ready")
    await house.spine.run_once()
    [(state, *_)] = await house.launches()
    assert state == "dead"
    await house.boards.edit_card(house.ana, card.key, CardEdit(fields={"url": "x"}))
    await house.boards.label_card(house.ana, card.key, add=["go"])
    await house.spine.run_once()  # a run of the same agent, by another rule
    await again(house, card)
    await replay_dead(house)
    await house.spine.run_once()
    waits = ("pending", "deferred", "while_running: a run of echo on WEB-1 has not ended")
    assert sorted(await house.launches(), key=str) == [("done", "launched echo", None), waits, waits]
    await house.later(seconds=700)
    await house.end_runs()
    await house.later(seconds=60)
    await house.spine.run_once()
    outcomes = await house.outcomes()
    assert outcomes.count("launched echo") == 2
    assert any("max_event_age_seconds" in str(one) for one in outcomes)


async def test_one_that_waits_gives_its_place_to_none_of_another_version_that_may_yet_be_dropped(
    house: House,
) -> None:
    def when(label: str) -> dict[str, Any]:
        return MOVED | {"labels_all": [label]}

    await house.rule(when("bug"), while_running="queue_one", recheck=True)
    card = await house.card(labels=["bug"])
    await house.move(card, "ready")
    await house.spine.run_once()
    await again(house, card)
    await house.spine.run_once()  # waits, and its label stays
    await house.rules.edit(house.ana, "r", {"when": when("urgent")})
    await house.boards.label_card(house.ana, card.key, add=["urgent"])
    await again(house, card)
    await house.spine.run_once()
    await house.later(seconds=40)
    await house.spine.run_once()
    await house.boards.label_card(house.ana, card.key, remove=["urgent"])
    await house.end_runs()
    await house.later(seconds=60)
    await house.spine.run_once()
    assert (await house.outcomes()).count("launched echo") == 2


async def test_one_that_waits_gives_its_place_to_launches_alone(house: House) -> None:
    """The rule does something else by now: of what it does, nothing stands for the launch that it owes."""
    rule = await house.rule(MOVED, while_running="queue_one")
    card = await house.card()
    await house.move(card, "ready")
    await house.spine.run_once()
    await again(house, card)
    await house.spine.run_once()  # waits
    changed = {"do": {"promote": {"agent": "echo"}}, "options": {}}
    await house.rules.edit(house.ana, str(rule.id), changed)
    await again(house, card)
    await house.spine.run_once()
    await house.end_runs()
    await house.later(seconds=60)
    await house.spine.run_once()
    assert await house.outcomes() == ["launched echo"] * 2


async def test_one_that_has_waited_gives_its_place_to_a_later_one(house: House) -> None:
    await house.rule(MOVED, while_running="queue_one")
    card = await house.card()
    await house.move(card, "ready")
    await house.spine.run_once()
    await again(house, card)
    await house.spine.run_once()  # waits
    await again(house, card)
    await house.spine.drain.run_once()
    await house.end_runs()
    await house.later(seconds=10)  # both are due, and nothing runs
    await house.spine.run_once()
    assert sorted(map(str, await house.outcomes())) == [
        "dropped(while_running: a later launch takes its place)",
        "launched echo",
        "launched echo",
    ]


async def test_a_turn_that_never_comes_is_a_dead_letter_that_blames_no_target(house: House) -> None:
    await house.rule(MOVED, while_running="queue_one")
    card = await house.move(await house.card(), "ready")
    await again(house, card)
    await house.spine.run_once()
    await house.later(days=8)
    await house.spine.run_once()
    [letter] = [row for row in await house.launches() if row[0] == "dead"]
    said = f"deferred for too long: while_running: a run of echo on {card.key} has not ended"
    assert letter == ("dead", "exhausted", said)


async def test_a_rest_counts_from_the_launch_and_drops_what_comes_within_it(house: House) -> None:
    """What waits for its turn has passed the rest already: only what happens within it is dropped."""
    await house.rule(MOVED, while_running="queue_one", cooldown_seconds=30)
    card = await house.card()
    await house.move(card, "ready")
    await house.spine.run_once()
    await again(house, card)
    await house.spine.run_once()
    assert (await house.launches())[1][0] == "dropped"
    await house.later(seconds=31)
    await again(house, card)
    await house.spine.run_once()
    assert (await house.launches())[2][0] == "pending"
    await house.end_runs()
    await house.later(seconds=31)
    await house.spine.run_once()
    assert (await house.outcomes())[2] == "launched echo"


@pytest.mark.parametrize(("while_running", "second"), [("skip", "dropped"), ("queue_one", "pending")])
async def test_events_without_a_card_take_turns_by_their_rule(
    house: House, while_running: str, second: str
) -> None:
    await house.rule({"kinds": ["custom.deploy"]}, while_running=while_running, prompt="{{event.seq}}")
    for _ in range(2):
        async with house.spine.open(house.tenant) as tx:
            tx.append(NewEvent("custom.deploy", data={"actor": house.ana.snapshot()}))
        await house.spine.run_once()
    assert [state for state, *_ in await house.launches()] == ["done", second]


async def test_the_net_refuses_a_second_exclusive_run(house: House) -> None:
    await house.rule(MOVED, while_running="skip")
    card = await house.card()
    await house.move(card, "ready")
    await house.spine.run_once()
    with pytest.raises(Exception, match="runs_exclusive"):
        async with house.db.tenant(house.tenant) as scope:
            await scope.execute(
                """insert into mainspring.runs (tenant_id, id, agent_id, card_id, effect_kind, effect_key, state, prompt,
                       trust, exclusive)
                   select tenant_id, gen_random_uuid(), agent_id, card_id, effect_kind, 'other', 'queued', '', 'member', true
                   from mainspring.runs where tenant_id = $1""",
                house.tenant,
            )


# The hourly ceiling of an agent -----------------------------------------------------------------------------------


def lower_ceiling(spine: ServerSpine, most: int) -> None:
    executor = spine._executors["launch"]
    spine._executors["launch"] = replace(
        executor,
        run=Launcher(spine.store, executor.run._cards, executor.run._runs, per_hour_max=most),  # type: ignore[union-attr]
    )


async def test_an_agent_is_launched_so_often_an_hour_whatever_launches_it(house: House) -> None:
    lower_ceiling(house.spine, 3)
    await house.rule({"kinds": ["card.created"], "boards": ["WEB"]}, prompt="x")
    await house.card("by a rule")
    await house.card("by a rule, too")
    await house.card("by its pin", board="OPS", state="ready", agent="echo")
    await house.spine.run_once()
    assert await house.outcomes() == ["launched echo"] * 3
    await house.card("one more by the rule")
    await house.card("one more by its pin", board="OPS", state="ready", agent="echo")
    await house.card("another agent's", board="OPS", state="ready", agent="flaky")
    await house.spine.run_once()
    assert sorted(await house.launches(), key=str)[4:] == [
        ("pending", "deferred", "echo was launched 3 times within the hour: its ceiling"),
        ("pending", "deferred", "echo was launched 3 times within the hour: its ceiling"),
    ]
    await house.later(seconds=3_601)
    await house.spine.run_once()
    assert [state for state, *_ in await house.launches()] == ["done"] * 6  # nothing is lost


async def test_what_no_limit_counts_any_more_is_forgotten(house: House) -> None:
    await house.rule(MOVED, name="plain")
    await house.rule(MOVED, name="rests", cooldown_seconds=86_400)
    await house.move(await house.card(), "ready")
    await house.spine.run_once()
    counts = []
    for days in (0.0, 0.1, 1.0):
        await house.later(days=days)
        async with house.db.system("test") as scope:
            assert not await limits.trim_firings(scope)
            counts.append(await scope.fetchval("select count(*) from mainspring.firings"))
    assert counts == [2, 1, 0]
