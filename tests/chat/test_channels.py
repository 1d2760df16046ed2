"""Channels and topics: who sees them, who may do what to them, and what is pinned."""

from __future__ import annotations

import asyncio

import pytest

from mainspring.rooms import Conflict, Forbidden, Invalid, NotFound


async def secret(place, **more):
    return await place.home.room.chat.create_channel(
        place.anna,
        **{"name": "secret", "purpose": "", "visibility": "shared", "post_policy": "members"} | more,
    )


async def test_what_one_does_not_see_does_not_exist(place):
    chat = place.home.room.chat
    await secret(place)
    posted = (await place.post("hush, a wolverine", channel="secret")).message
    ben = await place.person("ben")
    assert [channel.name for channel in await chat.list_channels(ben)] == ["general"]
    for asked in (
        chat.get_channel(ben, "secret"),
        chat.get_channel(ben, str(posted.channel_id)),
        chat.history(ben, "secret"),
        chat.list_members(ben, "secret"),
        chat.list_topics(ben, "secret", archived=True),
        chat.join(ben, "secret", None, subscribed=True),
        chat.leave(ben, "secret", "anna"),
        chat.pins(ben, "secret"),
        chat.get_message(ben, posted.id),
        chat.edit(ben, posted.id, blocks=None, expected_revision=None, final=True),
        place.post("let me in", by=ben, channel="secret"),
        chat.search(ben, "wolverine", channel="secret"),
    ):
        with pytest.raises(NotFound):
            await asked
    assert await chat.search(ben, "wolverine", channel=None) == []
    await chat.join(place.anna, "secret", "ben", subscribed=True)
    assert [message.id for message in await chat.search(ben, "wolverine", channel=None)] == [posted.id]


async def test_who_was_mentioned_in_a_channel_and_is_removed_finds_nothing_in_the_inbox(place):
    chat = place.home.room.chat
    await secret(place)
    ben = await place.person("ben")
    await chat.join(place.anna, "secret", "ben", subscribed=True)
    await place.post("@ben look", channel="secret")
    assert len(await chat.inbox(ben, read=False)) == 1
    await chat.leave(place.anna, "secret", "ben")
    assert await chat.inbox(ben, read=False) == []


async def test_a_channel_in_which_its_owner_alone_speaks(place):
    await secret(place, name="news", visibility="open", post_policy="owner")
    await place.post("read all about it", channel="news")
    ben = await place.person("ben")
    with pytest.raises(Forbidden):
        await place.post("me too", by=ben, channel="news")
    with pytest.raises(Forbidden):
        await place.home.room.chat.edit_channel(ben, "news", post_policy="members")


async def test_nothing_is_said_in_an_archived_channel_until_it_is_brought_back(place):
    chat = place.home.room.chat
    await chat.edit_channel(place.anna, "general", archived=True)
    with pytest.raises(Conflict):
        await place.post("hello?")
    await chat.edit_channel(place.anna, "general", archived=False)
    await place.post("hello!")


async def test_topics_are_made_by_name_whatever_their_case_and_keep_their_messages_when_renamed(place):
    chat = place.home.room.chat
    first = (await place.post("one", topic="Releases")).message
    second = (await place.post("two", topic="releases")).message
    assert first.topic_id == second.topic_id
    await place.post("elsewhere", topic="other")
    with pytest.raises(Conflict):
        await chat.edit_topic(place.anna, "general", first.topic_id, name="OTHER", archived=None)
    await chat.edit_topic(place.anna, "general", first.topic_id, name="Shipping", archived=True)
    assert [topic.name for topic, _ in await chat.list_topics(place.anna, "general", archived=False)] == [
        "other"
    ]
    assert [
        message.text for message in await chat.history(place.anna, "general", topic=str(first.topic_id))
    ] == [
        "two",
        "one",
    ]
    await place.post("three", topic="shipping")
    assert len(await chat.list_topics(place.anna, "general", archived=False)) == 2


async def test_at_most_five_are_pinned_and_of_two_who_pin_at_once_one_is_told(place):
    chat = place.home.room.chat
    posted = [(await place.post(f"m{n}")).message.id for n in range(6)]
    with pytest.raises(Invalid):
        await chat.pin(place.anna, "general", posted, expected=[])
    both = await asyncio.gather(
        chat.pin(place.anna, "general", posted[:2], expected=[]),
        chat.pin(place.anna, "general", posted[2:4], expected=[]),
        return_exceptions=True,
    )
    assert sum(isinstance(one, Conflict) for one in both) == 1
    now = [message.id for message in await chat.pins(place.anna, "general")]
    await chat.pin(place.anna, "general", posted[:5], expected=now)
    agent = await place.agent("echo")
    started = await place.home.room.sessions.start(agent)
    assert [message.id for message in started.pins] == posted[:5]


async def test_posts_at_once_have_seqs_without_a_hole(place):
    people = [await place.person(f"p{n}") for n in range(4)]
    await asyncio.gather(*(place.post(f"{n}", by=people[n % 4]) for n in range(20)))
    seqs = [message.channel_seq for message in await place.home.room.chat.history(place.anna, "general")]
    assert seqs == list(range(20, 0, -1))


async def test_the_same_post_at_once_is_one(place):
    posts = await asyncio.gather(*(place.post("once", request_id="r") for _ in range(5)))
    assert len({posted.message.id for posted in posts}) == 1
    assert sum(posted.new for posted in posts) == 1
    assert len(await place.events("message.posted")) == 1


async def test_a_comment_on_a_card_is_a_message_of_its_topic(place):
    services = place.home.services
    from mainspring.boards.model import BoardState, NewCard

    await services.boards.create_board(
        place.anna, key="OPS", name="Operations", states=[BoardState(name="todo")], reflect={}
    )
    card = await services.boards.create_card(place.anna, "OPS", NewCard(title="a card"))
    say = [{"type": "text", "text": "looks fine"}]
    first = await services.talk.chat.comment(place.anna, card.key, blocks=say, mentions=[], request_id="a")
    await services.talk.chat.comment(place.anna, str(card.id), blocks=say, mentions=[], request_id="b")
    assert (first.message.channel_name, first.message.topic_name) == ("ops", card.key)
    assert first.message.card_id == card.id
    assert len(await services.talk.chat.history(place.anna, "ops", topic=str(first.message.topic_id))) == 2
    with pytest.raises(NotFound):
        await services.talk.chat.comment(place.anna, "OPS-99", blocks=say, mentions=[], request_id="c")
