"""Reflect: the card follows its newest run, whatever order the rows run in, and never against a person's later move."""

from __future__ import annotations

from dataclasses import replace

from mainspring.boards import verbs
from mainspring.boards.effects import Reflect
from mainspring.boards.model import CardEdit, snapshot
from mainspring.ids import new_id
from mainspring.spine.events import Cause, Trust
from mainspring.spine.ports import NotOwed


async def test_a_started_run_moves_its_card_and_notes_the_state_it_set(house):
    card = await house.card()
    rule = new_id()
    run = await house.run(card, via=(rule,))
    seq = await house.say(
        card, run, "run.started", "running", cause=Cause(seq=1, via=(rule,), depth=1, trust=Trust.AGENT)
    )
    await house.spine.run_once()
    after = await house.boards.get_card(house.tenant, "OPS-1")
    assert (after.state, after.state_version) == ("doing", 2)
    assert await house.value("select card_state_version from mainspring.runs where id = $1", run) == 2
    moved = (await house.events())[-1]
    assert moved.data["actor"] == {"id": None, "kind": "system", "handle": "mainspring"}
    assert (moved.cause_seq, moved.via, moved.depth, moved.trust) == (seq, (rule,), 2, Trust.AGENT)
    assert await house.effects() == [(f"{seq}#reflect", "done", "moved OPS-1 to doing")]


async def test_done_before_started_ends_in_review(house):
    card = await house.card()
    run = await house.run(card, "done")  # both rows run when it is done already
    started = await house.say(card, run, "run.started", "running")
    done = await house.say(card, run, "run.done", "done")
    await house.spine.run_once()
    assert (await house.boards.get_card(house.tenant, "OPS-1")).state == "review"
    assert sorted(state for _, state, _ in await house.effects()) == ["done", "dropped"]
    assert {key for key, _, _ in await house.effects()} == {f"{started}#reflect", f"{done}#reflect"}


async def test_edits_labels_and_the_launchs_own_consume_do_not_stop_it(house):
    card = await house.card(labels=["go"])
    run = await house.run(card)
    await house.boards.label_card(house.ana, "OPS-1", remove=["go"])
    await house.boards.edit_card(house.ana, "OPS-1", CardEdit(title="other"))
    await house.say(card, run, "run.started", "running")
    await house.spine.run_once()
    assert (await house.boards.get_card(house.tenant, "OPS-1")).state == "doing"


async def test_a_persons_later_move_wins_and_is_said_so(house):
    card = await house.card()
    run = await house.run(card)
    await house.say(card, run, "run.started", "running")
    await house.spine.run_once()
    await house.boards.move_card(house.qa, "OPS-1", "inbox")
    await house.set_run(run, "done")
    await house.say(card, run, "run.done", "done")
    await house.spine.run_once()
    assert (await house.boards.get_card(house.tenant, "OPS-1")).state == "inbox"
    assert (await house.effects())[-1][1:] == ("dropped", "dropped(moved by qa)")


async def test_a_runs_own_move_is_no_reason_to_stop(house):
    card = await house.card()
    run = await house.run(card)
    itself = replace(house.echo, run_id=run)
    await house.boards.move_card(itself, "OPS-1", "doing")
    await house.set_run(run, "done")
    await house.say(card, run, "run.done", "done")
    await house.spine.run_once()
    assert (await house.boards.get_card(house.tenant, "OPS-1")).state == "review"


async def test_only_the_newest_run_of_a_card_moves_it(house):
    card = await house.card()
    older = await house.run(card, "done")
    await house.run(card, "queued")
    await house.say(card, older, "run.done", "done")
    await house.spine.run_once()
    assert (await house.boards.get_card(house.tenant, "OPS-1")).state == "inbox"
    assert (await house.effects())[-1][2] == "dropped(a newer run of the card)"


async def test_a_deleted_card_stays_deleted(house):
    card = await house.card()
    run = await house.run(card)
    await house.say(card, run, "run.started", "running")
    await house.boards.delete_card(house.ana, "OPS-1")
    await house.spine.run_once()
    assert (await house.effects())[-1][2] == "dropped(card deleted)"


async def test_what_the_board_has_no_answer_to_owes_nothing(house):
    card = await house.card()
    run = await house.run(card, "failed")
    await house.say(card, run, "run.failed", "failed")
    obligation = Reflect()
    event = (await house.events())[-1]
    async with house.db.system("test") as scope:
        context = await obligation.load(scope, [event])
    assert obligation.judge(event, context) == NotOwed("reflect")
    without = replace(event, data={**event.data, "card": None})
    assert obligation.judge(without, context) == NotOwed("card")
    await house.spine.run_once()
    assert await house.effects() == []


async def test_the_move_and_the_settle_commit_together(house):
    card = await house.card()
    run = await house.run(card)
    await house.say(card, run, "run.started", "running")
    await house.spine.run_once()
    await house.spine.run_once()
    kinds = [event.kind for event in await house.events()]
    assert kinds.count("card.moved") == 1


async def test_a_reflected_move_into_an_eligible_state_makes_the_card_eligible(house):
    card = await house.card(agent="echo", state="doing")
    async with house.spine.open(house.tenant) as tx:
        locked = await verbs.lock_card(tx, card.id)
        after = await verbs.move_card(tx, locked, "ready", house.ana, runs=house.runs)
    assert after.eligible_version == 2
    assert (await house.events())[-1].data["card"] == snapshot(after)
