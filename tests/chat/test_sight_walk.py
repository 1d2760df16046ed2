"""A long walk of two tenants whose channels have the same names: people and agents come and go, post and look, with each other's ids in
their hands. Whoever sees a channel at that moment is answered; to everybody else it is as if it were not there.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from mainspring.rooms import Actor, Conflict, Forbidden, NotFound
from tests.chat.conftest import Home, Place, Reader, make_place

pytestmark = pytest.mark.slow

OPEN, SHARED = "plaza", ("attic", "cellar")
STEPS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    id: UUID
    word: str
    channel: UUID


@dataclass(slots=True)
class Side:
    """A tenant, as the model remembers it."""

    place: Place
    people: Sequence[Actor]
    reader: Reader
    channels: dict[str, UUID]
    members: dict[UUID, set[UUID | None]]

    @property
    def everybody(self) -> list[Actor]:
        return [*self.people, self.reader.actor]

    def sees(self, actor: Actor, channel: UUID) -> bool:
        """What the model says: theirs, and open, or with them in it."""
        if actor.tenant_id != self.place.tenant or channel not in self.members:
            return False
        return channel == self.channels[OPEN] or actor.account_id in self.members[channel]


async def side(home: Home) -> Side:
    place = await make_place(home)
    chat = home.room.chat
    people = [place.anna, await place.person("ben"), await place.person("cleo")]
    agent = await place.agent("echo", subscribed=None)
    channels, members = {}, {}
    for name in (OPEN, *SHARED):
        visibility: Any = "open" if name == OPEN else "shared"
        made = await chat.create_channel(
            place.anna, name=name, purpose="", visibility=visibility, post_policy="members"
        )
        channels[name], members[made.id] = made.id, {place.anna.account_id}
    return Side(place, people, await place.session(agent), channels, members)


async def answer(asked: Awaitable[Any]) -> Any:
    """Return what was answered, None where there is nothing for who asks."""
    try:
        return await asked
    except NotFound:
        return None


@dataclass
class Walk:
    """The walk: its dice, both sides, and what was said."""

    dice: random.Random
    sides: Sequence[Side]
    said: list[Said] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chat = self.sides[0].place.home.room.chat
        self.services = self.sides[0].place.home.services

    def sees(self, actor: Actor, channel: UUID) -> bool:
        return any(one.sees(actor, channel) for one in self.sides)

    def anybody(self) -> tuple[Side, Actor]:
        of = self.dice.choice(self.sides)
        return of, self.dice.choice(of.everybody)

    def any_channel(self, of: Side) -> UUID:
        """A channel of this side, or of whichever."""
        return self.dice.choice(self.every_channel() if self.dice.random() < 0.4 else list(of.members))

    async def step(self) -> None:
        what = self.dice.choice(
            [*[self.somebody_posts] * 3, *[self.somebody_brings_another] * 2, self.somebody_goes]
        )
        await what()
        await self.somebody_looks()
        if self.said:
            await self.somebody_asks_for(self.dice.choice(self.said))
        if self.dice.random() < 0.3:
            await self.an_agent_reads()

    async def somebody_posts(self) -> None:
        of, actor = self.anybody()
        channel, word = self.any_channel(of), f"word{len(self.said)}x{self.dice.randrange(10**6)}"
        posted = await answer(of.place.post(f"@echo {word}", by=actor, channel=str(channel)))
        assert (posted is not None) == self.sees(actor, channel)
        if posted is not None:
            self.said.append(Said(id=posted.message.id, word=word, channel=channel))
            of.members[channel].add(actor.account_id)

    async def somebody_brings_another(self) -> None:
        of, actor = self.anybody()
        channel, other = self.any_channel(of), self.dice.choice(of.everybody)
        joined = await answer(self.chat.join(actor, str(channel), other.handle, subscribed=True))
        assert (joined is not None) == self.sees(actor, channel)
        if joined is not None:
            of.members[channel].add(other.account_id)

    async def somebody_goes(self) -> None:
        of, actor = self.anybody()
        channel, other = self.any_channel(of), self.dice.choice(of.everybody)
        try:
            await self.chat.leave(actor, str(channel), other.handle)
        except NotFound:
            assert not self.sees(actor, channel)
        except Forbidden:
            assert actor != of.place.anna
        else:
            of.members[channel].discard(other.account_id)

    async def somebody_looks(self) -> None:
        of, actor = self.anybody()
        channel = self.any_channel(of)
        ref, here = str(channel), self.sees(actor, channel)
        for asked in (
            self.chat.get_channel(actor, ref),
            self.chat.list_members(actor, ref),
            self.chat.list_topics(actor, ref, archived=False),
            self.chat.pins(actor, ref),
            self.chat.history(actor, ref),
        ):
            assert (await answer(asked) is not None) == here
        listed = {one.id for one in await self.chat.list_channels(actor)}
        assert {one for one in self.every_channel() if self.sees(actor, one)} <= listed
        assert {one for one in self.every_channel() if not self.sees(actor, one)}.isdisjoint(listed)

    def every_channel(self) -> list[UUID]:
        return [one for of in self.sides for one in of.members]

    async def somebody_asks_for(self, said: Said) -> None:
        _, actor = self.anybody()
        here = self.sees(actor, said.channel)
        assert (await answer(self.chat.get_message(actor, said.id)) is not None) == here
        assert (await answer(self.services.receipts.of(actor, said.id)) is not None) == here
        assert [one.id for one in await self.chat.search(actor, said.word, channel=None)] == (
            [said.id] if here else []
        )
        try:
            await self.chat.edit(actor, said.id, blocks=None, expected_revision=10**6)
        except NotFound:
            assert not here
        except (Forbidden, Conflict):
            assert here

    async def an_agent_reads(self) -> None:
        of = self.dice.choice(self.sides)
        await of.place.drain()
        found = await of.reader.inbox()
        assert all(self.sees(of.reader.actor, one.message.channel_id) for one in found)
        await of.reader.ack(*(one.id for one in found))


@pytest.mark.parametrize("seed", range(3))
async def test_who_sees_a_channel_is_answered_and_to_all_others_it_is_not_there(
    place: Place, seed: int
) -> None:
    walk = Walk(random.Random(seed), [await side(place.home), await side(place.home)])
    for _ in range(STEPS):
        await walk.step()
    assert len(walk.said) > STEPS / 10
