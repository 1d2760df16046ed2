"""A process is really killed, or stopped (SIGSTOP), at each fault point that a message's way has: the message is read all the same, once,
as it was meant, and a thawed process writes nothing.

Each point has a tenant of its own, so that all are frozen side by side.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import pytest

from mainspring import wiring
from mainspring.chat.model import Delivery, Speaking
from mainspring.chat.sessions import Started
from mainspring.faultpoints import FaultPoint
from mainspring.rooms import Actor, Conflict
from mainspring.spine.errors import Transient
from mainspring.wiring import Services
from tests.crash import victims
from tests.crash.victims import Talk, Victim
from tests.server.conftest import people

pytestmark = [pytest.mark.processes, pytest.mark.slow]

PATIENCE_SECONDS = 60.0
# what is being done when the point is reached
ROADS: Final[dict[FaultPoint, victims.Deed]] = {
    FaultPoint.POST_BEFORE_COMMIT: "post",
    FaultPoint.POST_AFTER_COMMIT: "post",
    FaultPoint.MESSAGE_SETTLE_BEFORE_COMMIT: "settle",
    FaultPoint.MESSAGE_SETTLE_AFTER_COMMIT: "settle",
    FaultPoint.SESSION_AFTER_START: "start",
    FaultPoint.INBOX_AFTER_OFFER: "inbox",
    FaultPoint.INBOX_BEFORE_ACK: "ack",
    FaultPoint.INBOX_AFTER_ACK: "ack",
}
TABLES: Final = ("events", "effects", "effect_attempts", "messages", "sessions", "channels", "topics")


@dataclass(slots=True)
class Scene:
    """A tenant with one message on its way from its author to its reader."""

    services: Services
    anna: Actor
    author: Actor
    reader: Actor
    talk: Talk
    victim: Victim | None = None

    async def rows(self) -> dict[str, Any]:
        """All that may be written of messages: twice is seen."""
        tenant = self.anna.tenant_id
        async with self.services.db.tenant(tenant) as scope:
            return {
                table: [
                    dict(row.items())
                    for row in await scope.fetch(
                        f"select * from mainspring.{table} t where tenant_id = $1 order by t::text", tenant
                    )
                ]
                for table in TABLES
            }

    async def carried_on(self) -> None:
        """What everybody else does: who got no answer says it again, and the reader's next session reads until nothing is left."""
        if self.talk.deed in ("post", "settle"):
            await self._again()
        started = await self._begin()
        session = started.session
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await self._all_is_read():
                _, found = await self.services.talk.sessions.inbox(self.reader, session.id, session.claim_id)
                await self._ack(session.id, session.claim_id, found)
                await asyncio.sleep(0.05)

    async def _again(self) -> None:
        for attempt in range(3):
            try:
                await victims.say(self.services, self.talk)
            except Transient:  # it waited for what the frozen one holds
                assert attempt < 2
            except Conflict as over:  # its session is over meanwhile: that edge has settled for it
                if over.code != "session_lost":
                    raise
                return
            else:
                return

    async def _begin(self) -> Started:
        for _ in range(2):
            try:
                return await self.services.talk.sessions.start(self.reader, takeover=True)
            except Transient:
                continue
        return await self.services.talk.sessions.start(self.reader, takeover=True)

    async def _ack(self, session: Any, claim: Any, found: Any) -> None:
        deliveries: list[Delivery] = list(found)
        if deliveries:
            ids = [one.id for one in deliveries]
            await self.services.talk.sessions.ack(self.reader, session, claim, ids=ids, refused={}, turn=None)

    async def _all_is_read(self) -> bool:
        rows = await self.rows()
        return [row["state"] for row in rows["effects"] if row["kind"] == "deliver"] == ["done"]


@pytest.fixture(scope="module")
async def database(databases) -> AsyncIterator[Any]:
    """A database of its own: the loops run in it."""
    made = await databases.create("server")
    yield made
    await databases.drop(made)


@pytest.fixture
async def services(database) -> AsyncIterator[Services]:
    """The process that lives."""
    built = await wiring.build(victims.settings(database.url))
    yield built
    await built.stop()


async def scene(services: Services, deed: victims.Deed) -> Scene:
    """Bring a message so far that `deed` comes next."""
    tenant, actors, _ = await people(services)
    anna = actors["operator"]
    chat, sessions = services.talk.chat, services.talk.sessions
    await chat.create_channel(anna, name="general", purpose="", visibility="open", post_policy="members")
    agents = []
    for handle in ("author", "reader"):
        made = await services.agents.create(anna, handle=handle)
        agents.append(Actor(tenant_id=tenant, account_id=made.agent.id, kind="agent", handle=handle))
        await chat.join(anna, "general", handle, subscribed=handle == "reader")
    author, reader = agents
    talk = Talk(deed=deed, by=anna)
    if deed == "settle":
        session = (await sessions.start(author)).session
        await sessions.heartbeat(author, session.id, session.claim_id, turn=1)
        speaking = Speaking(session_id=session.id, claim_id=session.claim_id, turn=1)
        held = await chat.post(
            author, "general", topic=None, blocks=[{"type": "text", "text": "hello"}], mentions=[], request_id="r", speaking=speaking
        )  # fmt: skip
        assert held.message.settled_by is None
        talk = replace(talk, by=author, session=session.id, claim_id=session.claim_id)
    elif deed != "post":
        await victims.say(services, replace(talk, deed="post"))
        await services.spine.run_once()
        talk = replace(talk, by=reader)
    if deed in ("inbox", "ack"):
        session = (await sessions.start(reader)).session
        talk = replace(talk, session=session.id, claim_id=session.claim_id)
    if deed == "ack":
        assert talk.session is not None
        assert talk.claim_id is not None
        _, found = await sessions.inbox(reader, talk.session, talk.claim_id)
        talk = replace(talk, deliveries=tuple(one.id for one in found))
        assert len(found) == 1
    return Scene(services, anna, author, reader, talk)


@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_a_process_that_is_killed_or_frozen_on_a_messages_way_loses_and_doubles_nothing(
    services: Services, database: Any, how: Literal["kill", "stop"]
) -> None:
    with victims.victims(database.url) as place:
        scenes: dict[FaultPoint, Scene] = {}
        for point, deed in ROADS.items():
            scenes[point] = here = await scene(services, deed)
            end = place.kill if how == "kill" else place.freeze
            here.victim = await end(point, here.talk)
        await services.start()
        carrying = {point: asyncio.create_task(here.carried_on()) for point, here in scenes.items()}
        await asyncio.wait(carrying.values())
        assert {point: task.exception() for point, task in carrying.items() if task.exception()} == {}
        before = {point: await here.rows() for point, here in scenes.items()}
        said = {
            point: await here.victim.go_on()
            for point, here in scenes.items()
            if here.victim and how == "stop"
        }
        for point, here in scenes.items():
            rows = await here.rows()
            told = {table: rows[table] for table in TABLES if table != "sessions"}
            assert told == {table: before[point][table] for table in told}, (
                f"{point}: thawed, it wrote: {said.get(point)}"
            )
            assert [message["blocks"][0]["text"] for message in rows["messages"]] == ["hello"], point
            settled = [event for event in rows["events"] if event["kind"] == "message.settled"]
            assert len(settled) == 1, point
            found = await services.verify.verify(here.anna.tenant_id)
            assert found.ok, [check for check in found.checks if not check.ok]
