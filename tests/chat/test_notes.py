"""What runs ask, and are answered, is said in the card's topic, where whoever says it may speak; and lets nobody in who was out."""

from __future__ import annotations

import pytest

from mainspring.ids import new_id
from mainspring.rooms import Invalid
from mainspring.spine.events import NO_CAUSE, NewEvent


async def answered(place, card, who) -> str:
    """Let somebody answer a question of a run on the card; return what became of the note."""
    ask = {"question": "Ship it?", "answer": "yes", "options": []}
    async with place.home.services.spine.open(place.tenant) as tx:
        data = {"ask": ask, "run": {}, "card": {"id": str(card.id)}, "actor": who.snapshot()}
        tx.append(
            NewEvent(
                "ask.answered",
                subject=str(new_id()),
                actor_id=who.account_id,
                cause=NO_CAUSE,
                data=data,
            )
        )
    await place.drain()
    [note] = await place.effects("note")
    return str(note["outcome"])


async def comment(place, card) -> None:
    """Have the board's channel made."""
    blocks = [{"type": "text", "text": "mine alone"}]
    await place.home.room.chat.comment(place.anna, card.key, blocks=blocks, mentions=[], request_id="a")


async def test_an_answer_is_said_in_the_cards_topic_and_makes_nobody_a_member(place):
    chat, card, ben = place.home.room.chat, await place.card(), await place.person("ben")
    assert (await answered(place, card, ben)).startswith("message ")
    [said] = await chat.history(place.anna, "ops", topic=card.key)
    assert (said.text, said.author_handle) == ("Ship it?\n→ yes", "ben")
    assert await chat.list_members(place.anna, "ops") == []


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"visibility": "shared"}, "not seen by who spoke"),
        ({"archived": True}, "channel archived"),
        ({"post_policy": "owner"}, "owner posts alone"),
    ],
)
async def test_where_who_answered_may_say_nothing_the_note_is_dropped(place, change, why):
    chat, card, ben = place.home.room.chat, await place.card(), await place.person("ben")
    await comment(place, card)
    await chat.edit_channel(place.anna, "ops", **change)
    assert await answered(place, card, ben) == f"dropped({why})"
    assert [said.text for said in await chat.history(place.anna, "ops")] == ["mine alone"]
    assert {member.handle for member in await chat.list_members(place.anna, "ops")} == {"anna"}


async def test_nobody_can_take_the_name_of_what_the_server_posts_for_them(place):
    """A post under that name would stand in the note's way for ever."""
    card, ben = await place.card(), await place.person("ben")
    await comment(place, card)
    with pytest.raises(Invalid):
        await place.post("mine", by=ben, request_id="mainspring:note:1")
    await place.post("hello", by=ben)
    seq = (await place.events())[-1]["seq"] + 3  # behind the two events of the next post
    await place.post("mine", by=ben, request_id=f"note:{seq}")
    assert (await answered(place, card, ben)).startswith("message ")
