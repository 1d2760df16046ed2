"""Paused rules: what trips one, what is held meanwhile, and what a resume does with it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mainspring import telemetry
from mainspring.ids import new_id
from mainspring.rooms import Conflict, Invalid, NotFound
from mainspring.spine.effects import EffectRow
from mainspring.spine.engine import SpineSettings
from mainspring.triggers.service import RuleService
from mainspring.triggers.stray import free_stray

from .conftest import House, another_engine

MOVED = {"kinds": ["card.moved"], "to_states": ["ready"]}
CREATED = {"kinds": ["card.created"]}


async def rows(house: House) -> list[EffectRow]:
    async with house.db.tenant(house.tenant) as scope:
        return await house.spine.store.effects(scope, house.tenant, kind="launch", limit=1_000)


async def standing(house: House) -> list[str]:
    """Where each launch stands, sorted: held ones by that name."""
    return sorted("held" if row.not_before is None else str(row.state) for row in await rows(house))


async def test_one_more_than_may_be_within_the_hour_pauses_the_rule_and_loses_nothing(house: House) -> None:
    counted = telemetry.rules_paused._value.get()
    rule = await house.rule(CREATED, max_per_hour=2)
    for n in range(5):
        await house.card(f"c{n}")
    await house.spine.run_once()
    assert await standing(house) == ["done", "done", "held", "held", "held"]
    because = "max_per_hour: it fired 2 times within the hour, and 2 are allowed"
    held = [row for row in await rows(house) if row.not_before is None]
    assert {(row.outcome, row.error) for row in held} == {("held", f"the rule is paused: {because}")}
    shown = await house.rules.show(house.tenant, "r")
    assert shown.paused is not None
    assert (shown.paused.because, shown.enabled, shown.version) == (because, True, 1)
    changed = await house.last("rule.changed")
    assert (changed.data["change"], changed.data["because"], changed.data["actor"]["kind"]) == (
        "paused",
        because,
        "system",
    )
    assert changed.subject == str(rule.id)
    assert changed.via == (rule.id,)
    assert telemetry.rules_paused._value.get() == counted + 1
    await house.card("later")  # judged and owed the same
    await house.later(days=30)
    await house.spine.run_once()
    assert await standing(house) == ["done", "done", "held", "held", "held", "held"]


async def test_resumed_to_run_it_runs_all_that_it_owes_and_then_counts_anew(house: House) -> None:
    await house.rule(CREATED, max_per_hour=2, max_event_age_seconds=60)
    for n in range(5):
        await house.card(f"c{n}")
    await house.spine.run_once()
    await house.later(seconds=120)  # it was held, and not too slow
    await house.card("not drained yet")
    resumed = await house.rules.resume(house.ana, "r", owed="run")
    assert (resumed.held, resumed.rule.paused) == (3, None)
    changed = await house.last("rule.changed")
    assert (changed.data["change"], changed.data["owed"], changed.data["held"]) == ("resumed", "run", 3)
    await house.spine.run_once()
    assert await standing(house) == ["done"] * 6
    for n in range(3):
        await house.card(f"d{n}")
    await house.spine.run_once()
    assert await standing(house) == ["done"] * 8 + ["held"]


async def test_resumed_to_discard_it_gives_up_what_it_owes_met_or_not(house: House) -> None:
    await house.rule(CREATED, max_per_hour=1)
    for n in range(3):
        await house.card(f"c{n}")
    await house.spine.run_once()
    await house.card("owed, and not met yet")
    await house.spine.drain.run_once()
    await house.card("not drained yet")
    resumed = await house.rules.resume(house.ana, "r", owed="discard")
    assert resumed.held == 2
    await house.card("after")
    await house.spine.run_once()
    assert sorted(map(str, await house.outcomes())) == [
        *["dropped(given up when the rule was resumed)"] * 4,
        "held",  # the hour is not over, and nothing was waived
        "launched echo",
    ]


async def test_a_rule_is_paused_and_resumed_by_hand(house: House) -> None:
    await house.rule(MOVED)
    paused = await house.rules.pause(house.ana, "r", because=" looking into it ")
    assert paused.paused is not None
    assert paused.paused.because == "looking into it"
    assert await house.rules.pause(house.ana, "R") == await house.rules.show(house.tenant, "r")
    card = await house.card()
    await house.move(card, "ready")
    await house.spine.run_once()
    assert await standing(house) == ["held"]
    assert await house.rules.held(house.tenant, paused) == 1
    await house.rules.resume(house.ana, "r", owed="run")
    await house.spine.run_once()
    assert await house.outcomes() == ["launched echo"]
    with pytest.raises(Conflict) as caught:
        await house.rules.resume(house.ana, "r", owed="run")
    assert caught.value.code == "rule_not_paused"
    await house.rules.disable(house.ana, "r")
    with pytest.raises(Conflict) as caught:
        await house.rules.pause(house.ana, "r")
    assert caught.value.code == "rule_disabled"
    with pytest.raises(NotFound):
        await house.rules.pause(house.ana, "none")
    for because in ("", " ", "x" * 501, "a\0"):
        with pytest.raises(Invalid):
            await house.rules.pause(house.ana, "r", because=because)


@pytest.mark.parametrize("end", ["disable", "delete", "edit"])
async def test_a_paused_rule_that_goes_off_holds_nothing_for_ever(house: House, end: str) -> None:
    await house.rule(MOVED)
    await house.rules.pause(house.ana, "r")
    await house.move(await house.card(), "ready")
    await house.spine.run_once()
    assert await standing(house) == ["held"]
    match end:
        case "disable":
            await house.rules.disable(house.ana, "r")
        case "delete":
            await house.rules.delete(house.ana, "r")
        case _:
            await house.rules.edit(house.ana, "r", {}, enabled=False)
    await house.spine.run_once()
    [outcome] = await house.outcomes()
    assert outcome in ("dropped(rule disabled)", "dropped(rule deleted)")
    if end != "delete":
        assert (await house.rules.enable(house.ana, "r")).paused is None


async def test_an_edit_leaves_a_rule_paused_and_its_versions_judge_as_before(house: House) -> None:
    rule = await house.rule(MOVED, max_per_hour=5)
    await house.rules.pause(house.ana, "r")
    edited = (await house.rules.edit(house.ana, "r", {"options": {"max_per_hour": 50}})).rule
    assert edited.paused is not None
    await house.rules.resume(house.ana, "r", owed="run")
    async with house.db.tenant(house.tenant) as scope:
        spans = await scope.fetch(
            "select version, until_seq is null as is_open from mainspring.rule_versions where rule_id = $1 order by version",
            rule.id,
        )
    assert [tuple(row) for row in spans] == [(1, False), (2, True)]
    await house.move(await house.card(), "ready")
    await house.spine.run_once()
    assert await house.outcomes() == ["launched echo"]


async def test_a_held_launch_can_be_cancelled_and_verdicts_stay(house: House) -> None:
    await house.rule(MOVED)
    await house.rules.pause(house.ana, "r")
    await house.move(await house.card(), "ready")
    await house.spine.run_once()
    moved = await house.last("card.moved")
    assert (await house.verdicts(moved))["r"].matched
    [row] = await rows(house)
    async with house.db.tenant(house.tenant) as scope:
        await house.spine.store.cancel(scope, house.tenant, row.id)
    assert (await house.rules.resume(house.ana, "r", owed="run")).held == 0
    await house.spine.run_once()
    assert await house.outcomes() == ["dropped(cancelled)"]


async def test_what_no_pause_holds_is_set_free(house: House) -> None:
    """A webhook's row is held after its rule was looked at: a resume may have come between."""
    before = telemetry.sweep_repaired.labels("held")._value.get()
    await house.rule(MOVED)
    await house.rules.pause(house.ana, "r")
    await house.move(await house.card(), "ready")
    await house.spine.run_once()
    assert await free_stray(house.spine, house.db) == 0  # a pause holds it
    async with house.db.tenant(house.tenant) as scope:
        await scope.execute(
            "update mainspring.rules set paused_at = null, paused_because = null where tenant_id = $1",
            house.tenant,
        )
    assert await free_stray(house.spine, house.db) == 1
    assert await free_stray(house.spine, house.db) == 0
    assert telemetry.sweep_repaired.labels("held")._value.get() == before + 1
    await house.spine.run_once()
    assert await house.outcomes() == ["launched echo"]


@pytest.mark.slow
@pytest.mark.parametrize("by", ["resume", "the net", "disable"])
async def test_what_is_set_free_is_looked_for_at_once(house: House, by: str) -> None:
    """No tick comes by: whoever sets rows free tells the worker when that is committed."""
    await house.rule(MOVED)
    await house.rules.pause(house.ana, "r")
    await house.move(await house.card(), "ready")
    await house.spine.run_once()
    assert await standing(house) == ["held"]
    spine = another_engine(house, SpineSettings(tick_seconds=1_000, due_sweep_seconds=1_000))
    rules = RuleService(spine, house.db)
    async with spine.running(), asyncio.timeout(20):
        while any(loop.health.succeeded_seconds_ago is None for loop in spine._loops):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        match by:
            case "resume":
                await rules.resume(house.ana, "r", owed="run")
            case "disable":
                await rules.disable(house.ana, "r")
            case _:
                async with house.db.tenant(house.tenant) as scope:
                    await scope.execute("update mainspring.rules set paused_at = null, paused_because = null")
                assert await free_stray(spine, house.db) == 1
        while await standing(house) == ["pending"]:  # noqa: ASYNC110 - nobody tells what a worker has settled
            await asyncio.sleep(0.01)
    assert await standing(house) == ["dropped" if by == "disable" else "done"]


async def test_another_tenant_pauses_nothing_of_ours(house: House) -> None:
    rule = await house.rule(MOVED)
    stranger = new_id()
    await house.spine.create_tenant(stranger, "other")
    from dataclasses import replace

    theirs = replace(house.ana, tenant_id=stranger)
    for act in (
        house.rules.pause(theirs, str(rule.id)),
        house.rules.resume(theirs, str(rule.id), owed="run"),
        house.rules.test(stranger, str(rule.id), last=10),
    ):
        with pytest.raises(NotFound):
            await act


async def test_a_rule_may_raise_the_alarm_when_another_is_paused(house: House) -> None:
    await house.rule(CREATED, name="busy", max_per_hour=1)
    await house.rule(
        {"kinds": ["rule.changed"], "changes": ["paused"]}, name="alarm", agent="flaky", prompt="{{rule.name}} was {{change}}"
    )  # fmt: skip
    for n in range(3):
        await house.card(f"c{n}")
    await house.spine.run_once()
    assert [run["prompt"] for run in await house.queued() if run["agent_id"] == house.flaky.account_id] == [
        "busy was paused"
    ]


async def test_a_rule_may_raise_the_alarm_when_something_is_dead(house: House) -> None:
    await house.rule({"kinds": ["card.created"]}, name="broken", prompt="{{card.fields.url}}")
    alarm: dict[str, Any] = {"kinds": ["effect.dead"]}
    await house.rule(alarm, name="alarm", agent="flaky", prompt="{{effect.kind}}: {{effect.error}}")
    await house.card()
    await house.spine.run_once()
    [run] = await house.queued()
    assert run["prompt"].startswith("launch: the prompt names {{card.fields.url}}")
    assert run["trigger"]["actor"] is None
