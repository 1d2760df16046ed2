"""What an agent's program says again, by the SDK: the same post in other words is an edit, or is refused where that would not be the same."""

from __future__ import annotations

from uuid import UUID

import httpx
import pytest

from mainspring.sdk import Client, Refused
from mainspring.sdk.messages import Reply, message_from, post

from .test_sight import token_of


@pytest.fixture
async def say(place, app):
    """`await say(text, …)`: the post that the author's program makes, under one request id, from its session's turn."""
    author = await place.reader("author")
    for handle in ("first", "second"):
        await place.agent(handle, subscribed=False)
    await author.beat(turn=1)
    speaking = {"id": str(author.session.id), "claim_id": str(author.session.claim_id), "turn": 1}
    secret = await token_of(place, author.actor, "member", "agent")
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 5))
    async with httpx.AsyncClient(transport=transport) as http:
        client = Client("http://test", secret, http=http)

        async def say(text, *mentions, topic="plans", channel="general", final=False):
            path = f"/channels/{channel}/messages"
            return await post(
                client, path, text, "r", mentions=mentions, speaking=speaking, topic=topic, final=final
            )

        say.author = author
        yield say


async def test_what_is_said_again_calls_whom_it_names_now_and_is_final_if_it_says_so(place, say):
    first = await say("first, look", "first")
    again = await say("second, look", "second", final=True)
    assert again.id == first.id
    [message] = await place.home.room.chat.history(place.anna, "general")
    assert (message.text, message.settled_by) == ("second, look", "final")
    await place.drain()
    assert await place.owed(message) == {"second": "steer"}


async def test_what_has_settled_is_said_in_other_words_and_not_to_others(place, say):
    first = await say("first, look", "first")
    await say.author.settle(1)
    again = await say("first, do look", "first")
    assert (again.id, again.text, again.revision) == (first.id, "first, do look", 2)
    with pytest.raises(Refused, match="stays as it was"):
        await say("second, look", "second")
    [message] = await place.home.room.chat.history(place.anna, "general")
    assert message.text == "first, do look"


async def test_what_was_said_elsewhere_is_not_edited_there(place, say):
    await say("look", topic="Plans")
    assert (await say("look here", topic="plans")).revision == 2
    for where in ({"topic": "other"}, {"channel": "news"}):
        if "channel" in where:
            await place.home.room.chat.create_channel(
                place.anna, name="news", purpose="", visibility="open", post_policy="members"
            )
        with pytest.raises(Refused) as refused:
            await say("look there", **where)
        assert refused.value.code == "request_id_reused"
    [message] = await place.home.room.chat.history(place.anna, "general")
    assert message.text == "look here"


async def test_an_answer_stays_in_its_topic_though_that_is_renamed_while_it_is_written(place, app):
    reader = await place.reader("reader")
    asked = (await place.post("@reader what now?", topic="plans")).message
    await place.drain()
    secret = await token_of(place, reader.actor, "member", "agent")
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 5))
    async with httpx.AsyncClient(transport=transport) as http:
        client = Client("http://test", secret, http=http)
        speaking = {"id": str(reader.session.id), "claim_id": str(reader.session.claim_id)}
        [delivery] = await reader.inbox()
        message = message_from(await client.call("GET", f"/messages/{asked.id}"))
        chat = place.home.room.chat
        await chat.edit_topic(place.anna, "general", asked.topic_id, name="old plans", archived=None)
        reply = Reply(client, message, str(delivery.id), speaking)
        first = await reply("wait")
        again = await Reply(client, message, str(delivery.id), speaking)("wait a bit")
    assert (again.id, again.revision) == (first.id, 2)
    assert (await place.message(UUID(first.id))).topic_id == asked.topic_id
    assert [topic.name for topic, _ in await chat.list_topics(place.anna, "general", archived=True)] == [
        "old plans"
    ]
