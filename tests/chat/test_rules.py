"""Rules look at what is said in open channels."""

from __future__ import annotations

import pytest

from mainspring.rooms import Invalid


def rule(**when):
    return {
        "name": "help",
        "when": {"kinds": ["message.settled"], **when},
        "do": {"launch": {"agent": "helper", "prompt": "{{message.author}} says {{message.text}}"}},
    }


async def prompts(place):
    rows = await place.home.admin.fetch(
        "select prompt from mainspring.runs where tenant_id = $1 order by id", place.tenant
    )
    return [row["prompt"] for row in rows]


async def test_a_message_in_its_channel_fires_a_rule_once(place):
    await place.agent("helper", subscribed=None)
    await place.home.services.rules.create(place.anna, rule(channels=["#General"]))
    await place.home.room.chat.create_channel(
        place.anna, name="other", purpose="", visibility="open", post_policy="members"
    )
    await place.post("help!", request_id="r")
    await place.post("help!", request_id="r")
    await place.post("not here", channel="other")
    await place.drain()
    assert await prompts(place) == ["anna says help!"]


async def test_what_an_agent_says_fires_no_rule_before_its_turn_ends(place):
    await place.agent("helper", subscribed=None)
    await place.home.services.rules.create(place.anna, rule())
    author = await place.reader("author")
    await author.beat(turn=1)
    await author.post("half a thought", turn=1)
    await place.drain()
    assert await prompts(place) == []
    await author.settle(1)
    await place.drain()
    assert await prompts(place) == ["author says half a thought"]


async def test_what_is_said_in_a_shared_channel_fires_no_rule_and_is_rehearsed_to_nobody(place):
    await place.agent("helper", subscribed=None)
    await place.home.services.rules.create(place.anna, rule())
    await place.home.room.chat.create_channel(
        place.anna, name="secret", purpose="", visibility="shared", post_policy="members"
    )
    await place.post("a wolverine", channel="secret")
    await place.drain()
    assert await prompts(place) == []
    with pytest.raises(Invalid):
        await place.home.services.rules.create(place.anna, rule(channels=["secret"]) | {"name": "secret"})


async def test_a_rule_on_messages_that_says_nothing_tells_the_message(place):
    await place.agent("helper", subscribed=None)
    untold = rule() | {"do": {"launch": {"agent": "helper"}}}
    await place.home.services.rules.create(place.anna, untold)
    await place.post("help!", topic="today")
    await place.drain()
    assert await prompts(place) == ["anna in general, today:\n\nhelp!"]
