"""From an event to a queued run: judged by the rules in force at its seq, carried out in one transaction."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from mainspring.boards.model import CardEdit
from mainspring.faultpoints import FaultPoint, FaultRaised, arm, disarm
from mainspring.spine.events import Cause, NewEvent, Trust
from mainspring.triggers import effects

from .conftest import House

MOVED = {"kinds": ["card.moved"], "to_states": ["ready"]}


async def test_a_move_launches_the_rules_agent_once(house: House) -> None:
    rule = await house.rule(
        MOVED, prompt="{{card.key}}: {{card.title}}, {{from}} to {{to}} by {{actor.handle}}"
    )
    card = await house.card("Fix it")
    await house.move(card, "ready")
    await house.spine.run_once()
    moved = await house.last("card.moved")
    [run] = await house.queued()
    assert run["prompt"] == "WEB-1: Fix it, inbox to ready by ana"
    assert (run["agent_id"], run["card_id"], run["card_state_version"]) == (house.echo.account_id, card.id, 2)
    assert (run["rule_id"], run["rule_version"], run["event_seq"]) == (rule.id, 1, moved.seq)
    assert (run["effect_kind"], run["effect_key"]) == ("launch", f"{moved.seq}:{rule.id}")
    assert (run["via"], run["depth"], run["trust"]) == ([rule.id], 1, "member")
    assert run["trigger"]["summary"] == f"WEB-1: card.moved (event {moved.seq}), rule r"
    queued = await house.last("run.queued")
    assert (queued.cause_seq, queued.via, queued.depth) == (moved.seq, (rule.id,), 1)
    assert await house.launches() == [("done", "launched echo", None)]
    await house.spine.run_once()
    assert len(await house.queued()) == 1


async def test_an_event_is_judged_by_the_version_in_force_at_its_seq_whenever_it_is_drained(
    house: House,
) -> None:
    card = await house.card()
    await house.move(card, "ready")  # before the rule: not its to judge
    await house.rule(MOVED, name="first", prompt="1")
    await house.move(card, "inbox")
    await house.move(card, "ready")
    await house.rules.edit(house.ana, "first", {"do": {"launch": {"agent": "flaky", "prompt": "2"}}})
    await house.move(card, "inbox")
    await house.move(card, "ready")
    await house.rules.disable(house.ana, "first")
    await house.move(card, "inbox")
    await house.move(card, "ready")
    await house.rules.enable(house.ana, "first")
    await house.rule(MOVED, name="late")
    await house.spine.run_once()  # only now
    runs = {
        run["event_seq"]: (run["prompt"], run["rule_version"], run["agent_id"])
        for run in await house.queued()
    }
    assert list(runs.values()) == [("1", 1, house.echo.account_id), ("2", 2, house.flaky.account_id)]


@pytest.mark.parametrize("closed_kept", [effects._CLOSED_KEPT, 0])
async def test_rules_kept_in_memory_are_never_stale(
    house: House, monkeypatch: pytest.MonkeyPatch, closed_kept: int
) -> None:
    monkeypatch.setattr(effects, "_CLOSED_KEPT", closed_kept)  # 0: read anew as soon as most have ended
    card = await house.card()
    launched = 0
    for n in range(6):
        if n % 2 == 0:
            await house.rule(MOVED, name=f"r{n}")
        else:
            await house.rules.disable(house.ana, f"r{n - 1}")
        await house.move(card, "ready")
        await house.move(card, "inbox")
        launched += 1 - n % 2
        await house.spine.run_once()
        assert len(await house.queued()) == launched


async def test_what_matches_no_rule_owes_nothing(house: House) -> None:
    await house.rule(MOVED | {"boards": ["OPS"]})
    await house.move(await house.card(), "ready")
    await house.spine.run_once()
    assert await house.launches() == []


async def test_a_rule_that_is_disabled_or_deleted_meanwhile_launches_nobody(house: House) -> None:
    await house.rule(MOVED, name="off")
    await house.rule(MOVED, name="gone")
    await house.rule(MOVED, name="back")
    await house.move(await house.card(), "ready")
    await house.spine.drain.run_once()
    await house.rules.disable(house.ana, "off")
    await house.rules.delete(house.ana, "gone")
    await house.rules.disable(house.ana, "back")
    await house.rules.enable(house.ana, "back")
    await house.spine.run_once()
    assert [outcome for _, outcome, _ in await house.launches()] == [
        "dropped(rule disabled)",
        "dropped(rule deleted)",
        "launched echo",  # enabled now is what counts
    ]


# One-shots ------------------------------------------------------------------------------------------------------


async def test_a_label_is_spent_once_and_arms_again_when_added_again(house: House) -> None:
    when = {"kinds": ["card.moved", "card.labeled"], "labels_all": ["go"]}
    await house.rule(when, name="one", consume_label=True)
    await house.rule(when, name="two", consume_label=True)
    card = await house.card(labels=["go", "keep"])
    await house.move(card, "ready")
    await house.spine.run_once()
    assert sorted(outcome or "" for _, outcome, _ in await house.launches()) == [
        "dropped(label spent)",
        "launched echo",
    ]
    assert (await house.boards.get_card(house.tenant, card.key)).labels == {"keep"}
    taken = await house.last("card.unlabeled")
    [run] = await house.queued()
    assert (taken.data["removed"], taken.via, taken.data["actor"]["kind"]) == (
        ["go"],
        (run["rule_id"],),
        "system",
    )

    await house.boards.label_card(house.ana, card.key, add=["GO"])
    await house.spine.run_once()
    assert len(await house.queued()) == 2


async def test_a_label_is_not_spent_by_a_launch_that_fails(house: House) -> None:
    when = {"kinds": ["card.moved"], "labels_all": ["go"]}
    await house.rule(when, consume_label=True, prompt="{{card.fields.url}}")
    card = await house.card(labels=["go"])
    await house.move(card, "ready")
    await house.spine.run_once()
    [(state, _, error)] = await house.launches()
    assert state == "dead"
    assert error is not None
    assert "{{card.fields.url}}" in error
    assert (await house.boards.get_card(house.tenant, card.key)).labels == {"go"}
    assert await house.queued() == []


@pytest.mark.parametrize(
    "point", [FaultPoint.LAUNCH_AFTER_CONSUME, FaultPoint.LAUNCH_AFTER_RUN, FaultPoint.LAUNCH_BEFORE_COMMIT]
)
async def test_dying_at_any_point_of_a_launch_neither_spends_nor_doubles(
    house: House, point: FaultPoint
) -> None:
    await house.rule({"kinds": ["card.moved"], "labels_all": ["go"]}, consume_label=True)
    card = await house.card(labels=["go"])
    await house.move(card, "ready")
    arm(f"{point}:1:raise")
    try:
        with suppress(FaultRaised):  # whether the worker lets it through or takes it for a failed attempt
            await house.spine.run_once()
        assert await house.queued() == []
        assert (await house.boards.get_card(house.tenant, card.key)).labels == {"go"}
        await house.later(seconds=60)
        await house.spine.run_once()
    finally:
        disarm()
    assert len(await house.queued()) == 1
    assert (await house.boards.get_card(house.tenant, card.key)).labels == frozenset()


# Rechecks, cards that are gone, prompts -------------------------------------------------------------------------


async def test_recheck_asks_the_card_as_it_is_now(house: House) -> None:
    await house.rule(MOVED, name="checked", recheck=True)
    await house.rule(MOVED, name="plain")
    card = await house.card()
    await house.move(card, "ready")
    await house.spine.drain.run_once()
    await house.move(card, "doing")
    await house.spine.run_once()
    assert [outcome for _, outcome, _ in await house.launches()] == [
        "dropped(no longer matches: to_states)",
        "launched echo",
    ]


async def test_a_deleted_card_is_worked_on_no_more(house: House) -> None:
    await house.rule(MOVED)
    await house.rule({"kinds": ["card.deleted"]}, name="wake", prompt="{{card.title}} is gone")
    card = await house.card("T")
    await house.move(card, "ready")
    await house.spine.drain.run_once()
    await house.boards.delete_card(house.ana, card.key)
    await house.spine.run_once()
    assert [outcome for _, outcome, _ in await house.launches()] == ["dropped(card deleted)", "launched echo"]
    [run] = await house.queued()
    assert (run["prompt"], run["card_id"]) == ("T is gone", None)


async def test_a_launch_that_died_of_a_missing_field_is_mended_and_replayed(house: House) -> None:
    await house.rule(MOVED, prompt="look at {{card.fields.url}}")
    card = await house.card()
    await house.move(card, "ready")
    await house.spine.run_once()
    assert [state for state, *_ in await house.launches()] == ["dead"]
    await house.boards.edit_card(house.ana, card.key, CardEdit(fields={"url": "http://x"}))
    async with house.db.tenant(house.tenant) as scope:
        [dead] = await house.spine.store.effects(scope, house.tenant, kind="launch")
        await house.spine.store.replay(scope, house.tenant, [(dead, False)])
        await house.spine.store.make_due(scope, [(house.tenant, dead.id)])
    await house.spine.run_once()
    [run] = await house.queued()
    assert run["prompt"] == "look at http://x"


async def test_an_agent_that_is_gone_is_a_dead_letter(house: House) -> None:
    await house.rule(MOVED)
    async with house.db.tenant(house.tenant) as scope:
        await scope.execute(
            "update mainspring.accounts set handle = 'renamed' where tenant_id = $1 and handle = 'echo'",
            house.tenant,
        )
    await house.move(await house.card(), "ready")
    await house.spine.run_once()
    assert await house.launches() == [("dead", "failed", "no agent echo")]


async def test_a_title_that_looks_like_a_template_is_text(house: House) -> None:
    await house.rule(MOVED)
    await house.move(await house.card("{{card.fields.secret}}"), "ready")
    await house.spine.run_once()
    assert [run["prompt"] for run in await house.queued()] == ["{{card.fields.secret}}"]


# Chains ---------------------------------------------------------------------------------------------------------


async def test_a_rule_on_a_runs_outcome(house: House) -> None:
    await house.rule(
        {"kinds": ["run.queued"], "agents": ["echo"], "boards": ["WEB"]},
        agent="flaky",
        prompt="{{run.agent}}",
    )
    await house.rule(MOVED, name="first")
    await house.move(await house.card(), "ready")
    await house.spine.run_once()
    assert [(run["agent_id"], run["depth"], run["prompt"]) for run in await house.queued()] == [
        (house.echo.account_id, 1, "t"),
        (house.flaky.account_id, 2, "echo"),
    ]


async def test_a_rule_does_not_feed_on_itself_unless_asked_to_and_then_ends_at_depth(house: House) -> None:
    await house.rule({"kinds": ["run.queued", "card.created"]}, prompt="x")
    card = await house.card()
    await house.spine.run_once()
    assert len(await house.queued()) == 1
    await house.rules.edit(house.ana, "r", {"options": {"self_trigger": True}})
    await house.move(card, "ready")
    await house.card()
    await house.spine.run_once()
    # the run of depth 8 is the last: its own event launches nobody
    assert [run["depth"] for run in await house.queued()] == [1, *range(1, 9)]


async def test_two_rules_do_not_feed_on_each_other(house: House) -> None:
    await house.rule({"kinds": ["run.queued", "card.created"]}, name="ping", prompt="x")
    await house.rule({"kinds": ["run.queued"], "agents": ["echo"]}, name="pong", agent="flaky", prompt="x")
    await house.card()
    await house.spine.run_once()
    # ping on the card, pong on ping's run; both are in the via of whatever follows
    assert len(await house.queued()) == 2


async def test_the_trust_of_the_event_is_the_runs(house: House) -> None:
    await house.rule(MOVED | {"min_trust": "stranger"})
    card = await house.card()
    stranger = house.system(Cause(seq=1, depth=2, trust=Trust.STRANGER))
    await house.boards.move_card(stranger, card.key, "ready")
    await house.spine.run_once()
    assert [(run["depth"], run["trust"]) for run in await house.queued()] == [(3, "stranger")]


async def test_a_snapshot_that_makes_no_sense_holds_nobody_up(house: House) -> None:
    await house.rule(MOVED)
    async with house.spine.open(house.tenant) as tx:
        for data in ({}, {"card": None}, {"card": 7, "actor": []}, {"card": {"labels": [1], "board": None}}):
            said: dict[str, Any] = {"to": "ready", **data}
            tx.append(NewEvent("card.moved", data=said))
    await house.move(await house.card(), "ready")
    await house.spine.run_once()
    assert len(await house.queued()) >= 1


# Explain --------------------------------------------------------------------------------------------------------


async def test_explain_gives_a_verdict_for_every_rule(house: House) -> None:
    await house.rule(MOVED, name="hit")
    await house.rule(MOVED | {"boards": ["OPS"]}, name="board")
    await house.rule({"kinds": ["card.moved"], "to_states": ["doing", "shipped"]}, name="state")
    await house.rule({"kinds": ["card.moved"], "labels_all": ["go"]}, name="label")
    await house.rule({"kinds": ["run.done"]}, name="kind")
    await house.rule({"actors": ["agents"]}, name="actor")
    await house.rule(MOVED, name="off")
    await house.rules.disable(house.ana, "off")
    await house.rule(MOVED, name="gone")
    await house.rules.delete(house.ana, "gone")
    card = await house.card()
    await house.move(card, "ready")
    moved = await house.last("card.moved")
    await house.rule(MOVED, name="young")
    await house.rules.edit(house.ana, "hit", {"when": {"boards": ["OPS"]}})  # it said something else then
    found = await house.verdicts(moved)
    assert {name: (one.matched, one.failed_term, one.version) for name, one in found.items()} == {
        "hit": (True, None, 1),
        "board": (False, "boards", 1),
        "state": (False, "to_states", 1),
        "label": (False, "labels_all", 1),
        "kind": (False, "kinds", 1),
        "actor": (False, "actors", 1),
        "off": (False, "not in force", 2),
        "young": (False, "not in force", None),
    }
    assert {name: one.why_text for name, one in found.items()} == {
        "hit": "matched",
        "board": "boards: the card is on WEB, the rule asks for OPS",
        "state": "to_states: it went to ready, the rule asks for doing, shipped",
        "label": "labels_all: the card bears no label, the rule asks for all of go",
        "kind": "kinds: it is card.moved, the rule looks at run.done",
        "actor": "actors: ana (human) did it, the rule asks for agents",
        "off": "not in force: disabled",
        "young": f"not in force: created after event {moved.seq}",
    }
    await house.spine.run_once()
    assert await house.launches() == [("done", "launched echo", None)]


async def test_explain_says_what_the_drain_did(house: House) -> None:
    """For every event and rule: a launch is owed exactly where the verdict is a match."""
    card = await house.card(labels=["a"])
    await house.rule({"kinds": ["card.moved"]}, name="one")
    await house.move(card, "ready")
    await house.rule({"labels_any": ["a"], "actors": ["members"]}, name="two")
    await house.rules.disable(house.ana, "one")
    await house.move(card, "doing")
    await house.rules.enable(house.ana, "one")
    await house.boards.label_card(house.ana, card.key, remove=["a"])
    await house.move(card, "ready")
    await house.spine.run_once()
    matched = [
        f"{event.seq}:{one.rule_id}"
        for event in await house.events()
        for one in (await house.verdicts(event)).values()
        if one.matched
    ]
    assert sorted(await house.keys()) == sorted(matched)
    assert len(matched) == 3
