"""Questions in messages: the first answer counts, and reaches who asked."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from mainspring.rooms import Conflict, Forbidden, Invalid, NotFound

ASK = {"type": "ask", "id": "q1", "question": "Ship it?", "options": ["yes", "no"]}


async def ask(place, by, channel: str = "general"):
    posted = await place.home.room.chat.post(
        by, channel, topic=None, blocks=[ASK], mentions=[], request_id=str(uuid4())
    )
    [found] = await place.home.room.asks.list_asks(by)
    assert found.message_id == posted.message.id
    return found


async def test_the_answer_reaches_who_asked_though_they_subscribe_to_nothing(place):
    asker = await place.reader("asker", subscribed=False)
    asked = await ask(place, asker.actor)
    answered = await place.home.room.asks.answer(place.anna, asked.id, " YES ")
    assert (answered.state, answered.answer, answered.answered_by) == ("answered", "yes", "anna")
    await place.drain()
    [delivery] = await asker.inbox()
    assert (delivery.kind, delivery.message.text) == ("steer", "Ship it?\nyes")
    assert await place.home.room.asks.list_asks(place.anna) == []
    assert len(await place.home.room.asks.list_asks(place.anna, all_states=True)) == 1


async def test_of_many_answers_at_once_one_counts_and_the_others_are_told_which(place):
    asked = await ask(place, place.anna)
    people = [await place.person(f"p{n}") for n in range(5)]
    answers = await asyncio.gather(
        *(place.home.room.asks.answer(one, asked.id, "no") for one in people), return_exceptions=True
    )
    told = [one for one in answers if isinstance(one, Conflict)]
    assert len(told) == 4
    assert {one.code for one in told} == {"ask_answered"}
    assert len(await place.events("ask.answered")) == 1
    # again, by the same: it is as good as once
    [first] = [one for one in answers if not isinstance(one, Conflict)]
    winner = next(one for one in people if one.handle == first.answered_by)
    assert (await place.home.room.asks.answer(winner, asked.id, "no")).answer == "no"
    assert len(await place.events("ask.answered")) == 1


async def test_a_question_of_a_held_message_opens_when_it_settles(place):
    author = await place.reader("author")
    await author.beat(turn=1)
    await place.home.room.chat.post(
        author.actor,
        "general",
        topic=None,
        blocks=[ASK],
        mentions=[],
        request_id="r",
        speaking=author.speaking(1),
    )
    assert await place.home.room.asks.list_asks(place.anna) == []
    await author.settle(1)
    assert len(await place.home.room.asks.list_asks(place.anna)) == 1


async def test_what_is_no_option_is_no_answer_and_what_one_does_not_see_is_no_question(place):
    await place.home.room.chat.create_channel(
        place.anna, name="secret", purpose="", visibility="shared", post_policy="members"
    )
    asked = await ask(place, place.anna, "secret")
    with pytest.raises(Invalid):
        await place.home.room.asks.answer(place.anna, asked.id, "maybe")
    ben = await place.person("ben")
    assert await place.home.room.asks.list_asks(ben) == []
    with pytest.raises(NotFound):
        await place.home.room.asks.answer(ben, asked.id, "yes")


@pytest.mark.parametrize(
    ("change", "refusal"), [({"archived": True}, Conflict), ({"post_policy": "owner"}, Forbidden)]
)
async def test_where_one_may_say_nothing_one_answers_nothing(place, change, refusal):
    asked, ben = await ask(place, place.anna), await place.person("ben")
    await place.home.room.chat.edit_channel(place.anna, "general", **change)
    with pytest.raises(refusal):
        await place.home.room.asks.answer(ben, asked.id, "yes")
    assert (await place.home.room.asks.get(place.anna, asked.id)).state == "open"


async def test_who_is_removed_while_their_answer_waits_finds_no_question(place):
    chat = place.home.room.chat
    await chat.create_channel(
        place.anna, name="secret", purpose="", visibility="shared", post_policy="members"
    )
    asked, ben = await ask(place, place.anna, "secret"), await place.person("ben")
    await chat.join(place.anna, "secret", "ben", subscribed=True)
    _, answered = await place.in_turn(
        "secret", chat.leave(place.anna, "secret", "ben"), place.home.room.asks.answer(ben, asked.id, "yes")
    )
    assert isinstance(answered, NotFound)
    assert (await place.home.room.asks.get(place.anna, asked.id)).state == "open"
