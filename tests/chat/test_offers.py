"""What a session is offered, and what stands in the way of what: lines of one kind in one topic, and nothing between them."""

from __future__ import annotations

import asyncio

import pytest

from mainspring.chat.offers import ROWS_MAX
from mainspring.ids import new_id

_ALIKE = """
insert into mainspring.effects (tenant_id, id, kind, family, key, event_seq, recipient_id, topic_id, payload, state, not_before)
select e.tenant_id, gen_random_uuid(), e.kind, e.family, e.key || '#' || n, e.event_seq, e.recipient_id,
       case when $3 then lpad(n::text, 32, '0')::uuid else e.topic_id end, e.payload, 'pending', $4::text::timestamptz
  from mainspring.effects e
 cross join generate_series(1, $2) as n
 where e.tenant_id = $1 and e.family = 'offered'
"""
_WAITING = "select count(*) from pg_locks where not granted"


async def more_of_it(place, count, *, topics=False, due="-infinity"):
    """Owe again what is owed so far, this often: in its topic, or each in one of its own."""
    await place.home.admin.execute(_ALIKE, place.tenant, count, topics, due)


async def is_called(place, reader) -> bool:
    """Tell whether a long poll of this session would be woken now."""
    waits = place.home.room.waits
    with waits.waiting(place.tenant, reader.session.id) as woken:
        await waits.run_once()
        return woken.is_set()


async def test_topics_that_wait_for_something_keep_nobody_from_hearing_of_others(place):
    reader = await place.reader("reader")
    await place.post("held back")
    await place.drain()
    await more_of_it(place, 250, topics=True, due="infinity")
    await place.home.admin.execute(
        "update mainspring.effects set not_before = 'infinity' where tenant_id = $1 and family = 'offered'",
        place.tenant,
    )
    assert not await is_called(place, reader)
    await place.post("@reader help", topic="new")
    await place.drain()
    assert await is_called(place, reader)
    assert await reader.texts() == ["@reader help"]


@pytest.mark.parametrize("working", [True, False])
async def test_a_steer_is_behind_no_delivery_however_many_there_are_in_its_topic(place, working):
    reader = await place.reader("reader")
    await place.post("in passing")
    await place.drain()
    await more_of_it(place, 2 * ROWS_MAX)
    if working:
        await reader.beat(turn=1)
    await place.post("@reader stop!")
    await place.drain()
    assert [one.message.text for one in await reader.inbox() if one.kind == "steer"] == ["@reader stop!"]


@pytest.mark.parametrize("topic", [None, "urgent"])
async def test_a_steer_is_offered_beside_as_many_deliveries_as_a_session_may_hold(place, topic):
    reader = await place.reader("reader")
    await place.post("in passing")
    await place.drain()
    await more_of_it(place, 2 * ROWS_MAX)
    assert len(await reader.inbox()) == ROWS_MAX
    assert not await is_called(place, reader)  # there is more, and no place for it
    await place.post("@reader stop!", topic=topic)
    await place.drain()
    assert await is_called(place, reader)
    assert (await reader.texts())[-1] == "@reader stop!"
    assert len(await reader.inbox()) == ROWS_MAX + 1
    assert len(await reader.read_all()) == 2 * ROWS_MAX + 2


async def test_a_long_message_that_is_being_read_keeps_no_steer_back(place):
    reader = await place.reader("reader")
    for n in range(3):
        await place.post(f"{n}" * 100_000)
    await place.drain()
    assert len(await reader.inbox()) == 2
    await place.post("@reader stop!")
    await place.drain()
    assert (await reader.texts())[-1] == "@reader stop!"


async def test_what_is_owed_in_many_topics_comes_the_oldest_first(place):
    reader = await place.reader("reader")
    for n in range(12):
        await place.post(f"{n}", topic=f"topic {n % 5}")
    await place.drain()
    assert await reader.texts() == [str(n) for n in range(12)]


@pytest.mark.parametrize("change", ["put off", "taken", "gone"])
async def test_nothing_is_taken_behind_what_changed_while_it_was_being_taken(place, change):
    """The first of three is put off by somebody else between the look at them and their offer; that of another topic stands alone."""
    reader = await place.reader("reader")
    for text in ("a", "b", "c"):
        await place.post(text)
    await place.post("elsewhere", topic="other")
    await place.drain()
    first = (await place.effects("deliver"))[0]["id"]
    admin = place.home.admin
    async with admin.transaction():
        if change == "put off":
            await admin.execute(
                "update mainspring.effects set not_before = clock_timestamp() + interval '1 h' where id = $1",
                first,
            )
        elif change == "taken":
            await admin.execute(
                "update mainspring.effects set state = 'claimed', worker = $2, claim_id = $3, claimed_at = clock_timestamp(),"
                " lease_until = 'infinity' where id = $1",
                first,
                str(new_id()),
                new_id(),
            )
        else:
            await admin.execute(
                "update mainspring.effects set state = 'dropped', settled_at = clock_timestamp() where id = $1",
                first,
            )
        looking = asyncio.create_task(reader.texts())
        # only from a second connection is it seen who waits: this one is in its transaction
        async with place.home.services.pool.acquire() as conn:
            while not await conn.fetchval(_WAITING):  # noqa: ASYNC110 - the database wakes nobody when one waits
                await asyncio.sleep(0)
    assert await looking == ["elsewhere"]
    if change == "gone":  # it is in nobody's way any more
        assert await reader.texts() == ["elsewhere", "b", "c"]
    else:
        assert await reader.texts() == ["elsewhere"]


async def test_what_may_not_be_seen_any_more_hides_nothing_that_may(place):
    await place.home.room.chat.create_channel(
        place.anna, name="secret", purpose="", visibility="shared", post_policy="members"
    )
    agent = await place.agent("echo")
    await place.home.room.chat.join(place.anna, "secret", "echo", subscribed=True)
    await place.post("for members", channel="secret")
    await place.drain()
    await more_of_it(place, 2 * ROWS_MAX)
    await place.home.room.chat.leave(place.anna, "secret", "echo")
    await place.post("for all")
    await place.drain()
    reader = await place.session(agent)
    assert await reader.texts() == ["for all"]
    assert [row["state"] for row in await place.effects("deliver")].count("dropped") == 2 * ROWS_MAX + 1


async def test_a_poll_is_called_for_what_its_session_could_take_and_for_nothing_else(place):
    reader = await place.reader("reader")
    assert not await is_called(place, reader)
    for text in ("a", "b"):
        await place.post(text)
    await place.drain()
    assert await is_called(place, reader)
    first, _ = await reader.inbox()
    assert not await is_called(place, reader)  # it holds them
    await place.post("c")
    await place.drain()
    assert await is_called(place, reader)  # behind what it holds
    await reader.ack(refused={first.id: "not now"})
    assert not await is_called(place, reader)  # behind what waits
    await place.home.age(3600, "effects")
    assert await is_called(place, reader)
    await reader.beat(turn=1)
    assert not await is_called(place, reader)  # during a turn for steers alone
    await place.post("@reader now")
    await place.drain()
    assert await is_called(place, reader)
    await reader.end()
    assert await is_called(place, reader)  # to be told that it is over
