"""A message's way: posted, held while its author's turn goes on, settled, owed, offered, acked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mainspring import telemetry
from mainspring.chat.sight import Reader
from mainspring.operators.model import Described, Named, Replay
from mainspring.rooms import Conflict, Invalid, NotFound

from .conftest import LEASE_SECONDS


async def test_what_a_person_posts_reaches_who_subscribes(place):
    echo = await place.reader("echo")
    posted = await place.post("hello")
    assert posted.message.settled_by == "post"
    await place.drain()
    assert await echo.read_all() == ["hello"]
    assert await echo.inbox() == []
    [row] = await place.effects("deliver")
    assert row["state"] == "done"


async def test_idempotent_retry_appends_nothing(place):
    await place.agent("echo")
    first = await place.post("once", request_id="r1")
    events = len(await place.events())
    again = await place.post("once", request_id="r1")
    assert (again.message.id, again.new) == (first.message.id, False)
    assert len(await place.events()) == events
    with pytest.raises(Invalid) as taken:
        await place.post("something else", request_id="r1")
    assert (taken.value.current or {})["text"] == "once"
    await place.drain()
    assert len(await place.effects("deliver")) == 1


async def test_who_is_mentioned_is_steered_subscribed_or_not_and_never_both(place):
    await place.agent("echo")
    await place.agent("quiet", subscribed=False)
    await place.agent("outside", subscribed=None)
    await place.agent("idle", subscribed=False)
    posted = await place.post("@echo and @quiet and @outside, but not `@idle`")
    await place.drain()
    assert await place.owed(posted.message) == {"echo": "steer", "quiet": "steer", "outside": "steer"}


async def test_verify_knows_why_an_agent_is_woken_and_when_it_is_not(place):
    await place.agent("sleeper", wake=True)
    other = await place.agent("other", subscribed=False)
    await place.post("wake up")
    await place.drain()
    await place.home.room.nets.wake()
    [wake] = await place.effects("wake")
    verify = place.home.services.verify
    assert (await verify.verify(place.tenant)).ok
    await place.home.admin.execute(
        "update mainspring.effects set recipient_id = $2 where id = $1", wake["id"], other.account_id
    )
    [found] = [check for check in (await verify.verify(place.tenant)).checks if check.violations]
    assert found.invariant == "I-1"
    assert found.violations[0].endswith("and no verdict owes it")


async def test_a_held_message_fires_at_the_settle_edge(place):
    reader, author = await place.reader("reader"), await place.reader("author")
    await author.beat(turn=1)
    held = (await author.post("working on it", turn=1)).message
    assert held.settled_by is None
    await place.drain()
    assert await reader.inbox() == []
    await author.settle(1)
    await place.drain()
    assert await reader.read_all() == ["working on it"]
    assert (await place.message(held.id)).settled_by == "turn"


async def test_turns_n_and_n_plus_one(place):
    reader, author = await place.reader("reader"), await place.reader("author")
    await author.beat(turn=1)
    await author.post("of the first", turn=1)
    await author.beat(turn=2)
    await author.post("of the second", turn=2)
    session = await author.settle(1)
    assert session.state == "working"
    await place.drain()
    assert await reader.read_all() == ["of the first"]
    await author.settle(2)
    await place.drain()
    assert await reader.read_all() == ["of the second"]


async def test_a_late_post_after_its_settle_is_held_by_nobody(place):
    reader, author = await place.reader("reader"), await place.reader("author")
    await author.beat(turn=1)
    await author.settle(1)
    assert (await author.post("late", turn=1)).message.settled_by == "post"
    await place.drain()
    assert await reader.read_all() == ["late"]


async def test_a_dead_author_settles_what_it_held(place):
    reader, author = await place.reader("reader"), await place.reader("author")
    await author.beat(turn=1)
    held = (await author.post("my last words", turn=1)).message
    await place.ended([author])
    assert (await place.message(held.id)).settled_by == "lease"
    await place.drain()
    reader = await place.session(reader.actor, takeover=True)
    assert await reader.read_all() == ["my last words"]


async def test_what_the_lease_settled_and_its_author_edits_reaches_its_readers_again(place):
    reader, author = await place.reader("reader"), await place.reader("author")
    await author.beat(turn=1)
    held = (await author.post("half a sen", turn=1)).message
    await place.ended([author])
    edited = await place.home.room.chat.edit(
        author.actor, held.id, blocks=[{"type": "text", "text": "half a sentence"}], expected_revision=1
    )
    assert edited.revision == 2
    await place.drain()
    reader = await place.session(reader.actor, takeover=True)
    # content is the last settled revision, and nobody has read another: it is read once
    assert await reader.read_all() == ["half a sentence"]
    first, second = await place.effects("deliver")
    assert (first["outcome"], second["state"]) == ("dropped(owed anew at a later revision)", "done")


async def test_what_was_offered_before_its_author_finished_it_comes_again_at_its_new_revision(place):
    reader, author = await place.reader("reader"), await place.reader("author")
    await author.beat(turn=1)
    held = (await author.post("half a sen", turn=1)).message
    await place.home.age(LEASE_SECONDS + 1, "sessions")
    await reader.beat()
    await place.home.room.nets.end_lost()
    await place.drain()
    [first] = await reader.inbox()
    await place.home.room.chat.edit(
        author.actor, held.id, blocks=[{"type": "text", "text": "half a sentence"}], expected_revision=1
    )
    await place.drain()
    again, second = await reader.inbox()
    assert (first.message.revision, again.id) == (1, first.id)
    assert (again.message.id, again.message.revision) == (second.message.id, second.message.revision)
    assert await reader.ack(first.id, second.id) == 2


@pytest.mark.parametrize("end", ["stopped", "refused"])
async def test_a_delivery_that_is_cancelled_while_it_is_held_is_offered_to_nobody_after_that(place, end):
    reader = await place.reader("reader")
    await place.post("never mind")
    await place.post("go on")
    await place.drain()
    [first, _] = await reader.inbox()
    await place.home.services.log.cancel(place.anna, first.id)
    if end == "stopped":
        await reader.end()
        reader = await place.session(reader.actor)
    else:
        await reader.ack(refused={first.id: "not now"})
        await place.home.age(3600, "effects")
    assert await reader.read_all() == ["go on"]
    [cancelled, _] = await place.effects("deliver")
    assert (cancelled["state"], cancelled["outcome"]) == ("dropped", "dropped(cancelled)")


async def test_a_displaced_session_is_over(place):
    agent = await place.agent("echo")
    first = await place.session(agent)
    with pytest.raises(Conflict) as live:
        await place.session(agent)
    assert live.value.code == "session_live"
    await place.post("to whom?")
    await place.drain()
    assert await first.texts() == ["to whom?"]
    second = await place.session(agent, takeover=True)
    with pytest.raises(Conflict) as over:
        await first.inbox()
    assert over.value.code == "session_displaced"
    assert await second.read_all() == ["to whom?"]


async def test_a_message_that_ends_its_agent_five_times_is_dead_and_the_next_is_delivered(place):
    agent = await place.agent("echo")
    await place.post("poison")
    await place.post("fine")
    await place.drain()
    for _ in range(5):
        session = await place.session(agent)
        assert (await session.texts())[0] == "poison"
        await place.ended([session])
    [dead, _] = await place.effects("deliver")
    assert (dead["state"], dead["outcome"]) == ("dead", "worker_crashed")
    assert await (await place.session(agent)).read_all() == ["fine"]
    assert len(await place.events("effect.dead")) == 1


async def test_an_agent_with_nobody_to_read_is_woken_once(place):
    await place.agent("echo", wake=True)
    for n in range(30):
        await place.post(f"message {n}")
    await place.drain()
    await place.home.room.nets.wake()
    await place.home.room.nets.wake()
    await place.drain()
    assert len(await place.effects("wake")) == 1
    assert len(await place.events("run.queued")) == 1
    await place.home.room.nets.wake()
    assert len(await place.effects("wake")) == 1


async def test_a_steer_overtakes_and_deliveries_wait_for_the_turn(place):
    reader = await place.reader("reader")
    await reader.beat(turn=1)
    await place.post("in passing")
    await place.post("@reader at once")
    await place.drain()
    assert await reader.texts() == ["@reader at once"]
    await reader.read_all()
    await reader.settle(1)
    assert await reader.texts() == ["in passing"]


async def test_acks_come_in_the_order_of_their_topic(place):
    reader = await place.reader("reader")
    for text in ("a", "b"):
        await place.post(text)
    await place.drain()
    [first, second] = await reader.inbox()
    with pytest.raises(Conflict):
        await reader.ack(second.id)
    assert await reader.ack(first.id) == 1
    assert await reader.ack(first.id) == 0
    assert await reader.texts() == ["b"]


async def test_who_was_removed_before_the_offer_reads_nothing(place):
    await place.home.room.chat.create_channel(
        place.anna, name="secret", purpose="", visibility="shared", post_policy="members"
    )
    agent = await place.agent("echo", channel="secret")
    await place.post("for members", channel="secret")
    await place.drain()
    await place.home.room.chat.leave(place.anna, "secret", "echo")
    reader = await place.session(agent)
    assert await reader.inbox() == []
    [row] = await place.effects("deliver")
    assert (row["state"], row["outcome"]) == ("dropped", "dropped(no member of the channel any more)")


async def test_two_agents_that_mention_each_other_stop_and_a_person_sets_them_going(place):
    ping, pong = await place.reader("ping", subscribed=False), await place.reader("pong", subscribed=False)
    await place.post("@ping begin")
    said = 0
    for _ in range(30):
        for me, other in ((ping, "pong"), (pong, "ping")):
            await place.drain()
            for _text in await me.read_all():
                said += 1
                await place.post("and you?", by=me.actor, mentions=[other])
    assert said == 21
    [held] = [row for row in await place.effects("deliver", "steer") if row["state"] == "pending"]
    assert held["not_before"].year == 9999
    await place.post("go on")
    await place.drain()
    assert [len(await one.inbox()) for one in (ping, pong)] in ([1, 0], [0, 1])


async def test_people_find_what_mentions_them(place):
    ben = await place.person("ben")
    await place.post("@ben and @anna, look")
    [item] = await place.home.room.chat.inbox(ben, read=False)
    assert item.message.text == "@ben and @anna, look"
    assert await place.home.room.chat.mark_read(ben, [item.id]) == 1
    assert await place.home.room.chat.inbox(ben, read=False) == []


async def test_a_run_of_words_is_found(place):
    await place.post("The quick brown fox")
    await place.post("a lazy dog")
    found = await place.home.room.chat.search(place.anna, "FOX quick", channel=None)
    assert [message.text for message in found] == ["The quick brown fox"]


async def test_an_answer_descends_from_its_delivery_before_that_is_acked(place):
    reader, other = await place.reader("reader"), await place.reader("other", subscribed=None)
    await place.post("why?")
    await place.drain()
    [asked] = await reader.inbox()

    def answering(one):
        return replace(one.speaking(None), delivery_id=asked.id)

    answer = (await place.post("because", by=reader.actor, speaking=answering(reader))).message
    assert (answer.cause.seq, answer.cause.depth) == (asked.event_seq, 1)
    with pytest.raises(NotFound):  # what is owed to another agent does not exist for this one
        await place.post("me too", by=other.actor, speaking=answering(other))


async def test_what_was_drained_after_a_person_spoke_does_not_wait_for_the_next(place):
    reader, author = await place.reader("reader"), await place.agent("author")
    for n in range(21):
        await place.post(f"and {n}", by=author)
    await place.post("that will do")  # while the last of them is not drained
    await place.drain()
    assert len(await reader.inbox()) == 20
    await place.home.room.nets.run_once()
    assert (await reader.read_all())[-2:] == ["and 20", "that will do"]


async def test_acks_and_live_sessions_are_measured(place):
    reader, idle = await place.reader("reader"), await place.reader("idle", subscribed=False)
    await idle.beat(turn=1)
    await place.post("how long does it take?")
    await place.drain()
    [offered] = await reader.inbox()
    before = (telemetry.message_ack._sum.get(), sum(one.get() for one in telemetry.message_ack._buckets))
    await place.home.admin.execute(
        "update mainspring.events set occurred_at = occurred_at - interval '90 s' where tenant_id = $1",
        place.tenant,
    )
    await reader.ack(offered.id)
    took = telemetry.message_ack._sum.get() - before[0]
    counted = sum(one.get() for one in telemetry.message_ack._buckets) - before[1]
    assert (counted, 90 <= took < 120) == (1, True)
    await place.home.services.measure()
    assert telemetry.sessions.labels("working")._value.get() >= 1
    assert telemetry.sessions.labels("ready")._value.get() >= 1


async def test_a_delivery_that_gave_up_is_replayed_to_the_next_poll_whatever_came_after_it(place):
    reader = await place.reader("reader")
    for text in ("first", "second"):
        await place.post(text)
    await place.drain()
    await place.home.admin.execute(
        "update mainspring.effects set attempts = 11 where tenant_id = $1 and family = 'offered'"
        " and event_seq = (select min(event_seq) from mainspring.effects where tenant_id = $1 and family = 'offered')",
        place.tenant,
    )
    [first, second] = await reader.inbox()
    await reader.ack(refused={first.id: "not now"})
    assert await reader.ack(second.id) == 1
    desk = place.home.services.desk
    see = Reader(tenant_id=place.tenant, account_id=place.anna.account_id, operates=True)
    [group] = (await desk.groups(see, Described()))[0]
    assert (group["cause"], group["kinds"], group["ids"]) == (
        "its reader could not take it",
        ["deliver"],
        [str(first.id)],
    )
    plan = await desk.plan(see, Named((first.id,)))
    assert plan["eligible"][0]["subject"] == "#general/general: anna to reader"
    assert (await desk.decide(place.anna, [first.id], Replay()))["replayed"]
    assert await reader.texts() == ["first"]
    assert await reader.read_all() == ["first"]


async def test_what_settles_again_is_unread_again_and_who_read_it_before_has_not_read_it(place):
    chat, ben, author = place.home.room.chat, await place.person("ben"), await place.reader("author")
    await author.beat(turn=1)
    held = (await author.post("deploy is", turn=1, mentions=["ben"])).message
    await place.ended([author])
    [before] = await chat.inbox(ben, read=False)
    assert await chat.mark_read(ben, [before.id]) == 1
    await chat.edit(
        author.actor, held.id, blocks=[{"type": "text", "text": "deploy is off"}], expected_revision=1
    )
    [item] = await chat.inbox(ben, read=False)
    assert item.message.text == "deploy is off"
    [receipt] = (await place.home.services.receipts.of(place.anna, held.id)).data
    assert (receipt.handle, receipt.state) == ("ben", "unread")
    assert await chat.mark_read(ben, [before.id]) == 0  # said of what it was before
    assert len(await chat.inbox(ben, read=False)) == 1
