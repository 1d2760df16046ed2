"""People and agents post, edit, take turns, come, end, vanish and read, in any order, against a model that remembers what was meant.

After every step nothing is held but what its author's turn holds, and nothing that is held is owed. At the end every message has reached
every other agent once for each time that it settled, and says what its author said last.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from mainspring.chat.model import Speaking
from mainspring.rooms import Actor
from tests.databases import Database, Databases

from .conftest import LEASE_SECONDS, Place, Reader, home_on, make_place

T = TypeVar("T")
Run = Callable[[Awaitable[T]], T]
AGENTS = ("ping", "pong")
CRASHES_MAX = 5
who = st.sampled_from(AGENTS)


@dataclass
class Said:
    """A message as it was meant. `turn` is that in which it is held, None once it has settled."""

    id: UUID
    author: str
    text: str
    session: UUID | None = None
    turn: int | None = None
    settled: int = 0


class TalkMachine(RuleBasedStateMachine):
    """The steps."""

    def __init__(self, run: Run[Any], database: Database) -> None:
        super().__init__()
        self.run = run
        self.stack = AsyncExitStack()
        home = run(self.stack.enter_async_context(home_on(database)))
        self.place: Place = run(make_place(home))
        self.agents: dict[str, Actor] = {name: run(self.place.agent(name)) for name in AGENTS}
        self.sessions: dict[str, Reader] = {}
        self.turns: dict[str, int] = {}
        self.settled: dict[str, int] = {}
        self.said: list[Said] = []
        self.acked: set[UUID] = set()
        self.crashes = 0
        self.n = 0

    @initialize()
    def both_are_at_work(self) -> None:
        for name in AGENTS:
            self.a_session_begins(name)
            self.a_turn_begins(name)

    def text(self) -> str:
        self.n += 1
        return f"text {self.n}"

    # speaking

    @rule(mention=st.sampled_from(["", "@ping ", "@pong ", "@agents "]))
    def a_person_posts(self, mention: str) -> None:
        text = mention + self.text()
        posted = self.run(self.place.post(text))
        self.said.append(Said(posted.message.id, "anna", text, settled=1))

    @rule(name=who, ahead=st.booleans())
    def an_agent_posts(self, name: str, ahead: bool) -> None:
        text, reader = self.text(), self.sessions.get(name)
        if reader is None:
            posted = self.run(self.place.post(text, by=self.agents[name]))
            self.said.append(Said(posted.message.id, name, text, settled=1))
            return
        if ahead:  # in a turn that was not told of: it begins
            self.turns[name] += 1
        turn = self.turns[name]
        speaking = Speaking(session_id=reader.session.id, claim_id=reader.session.claim_id, turn=turn or None)
        posted = self.run(self.place.post(text, by=self.agents[name], speaking=speaking))
        held = turn > self.settled[name]
        said = Said(posted.message.id, name, text, reader.session.id, turn if held else None)
        said.settled = 0 if held else 1
        self.said.append(said)

    @precondition(lambda self: any(said.turn is not None for said in self.said))
    @rule(name=who, final=st.booleans())
    def an_agent_edits_what_it_said_last(self, name: str, final: bool) -> None:
        mine = [said for said in self.said if said.author == name and said.turn is not None]
        if not mine:
            return
        said, text = mine[-1], self.text()
        blocks = [{"type": "text", "text": text}]
        edit = self.place.home.room.chat.edit(
            self.agents[name], said.id, blocks=blocks, expected_revision=None, final=final
        )
        self.run(edit)
        said.text = text
        if final:
            said.turn, said.settled = None, 1

    # turns and sessions

    @rule(name=who)
    def a_session_begins(self, name: str) -> None:
        self.over(name)  # it displaces the one that lives
        self.sessions[name] = self.run(self.place.session(self.agents[name], takeover=True))
        self.turns[name] = self.settled[name] = 0

    @precondition(lambda self: self.sessions)
    @rule(name=who)
    def a_turn_begins(self, name: str) -> None:
        if name in self.sessions:
            self.turns[name] += 1
            self.run(self.sessions[name].beat(turn=self.turns[name]))

    @precondition(lambda self: self.sessions)
    @rule(name=who, back=st.integers(0, 1))
    def a_turn_ends(self, name: str, back: int) -> None:
        if name not in self.sessions:
            return
        through = max(0, self.turns[name] - back)
        self.run(self.sessions[name].settle(through))
        self.settled[name] = max(self.settled[name], through)
        self.edge(self.sessions[name].session.id, through)

    @precondition(lambda self: self.sessions)
    @rule(name=who, errored=st.booleans())
    def a_session_ends(self, name: str, errored: bool) -> None:
        if name in self.sessions:
            if errored and self.run(self.sessions[name].inbox()):
                self.crashes += 1
            self.run(self.sessions[name].end(errored=errored))
            self.over(name)

    @precondition(lambda self: self.sessions)
    @rule()
    def all_that_live_fall_silent(self) -> None:
        for name, reader in list(self.sessions.items()):
            self.crashes += bool(self.run(reader.inbox()))
            self.over(name)
        self.run(self.place.home.age(LEASE_SECONDS + 1))
        self.run(self.place.home.room.nets.end_lost())

    def over(self, name: str) -> None:
        reader = self.sessions.pop(name, None)
        if reader is not None:
            self.edge(reader.session.id, self.turns[name])

    def edge(self, session: UUID, through: int) -> None:
        for said in self.said:
            if said.session == session and said.turn is not None and said.turn <= through:
                said.turn, said.settled = None, 1

    # reading

    @rule()
    def all_is_drained(self) -> None:
        self.run(self.place.drain())

    @precondition(lambda self: self.sessions)
    @rule(name=who, acks=st.integers(0, 3))
    def a_reader_reads(self, name: str, acks: int) -> None:
        if name in self.sessions:
            self.run(self.read(self.sessions[name], acks))

    async def read(self, reader: Reader, acks: int) -> None:
        found = await reader.inbox()
        assert not self.acked & {one.id for one in found}, "what was acked is offered again"
        meant = {said.id: said for said in self.said}
        for one in found:
            assert meant[one.message.id].turn is None, "what is held is offered"
            assert one.message.text == meant[one.message.id].text
        first = [one.id for one in found[:acks]]
        await reader.ack(*first)
        self.acked.update(first)

    @invariant()
    def nothing_is_held_but_by_its_authors_turn(self) -> None:
        rows = self.run(
            self.place.home.admin.fetch(
                "select m.id, exists (select from mainspring.effects e where e.tenant_id = m.tenant_id and"
                " e.payload ->> 'message_id' = m.id::text) as owed from mainspring.messages m"
                " where m.tenant_id = $1 and m.settled_at is null",
                self.place.tenant,
            )
        )
        assert {row["id"] for row in rows} == {said.id for said in self.said if said.turn is not None}
        assert not any(row["owed"] for row in rows)

    def teardown(self) -> None:
        try:
            self.run(self.at_the_end())
        finally:
            self.run(self.stack.aclose())

    async def at_the_end(self) -> None:
        """All sessions have ended, a person has spoken, and new sessions read all there is."""
        for name in list(self.sessions):
            await self.sessions[name].end()
            self.over(name)
        # behind twenty messages of agents, what is owed waits for a person
        last = await self.place.post("go on")
        self.said.append(Said(last.message.id, "anna", "go on", settled=1))
        await self.place.drain()
        await self.place.home.room.nets.run_once()
        for name, agent in self.agents.items():
            reader = await self.place.session(agent, takeover=True)
            while found := await reader.inbox():
                assert not self.acked & {one.id for one in found}
                await reader.ack(*(one.id for one in found))
                self.acked.update(one.id for one in found)
            assert name in AGENTS
        rows = await self.place.effects("deliver", "steer")
        owed = Counter((row["payload"].split('"message_id": "')[1][:36], row["recipient"]) for row in rows)
        assert owed == Counter(
            (str(said.id), name) for said in self.said for name in AGENTS if name != said.author
        )
        states = Counter(row["state"] for row in rows)
        assert states["done"] + states["dead"] == len(rows), states
        assert states["dead"] <= self.crashes // CRASHES_MAX, "dead, and nothing crashed so often"
        for said in self.said:
            assert (await self.place.message(said.id)).text == said.text
        found = await self.place.home.services.verify.verify(self.place.tenant)
        assert found.ok, [check for check in found.checks if not check.ok]


@pytest.fixture
def run() -> Iterator[Run[Any]]:
    """A loop of the machine's own: its rules are not coroutines."""
    loop = asyncio.new_event_loop()
    yield loop.run_until_complete
    loop.close()


@pytest.fixture
async def database(databases: Databases) -> Database:
    """A migrated database, made in the session's own loop."""
    return await databases.create("server")


@pytest.mark.slow
def test_what_is_said_reaches_everybody_once_whatever_happens_in_between(
    run: Run[Any], database: Database
) -> None:
    run_state_machine_as_test(
        lambda: TalkMachine(run, database),
        settings=settings(
            max_examples=30, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
