"""The event stream: every event once and in order, wherever and whenever one comes back; and nobody waits for a slow reader."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest

from mainspring import telemetry, wiring
from mainspring.chat.sight import Reader as ReaderOf
from mainspring.config import Settings
from mainspring.operators import tails as tails_module
from mainspring.operators.tails import Filter, Stream, Tails
from mainspring.server.app import create_app
from mainspring.server.load import Busy, Load
from mainspring.server.streams import EventStream, told
from mainspring.spine.events import NewEvent
from tests.server.conftest import people

PATIENCE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Message:
    """One server-sent event."""

    id: int | None = None
    event: str | None = None
    data: Any = None
    retry: int | None = None


def parsed(text: str) -> Message:
    found: dict[str, Any] = {}
    for line in text.split("\n"):
        name, _, value = line.partition(": ")
        if name:
            found[name] = (
                json.loads(value) if name == "data" else int(value) if name in ("id", "retry") else value
            )
    return Message(**found)


class Reader:
    """A client of a stream, by raw ASGI: it can read, stop reading, and leave."""

    def __init__(self, app: Any, path: str, headers: dict[str, str]) -> None:
        route, _, query = path.partition("?")
        self._scope = {
            "type": "http", "method": "GET", "path": f"/api/v1/{route}", "raw_path": f"/api/v1/{route}".encode(),
            "query_string": query.encode(), "http_version": "1.1", "scheme": "http", "server": ("test", 80),
            "client": ("x", 1), "root_path": "", "headers": [(k.lower().encode(), v.encode()) for k, v in headers.items()],
        }  # fmt: skip
        self._sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._left = asyncio.Event()
        self._reads = asyncio.Event()
        self._reads.set()
        self._text = ""
        self._asked = False
        self.status = 0
        self.task = asyncio.create_task(app(self._scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        await self._reads.wait()
        await self._sent.put(message)

    def stop_reading(self) -> None:
        self._reads.clear()

    def read_on(self) -> None:
        self._reads.set()

    async def leave(self) -> None:
        self._left.set()
        await asyncio.wait_for(self.task, PATIENCE_SECONDS)

    async def opened(self) -> int:
        if not self.status:
            message = await asyncio.wait_for(self._sent.get(), PATIENCE_SECONDS)
            self.status = message["status"]
            self.headers = {k.decode(): v.decode() for k, v in message["headers"]}
        return self.status

    async def body(self) -> Any:
        """The whole answer, of a request that was refused."""
        await self.opened()
        return json.loads((await self._sent.get())["body"])

    async def next(self) -> Message | None:
        """The next message; None at the end."""
        assert await self.opened() == 200
        while "\n\n" not in self._text:
            message = await asyncio.wait_for(self._sent.get(), PATIENCE_SECONDS)
            self._text += message["body"].decode()
            if not message.get("more_body"):
                return None
        text, _, self._text = self._text.partition("\n\n")
        return parsed(text)

    async def event(self) -> Message:
        """The next message that tells something."""
        while (message := await self.next()) is None or message.data is None:
            assert message is not None, "the stream ended"
        return message


@pytest.fixture
async def reading(world) -> AsyncIterator[Any]:
    """`reading(path="", who=..., last=...)` → a Reader; all of them leave at the end."""
    readers: list[Reader] = []

    def start(query: str = "", who: str = "operator", last: int | None = None, app: Any = None) -> Reader:
        headers = world.headers(who) | ({} if last is None else {"Last-Event-ID": str(last)})
        readers.append(Reader(app or world.app, f"events/stream{query}", headers))
        return readers[-1]

    yield start
    for reader in readers:
        await reader.leave()


async def live(world: Any, reader: Reader) -> Message:
    """Wait until a reader has caught up; return what it was told first."""
    first = await reader.next()
    assert first is not None
    while (message := await reader.next()) is not None and message.data is not None:
        pass
    return first


async def happen(world: Any, n: int, kind: str = "it.happened", subject: str = "") -> None:
    async with world.services.spine.open(world.tenant) as tx:
        for _ in range(n):
            tx.append(NewEvent(kind, subject=subject))


async def test_what_is_committed_is_told_with_its_seq_as_id(board, reading):
    reader = reading()
    first = await live(board, reader)
    assert reader.headers["content-type"].startswith("text/event-stream")
    assert reader.headers["cache-control"] == "no-store"
    assert first.retry
    made = await board.post("cards", {"board": "OPS", "title": "x"})
    await board.services.tails.run_once()
    message = await reader.event()
    assert message.id == message.data["seq"] == first.id + 1
    assert message.data == await board.get(f"events/{message.id}")
    assert message.data["data"]["card"]["key"] == made["key"]


async def test_who_comes_back_goes_on_behind_the_last_id_at_any_process(world, reading, database):
    other = await wiring.build(Settings(database_url=database.url, pool_size=3))
    try:
        await happen(world, 5)
        here, there = reading(last=2), reading(last=2, app=create_app(other))
        for reader in (here, there):
            assert [(await reader.event()).id for _ in range(3)] == [3, 4, 5]
        await happen(world, 1)
        await other.tails.run_once()  # the floor tick: nobody pokes it
        assert (await there.event()).id == 6
        await there.leave()
    finally:
        await other.stop()


async def test_the_header_counts_before_the_parameter(world, reading):
    await happen(world, 4)
    assert (await reading("?after=1", last=3).event()).id == 4
    assert (await reading("?after=1").event()).id == 2
    assert (await reading("?after=0").event()).id == 1


async def test_ids_move_on_where_there_is_nothing_to_tell(world, reading):
    await happen(world, 1)
    reader = reading("?kind=other.*", last=0)
    assert (await reader.next()).id == 0
    assert (await reader.next()) == Message(id=1)
    await happen(world, 3)
    await happen(world, 1, "other.thing")
    await happen(world, 2)
    await world.services.tails.run_once()
    assert (await reader.next()).id == 5
    assert (await reader.next()) == Message(id=7)


async def test_filters_are_by_kind_subject_and_card(board, reading):
    one, two = [await board.post("cards", {"board": "OPS", "title": title}) for title in ("a", "b")]
    by_card, by_subject, moves = (
        reading(f"?card={one['key']}"),
        reading(f"?subject={two['id']}"),
        reading("?kind=card.moved"),
    )
    for reader in (by_card, by_subject, moves):
        await live(board, reader)
    await board.post(f"cards/{one['key']}/labels", {"add": ["x"]})
    await board.post(f"cards/{one['key']}/move", {"state": "doing"})
    await board.post(f"cards/{two['key']}/labels", {"add": ["x"]})
    await board.settle()
    await board.services.tails.run_once()
    kinds = [(await by_card.event()).data["kind"] for _ in range(3)]
    assert kinds == ["card.labeled", "card.moved", "run.queued"]
    assert (await by_subject.event()).data["subject"] == two["id"]
    assert (await moves.event()).data["data"]["card"]["key"] == one["key"]
    answer = await board.call("GET", "events/stream?card=OPS-99")
    assert answer.status_code == 404


async def test_what_is_older_than_the_log_is_410_and_names_the_oldest(world, reading, admin):
    await happen(world, 5)
    await admin.execute("delete from mainspring.events where tenant_id = $1 and seq <= 3", world.tenant)
    reader = reading(last=2)
    assert await reader.opened() == 410
    body = await reader.body()
    assert (body["code"], body["oldest_seq"]) == ("too_old", 4)
    assert (await reading(last=3).event()).id == 4
    await admin.execute("delete from mainspring.events where tenant_id = $1", world.tenant)
    assert await reading(last=4).opened() == 410
    assert await reading(last=5).opened() == 200


async def test_who_was_beyond_the_head_is_reset_to_it(world, reading):
    await happen(world, 2)
    reader = reading(last=40)
    reset = await reader.event()
    assert (reset.event, reset.id, reset.data) == ("reset", 2, {"reason": "beyond_head", "head": 2})
    assert (await reader.next()) == Message(id=2)
    await happen(world, 1)
    await world.services.tails.run_once()
    assert (await reader.event()).id == 3


@pytest.mark.parametrize("last", ["x", "-1", "1.5", str(2**63), "９"])
async def test_an_id_that_is_none_is_refused(world, last):
    answer = await world.call("GET", "events/stream", headers={"Last-Event-ID": last.encode()})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/Last-Event-ID"


async def test_a_slow_reader_is_reset_and_let_go_and_loses_nothing(world, reading, monkeypatch):
    monkeypatch.setattr(tails_module, "QUEUED_EVENTS_MAX", 10)
    slow, quick = reading(last=0), reading(last=0)
    for reader in (slow, quick):
        await live(world, reader)
    slow.stop_reading()
    for _ in range(4):
        await happen(world, 5)
        await world.services.tails.run_once()
        for _ in range(5):
            await quick.event()
    slow.read_on()
    seen = []
    while (message := await slow.next()) is not None:
        seen.append(message)
    assert (seen[-1].event, seen[-1].data, seen[-1].id) == ("reset", {"reason": "slow"}, None)
    assert seen[-1].retry
    assert world.services.tails.open == 1
    last = max((m.id for m in seen if m.id is not None), default=0)
    again = reading(last=last)
    assert [(await again.event()).id for _ in range(20 - last)] == list(range(last + 1, 21))


async def test_a_token_that_is_revoked_ends_its_streams_before_the_next_event(world, reading):
    made = await world.post("tokens", {"kind": "user", "role": "viewer", "account": "guest"})
    world.tokens["guest"] = made["secret"]
    guest, other = reading(who="guest"), reading()
    for reader in (guest, other):
        await live(world, reader)
    await world.post(f"tokens/{made['token']['id']}/revoke")
    await happen(world, 1)
    await world.services.tails.run_once()
    bye = await guest.event()
    assert (bye.event, bye.data) == ("bye", {"reason": "unauthorized"})
    assert await guest.next() is None
    assert (await other.event()).id == 1


async def test_a_revoked_token_ends_a_quiet_stream_too(world, reading, monkeypatch):
    monkeypatch.setattr(tails_module, "CHECKED_EVERY_SECONDS", 0.0)
    made = await world.post("tokens", {"kind": "user", "role": "viewer", "account": "guest"})
    world.tokens["guest"] = made["secret"]
    guest = reading(who="guest")
    await live(world, guest)
    await world.post(f"tokens/{made['token']['id']}/revoke")
    await world.services.tails.run_once()
    assert (await guest.event()).data == {"reason": "unauthorized"}


async def test_a_token_is_asked_again_while_its_reader_catches_up(world, monkeypatch):
    await happen(world, 3)
    roles = iter(["viewer", None])

    async def recheck() -> str | None:
        return next(roles)

    stream = Stream(
        tenant_id=world.tenant,
        token_id=world.tenant,
        reader=ReaderOf(tenant_id=world.tenant, account_id=None),
        position=0,
        wanted=Filter(),
        allowed=lambda role: role is not None,
    )
    tails = Tails(world.services.db)
    monkeypatch.setattr(tails_module, "PAGE", 2)
    chunks = [chunk async for chunk in told(tails, stream, reset_to=None, recheck=recheck)]
    assert b"unauthorized" in chunks[-1]


async def test_another_tenants_events_are_not_told(world, reading, services):
    tenant, _actors, _ = await people(services)
    reader = reading(last=0)
    await live(world, reader)
    async with services.spine.open(tenant) as tx:
        tx.append(NewEvent("theirs.alone"))
    await happen(world, 1)
    await services.tails.run_once()
    assert (await reader.event()).data["kind"] == "it.happened"


async def test_one_question_reads_for_all_streams(world, reading):
    readers = [reading(last=0) for _ in range(10)]
    for reader in readers:
        await live(world, reader)
    counted = telemetry.statements.labels("event tails")
    before = counted._value.get()
    await happen(world, 3)
    await world.services.tails.run_once()
    assert counted._value.get() - before == 3  # the scope's own, the events, the tokens
    for reader in readers:
        assert [(await reader.event()).id for _ in range(3)] == [1, 2, 3]


async def test_a_stop_says_bye_and_when_to_come_back(database):
    services = await wiring.build(Settings(database_url=database.url, pool_size=3))
    try:
        app = create_app(services)
        _, _, tokens = await people(services)
        headers = {"Authorization": f"Bearer {tokens['viewer']}"}
        reader = Reader(app, "events/stream", headers)
        await live(None, reader)
        services.tails.close()
        bye = await reader.event()
        assert (bye.event, bye.data) == ("bye", {"reason": "closing"})
        assert bye.retry
        assert await reader.next() is None
        late = Reader(app, "events/stream", headers)
        assert (await late.event()).event == "bye"
        await asyncio.gather(reader.task, late.task)
        assert services.tails.open == 0
    finally:
        await services.stop()


async def test_who_leaves_leaves_nothing_behind(world, reading):
    load = world.app.state.load
    before = asyncio.all_tasks()
    readers = [reading(last=0) for _ in range(5)]
    for reader in readers:
        await live(world, reader)
    assert (world.services.tails.open, load.waiting, load.working) == (5, 5, 0)
    for reader in readers:
        await reader.leave()
    assert (world.services.tails.open, load.waiting, load.working) == (0, 0, 0)
    assert asyncio.all_tasks() == before


async def test_a_quiet_stream_is_pinged(world):
    async def recheck() -> str:
        return "viewer"

    stream = Stream(
        tenant_id=world.tenant,
        token_id=world.tenant,
        reader=ReaderOf(tenant_id=world.tenant, account_id=None),
        position=0,
        wanted=Filter(),
        allowed=lambda _role: True,
    )
    chunks = told(world.services.tails, stream, reset_to=None, recheck=recheck, ping_seconds=0)
    found = [await anext(chunks) for _ in range(3)]
    await chunks.aclose()
    assert found[-1] == b": ping\n\n"
    assert world.services.tails.open == 0


async def test_whoever_takes_nothing_for_too_long_is_let_go(world):
    closed = []

    async def chunks():
        try:
            yield b"x"
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    async def send(message):
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def receive():
        await asyncio.Event().wait()

    await EventStream(chunks(), held=nullcontext(), write_seconds=0.01)({}, receive, send)
    assert closed == [True]


async def test_every_stream_sees_every_event_once_however_it_joins(world, reading):
    """Readers come at any time and place while others write: the seam between what was missed and what is new shows nothing."""
    dice, last = random.Random(7), 120
    stop = asyncio.Event()

    anybody = ReaderOf(tenant_id=world.tenant, account_id=None)

    async def write() -> None:
        for _ in range(last // 3):
            await happen(world, 3)
            await asyncio.sleep(0)
        stop.set()

    async def tail() -> None:
        while not stop.is_set():
            await world.services.tails.run_once()
            await asyncio.sleep(0)
        await world.services.tails.run_once()

    async def read(n: int) -> list[int]:
        while await world.services.log.last_events(anybody, kind=None, subject=None, limit=1) == []:
            pass
        since = dice.randrange(3)
        reader, seen = reading(last=since), []
        while not seen or seen[-1] < last:
            message = await reader.event()
            seen.append(message.id - since)
            if message.id == last:
                break
        return seen

    _, _, *found = await asyncio.gather(write(), tail(), *(read(n) for n in range(8)))
    for seen in found:
        assert seen == list(range(1, len(seen) + 1))


# Bounds -----------------------------------------------------------------------------------------------------------


def test_too_many_waiting_are_turned_away_and_a_tenant_has_half_of_the_places():
    load = Load(waiting_max=4)
    one, two, three = object(), object(), object()
    held = [load.wait(one), load.wait(one), load.wait(two), load.wait(three)]
    for each in held[:2]:
        each.__enter__()
    with pytest.raises(Busy) as refused, load.wait(one):
        pass
    assert refused.value.code == "too_many_requests"
    for each in held[2:]:
        each.__enter__()
    with pytest.raises(Busy) as refused, load.wait(two):
        pass
    assert refused.value.code == "overloaded"
    held[0].__exit__(None, None, None)
    with load.wait(one):
        assert load.waiting == 4


async def test_a_stream_too_many_is_refused_before_it_begins(services):
    app = create_app(services, load=Load(waiting_max=1))
    _, _, tokens = await people(services)
    headers = {"Authorization": f"Bearer {tokens['viewer']}"}
    first = Reader(app, "events/stream", headers)
    assert await first.opened() == 200
    second = Reader(app, "events/stream", headers)
    assert await second.opened() == 503
    assert second.headers["retry-after"] == "1"
    await first.leave()
    third = Reader(app, "events/stream", headers)
    assert await third.opened() == 200
    await third.leave()
