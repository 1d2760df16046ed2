"""Who reaches what: every route names its verb, every verb refuses whom it should, and tenants are walls."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from mainspring.ids import new_id
from mainspring.rooms import Forbidden, NotFound, system_actor
from mainspring.server.auth import PUBLIC, VERBS, Caller, Requirement, Role
from mainspring.spine.events import NO_CAUSE
from tests.server.conftest import people


def routes_of(app: FastAPI) -> Iterator[tuple[str, APIRoute]]:
    """Every route of the API, with its whole path, however deep its router was included."""
    todo: list[tuple[str, object]] = [("", route) for route in app.routes]
    while todo:
        prefix, route = todo.pop()
        if isinstance(route, APIRoute):
            yield prefix + route.path, route
        inside = getattr(getattr(route, "original_router", None), "routes", ())
        todo += [(prefix + route.include_context.prefix, inner) for inner in inside]


def verbs_of(dependant: Dependant) -> Iterator[str]:
    for one in dependant.dependencies:
        if isinstance(one.call, Requirement):
            yield one.call.verb
        yield from verbs_of(one)


def test_every_route_names_exactly_one_verb_or_is_public(app):
    found = {path: list(verbs_of(route.dependant)) for path, route in routes_of(app)}
    assert len(found) > 20
    assert {path for path, verbs in found.items() if not verbs} == PUBLIC
    assert {path: verbs for path, verbs in found.items() if len(verbs) > 1} == {}


def test_every_verb_has_a_route(app):
    used = {verb for _, route in routes_of(app) for verb in verbs_of(route.dependant)}
    assert used == set(VERBS)


@pytest.mark.parametrize(
    "authorization", [None, "", "Bearer", "Bearer ", "Basic abc", "Bearer nonsense", "nonsense"]
)
async def test_no_valid_token_is_401_and_says_which_scheme(world, authorization):
    headers = {} if authorization is None else {"Authorization": authorization}
    answer = await world.client.get("/api/v1/cards", headers=headers)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert answer.json()["code"] == "unauthorized"


@pytest.mark.slow
async def test_a_revoked_token_is_worth_nothing(world):
    made = await world.post("tokens", {"kind": "user", "role": "member", "account": "guest"})
    headers = {"Authorization": f"Bearer {made['secret']}"}
    assert (await world.client.get("/api/v1/whoami", headers=headers)).json()["handle"] == "guest"
    await world.post(f"tokens/{made['token']['id']}/revoke")
    assert (await world.client.get("/api/v1/whoami", headers=headers)).status_code == 401


@pytest.mark.parametrize(
    ("who", "method", "path", "body"),
    [
        ("viewer", "POST", "cards", {"board": "OPS", "title": "x"}),
        ("viewer", "POST", "desk/plan", {"all": True}),
        ("member", "POST", "desk/replay", {"all": True}),
        ("member", "POST", "rules", {}),
        ("member", "GET", "verify", None),
        ("member", "GET", "tokens", None),
    ],
)
async def test_too_low_a_role_is_403_before_anything_is_looked_at(board, who, method, path, body):
    answer = await board.call(method, path, who, json=body)
    assert answer.status_code == 403
    assert answer.json()["code"] == "forbidden"


async def test_another_tenants_things_do_not_exist(board, services):
    made = await board.post("cards", {"board": "OPS", "title": "ours"})
    await board.post(f"cards/{made['key']}/move", {"state": "doing"})
    await board.settle()
    effects = await board.get("effects")
    story = await board.get("explain", ref=made["key"])
    _, _, tokens = await people(services)
    theirs = {"Authorization": f"Bearer {tokens['operator']}"}

    async def reach(path: str) -> httpx.Response:
        return await board.client.get(f"/api/v1/{path}", headers=theirs)

    for path in (
        f"cards/{made['id']}",
        f"cards/{made['key']}",
        f"effects/{effects['data'][0]['id']}",
        f"runs/{story['runs'][0]['id']}",
        "events/1",
        f"explain?ref={made['key']}",
        f"explain?ref={made['id']}",
        f"explain?ref=run:{story['runs'][0]['id']}",
        "explain?ref=event:1",
        "explain?ref=doing to echo",
        f"desk/{effects['data'][0]['id']}",
    ):
        assert (await reach(path)).status_code == 404, path
    for path in ("cards", "events", "effects", "runs", "rules", "desk", "agents"):
        assert (await reach(path)).json()["data"] == [], path


def caller(kind="user", role=Role.OPERATOR, **more) -> Caller:
    return Caller(token_id=new_id(), actor=system_actor(new_id(), NO_CAUSE), kind=kind, role=role, **more)


def test_a_run_reaches_its_own_run_and_card_alone():
    run, card = new_id(), new_id()
    me = caller("run", Role.MEMBER, run_id=run, claim_id=new_id(), card_id=card, card_key="OPS-1")
    assert me.refusal("run.show", {"run": str(run)}) is None
    assert me.refusal("card.move", {"card": str(card)}) is None
    assert me.refusal("card.move", {"card": "ops-1"}) is None
    assert isinstance(me.refusal("run.show", {"run": str(new_id())}), NotFound)
    assert isinstance(me.refusal("card.move", {"card": "OPS-2"}), NotFound)
    assert isinstance(me.refusal("card.create", {}), Forbidden)
    assert isinstance(me.refusal("desk.list", {}), Forbidden)
    alone = caller("run", Role.MEMBER, run_id=run, claim_id=new_id())
    assert isinstance(alone.refusal("card.show", {"card": "None"}), NotFound)


def test_a_runner_is_nobody_on_the_boards():
    me = caller("runner", Role.MEMBER)
    assert me.refusal("runner.claim", {}) is None
    for verb in ("card.list", "card.create", "run.cancel", "desk.list", "event.list"):
        assert isinstance(me.refusal(verb, {}), Forbidden), verb


def test_each_role_may_what_the_lower_ones_may():
    for verb, access in VERBS.items():
        for kind in access.kinds - {"run"}:
            for role in Role:
                allowed = caller(kind, role).refusal(verb, {"x": "y"}) is None
                assert allowed == (role >= access.least), (verb, kind, role)
