"""How far a message has come with each recipient, and what explain says first of it: why did this agent not get it?"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from mainspring.chat.model import Message
from mainspring.chat.sight import Reader
from mainspring.ids import new_id
from mainspring.rooms import NotFound


async def receipts(place: Any, message: Message) -> dict[str, Any]:
    found = await place.home.services.receipts.of(place.anna, message.id)
    return {one.handle: one for one in found.data}


async def states(place: Any, message: Message) -> dict[str, str]:
    return {handle: str(one.state) for handle, one in (await receipts(place, message)).items()}


async def told(place: Any, ref: UUID | str) -> dict[str, Any]:
    reader = Reader(tenant_id=place.tenant, account_id=place.anna.account_id, operates=True)
    story: dict[str, Any] = (await place.home.services.explain.explain(reader, str(ref))).as_json()
    return story


async def first_line(place: Any, ref: UUID | str) -> str:
    story = await told(place, ref)
    assert story["tree"]["text"] == f"{story['title']}: {story['summary']}"
    return str(story["summary"])


async def delivery(place: Any) -> UUID:
    [row] = await place.effects("deliver", "steer")
    return row["id"]


async def test_a_message_comes_from_stored_to_acked(place):
    agent = await place.agent("echo")
    message = (await place.post("hello")).message
    assert await states(place, message) == {"echo": "stored"}
    await place.drain()
    assert await states(place, message) == {"echo": "waiting_for_session"}
    assert "no session is live, and its wake is off" in await first_line(place, message.id)
    session = await place.session(agent)
    assert (await receipts(place, message))["echo"].because == "it comes when its session asks next"
    await session.beat(turn=1)
    assert (await receipts(place, message))["echo"].state == "owed"
    assert "its session is in turn 1" in await first_line(place, message.id)
    await session.settle(1)
    [offered] = await session.inbox()
    receipt = (await receipts(place, message))["echo"]
    assert (receipt.state, receipt.since, receipt.effect_id) == ("offered", offered.offered_at, offered.id)
    assert "has not acked it" in await first_line(place, message.id)
    await session.ack(offered.id)
    receipt = (await receipts(place, message))["echo"]
    assert (receipt.state, receipt.because) == ("acked", None)
    assert await first_line(place, message.id) == "echo got it"
    # behind the retention of finished rows nothing is claimed
    await place.home.admin.execute("delete from mainspring.effects where tenant_id = $1", place.tenant)
    assert await states(place, message) == {"echo": "not_kept"}


async def test_what_its_author_still_writes_is_held_and_owed_to_nobody(place):
    await place.agent("echo")
    author = await place.reader("author")
    await author.beat(turn=1)
    held = (await author.post("not yet", turn=1)).message
    found = await place.home.services.receipts.of(place.anna, held.id)
    assert (found.held_because, found.data) == (
        "author is still writing: turn 1 of its session has not ended",
        (),
    )
    assert (await first_line(place, held.id)).startswith(
        f"held since {held.posted_at:%Y-%m-%d %H:%M:%S}: author"
    )


async def test_what_is_refused_comes_again_and_is_dead_at_last(place):
    reader = await place.reader("echo")
    message = (await place.post("a riddle")).message
    await place.drain()
    [offered] = await reader.inbox()
    await reader.ack(refused={offered.id: "too long for me"})
    receipt = (await receipts(place, message))["echo"]
    assert (receipt.state, receipt.attempts) == ("owed", 1)
    assert receipt.because == "refused once, last: too long for me; it comes again later"
    assert f"again at {receipt.next_try_at:%Y-%m-%d %H:%M:%S}" in await first_line(place, offered.id)
    await place.home.admin.execute(
        "update mainspring.effects set attempts = 11, not_before = clock_timestamp() where id = $1",
        offered.id,
    )
    [offered] = await reader.inbox()
    await reader.ack(refused={offered.id: "still too long"})
    receipt = (await receipts(place, message))["echo"]
    assert (receipt.state, receipt.because) == ("dead", "refused 12 times, last: still too long")
    story = await told(place, f"delivery:{offered.id}")
    assert story["title"] == "deliver #general/general: anna to echo"
    assert story["summary"].endswith("refused 12 times, last: still too long")


async def test_what_waits_behind_a_refused_message_names_it(place):
    reader = await place.reader("echo")
    first, second = [(await place.post(text)).message for text in ("a riddle", "and you?")]
    await place.drain()
    [one, _] = await reader.inbox()
    await reader.ack(refused={one.id: "too long for me"})
    await reader.end()
    agent = await place.session(reader.actor)
    await agent.inbox()
    blocked = (await receipts(place, first))["echo"].next_try_at
    receipt = (await receipts(place, second))["echo"]
    behind = (
        f"behind message {first.channel_seq} of the channel, refused once, again at {blocked:%Y-%m-%d %H:%M:%S}"
        ", last: too long for me"
    )
    assert receipt.state == "owed"
    assert receipt.because.startswith(behind)
    assert behind in await first_line(place, second.id)
    await agent.end()
    assert (await receipts(place, second))["echo"].state == "waiting_for_session"
    # it has come again: nothing is before it any more but a message that is due
    await place.home.admin.execute(
        "update mainspring.effects set not_before = clock_timestamp() where id = $1", one.id
    )
    assert "behind message" not in await first_line(place, second.id)


async def test_of_a_traceback_the_line_is_told_that_says_what_was_wrong(place):
    reader = await place.reader("echo")
    message = (await place.post("a riddle")).message
    await place.drain()
    [one] = await reader.inbox()
    trace = 'Traceback (most recent call last):\n  File "helper.py", line 3, in helper\nValueError: no such riddle\n'
    await reader.ack(refused={one.id: trace})
    because = (await receipts(place, message))["echo"].because
    assert because == "refused once, last: ValueError: no such riddle; it comes again later"


async def test_who_has_left_a_shared_channel_is_not_said_to_wait_for_a_session(place):
    chat = place.home.room.chat
    await chat.create_channel(
        place.anna, name="shared", purpose="", visibility="shared", post_policy="members"
    )
    await place.agent("gone", channel="shared")
    message = (await place.post("look", channel="shared")).message
    await place.drain()
    assert "no session is live" in await first_line(place, message.id)
    await chat.leave(place.anna, "shared", "gone")
    said = await first_line(place, message.id)
    assert "it is no member of the channel any more" in said
    assert "no session is live" not in said


async def test_who_is_woken_and_who_waits_for_a_runner(place):
    agent = await place.agent("echo", wake=True)
    message = (await place.post("wake up")).message
    await place.drain()
    assert "it is about to be woken" in await first_line(place, message.id)
    await place.home.room.nets.wake()
    assert "it is woken" in await first_line(place, message.id)
    await place.drain()
    [run] = await place.events("run.queued")
    assert f"it was woken, and run {run['subject']} waits for a runner" in await first_line(place, message.id)
    await place.home.services.agents.pause(place.anna, agent.handle)
    await place.home.admin.execute("delete from mainspring.runs where tenant_id = $1", place.tenant)
    assert "it is paused: nothing wakes it" in await first_line(place, message.id)


async def test_a_member_who_was_removed_a_person_and_those_it_is_not_owed_to(place):
    chat = place.home.room.chat
    await chat.create_channel(
        place.anna, name="shared", purpose="", visibility="shared", post_policy="members"
    )
    ben = await place.person("ben")
    await chat.join(place.anna, "shared", "ben", subscribed=True)
    gone = await place.agent("gone", channel="shared")
    await place.agent("quiet", channel="shared", subscribed=False)
    await place.agent("outside", subscribed=None)
    message = (await place.post("@ben and @outside", channel="shared")).message
    await place.agent("late", channel="shared")
    await place.drain()
    assert await states(place, message) == {"gone": "waiting_for_session", "ben": "unread"}
    await chat.leave(place.anna, "shared", "gone")
    await (await place.session(gone)).inbox()
    await chat.mark_read(ben, [(await chat.inbox(ben, read=False))[0].id])
    assert await states(place, message) == {"gone": "dropped", "ben": "read"}
    said = await first_line(place, f"message:{message.id}")
    assert "no member of the channel any more" in said
    for line in (
        "ben got it",
        "not owed to outside: mentioned, and no member of the channel",
        "not owed to quiet: not subscribed, and not mentioned",
        "not owed to late: it joined later, and joining owes no history",
    ):
        assert line in said


async def test_what_waits_for_a_person_says_so(place):
    await place.agent("echo")
    author = await place.agent("author")
    for n in range(21):
        last = (await place.post(f"and {n}", by=author)).message
    await place.drain()
    assert (await receipts(place, last))["echo"].state == "held"
    assert "it waits for a person to speak there" in await first_line(place, last.id)


async def test_a_strangers_text_is_not_given_to_agents(place):
    await place.agent("echo")
    message = (await place.post("psst")).message
    await place.home.admin.execute(
        "update mainspring.messages set trust = 'stranger' where id = $1", message.id
    )
    await place.home.admin.execute(
        "update mainspring.events set data = jsonb_set(data, '{recipients,deliver}', '[]')"
        " where tenant_id = $1 and kind = 'message.settled'",
        place.tenant,
    )
    await place.drain()
    said = await first_line(place, message.id)
    assert said == "owed to nobody; not owed to echo: a stranger's text is not given to agents"


async def test_those_who_do_not_see_a_message_have_no_receipts_and_no_story_of_it(place):
    chat = place.home.room.chat
    await chat.create_channel(
        place.anna, name="shared", purpose="", visibility="shared", post_policy="members"
    )
    ben = await place.person("ben")
    message = (await place.post("between us", channel="shared")).message
    for asked in (message.id, new_id()):
        with pytest.raises(NotFound):
            await place.home.services.receipts.of(ben, asked)
        reader = Reader(tenant_id=place.tenant, account_id=ben.account_id, operates=True)
        with pytest.raises(NotFound):
            await place.home.services.explain.explain(reader, f"message:{asked}")


async def test_the_doctor_names_whose_messages_wait_and_the_one_that_is_refused(place):
    reader, _ = await place.reader("echo"), await place.agent("asleep")
    await place.post("a riddle")
    await place.post("and you?")
    await place.drain()
    [one, _] = await reader.inbox()

    async def messages() -> tuple[str, str, str]:
        found = (await place.home.services.doctor.examine(place.tenant)).findings
        [finding] = [each for each in found if each.check == "messages"]
        assert [each.state for each in found if each.check == "effects"] == ["ok"]
        return finding.state, finding.said, finding.way_out

    assert (await messages())[0] == "ok"
    await reader.ack(refused={one.id: "too long for me"})
    state, said, way_out = await messages()
    assert (state, "asleep" in said) == ("warning", False)
    assert (
        f"1 message waits for echo, the oldest for less than a second: it refused delivery {one.id} once, again at"
        in said
    )
    assert f"`mainspring explain {one.id}`" in way_out
    await place.home.admin.execute(
        "update mainspring.effects set created_at = created_at - interval '10 minutes' where tenant_id = $1",
        place.tenant,
    )
    state, said, _ = await messages()
    assert "2 messages wait for asleep, the oldest for 10 min: no session is live" in said
