"""A server as a real process: how it starts, refuses to start, and ends."""

from __future__ import annotations

import asyncio
import signal

import asyncpg
import httpx
import pytest

from mainspring import wiring
from mainspring.boards.model import BoardState
from mainspring.config import Settings
from mainspring.ids import new_id
from tests.server.conftest import DEADLINE_SECONDS, Process, people

pytestmark = [pytest.mark.processes, pytest.mark.slow]


async def test_two_processes_serve_one_database_and_end_when_asked(serve, fresh_database):
    database = await fresh_database("server")
    first = await serve(database.url)
    assert "ready at" in await first.ready()
    second = await serve(database.url)
    await second.ready()
    async with httpx.AsyncClient() as client:
        for one in (first, second):
            assert (await client.get(f"{one.url}/readyz?verbose")).json()["checks"]["database"] == "ok"
    for one, number in ((first, signal.SIGTERM), (second, signal.SIGINT)):
        one.process.send_signal(number)
        code, said = await one.ended()
        assert (code, said) == (0, "")


async def test_a_stop_answers_waiting_polls_and_does_not_wait_for_them(serve, fresh_database):
    database = await fresh_database("server")
    services = await wiring.build(Settings(database_url=database.url))
    _, actors, _ = await people(services)
    await services.agents.create(actors["operator"], handle="echo")
    _, secret = await services.tokens.create(actors["operator"], kind="runner", agents=["echo"])
    await services.stop()
    server = await serve(database.url)
    await server.ready()
    claim = {"runner": "laptop", "incarnation": str(new_id()), "slot": 0}
    headers = {"Authorization": f"Bearer {secret}"}
    async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=60) as client:
        await client.post("/api/v1/runner/claim", params={"wait": 0}, json=claim)
        asked = asyncio.Event()

        async def trace(name: str, _info: object) -> None:
            if name == "http11.send_request_body.complete":
                asked.set()

        waiting = asyncio.create_task(
            client.post("/api/v1/runner/claim", params={"wait": 50}, json=claim, extensions={"trace": trace})
        )
        await asked.wait()
        async with httpx.AsyncClient(base_url=server.url) as other:
            await other.get("/livez")  # answered after what was sent before it has been read
        server.process.send_signal(signal.SIGTERM)
        answer = await asyncio.wait_for(waiting, DEADLINE_SECONDS)
    assert (answer.status_code, answer.json()["run"]) == (200, None)
    assert await server.ended() == (0, "")


async def test_a_stop_ends_open_streams_and_says_when_to_come_back(serve, fresh_database):
    database = await fresh_database("server")
    services = await wiring.build(Settings(database_url=database.url))
    _, _, tokens = await people(services)
    await services.stop()
    server = await serve(database.url)
    await server.ready()
    headers = {"Authorization": f"Bearer {tokens['viewer']}"}
    async with (
        httpx.AsyncClient(base_url=server.url, headers=headers, timeout=DEADLINE_SECONDS) as client,
        client.stream("GET", "/api/v1/events/stream") as answer,
    ):
        lines = answer.aiter_lines()
        assert (await anext(lines)).startswith("retry: ")
        server.process.send_signal(signal.SIGTERM)
        said = [line async for line in lines]
    assert "event: bye" in said
    assert await server.ended() == (0, "")


async def test_a_taken_port_is_said_and_not_waited_for(serve, fresh_database):
    database = await fresh_database("server")
    first = await serve(database.url)
    await first.ready()
    second = await serve(database.url, port=int(first.url.rpartition(":")[2]))
    code, said = await second.ended()
    assert code == 5
    assert "cannot listen on 127.0.0.1" in said


async def test_a_database_without_our_schema_is_refused_with_the_way_out(serve, fresh_database):
    database = await fresh_database("empty")
    server = await serve(database.url)
    code, said = await server.ended()
    assert code == 1
    assert "mainspring server migrate" in said


async def test_a_superusers_login_is_refused(serve, fresh_database):
    database = await fresh_database("server")
    server = await serve(database.admin_url)
    code, said = await server.ended()
    assert code == 1
    assert "walls between tenants would not hold" in said


async def test_the_demos_token_opens_no_door_to_the_network(serve, fresh_database):
    database = await fresh_database("server")
    services = await wiring.build(Settings(database_url=database.url))
    _, actors, _ = await people(services)
    await services.tokens.create(actors["operator"], kind="user", role="operator", demo=True)
    await services.stop()
    server = await serve(database.url, MAINSPRING_HOST="0.0.0.0")
    code, said = await server.ended()
    assert code == 1
    assert "the bootstrap token is the demo's" in said


async def test_a_second_signal_ends_it_at_once(serve, fresh_database):
    database = await fresh_database("server")
    server = await serve(database.url, MAINSPRING_SHUTDOWN_GRACE_SECONDS="600")
    await server.ready()
    host, port = server.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /api/v1/cards HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n1")  # never whole
    await writer.drain()
    async with httpx.AsyncClient(base_url=server.url) as other:
        await other.get("/livez")
    server.process.send_signal(signal.SIGTERM)
    while True:
        server.process.send_signal(signal.SIGTERM)
        try:
            code = await asyncio.wait_for(server.process.wait(), 0.2)
        except TimeoutError:
            continue
        break
    writer.close()
    assert code == 128 + signal.SIGTERM


async def test_a_newer_engine_is_not_joined(serve, fresh_database):
    database = await fresh_database("server")
    admin = await asyncpg.connect(**database.admin)
    await admin.execute("update mainspring.engine set engine_version = engine_version + 1")
    await admin.close()
    server = await serve(database.url)
    code, said = await server.ended()
    assert code == 1
    assert "upgrade this server" in said


async def test_an_unreachable_database_is_said_without_its_password(serve):
    server = await serve("postgresql://me:hunter2@127.0.0.1:9/none")
    code, said = await server.ended()
    assert code == 1
    assert "cannot connect" in said
    assert "hunter2" not in said


@pytest.mark.parametrize("point", ["append.before_commit", "append.after_commit"])
async def test_a_command_whose_server_is_killed_is_done_once_when_its_key_is_sent_again(
    serve, fresh_database, point
):
    database = await fresh_database("server")
    services = await wiring.build(Settings(database_url=database.url))
    _, actors, tokens = await people(services)
    states = [BoardState(name="todo")]
    await services.boards.create_board(actors["operator"], key="OPS", name="Ops", states=states, reflect={})
    await services.stop()
    victim, other = await serve(database.url, MAINSPRING_FAULT=point), await serve(database.url)
    await asyncio.gather(victim.ready(), other.ready())
    headers = {"Authorization": f"Bearer {tokens['operator']}", "Idempotency-Key": "k1"}
    async with httpx.AsyncClient(headers=headers, timeout=DEADLINE_SECONDS) as client:

        async def send(server: Process) -> httpx.Response:
            return await client.post(f"{server.url}/api/v1/cards", json={"board": "OPS", "title": "one"})

        with pytest.raises(httpx.TransportError):
            await send(victim)
        # the database may need a moment to notice that nobody is there any more
        while (answer := await send(other)).status_code == 409:
            assert answer.json()["code"] == "key_in_progress"
        assert answer.status_code == 201
        assert ("idempotency-replayed" in answer.headers) == (point == "append.after_commit")
        cards = await client.get(f"{other.url}/api/v1/cards")
    assert [card["title"] for card in cards.json()["data"]] == ["one"]
