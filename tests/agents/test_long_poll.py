"""Long polls on a real socket: what becomes of one when its client leaves, or the server closes."""

from __future__ import annotations

import asyncio
import json

import httpx

from mainspring.ids import new_id
from tests.agents.conftest import Served


async def ask(served: Served, secret: str) -> asyncio.StreamWriter:
    """Send a claim on a connection of its own, and do not wait for the answer."""
    host, port = served.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps({"runner": "laptop", "incarnation": str(new_id()), "slots": [0]})
    writer.write(
        f"POST /api/v1/runner/claim?wait=30 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    )
    await writer.drain()
    return writer


async def until(place, asleep: int) -> None:
    while place.room.polls.asleep != asleep:  # noqa: ASYNC110 - the server side is what is waited for
        await asyncio.sleep(0)


async def test_a_client_that_leaves_claims_nothing(served, place):
    agent = await place.agent()
    _, secret = await place.room.tokens.create(place.admin, kind="runner", agents=["coder"])
    connection = await ask(served, secret)
    await until(place, 1)
    connection.close()
    await connection.wait_closed()
    await until(place, 0)
    run_id = await place.queue(agent)
    await place.room.polls.run_once()
    assert await place.state(run_id) == "queued"


async def test_a_closing_server_answers_empty(served, place):
    await place.agent()
    _, secret = await place.room.tokens.create(place.admin, kind="runner", agents=["coder"])
    async with httpx.AsyncClient(
        base_url=served.url, headers={"Authorization": f"Bearer {secret}"}
    ) as client:
        body = {"runner": "laptop", "incarnation": str(new_id()), "slots": [0]}
        polling = asyncio.create_task(client.post("/api/v1/runner/claim", json=body, params={"wait": 30}))
        await until(place, 1)
        served.close()
        assert (await polling).json() == {"run": None, "drain": False, "slots": {}}


async def test_a_resumed_agents_waiting_runner_is_woken_by_the_commit_and_not_by_the_tick(
    place, home, monkeypatch
):
    """The command is noted in the audit, so that its transaction ends after the room's own: a poke before that finds nothing."""
    agent = await place.agent()
    await place.room.agents.update(place.admin, "coder", paused=True)
    run_id = await place.queue(agent)
    runner = await place.runner("coder")
    waiting = asyncio.create_task(runner.claim(wait_seconds=20))
    while not home.room.polls.asleep:  # noqa: ASYNC110 - nobody is told when a poll falls asleep
        await asyncio.sleep(0)
    called: list[str] = []
    async with home.db.unit(place.tenant):
        monkeypatch.setattr(home.room.agents, "_poke", lambda: called.append("poked"))
        await place.room.agents.update(place.admin, "coder", paused=False)
        assert called == []
    assert called == ["poked"]
    await home.room.polls.run_once()
    claimed = await waiting
    assert claimed.work is not None
    assert claimed.work.run.id == run_id
