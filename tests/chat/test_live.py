"""What passes in a channel: who is at work, and words that are being written; for those who see the channel, and kept by nobody."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from mainspring.chat.live import QUEUED_MAX, Passing, Watcher
from mainspring.rooms import Conflict, NotFound
from mainspring.server.app import create_app
from tests.server.test_streams import Reader as Listener

from .test_sight import token_of


@pytest.fixture
async def watching(place) -> AsyncIterator[Any]:
    """`watching(actor)`, or with a token's secret → a listener to `general`; all of them leave at the end."""
    app = create_app(place.home.services)
    listeners: list[Listener] = []

    async def start(actor: Any, channel: str = "general") -> Listener:
        secret = actor if isinstance(actor, str) else await token_of(place, actor, "viewer")
        listeners.append(Listener(app, f"channels/{channel}/live", {"Authorization": f"Bearer {secret}"}))
        return listeners[-1]

    yield start
    for listener in listeners:
        await listener.leave()


async def told(listener: Listener) -> tuple[str | None, Any]:
    message = await listener.event()
    return message.event, message.data


async def test_who_is_at_work_is_told_at_once_and_as_it_changes(place, watching):
    agent = await place.agent("echo")
    listener = await watching(place.anna)
    assert await told(listener) == ("presence", {"agent": "echo", "state": "offline"})
    session = await place.session(agent)
    assert await told(listener) == ("presence", {"agent": "echo", "state": "idle"})
    await session.beat(turn=1)
    await session.beat(turn=1)
    assert await told(listener) == ("presence", {"agent": "echo", "state": "working"})
    await session.settle(1)
    assert await told(listener) == ("presence", {"agent": "echo", "state": "idle"})
    await session.end()
    assert await told(listener) == ("presence", {"agent": "echo", "state": "offline"})


async def test_words_that_are_being_written_pass_and_leave_nothing(place, watching):
    author = await place.reader("author")
    listener = await watching(place.anna)
    await told(listener)
    before = len(await place.events())
    say = place.home.room.sessions.say_live
    session = author.session
    await say(author.actor, session.id, session.claim_id, channel="general", topic="t", text="hm, let me")
    assert await told(listener) == ("text", {"agent": "author", "topic": "t", "text": "hm, let me"})
    assert len(await place.events()) == before
    await author.end()
    with pytest.raises(Conflict):
        await say(author.actor, session.id, session.claim_id, channel="general", topic="t", text="?")


async def test_what_passes_in_a_shared_channel_is_nobody_elses(place, watching):
    await place.home.room.chat.create_channel(
        place.anna, name="secret", purpose="", visibility="shared", post_policy="members"
    )
    ben, author = await place.person("ben"), await place.reader("author")
    listener = await watching(ben, "secret")
    assert await listener.opened() == 404
    with pytest.raises(NotFound):
        await place.home.room.sessions.say_live(
            author.actor, author.session.id, author.session.claim_id, channel="secret", topic="t", text="psst"
        )


async def test_of_what_a_slow_watcher_does_not_take_the_oldest_is_forgotten():
    watcher = Watcher()
    for n in range(QUEUED_MAX + 3):
        watcher.offer(Passing("text", {"n": n}))
    first = await watcher.next(within_seconds=1)
    assert first is not None
    assert first.data == {"n": 3}


@pytest.mark.parametrize("ends", ["membership", "token"])
async def test_who_may_not_watch_any_more_reads_no_word_more(place, watching, ends):
    chat = place.home.room.chat
    await chat.create_channel(
        place.anna, name="secret", purpose="", visibility="shared", post_policy="members"
    )
    await place.person("ben")
    author = await place.reader("author", subscribed=None)
    for handle in ("ben", "author"):
        await chat.join(place.anna, "secret", handle, subscribed=True)
    token, secret = await place.home.services.tokens.create(
        place.anna, kind="user", role="viewer", account="ben"
    )
    listener = await watching(secret, "secret")
    assert (await told(listener))[0] == "presence"

    async def say(text: str) -> None:
        session = author.session
        await place.home.room.sessions.say_live(
            author.actor, session.id, session.claim_id, channel="secret", topic="t", text=text
        )

    await say("all may hear")
    assert (await told(listener))[1]["text"] == "all may hear"
    if ends == "membership":
        await chat.leave(place.anna, "secret", "ben")
    else:
        await place.home.services.tokens.revoke(place.tenant, token.id)
    await say("but not this")
    assert await told(listener) == ("bye", {"reason": "unauthorized"})


async def test_what_waits_for_a_watcher_is_taken_at_once():
    watcher = Watcher()
    for n in range(3):
        watcher.offer(Passing("text", {"n": n}))
    assert [one.data["n"] for one in watcher.waiting()] == [0, 1, 2]
    assert watcher.waiting() == []
