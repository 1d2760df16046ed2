"""Dispatch: a pinned card that becomes eligible is launched once, whatever happens to it afterwards."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from mainspring import telemetry
from mainspring.boards.model import CardEdit
from mainspring.ids import new_id
from mainspring.spine.events import Cause, Trust
from mainspring.triggers import dispatch
from tests.databases import connected

from .conftest import STATES, House, _account


def repaired() -> float:
    return telemetry.sweep_repaired.labels("dispatch")._value.get()


async def eligible(house: House, title: str = "t", **more):
    return await house.card(title, board="OPS", state="ready", agent="echo", **more)


async def dispatched_version(house: House, card) -> int | None:
    return (await house.boards.get_card(house.tenant, card.key)).dispatched_version


async def test_a_card_edited_twice_by_an_agent_is_dispatched_once(house: House) -> None:
    """No reflect map: the card stays in its eligible state. Ten sweeps, and the janitor eight days later."""
    card = await eligible(house)
    await house.spine.run_once()
    await house.boards.edit_card(house.echo, card.key, CardEdit(title="one"))
    await house.boards.edit_card(house.echo, card.key, CardEdit(title="two"))
    await house.end_runs()
    before = repaired()
    for _ in range(10):
        await house.sweep()
        await house.spine.run_once()
    await house.later(days=8)
    await house.spine.janitor.run_once()
    assert await house.keys() == []  # the row that said so is gone
    for _ in range(3):
        await house.sweep()
        await house.spine.run_once()
    assert len(await house.queued()) == 1
    assert await dispatched_version(house, card) == 1
    assert repaired() == before


async def test_what_makes_a_card_eligible_dispatches_it(house: House) -> None:
    created = await eligible(house, "created", body="Do it.\n")
    moved = await house.card("moved", board="OPS", agent="echo")
    await house.move(moved, "ready")
    assigned = await house.card("assigned", board="OPS", state="ready")
    await house.boards.assign_card(house.ana, assigned.key, agent="flaky")
    await house.card("no pin", board="OPS", state="ready")
    await house.card("not eligible", board="OPS", agent="echo")
    await house.card("no such state", board="WEB", state="ready", agent="echo")
    await house.spine.run_once()
    assert [
        (run["prompt"], run["agent_id"], run["rule_id"], run["depth"]) for run in await house.queued()
    ] == [
        ("created\n\nDo it.", house.echo.account_id, None, 1),
        ("moved", house.echo.account_id, None, 1),
        ("assigned", house.flaky.account_id, None, 1),
    ]
    assert (await house.keys())[0] == f"dispatch:{created.id}:1"


async def test_another_pin_is_another_dispatch_and_the_old_one_is_dropped(house: House) -> None:
    card = await eligible(house)
    await house.spine.drain.run_once()
    await house.boards.assign_card(house.ana, card.key, agent="flaky")
    await house.spine.run_once()
    assert [outcome for _, outcome, _ in await house.launches()] == [
        "dropped(eligible anew since)",
        "launched flaky",
    ]


async def test_a_card_that_is_no_longer_eligible_is_not_dispatched(house: House) -> None:
    moved, unpinned, deleted = [await eligible(house, name) for name in "abc"]
    await house.spine.drain.run_once()
    await house.move(moved, "done")
    await house.boards.assign_card(house.ana, unpinned.key, agent=None)
    await house.boards.delete_card(house.ana, deleted.key)
    await house.spine.run_once()
    assert sorted(outcome or "" for _, outcome, _ in await house.launches()) == [
        "dropped(card deleted)",
        "dropped(no longer eligible)",
        "dropped(no longer eligible)",
    ]
    assert await house.queued() == []


async def test_while_a_run_of_card_and_agent_lives_it_waits(house: House) -> None:
    card = await eligible(house)
    await house.spine.run_once()
    await house.move(card, "done")
    await house.move(card, "ready")
    await house.spine.run_once()
    assert [(state, outcome) for state, outcome, _ in await house.launches()] == [
        ("done", "launched echo"),
        ("pending", "deferred"),
    ]
    await house.end_runs()
    await house.later(seconds=10)
    await house.spine.run_once()
    assert [state for state, *_ in await house.launches()] == ["done", "done"]
    assert len(await house.queued()) == 2


@pytest.mark.slow
async def test_the_longer_a_dispatch_waits_the_less_often_it_looks(house: House) -> None:
    card = await eligible(house)
    await house.spine.run_once()
    await house.move(card, "done")
    await house.move(card, "ready")
    for _ in range(40):
        await house.spine.run_once()
        await house.later(seconds=6)
    async with house.db.tenant(house.tenant) as scope:
        [_, waiting] = await house.spine.store.effects(scope, house.tenant, kind="launch")
    assert 8 < waiting.deferrals < 20  # in four minutes
    await house.end_runs()
    await house.later(seconds=60)
    await house.spine.run_once()
    assert len(await house.queued()) == 2


async def test_a_live_run_of_another_agent_does_not_hold_it(house: House) -> None:
    card = await eligible(house)
    await house.spine.run_once()
    await house.boards.assign_card(house.ana, card.key, agent="flaky")
    await house.spine.run_once()
    assert len(await house.queued()) == 2


async def test_at_depth_eight_nothing_is_dispatched_by_drain_or_sweep(house: House) -> None:
    deep = replace(house.ana, cause=Cause(seq=1, depth=8))
    await house.card(board="OPS", state="ready", agent="echo", by=deep)
    await house.spine.run_once()
    await house.sweep()
    await house.spine.run_once()
    assert await house.launches() == []
    await house.card(
        board="OPS", state="ready", agent="echo", by=replace(house.ana, cause=Cause(seq=1, depth=7))
    )
    await house.spine.run_once()
    assert [run["depth"] for run in await house.queued()] == [8]


async def test_what_is_not_trusted_far_enough_dispatches_nothing_by_drain_or_sweep(house: House) -> None:
    for trust, runs in ((Trust.STRANGER, 0), (Trust.FORGE, 0), (Trust.AGENT, 1)):
        by = replace(house.ana, cause=Cause(seq=1, depth=1, trust=trust))
        await house.card(board="OPS", state="ready", agent="echo", by=by)
        await house.spine.run_once()
        assert await house.sweep() == 0
        assert len(await house.queued()) == runs


async def test_the_sweep_owes_what_a_drain_missed_under_the_same_key(house: House) -> None:
    deep = replace(house.ana, cause=Cause(seq=1, depth=3))
    card = await house.card(board="OPS", state="ready", agent="echo", by=deep)
    assert await house.sweep() == 0  # the drain has not been there yet
    await house.spine.drain.run_once()
    assert await house.sweep() == 0  # owed, and not carried out yet
    async with house.db.tenant(house.tenant) as scope:
        await scope.execute("delete from mainspring.effects where tenant_id = $1", house.tenant)
    before = repaired()
    assert await house.sweep() == 1
    assert await house.sweep() == 0
    assert repaired() == before + 1
    await house.spine.run_once()
    assert await house.keys() == [f"dispatch:{card.id}:1"]
    [run] = await house.queued()
    assert (run["depth"], run["event_seq"]) == (
        4,
        card.eligible_seq or (await house.last("card.created")).seq,
    )
    assert await dispatched_version(house, card) == 1


async def neighbour(house: House) -> House:
    """Another tenant in the same house."""
    tenant = new_id()
    await house.spine.create_tenant(tenant, "another")
    async with house.db.tenant(tenant) as scope:
        ana = await _account(scope, tenant, "ana", "human")
        echo = await _account(scope, tenant, "echo", "agent")
    await house.boards.create_board(ana, key="OPS", name="Operations", states=STATES, reflect={})
    return replace(house, tenant=tenant, ana=ana, echo=echo)


async def missed_cards(house: House, count: int) -> None:
    """Cards of this tenant for which a drain has owed nothing."""
    for n in range(count):
        await eligible(house, f"c{n}")
    await house.spine.drain.run_once()
    async with house.db.tenant(house.tenant) as scope:
        await scope.execute("delete from mainspring.effects where tenant_id = $1", house.tenant)


async def test_a_tenant_for_which_nothing_can_be_owed_holds_up_no_other_tenants_dispatches(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "_SWEEP_BATCH", 2)
    first, broken, last = house, await neighbour(house), await neighbour(house)
    for one, cards in ((first, 3), (broken, 3), (last, 1)):
        await missed_cards(one, cards)
    failures = telemetry.loop_failures.labels("dispatch sweep", "BadData")
    before, fixed = failures._value.get(), repaired()
    async with connected(house.admin) as conn:
        await conn.execute(
            f"alter table mainspring.effects add constraint broken check (tenant_id <> '{broken.tenant}')"
        )
        assert await house.sweep() == 4
        assert (failures._value.get(), repaired()) == (before + 1, fixed + 4)
        assert [len(await one.keys()) for one in (first, broken, last)] == [3, 0, 1]
        await conn.execute("alter table mainspring.effects drop constraint broken")
    assert await house.sweep() == 3
    assert await house.sweep() == 0


async def test_a_dispatch_that_an_operator_cancelled_does_not_come_back(house: House) -> None:
    await eligible(house)
    await house.spine.drain.run_once()
    async with house.db.tenant(house.tenant) as scope:
        [row] = await house.spine.store.effects(scope, house.tenant, kind="launch")
        await house.spine.store.cancel(scope, house.tenant, row.id)
    for days in (0, 5, 3):
        await house.later(days=days)
        await house.spine.janitor.run_once()
        await house.sweep()
        await house.spine.run_once()
    assert await house.queued() == []


async def test_sweeps_and_workers_at_once_dispatch_once(house: House) -> None:
    cards = [await eligible(house, f"c{n}") for n in range(5)]
    await house.spine.drain.run_once()
    async with house.db.tenant(house.tenant) as scope:
        await scope.execute("delete from mainspring.effects where tenant_id = $1", house.tenant)
    await asyncio.gather(house.sweep(), house.sweep(), house.spine.run_once())
    await house.spine.run_once()
    assert sorted(run["card_id"] for run in await house.queued()) == sorted(card.id for card in cards)
