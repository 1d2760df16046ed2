"""Sessions whose programs, or the world around them, do not keep to the usual order; and the nets under them."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest

from mainspring import telemetry
from mainspring.boards.model import BoardState, NewCard
from mainspring.ids import new_id
from mainspring.rooms import Conflict

from .conftest import Reader, make_place
from .test_offers import is_called

HOUR = 3600.0
_RUN = """
insert into mainspring.runs (tenant_id, id, agent_id, card_id, effect_kind, effect_key, state, claim_id, lease_until, prompt, trust)
values ($1, $2, $3, $4, 'launch', gen_random_uuid()::text, 'running', gen_random_uuid(), clock_timestamp() + interval '1 h', 'go on', 'member')
"""


async def a_card(place):
    boards = place.home.services.boards
    await boards.create_board(
        place.anna, key="OPS", name="Operations", states=[BoardState(name="todo")], reflect={}
    )
    return await boards.create_card(place.anna, "OPS", NewCard(title="a card"))


async def a_run(place, agent, card):
    """A run of the agent on a card, while it is being carried out."""
    run = new_id()
    await place.home.admin.execute(_RUN, place.tenant, run, agent.account_id, card.id)
    return run


async def its_session(place, agent, run, *, takeover=False):
    started = await place.home.room.sessions.start(agent, run_id=run, takeover=takeover)
    return Reader(place, agent, started.session)


async def is_live(place, reader) -> bool:
    sessions = await place.home.room.sessions.list_sessions(place.tenant, live=True)
    return reader.session.id in {one.id for one in sessions}


async def comment(place, card, text):
    blocks = [{"type": "text", "text": text}]
    await place.home.room.chat.comment(place.anna, card.key, blocks=blocks, mentions=[], request_id=text)


# Turns that nobody told of ------------------------------------------------------------------------------------


async def test_who_speaks_in_a_turn_is_in_that_turn(place):
    reader, author = await place.reader("reader"), await place.reader("author")
    held = (await author.post("well ahead", turn=5)).message
    assert held.settled_by is None
    now = await author.beat()
    assert (now.turn, now.settled_turn, now.state) == (5, 0, "working")
    await author.settle(5)
    await place.drain()
    assert await reader.read_all() == ["well ahead"]


async def test_an_old_turn_is_not_gone_back_to(place):
    author = await place.reader("author")
    await author.beat(turn=3)
    assert (await author.post("of the first", turn=1)).message.settled_by is None
    assert (await author.beat()).turn == 3
    await author.settle(3)
    await author.post("after its end", turn=2)
    assert (await author.beat()).state == "ready"


@pytest.mark.parametrize("end", ["stopped", "lost"])
async def test_an_end_settles_whatever_the_session_held_in_any_turn(place, end):
    """A server of an older release leaves the session's turn behind the message's."""
    reader, author = await place.reader("reader"), await place.reader("author")
    held = (await author.post("well ahead", turn=5)).message
    await place.home.admin.execute(
        "update mainspring.sessions set turn = 1, settled_turn = 1, state = 'ready' where id = $1",
        author.session.id,
    )
    if end == "stopped":
        await author.end()
    else:
        await place.ended([author])
        reader = await place.session(reader.actor, takeover=True)
    assert (await place.message(held.id)).settled_by == ("turn" if end == "stopped" else "lease")
    await place.drain()
    assert await reader.read_all() == ["well ahead"]


# The net under held messages ----------------------------------------------------------------------------------


async def left_behind(place, author, *, live=False):
    """Let the author hold a message, and its session be past it without an edge."""
    held = (await author.post("left behind", turn=2)).message
    await place.home.admin.execute(
        "update mainspring.sessions set settled_turn = turn, state = 'ready' where id = $1"
        if live
        else "update mainspring.sessions set state = 'lost', turn = 1, settled_turn = 1, lease_until = null,"
        " ended_at = clock_timestamp() where id = $1",
        author.session.id,
    )
    return held


@pytest.mark.parametrize(("live", "settled_by"), [(True, "turn"), (False, "lease")])
async def test_what_is_held_though_its_session_is_past_it_is_settled_by_the_net(place, live, settled_by):
    reader, author = await place.reader("reader"), await place.reader("author")
    held = await left_behind(place, author, live=live)
    later = (await author.post("of a later turn", turn=9)).message if live else None
    repaired = telemetry.sweep_repaired.labels("unsettled")
    before = repaired._value.get()
    assert not await place.home.room.nets.run_once()
    assert (await place.message(held.id)).settled_by == settled_by
    assert repaired._value.get() == before + 1
    if later is not None:
        assert (await place.message(later.id)).settled_by is None
    await place.drain()
    assert await reader.read_all() == ["left behind"]
    await place.home.room.nets.run_once()
    assert repaired._value.get() == before + 1


@asynccontextmanager
async def broken(place, table, condition):
    """Let the database refuse rows of this tenant for as long as the block lasts."""
    check = f"alter table mainspring.{table} add constraint broken check (tenant_id <> '{place.tenant}' or {condition}) not valid"
    await place.home.admin.execute(check)
    try:
        yield
    finally:
        await place.home.admin.execute(f"alter table mainspring.{table} drop constraint broken")


def failures() -> float:
    return float(telemetry.loop_failures.labels("delivery nets", "BadData")._value.get())


async def test_a_tenant_whose_messages_cannot_be_settled_keeps_no_other_waiting(place):
    other = await make_place(place.home)
    here = await left_behind(place, await place.reader("author"))
    there = await left_behind(other, await other.reader("author"))
    before = failures()
    async with broken(place, "messages", "settled_at is null"):
        await place.home.room.nets.settle_left_behind()
    assert failures() == before + 1
    assert (await place.message(here.id)).settled_by is None
    assert (await other.message(there.id)).settled_by == "lease"
    await place.home.room.nets.settle_left_behind()
    assert (await place.message(here.id)).settled_by == "lease"


# The net under agents that nobody reads for -------------------------------------------------------------------


async def test_a_tenant_whose_agents_cannot_be_woken_keeps_no_other_asleep(place):
    other = await make_place(place.home)
    for one in (place, other):
        await one.agent("sleepy", wake=True)
        await one.post("wake up")
        await one.drain()
    before = failures()
    async with broken(place, "effects", "kind <> 'wake'"):
        await place.home.room.nets.wake()
    assert failures() == before + 1
    assert [len(await one.effects("wake")) for one in (place, other)] == [0, 1]
    await place.home.room.nets.wake()
    assert [len(await one.effects("wake")) for one in (place, other)] == [1, 1]


async def test_nobody_is_woken_for_what_stands_behind_something_that_waits(place):
    agent = await place.agent("sleepy", wake=True)
    reader = await place.session(agent)
    for text in ("refused", "behind it"):
        await place.post(text)
    await place.drain()
    first, _ = await reader.inbox()
    await reader.ack(refused={first.id: "not now"})
    await reader.end()
    await place.home.room.nets.run_once()
    assert await place.effects("wake") == []
    await place.home.age(HOUR, "effects")
    await place.home.room.nets.run_once()
    assert len(await place.effects("wake")) == 1


async def test_what_a_runs_session_reads_wakes_and_calls_nobody_else(place):
    card = await a_card(place)
    agent = await place.agent("busy", subscribed=None, wake=True)
    await comment(place, card, "make the topic")
    await place.home.room.chat.join(place.anna, "ops", "busy", subscribed=True)
    inbox = await place.session(agent)
    of_run = await its_session(place, agent, await a_run(place, agent, card))
    await comment(place, card, "for the run")
    await place.drain()
    assert [await is_called(place, one) for one in (inbox, of_run)] == [False, True]
    await inbox.end()
    await place.home.room.nets.run_once()
    assert await place.effects("wake") == []
    await of_run.end()
    await place.home.room.nets.run_once()
    assert len(await place.effects("wake")) == 1


async def test_who_has_read_all_meanwhile_is_owed_no_wake(place):
    agent = await place.agent("sleepy", wake=True)
    found = [{"tenant_id": place.tenant, "agent_id": agent.account_id, "wakes": 0}]
    assert await place.home.room.nets._owe_wakes(place.tenant, found) == 0
    assert await place.effects("wake") == []


# Runs whose card is gone --------------------------------------------------------------------------------------


async def test_the_session_of_a_run_whose_card_is_deleted_reads_all_else_as_any_other(place):
    card = await a_card(place)
    agent = await place.agent("busy")
    run = await a_run(place, agent, card)
    inbox = await place.session(agent)
    of_card = await its_session(place, agent, run)
    assert await is_live(place, inbox)
    await place.home.services.boards.delete_card(place.anna, card.key)

    with pytest.raises(Conflict) as live:
        await its_session(place, agent, run)
    assert live.value.code == "session_live"
    # in the place of the run's own, and of the inbox's
    now = await its_session(place, agent, run, takeover=True)
    assert [await is_live(place, one) for one in (inbox, of_card, now)] == [False, False, True]
    assert now.session.topic_id is None
    await place.post("anybody?")
    await place.drain()
    assert await now.read_all() == ["anybody?"]


async def test_a_run_with_a_card_and_the_inbox_are_read_side_by_side(place):
    card = await a_card(place)
    agent = await place.agent("busy")
    run = await a_run(place, agent, card)
    of_run = await its_session(place, agent, run)
    inbox = await place.session(agent)
    again = await its_session(place, agent, run, takeover=True)
    assert [await is_live(place, one) for one in (of_run, inbox, again)] == [False, True, True]
