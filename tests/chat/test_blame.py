"""Which message the end of a session is put down to, and when it is put down to none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mainspring.chat.model import SessionPolicy
from mainspring.chat.nets import Nets
from mainspring.chat.sessions import SessionVerbs
from mainspring.sweeps import Watch

from .conftest import LEASE_SECONDS
from .test_sessions import is_live

FOR_EVER = 1e9


@pytest.fixture
async def heard(place):
    """Sessions could be heard here for as long as anybody remembers."""
    verbs = place.home.room.sessions._verbs
    now = await place.home.admin.fetchval("select extract(epoch from clock_timestamp())::float8")
    verbs.watch = Watch(now - FOR_EVER, now)
    yield
    verbs.watch = None


async def crashes(place) -> dict[str, int]:
    """How often each message has ended its reader, by its text."""
    rows = await place.home.admin.fetch(
        "select m.blocks -> 0 ->> 'text' as text, e.crashes from mainspring.effects e"
        " join mainspring.messages m on m.tenant_id = e.tenant_id and m.id = (e.payload ->> 'message_id')::uuid"
        " where e.tenant_id = $1 and e.family = 'offered'",
        place.tenant,
    )
    return {row["text"]: row["crashes"] for row in rows}


async def silent_for(place, seconds):
    await place.home.age(seconds, "sessions")


async def test_a_message_that_kills_its_program_is_dead_however_soon_that_begins_again(place, heard):
    agent = await place.agent("echo")
    await place.post("poison")
    await place.post("fine")
    await place.drain()
    for n in range(5):
        session = await place.session(agent)
        assert (await session.texts())[0] == "poison"
        assert await crashes(place) == {"poison": n, "fine": 0}
        await silent_for(place, 0.7 * LEASE_SECONDS)  # its lease has not run out
    assert await (await place.session(agent)).read_all() == ["fine"]
    [dead, _] = await place.effects("deliver")
    assert (dead["state"], dead["outcome"]) == ("dead", "worker_crashed")


@pytest.mark.parametrize("why", ["taken over while it lives", "nobody could hear it"])
async def test_who_is_displaced_without_having_fallen_silent_leaves_nothing_to_blame(place, heard, why):
    agent = await place.agent("echo")
    await place.post("harmless")
    await place.drain()
    first = await place.session(agent)
    await first.inbox()
    if why == "nobody could hear it":
        await silent_for(place, 0.7 * LEASE_SECONDS)
        verbs = place.home.room.sessions._verbs
        verbs.watch = replace(verbs.watch, until=verbs.watch.until - 0.7 * LEASE_SECONDS)
    second = await place.session(agent, takeover=why != "nobody could hear it")
    assert await crashes(place) == {"harmless": 0}
    assert await second.texts() == ["harmless"]
    assert [one.state for one in await place.home.room.sessions.list_sessions(place.tenant)] == [
        "ready",
        "displaced",
    ]


async def test_of_what_came_at_once_the_steer_is_to_blame(place):
    agent = await place.agent("echo")
    await place.post("older")
    await place.post("@echo poison", topic="elsewhere")
    await place.drain()
    reader = await place.session(agent)
    assert await reader.texts() == ["@echo poison", "older"]
    await reader.end(errored=True)
    assert await crashes(place) == {"older": 0, "@echo poison": 1}


async def test_what_came_first_is_to_blame_however_urgent_what_came_later_is(place):
    reader = await place.reader("echo")
    await place.post("poison")
    await place.drain()
    assert await reader.texts() == ["poison"]
    await place.post("@echo are you there?")
    await place.drain()
    assert await reader.texts() == ["poison", "@echo are you there?"]
    await reader.end(errored=True)
    assert await crashes(place) == {"poison": 1, "@echo are you there?": 0}


async def test_what_comes_again_stands_behind_what_came_meanwhile_and_keeps_no_ack_of_it_back(place):
    reader = await place.reader("echo")
    await place.post("refused")
    await place.post("being read")
    await place.drain()
    first, second = await reader.inbox()
    await reader.ack(refused={first.id: "not now"})
    await place.home.age(3600, "effects")
    assert [one.id for one in await reader.inbox()] == [second.id, first.id]
    assert await reader.ack(second.id) == 1
    assert await reader.ack(first.id) == 1


async def test_a_server_that_could_hear_nobody_gives_every_session_a_lease_to_speak_up(place):
    policy = SessionPolicy(lease_seconds=0.3)
    spine, db = place.home.services.spine, place.home.services.db
    cards = place.home.room.sessions._verbs._cards
    reader = await place.reader("echo")
    await place.post("harmless")
    await place.drain()
    await reader.inbox()
    await silent_for(place, LEASE_SECONDS + 1)

    just_started = Nets(spine, db, SessionVerbs(spine.store, cards, policy))
    await just_started.run_once()
    assert await is_live(place, reader)
    await reader.beat()  # it speaks up
    assert await reader.texts() == ["harmless"]
    assert await crashes(place) == {"harmless": 0}

    await silent_for(place, LEASE_SECONDS + 1)  # and now it does not, though it could
    while await is_live(place, reader):
        await just_started.run_once()
    assert await crashes(place) == {"harmless": 1}
