"""Every refusal is one shape, names the way out, and leaves the connection usable."""

from __future__ import annotations

import ast
import asyncio
import socket
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import httpx
import pytest
import uvicorn
from fastapi import APIRouter, FastAPI

import mainspring
from mainspring.rooms import Conflict, FieldError, Forbidden, Invalid, Newer, NotFound, VersionConflict
from mainspring.server import problems
from mainspring.server.load import Load
from mainspring.server.main import Server
from mainspring.server.middleware import Edge, Guard
from mainspring.server.problems import CODES, MEDIA_TYPE
from mainspring.spine.errors import BadData, LogBroken, Misuse, OutcomeUnknown, Transient

FIELDS = {"type", "title", "status", "code", "detail", "retryable", "request_id"}

RAISED = {
    "not_found": (404, NotFound("card", "OPS-1")),
    "forbidden": (403, Forbidden("no")),
    "invalid": (422, Invalid(FieldError("/title", "too long"))),
    "conflict": (409, Conflict("it is done")),
    "not_dead": (409, Conflict("it is pending", code="not_dead")),
    "newer_release": (503, Newer("the term moon")),
    "version_conflict": (412, VersionConflict("changed by qa", current={"version": 3})),
    "unavailable": (503, Transient("connection refused")),
    "outcome_unknown": (503, OutcomeUnknown("the link broke")),
    "bad_data": (422, BadData("value too long for type character varying(5)\nmore")),
    "misuse": (500, Misuse("a scope inside a scope")),
    "log_broken": (500, LogBroken("a hole")),
    "defect": (500, RuntimeError("secret detail")),
}


@pytest.fixture
def thrower() -> FastAPI:
    """An application that raises what it is asked to."""
    app = FastAPI()
    router = APIRouter()

    @router.get("/raise/{name}")
    async def throw(name: str) -> None:
        raise RAISED[name][1]

    app.include_router(router)
    problems.install(app)
    app.add_middleware(Guard)
    app.add_middleware(Edge)
    return app


@pytest.fixture
async def client(thrower):
    async with httpx.AsyncClient(transport=httpx.ASGITransport(thrower), base_url="http://test") as client:
        yield client


@pytest.mark.parametrize("name", RAISED)
async def test_what_is_raised_becomes_a_problem(client, name):
    answer = await client.get(f"/raise/{name}")
    document = answer.json()
    assert answer.status_code == document["status"] == RAISED[name][0]
    assert answer.headers["content-type"] == MEDIA_TYPE
    assert set(document) >= FIELDS
    assert answer.headers["x-request-id"] == document["request_id"]
    assert document["type"] == f"/docs/problems/{document['code']}"
    assert ("retry-after" in answer.headers) == document["retryable"] == (answer.status_code == 503)


async def test_a_defect_says_nothing_of_itself(client):
    text = (await client.get("/raise/defect")).text
    assert "secret" not in text
    assert "RuntimeError" not in text


async def test_what_it_is_now_comes_with_a_version_conflict(client):
    assert (await client.get("/raise/version_conflict")).json()["current"] == {"version": 3}


async def test_refused_fields_are_named_by_pointer(client):
    document = (await client.get("/raise/invalid")).json()
    assert document["errors"] == [{"pointer": "/title", "detail": "too long"}]


async def test_a_request_may_bring_its_own_id_but_not_any_text(client):
    kept = await client.get("/raise/conflict", headers={"X-Request-Id": "abc-123"})
    assert kept.json()["request_id"] == "abc-123"
    replaced = await client.get("/raise/conflict", headers={"X-Request-Id": 'a"b c'})
    assert replaced.json()["request_id"] != 'a"b c'


async def test_a_failed_request_leaves_its_connection_open(thrower):
    """The framework's own handler of exceptions answers, then cuts the connection that it promised to keep."""
    served = Server(uvicorn.Config(thrower, log_config=None, lifespan="off"))
    sock = socket.create_server(("127.0.0.1", 0))
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(served.serve(sockets=[sock]))
        await served.listening.wait()
        reader, writer = await asyncio.open_connection("127.0.0.1", sock.getsockname()[1])
        for name in ("defect", "conflict"):
            writer.write(f"GET /raise/{name} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(head.partition("content-length: ")[2].split("\r\n")[0])
            await reader.readexactly(length)
            assert "connection: close" not in head
        writer.close()
        served.should_exit = True
        await serving


async def test_too_much_at_once_is_turned_away_and_not_queued():
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(scope, receive, send):
        begun.set()
        await go_on.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    transport = httpx.ASGITransport(Edge(slow, load=Load(working_max=1)))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        first = asyncio.create_task(client.get("/"))
        await begun.wait()
        refused = await client.get("/")
        assert (refused.status_code, refused.json()["code"]) == (503, "overloaded")
        assert refused.headers["retry-after"] == "1"
        go_on.set()
        assert (await first).status_code == 204
        assert (await client.get("/")).status_code == 204


async def test_the_frameworks_own_refusals_have_the_same_shape(world):
    for method, path, status in (
        ("GET", "/nowhere", 404),
        ("DELETE", "/livez", 405),
        ("POST", "/api/v1/cards", 422),
        ("GET", "/api/v1/events?after=x", 422),
        ("GET", "/api/v1/effects/not-an-id", 422),
    ):
        answer = await world.call(method, path)
        assert answer.status_code == status, path
        assert answer.headers["content-type"] == MEDIA_TYPE
        assert set(answer.json()) >= FIELDS


async def test_validation_names_place_and_pointer(world):
    answer = await world.call("GET", "events", params={"after": -1, "limit": "many"})
    errors = {(one["in"], one["pointer"]) for one in answer.json()["errors"]}
    assert errors == {("query", "/after"), ("query", "/limit")}
    answer = await world.call("POST", "cards", json={"board": "OPS", "title": 7, "labels": ["ok", 3]})
    assert {one["pointer"] for one in answer.json()["errors"]} == {"/title", "/labels/1"}


async def test_a_problems_type_leads_to_its_meaning(world):
    for code in CODES:
        page = await world.call("GET", f"/docs/problems/{code}")
        assert page.status_code == 200
        assert CODES[code].way_out in page.text
    assert (await world.call("GET", "/docs/problems/none")).status_code == 404


SOURCE = Path(mainspring.__file__).parent
# the command line's and the SDK's `code` are exit codes, and what a server has answered
ELSEWHERE = ("cli", "sdk")


def codes_in(file: Path) -> Iterator[str]:
    """Yield the codes that a module refuses with: `code=...` of a call, a refusal's own, and those of problems."""
    module = ".".join(("mainspring", *file.relative_to(SOURCE).with_suffix("").parts))
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        match node:
            case ast.Call(func=ast.Name(id="Conflict" | "Invalid" | "Problem"), keywords=keywords):
                values = [keyword.value for keyword in keywords if keyword.arg == "code"]
            case ast.Call(func=ast.Attribute(value=ast.Name(id="Problem"), attr="coded"), args=[first, *_]):
                values = [first]
            case ast.ClassDef(body=body):
                values = [one.value for one in body if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "code"]  # fmt: skip
            case _:
                continue
        for value in values:
            for said in [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]:
                if isinstance(said, ast.Constant):
                    yield str(said.value)
                elif isinstance(said, ast.Name) and said.id.isupper():
                    yield str(getattr(import_module(module), said.id))


@pytest.mark.slow
def test_every_code_that_is_answered_has_a_meaning():
    said = {
        code: file.name
        for file in SOURCE.rglob("*.py")
        if file.relative_to(SOURCE).parts[0] not in ELSEWHERE
        for code in codes_in(file)
    }
    assert {"not_dead", "effect_ended", "claim_lost", "rule_name_taken", "not_available_yet"} <= said.keys()
    unknown = {code: file for code, file in said.items() if code not in CODES and code != "refused"}
    assert unknown == {}
