"""The delivery cycles one by one, each named after what went wrong in systems that came before."""

from __future__ import annotations

import asyncio

import pytest

from mainspring.rooms import Forbidden, Invalid

HOUR = 3600.0
_WAITING = "select count(*) from pg_locks where not granted"


@pytest.mark.parametrize("first", ["post", "settle"])
async def test_a_post_that_races_the_settle_edge_is_settled_by_it_or_sees_that_its_turn_is_over(place, first):
    """Both wait for their session's row, in this order, and get it in this order: nothing is left held, whoever was first."""
    author = await place.reader("author")
    await author.beat(turn=1)
    async with place.home.admin.transaction():
        await place.home.admin.fetch(
            "select id from mainspring.sessions where id = $1 for update", author.session.id
        )
        deeds = [author.post("close call", turn=1), author.settle(1)]
        if first == "settle":
            deeds.reverse()
        racing = []
        for n, deed in enumerate(deeds):
            racing.append(asyncio.create_task(deed))
            # only from a second connection is it seen who waits: this one is in its transaction
            async with place.home.services.pool.acquire() as conn:
                while await conn.fetchval(_WAITING) <= n:  # noqa: ASYNC110 - the database wakes nobody when one waits
                    await asyncio.sleep(0)
    done = await asyncio.gather(*racing)
    posted = next(one for one in done if hasattr(one, "message")).message
    settled = await place.message(posted.id)
    assert settled.settled_by == ("turn" if first == "post" else "post")
    assert len(await place.events("message.settled")) == 1


async def test_a_mention_in_a_later_block_and_in_an_edit_before_the_settle_counts_by_name_alone(place):
    author, _ = await place.reader("author"), await place.agent("quiet", subscribed=False)
    await author.beat(turn=1)
    await place.home.room.chat.post(
        author.actor,
        "general",
        topic=None,
        blocks=[{"type": "text", "text": "first"}, {"type": "text", "text": "@quiet, in words alone"}],
        mentions=[],
        request_id="words",
        speaking=author.speaking(1),
    )
    named = await author.post("by name", mentions=["quiet"], turn=1)
    await author.settle(1)
    await place.drain()
    assert [row["key"].split(":")[0] for row in await place.effects("steer")] == [str(named.message.id)]


async def test_an_edit_before_the_settle_calls_whom_it_names_and_one_after_it_nobody_else(place):
    author = await place.reader("author")
    for handle in ("first", "second"):
        await place.agent(handle, subscribed=False)
    await author.beat(turn=1)
    posted = (await author.post("for the first", mentions=["first"], turn=1)).message

    async def edit(text, mentions, **more):
        return await place.home.room.chat.edit(
            author.actor,
            posted.id,
            blocks=[{"type": "text", "text": text}],
            mentions=mentions,
            expected_revision=None,
            **more,
        )

    edited = await edit("for the second", ["@Second"], speaking=author.speaking(1))
    assert (edited.revision, edited.settled_by) == (2, None)
    with pytest.raises(Invalid, match="nobody called third"):
        await edit("for the third", ["third"])
    with pytest.raises(Forbidden):
        await edit("for all", ["everyone"])
    await author.settle(1)
    await place.drain()
    assert await place.owed(posted) == {"second": "steer"}
    # the same again says nothing new of whom it calls; another call would reach nobody, and is refused
    assert (await edit("for the second, as I said", ["second"])).revision == 3
    with pytest.raises(Invalid, match="/mentions"):
        await edit("for the first, after all", ["first"])
    assert (await place.message(posted.id)).text == "for the second, as I said"


async def test_a_persons_mention_stands_in_any_block(place):
    await place.agent("quiet", subscribed=False)
    posted = await place.home.room.chat.post(
        place.anna,
        "general",
        topic=None,
        blocks=[{"type": "text", "text": "first"}, {"type": "text", "text": "then @quiet"}],
        mentions=[],
        request_id="b",
    )
    await place.drain()
    assert await place.owed(posted.message) == {"quiet": "steer"}


async def test_who_mentions_itself_is_owed_nothing(place):
    author = await place.reader("author")
    posted = await place.post("note to @author", by=author.actor, mentions=["author"])
    await place.drain()
    assert await place.owed(posted.message) == {}
    assert await author.inbox() == []


async def test_agents_call_everybody_only_where_their_token_says_so(place):
    author = await place.reader("author")
    with pytest.raises(Forbidden):
        await place.post("all of you", by=author.actor, mentions=["everyone"])
    posted = await place.post("@everyone, all of you")
    await place.drain()
    assert await place.owed(posted.message) == {"author": "steer"}


@pytest.mark.slow
async def test_a_call_to_a_thousand_members_is_owed_to_each_of_them_once(place):
    await place.home.admin.execute(
        """
        with made as (
            insert into mainspring.accounts (tenant_id, id, kind, handle, name)
            select $1, gen_random_uuid(), 'agent', 'a' || n, '' from generate_series(1, 1000) n returning id
        ), agents as (
            insert into mainspring.agents (tenant_id, id) select $1, id from made
        )
        insert into mainspring.members (tenant_id, channel_id, account_id, subscribed)
        select $1, c.id, made.id, false from made, mainspring.channels c where c.tenant_id = $1
        """,
        place.tenant,
    )
    posted = await place.post("@agents, listen")
    await place.drain()
    owed = await place.owed(posted.message)
    assert len(owed) == 1000
    assert set(owed.values()) == {"steer"}


@pytest.mark.slow
async def test_a_thousand_messages_that_waited_are_read_in_order_and_in_parts(place):
    agent = await place.agent("late")
    for n in range(1000):
        await place.post(f"{n}")
    await place.drain()
    started = await place.home.room.sessions.start(agent)
    assert started.owed == 1000
    reader = await place.session(agent, takeover=True)
    texts, parts = [], 0
    while found := await reader.inbox():
        assert len(found) <= 100
        parts += 1
        texts += [one.message.text for one in found]
        await reader.ack(*(one.id for one in found))
    assert texts == [str(n) for n in range(1000)]
    assert parts >= 10


@pytest.mark.slow
async def test_an_agent_that_reads_nothing_for_an_hour_loses_nothing(place):
    reader = await place.reader("slow")
    await reader.beat(turn=1)
    await place.post("@slow now")
    await place.drain()
    assert await reader.texts() == ["@slow now"]
    for _ in range(130):
        await place.home.age(28, "sessions", "effects")
        await reader.beat()
        await place.home.room.nets.run_once()
    [row] = await place.effects("steer")
    assert (row["state"], row["attempts"], row["crashes"]) == ("claimed", 0, 0)
    assert await reader.read_all() == ["@slow now"]


async def test_a_session_that_ends_with_something_unread_wakes_its_agent_and_one_that_begins_calls_it_off(
    place,
):
    agent = await place.agent("sleepy", wake=True)
    session = await place.session(agent)
    await place.post("are you there?")
    await place.drain()
    await place.home.room.nets.run_once()
    assert await place.effects("wake") == []
    await session.end()
    await place.home.room.nets.run_once()
    assert [row["state"] for row in await place.effects("wake")] == ["pending"]
    # somebody begins to read before the wake is carried out
    other = await place.session(agent)
    await place.drain()
    [wake] = await place.effects("wake")
    assert (wake["state"], await place.events("run.queued")) == ("dropped", [])
    assert await other.read_all() == ["are you there?"]


@pytest.mark.slow
async def test_no_runner_for_an_hour_and_three_hundred_messages_are_one_wake(place):
    await place.agent("sleepy", wake=True)
    for n in range(300):
        await place.post(f"{n}")
        if n % 50 == 0:
            await place.drain()
            await place.home.room.nets.run_once()
    for _ in range(6):
        await place.home.age(HOUR / 6)
        await place.home.room.nets.run_once()
        await place.drain()
    assert len(await place.effects("wake")) == 1
    assert len(await place.events("run.queued")) == 1
    rows = await place.effects("deliver")
    assert {row["state"] for row in rows} == {"pending"}
    assert len(rows) == 300


@pytest.mark.slow
async def test_wakes_that_nobody_answers_come_less_and_less_often(place):
    agent = await place.agent("sleepy", wake=True)
    await place.post("anybody?")
    await place.drain()
    delays = []
    for _ in range(3):
        await place.home.room.nets.run_once()
        await place.home.age(HOUR)
        await place.drain()
        wake = (await place.effects("wake"))[-1]
        delays.append(round((wake["not_before"] - wake["created_at"]).total_seconds() + HOUR))
        await place.home.admin.execute(
            "update mainspring.runs set state = 'lost', ended_at = clock_timestamp() where agent_id = $1 and state = 'queued'",
            agent.account_id,
        )
    assert delays == [0, 5, 15]
