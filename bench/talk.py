"""Messages: what one costs that a thousand agents are owed, how soon one is in its reader's inbox, and how fast one reader catches up.

The readers are connections of this process to a server process of its own, and read as the SDK does: a long poll, an ack, a long poll.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import asyncpg
import figures
from product import Product, product
from served import Served, serving, spread, until
from sizes import Sizes
from wire import Wire

from mainspring.embedded import EmbeddedPostgres
from mainspring.ids import new_id
from mainspring.rooms import Actor

TITLE = "Messages"
READERS = 10
POSTED_A_SECOND = 50


async def measure(postgres: EmbeddedPostgres, sizes: Sizes) -> dict[str, Any]:
    """Fan one message out; post at a steady pace to readers that wait; let one reader catch up."""
    async with product(postgres, "talk") as made:
        fanned = await _fan_out(made, sizes.members)
        async with serving(made.url) as served:
            posted = await _post_to_inbox(made, served, sizes.posts)
            caught_up = await _catch_up(made, served.port, sizes.unread)
    return {"fan-out": fanned, "post to inbox": posted, "backlog": caught_up}


# One message to many -------------------------------------------------------------------------------------------


async def _fan_out(made: Product, members: int) -> dict[str, Any]:
    ana = await made.new_person("fan")
    await _channel(made, ana, "all")
    await _agents_at_once(made, ana, "all", members)
    posts, drains = [], []
    for n in range(5):
        begun = time.perf_counter()
        await _say(made, ana, "all", f"message {n}")
        posted = time.perf_counter()
        drained = await made.services.spine.drain.run_once()
        while (more := await made.services.spine.drain.run_once()).events:
            drained = more if more.owed else drained
        posts.append(posted - begun)
        drains.append(time.perf_counter() - posted)
    owed = await _count(made, "select count(*) from mainspring.effects where kind = 'deliver'")
    if owed != 5 * members:
        raise figures.Lost(f"{owed} deliveries of 5 messages to {members} agents")
    return {"agents": members, "post, ms": spread(posts), "drain, ms": spread(drains)}


async def _agents_at_once(made: Product, ana: Actor, channel: str, n: int) -> None:
    """Make agents as rows: a thousand commands are not what is measured."""
    conn = await asyncpg.connect(**made.admin)
    ids = [new_id() for _ in range(n)]
    await conn.execute(
        "insert into mainspring.accounts (tenant_id, id, kind, handle, name)"
        " select $1, i, 'agent', 'a' || n, '' from unnest($2::uuid[]) with ordinality as g (i, n)",
        ana.tenant_id,
        ids,
    )
    await conn.execute(
        "insert into mainspring.agents (tenant_id, id) select $1, unnest($2::uuid[])", ana.tenant_id, ids
    )
    await conn.execute(
        "insert into mainspring.members (tenant_id, channel_id, account_id, subscribed)"
        " select c.tenant_id, c.id, unnest($2::uuid[]), true from mainspring.channels c where c.tenant_id = $1 and c.name = $3",
        ana.tenant_id,
        ids,
        channel,
    )
    await conn.close()


# Post to inbox -------------------------------------------------------------------------------------------------


@dataclass
class _Reader:
    """An agent's program: one session, and when each message came to it."""

    wire: Wire
    session: dict[str, Any]
    came: dict[str, float] = field(default_factory=dict)
    times: int = 0

    @classmethod
    async def of(cls, port: int, token: str) -> _Reader:
        wire = Wire("127.0.0.1", port, token)
        return cls(wire, await wire.post("/sessions", {}))

    async def read(self) -> None:
        """Read for ever."""
        where, claim = f"/sessions/{self.session['id']}", self.session["claim_id"]
        while True:
            inbox = await self.wire.fetch(f"{where}/inbox?wait=30&claim_id={claim}")
            now = time.time()
            found = inbox["deliveries"]
            if not found:
                continue
            for delivery in found:
                self.times += 1
                self.came.setdefault(delivery["message"]["id"], now)
            acked = {"claim_id": claim, "deliveries": [delivery["id"] for delivery in found]}
            await self.wire.post(f"{where}/ack", acked)


async def _post_to_inbox(made: Product, served: Served, posts: int) -> dict[str, Any]:
    port = served.port
    ana = await made.new_person("posts")
    _, token = await made.services.tokens.create(ana, kind="user", role="operator")
    readers = []
    for n in range(READERS):
        await _channel(made, ana, f"c{n}")
        readers.append(await _Reader.of(port, await _agent(made, ana, f"reader{n}", f"c{n}")))
    reading = [asyncio.create_task(reader.read()) for reader in readers]
    at: dict[str, float] = {}

    async def post(n: int) -> None:
        wire = Wire("127.0.0.1", port, token)
        sent = time.time()
        answer = await wire.post(f"/channels/c{n % READERS}/messages", {"text": f"message {n}"})
        at[answer["id"]] = sent
        wire.close()

    begun, posting, worked = time.perf_counter(), [], served.cpu_seconds
    for n in range(posts):
        await asyncio.sleep(max(0.0, begun + n / POSTED_A_SECOND - time.perf_counter()))
        posting.append(asyncio.create_task(post(n)))
    await asyncio.gather(*posting)

    def all_came() -> bool:
        for task in reading:
            if task.done():
                raise figures.Lost(f"a reader ended: {task.exception()!r}")
        return sum(len(reader.came) for reader in readers) >= posts

    await until(all_came, "every message had come")
    worked = served.cpu_seconds - worked
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    came = {message: moment for reader in readers for message, moment in reader.came.items()}
    times = sum(reader.times for reader in readers)
    for reader in readers:
        reader.wire.close()
    if len(came) != posts or times != posts:
        raise figures.Lost(f"{posts} messages, {len(came)} of them came, {times} times")
    return {
        "posts": posts,
        "a second": POSTED_A_SECOND,
        "ms": spread([came[one] - at[one] for one in at]),
        "core ms a message": 1000 * worked / posts,
    }


# One reader behind ---------------------------------------------------------------------------------------------


async def _catch_up(made: Product, port: int, unread: int) -> dict[str, Any]:
    ana = await made.new_person("behind")
    await _channel(made, ana, "talk")
    token = await _agent(made, ana, "late", "talk")
    for n in range(unread):
        await _say(made, ana, "talk", f"message {n}")
    owed = "select count(*) from mainspring.effects where tenant_id = $1 and kind = 'deliver' and state = $2"

    async def all_owed() -> bool:
        return await _count(made, owed, ana.tenant_id, "pending") == unread

    await until(all_owed, "all were owed")
    begun = time.perf_counter()
    reader = await _Reader.of(port, token)
    reading = asyncio.create_task(reader.read())
    await until(lambda: len(reader.came) >= unread, "one reader had caught up")
    seconds = time.perf_counter() - begun
    reading.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await reading
    reader.wire.close()
    if reader.times != unread:
        raise figures.Lost(f"{unread} messages came {reader.times} times")
    return {"messages": unread, "seconds": seconds, "a second": unread / seconds}


# What is made for it -------------------------------------------------------------------------------------------


async def _channel(made: Product, ana: Actor, name: str) -> None:
    await made.services.talk.chat.create_channel(
        ana, name=name, purpose="", visibility="open", post_policy="members"
    )


async def _agent(made: Product, ana: Actor, handle: str, channel: str) -> str:
    await made.services.agents.create(ana, handle=handle, slots=1)
    await made.services.talk.chat.join(ana, channel, handle, subscribed=True)
    _, token = await made.services.tokens.create(ana, kind="runner", agents=[handle])
    return token


async def _say(made: Product, ana: Actor, channel: str, text: str) -> None:
    await made.services.talk.chat.post(
        ana,
        channel,
        topic=None,
        blocks=[{"type": "text", "text": text}],
        mentions=[],
        request_id=str(new_id()),
    )


async def _count(made: Product, sql: str, *given: UUID | str) -> int:
    conn = await asyncpg.connect(**made.admin)
    found: int = await conn.fetchval(sql, *given)
    await conn.close()
    return found


def judge(measured: dict[str, Any]) -> list[figures.Goal]:
    """At fifty a second a message is in its reader's inbox while one still looks at the button."""
    return [
        figures.at_most(
            "post to inbox, p50, ms, tick and poke alone", measured["post to inbox"]["ms"]["p50"], 50.0
        )
    ]


def show(measured: dict[str, Any]) -> list[tuple[str, ...]]:
    """The three of them."""
    fanned, posted, behind = measured["fan-out"], measured["post to inbox"], measured["backlog"]
    return [
        ("one server process", ""),
        (f"one message to {fanned['agents']:,} agents: post", f"p50 {fanned['post, ms']['p50']:.0f} ms"),
        ("the same: owed to all of them", f"p50 {fanned['drain, ms']['p50']:.0f} ms"),
        (
            f"post to inbox, {posted['a second']} a second",
            f"p50 {posted['ms']['p50']:.1f}, p99 {posted['ms']['p99']:.1f}, worst of {posted['posts']} {posted['ms']['worst']:.0f} ms",
        ),
        ("the server's work for one of them", f"{posted['core ms a message']:.1f} ms of a core"),
        (f"one reader, {behind['messages']:,} behind", f"{behind['a second']:,.0f} a second"),
    ]
