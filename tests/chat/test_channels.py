"""Channels and topics: who sees them, who may do what to them, and what is pinned."""

from __future__ import annotations

import asyncio
import json

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


async def test_who_is_removed_while_their_words_wait_says_nothing_and_is_no_member_again(place):
    chat = place.home.room.chat
    await secret(place)
    ben, _ = await place.person("ben"), await place.person("vera")
    await chat.join(place.anna, "secret", "ben", subscribed=True)
    left, posted, brought = await place.in_turn(
        "secret",
        chat.leave(place.anna, "secret", "ben"),
        place.post("still here", by=ben, channel="secret"),
        chat.join(ben, "secret", "vera", subscribed=True),
    )
    assert left is None
    assert isinstance(posted, NotFound)
    assert isinstance(brought, NotFound)
    assert [member.handle for member in await chat.list_members(place.anna, "secret")] == ["anna"]
    assert await chat.history(place.anna, "secret") == []


@pytest.mark.parametrize(
    ("change", "refusal"), [({"archived": True}, Conflict), ({"post_policy": "owner"}, Forbidden)]
)
async def test_what_a_channel_has_become_meanwhile_counts_for_words_that_wait(place, change, refusal):
    chat, ben = place.home.room.chat, await place.person("ben")
    _, posted = await place.in_turn(
        "general", chat.edit_channel(place.anna, "general", **change), place.post("me too", by=ben)
    )
    assert isinstance(posted, refusal)
    assert await chat.history(place.anna, "general") == []


async def test_who_gave_the_channel_away_meanwhile_changes_nothing_in_it(place):
    """Pins and topics wait for the same row as posts, and are refused as those are."""
    chat, ben = place.home.room.chat, await place.person("ben")
    said = (await place.post("pin me", by=ben)).message
    _, pinned, renamed = await place.in_turn(
        "general",
        chat.edit_channel(place.anna, "general", post_policy="owner"),
        chat.pin(ben, "general", [said.id], expected=[]),
        chat.edit_topic(ben, "general", said.topic_id, name="mine", archived=None),
    )
    assert isinstance(pinned, Forbidden)
    assert isinstance(renamed, Forbidden)


async def test_the_same_request_in_another_channel_is_another_message_and_tells_nothing_of_the_first(place):
    await secret(place)
    await place.post("deploy", channel="secret", request_id="r")
    with pytest.raises(Invalid) as refused:
        await place.post("deploy", request_id="r")
    assert (refused.value.code, refused.value.current) == ("request_id_reused", None)
    assert await place.home.room.chat.history(place.anna, "general") == []


async def test_a_retry_of_what_was_said_before_the_channel_was_archived_tells_that_it_was(place):
    first = await place.post("last words", request_id="r")
    await place.home.room.chat.edit_channel(place.anna, "general", archived=True)
    again = await place.post("last words", request_id="r")
    assert (again.new, again.message.id) == (False, first.message.id)


async def test_who_closes_a_channel_that_was_nobodys_owns_it_and_is_in_it(place):
    chat, card = place.home.room.chat, await place.card()
    await chat.comment(
        place.anna, card.key, blocks=[{"type": "text", "text": "x"}], mentions=[], request_id="a"
    )
    ben = await place.person("ben")
    closed = await chat.edit_channel(ben, "ops", visibility="shared")
    assert closed.owner_id == ben.account_id
    # and so is not shut out by their own deed
    assert (await chat.get_channel(ben, "ops")).visibility == "shared"
    assert {member.handle for member in await chat.list_members(ben, "ops")} == {"anna", "ben"}
    assert [json.loads(row["data"])["member"]["handle"] for row in await place.events("member.joined")][
        -1
    ] == "ben"
    with pytest.raises(Forbidden):
        await chat.edit_channel(place.anna, "ops", visibility="open")
    assert (await chat.edit_channel(ben, "ops", visibility="open")).visibility == "open"


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
    services, card = place.home.services, await place.card()
    say = [{"type": "text", "text": "looks fine"}]
    first = await services.talk.chat.comment(place.anna, card.key, blocks=say, mentions=[], request_id="a")
    await services.talk.chat.comment(place.anna, str(card.id), blocks=say, mentions=[], request_id="b")
    assert (first.message.channel_name, first.message.topic_name) == ("ops", card.key)
    assert first.message.card_id == card.id
    assert len(await services.talk.chat.history(place.anna, "ops", topic=str(first.message.topic_id))) == 2
    with pytest.raises(NotFound):
        await services.talk.chat.comment(place.anna, "OPS-99", blocks=say, mentions=[], request_id="c")


async def test_what_a_person_does_not_see_any_more_takes_no_place_in_their_inbox(place):
    chat = place.home.room.chat
    await secret(place)
    ben = await place.person("ben")
    await chat.join(place.anna, "secret", "ben", subscribed=True)
    await place.post("@ben this one matters")
    for n in range(3):
        await place.post(f"@ben hidden {n}", channel="secret")
    await chat.leave(place.anna, "secret", "ben")
    assert [item.message.text for item in await chat.inbox(ben, read=False, limit=3)] == [
        "@ben this one matters"
    ]
    await chat.join(place.anna, "secret", "ben", subscribed=True)
    assert len(await chat.inbox(ben, read=False)) == 4


def words(text):
    return [{"type": "text", "text": text}]


async def edit(place, message, text, by=None, **more):
    return await place.home.room.chat.edit(
        by or place.anna, message.id, blocks=words(text), expected_revision=None, **more
    )


@pytest.mark.parametrize(
    ("change", "refusal"), [({"archived": True}, Conflict), ({"post_policy": "owner"}, Forbidden)]
)
async def test_where_nothing_may_be_said_what_was_said_stays_and_what_was_begun_is_finished(
    place, change, refusal
):
    chat, ben = place.home.room.chat, await place.person("ben")
    author, reader = await place.reader("author"), await place.reader("reader")
    said = (await place.post("as it was", by=ben)).message
    await author.beat(turn=1)
    begun = (await author.post("half a sen")).message
    _, edited = await place.in_turn(
        "general", chat.edit_channel(place.anna, "general", **change), edit(place, said, "otherwise", ben)
    )
    assert isinstance(edited, refusal)
    assert (await edit(place, said, "as it was", ben)).revision == 1  # says nothing new
    assert (await edit(place, begun, "half a sentence", author.actor)).revision == 2
    await author.settle(1)
    await place.drain()
    assert await reader.read_all() == ["as it was", "half a sentence"]
    with pytest.raises(refusal):
        await edit(place, begun, "something else", author.actor)


async def test_who_was_removed_while_their_edit_waits_edits_nothing(place):
    chat, ben = place.home.room.chat, await place.person("ben")
    await secret(place)
    await chat.join(place.anna, "secret", "ben", subscribed=True)
    said = (await place.post("hush", by=ben, channel="secret")).message
    _, edited = await place.in_turn(
        "secret", chat.leave(place.anna, "secret", "ben"), edit(place, said, "psst", ben)
    )
    assert isinstance(edited, NotFound)
    assert (await place.message(said.id)).text == "hush"


async def test_a_comment_on_a_card_brings_its_topic_back(place):
    chat, card = place.home.room.chat, await place.card()

    async def comment(text):
        return await chat.comment(place.anna, card.key, blocks=words(text), mentions=[], request_id=text)

    topic = (await comment("one")).message.topic_id
    await chat.edit_topic(place.anna, "ops", topic, name=None, archived=True)
    assert await chat.list_topics(place.anna, "ops", archived=False) == []
    await comment("two")
    assert [one.id for one, _ in await chat.list_topics(place.anna, "ops", archived=False)] == [topic]


async def test_a_topic_that_is_named_by_its_id_is_that_one_whatever_its_name_has_become(place):
    chat = place.home.room.chat
    first = (await place.post("one", topic="plans")).message
    topic = str(first.topic_id)
    await chat.edit_topic(place.anna, "general", first.topic_id, name="old plans", archived=True)
    second = (await place.post("two", topic=topic.upper())).message
    assert (second.topic_id, second.topic_name) == (first.topic_id, "old plans")
    assert [one.name for one, _ in await chat.list_topics(place.anna, "general", archived=False)] == [
        "old plans"
    ]
    await secret(place)
    for channel, named in (
        ("secret", topic),
        ("general", str(first.id)),
    ):  # another channel's, and none at all
        with pytest.raises(NotFound):
            await place.post("three", topic=named, channel=channel)
    with pytest.raises(Invalid):
        await chat.edit_topic(place.anna, "general", first.topic_id, name=str(first.id), archived=None)


async def test_a_topic_has_a_name_that_one_sees(place):
    for name in ("\u200b", "\u2060\u200d", "\u3164 \u2800", "\u0301"):
        with pytest.raises(Invalid):
            await place.post("where?", topic=name)
    for name in ("✓", "ß", "क\u200dष"):
        assert (await place.post("here", topic=name)).message.topic_name == name


async def test_who_joins_by_posting_is_told_of_as_whoever_joins(place):
    ben = await place.person("ben")
    for text in ("hello", "hello again"):
        await place.post(text, by=ben)
    joined = [json.loads(event["data"]) for event in await place.events("member.joined")]
    assert [one["member"]["handle"] for one in joined] == ["anna", "ben"]


async def test_an_operator_may_what_an_owner_may_in_a_channel_that_they_see(place):
    chat = place.home.room.chat
    await secret(place)
    ben, *_ = [await place.person(handle) for handle in ("ben", "vera")]
    for handle in ("ben", "vera"):
        await chat.join(place.anna, "secret", handle, subscribed=True)
    vera = await place.person("carl")
    with pytest.raises(NotFound):
        await chat.edit_channel(vera, "secret", archived=True, operates=True)
    await chat.leave(place.anna, "secret", None)
    for refused in (chat.leave(ben, "secret", "vera"), chat.edit_channel(ben, "secret", archived=True)):
        with pytest.raises(Forbidden):
            await refused
    await chat.leave(ben, "secret", "vera", operates=True)
    assert (await chat.edit_channel(ben, "secret", archived=True, operates=True)).archived_at is not None


async def test_a_shared_channel_that_nobody_is_in_any_more_leaves_its_name_to_others(place):
    chat = place.home.room.chat
    first = await secret(place)
    said = (await place.post("for the two of us", channel="secret")).message
    with pytest.raises(Conflict):
        await secret(place)
    await chat.leave(place.anna, "secret", None)
    second = await secret(place)
    assert second.id != first.id
    assert (await place.message(said.id)).text == "for the two of us"  # it is kept, and its channel archived
    row = await place.home.admin.fetchrow("select * from mainspring.channels where id = $1", first.id)
    assert (row["name"].startswith("secret-"), row["archived_at"] is not None) == (True, True)
    await chat.leave(place.anna, "general", None)  # an open one is everybody's
    assert (await chat.get_channel(place.anna, "general")).archived_at is None
