"""The whole table of who reaches what: every route × every kind of token and role, made from VERBS and asked of the server."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest
from fastapi.routing import APIRoute

from mainspring.ids import new_id
from mainspring.server.auth import VERBS, Role
from mainspring.server.keyed import Route
from tests.server.test_auth import routes_of

CHANGING = {"POST", "PUT", "PATCH", "DELETE"}
# What no command takes, and no stream begins at: who is let in changes nothing, and waits for nothing.
NOTHING: dict[str, Any] = {"json": {"there is": "no such field"}, "headers": {"Last-Event-ID": "none"}}


@dataclass(frozen=True, slots=True)
class Who:
    """A token: its kind and role; for a run's, the id of its run and of its card."""

    secret: str
    kind: str
    role: str
    run: str = ""
    card: str = ""


@pytest.fixture
async def callers(board) -> list[Who]:
    """A token of every kind that there is, in every role that it may have."""
    found = [Who(board.tokens[role], "user", role) for role in ("viewer", "member", "operator")]
    for role in ("viewer", "member"):
        made = await board.post("tokens", {"kind": "agent", "role": role, "account": "echo"})
        found.append(Who(made["secret"], "agent", role))
    runner = await board.runner("echo")
    found.append(Who(runner.secret, "runner", "member"))
    card = await board.post("cards", {"board": "OPS", "title": "x"})
    await board.post(f"cards/{card['key']}/move", {"state": "doing"})
    await board.settle()
    run = await runner.claim()
    found.append(Who(run["token"], "run", "member", run["id"], card["id"]))
    return found


def filled(path: str, route: APIRoute, first: str) -> str:
    """The path with something in every parameter: `first` in the first one."""
    for n, one in enumerate(route.dependant.path_params):
        number = one.field_info.annotation is int
        path = re.sub(rf"\{{{one.name}:\w+\}}", f"{{{one.name}}}", path)
        path = path.replace(
            f"{{{one.name}}}", first if n == 0 and not number else "1" if number else str(new_id())
        )
    assert "{" not in path, path
    return path


def expected(verb: str, who: Who, *, own: bool) -> int | None:
    """The status that the table asks for; None when the caller gets through to the route."""
    access = VERBS[verb]
    if who.kind not in access.kinds or Role.named(who.role) < access.least:
        return 403
    return 404 if who.kind == "run" and access.own is not None and not own else None


@pytest.mark.slow
async def test_every_route_lets_in_whom_the_table_says_and_nobody_else(board, app, callers):
    before = (await board.get("events", last=1))["data"][0]["seq"]
    asked = 0
    for path, route in routes_of(app):
        verb = getattr(route, "verb", None)
        if verb is None:
            continue
        for method in route.methods or ():
            for who in callers:
                for first, own in ((str(new_id()), False), *own_things(verb, who)):
                    status = await statuses(
                        board, method, filled(path, route, first), who, keyed=is_keyed(route)
                    )
                    want = expected(verb, who, own=own)
                    got_in = {one for one in status if one not in (401, 403)} == status
                    assert status == {want} if want is not None else got_in, (
                        method,
                        path,
                        who.kind,
                        who.role,
                        status,
                    )
                    asked += 1
    assert asked > 400
    assert (await board.get("events", last=1))["data"][0]["seq"] == before


def own_things(verb: str, who: Who) -> list[tuple[str, bool]]:
    """What a run's token is let in for: its run or its card."""
    own = {"run": who.run, "card": who.card}.get(VERBS[verb].own or "")
    return [(own, True)] if own else []


def is_keyed(route: APIRoute) -> bool:
    return isinstance(route, Route) and route.is_keyed


async def statuses(board: Any, method: str, path: str, who: Who, *, keyed: bool) -> set[int]:
    """What is answered, without a key and with one."""
    found = set()
    for more in ({}, {"Idempotency-Key": str(new_id())})[: 1 + keyed]:
        headers = {"Authorization": f"Bearer {who.secret}", **NOTHING["headers"], **more}
        body = NOTHING["json"] if method in CHANGING else None
        answer = await board.client.request(method, path, headers=headers, json=body)
        found.add(answer.status_code)
    return found


async def test_nobody_gets_no_further_than_the_door(board, app):
    for path, route in routes_of(app):
        if getattr(route, "verb", None) is None:
            continue
        for method in route.methods or ():
            for headers in (
                {},
                {"Authorization": "Bearer nobody"},
                {"Authorization": "Bearer nobody", "Idempotency-Key": "k"},
            ):
                answer = await board.client.request(
                    method,
                    filled(path, route, str(new_id())),
                    headers=headers,
                    json={} if method in CHANGING else None,
                )
                assert answer.status_code == 401, (method, path)
