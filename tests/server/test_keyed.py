"""Idempotency-Key: the same key is one effect, whoever dies when; nothing is left of what did not happen."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import httpx
import pytest

from mainspring import faultpoints
from mainspring.faultpoints import FaultPoint, FaultRaised
from mainspring.ids import new_id
from mainspring.migrations.deadlines import DEADLINES
from mainspring.server.auth import VERBS
from mainspring.server.keyed import UNKEYED, Route
from mainspring.spine.errors import Misuse
from mainspring.stores.postgres.deadlines import age
from tests.server.test_auth import routes_of

CARD = {"board": "OPS", "title": "one"}


async def send(world: Any, key: str, path: str = "cards", body: Any = CARD, **more: Any) -> httpx.Response:
    headers = {"Idempotency-Key": key, **more.pop("headers", {})}
    return await world.call(more.pop("method", "POST"), path, json=body, headers=headers, **more)


def replayed(answer: httpx.Response) -> bool:
    return answer.headers.get("idempotency-replayed") == "true"


async def titles(world: Any) -> list[str]:
    return [card["title"] for card in (await world.get("cards"))["data"]]


async def test_the_same_key_is_answered_the_same_and_done_once(board):
    first = await send(board, "k1")
    again = await send(board, "k1")
    assert (first.status_code, again.status_code) == (201, 201)
    assert (first.json(), first.headers["etag"], first.headers["location"]) == (
        again.json(),
        again.headers["etag"],
        again.headers["location"],
    )
    assert (replayed(first), replayed(again)) == (False, True)
    assert await titles(board) == ["one"]
    assert [e["kind"] for e in (await board.get("events", kind="card.*"))["data"]] == ["card.created"]


async def test_a_kept_answer_is_what_was_then_not_what_is_now(board):
    card = (await send(board, "k1")).json()
    await board.post(f"cards/{card['key']}/move", {"state": "doing"})
    again = await send(board, "k1")
    assert again.json()["state"] == "todo"


async def test_an_answer_without_a_body_is_kept_too(board):
    card = await board.post("cards", CARD)
    first = await send(board, "k1", f"cards/{card['key']}", None, method="DELETE")
    again = await send(board, "k1", f"cards/{card['key']}", None, method="DELETE")
    assert (first.status_code, again.status_code, again.content) == (204, 204, b"")
    assert replayed(again)
    assert (await board.call("DELETE", f"cards/{card['key']}")).status_code == 404


@pytest.mark.parametrize(
    ("path", "body", "headers"),
    [
        ("cards", {**CARD, "title": "two"}, {}),
        ("boards", {"key": "X", "name": "X", "states": [{"name": "todo"}]}, {}),
        ("cards/OPS-1/move", {"state": "doing"}, {}),
    ],
)
async def test_the_same_key_with_another_request_is_422(board, path, body, headers):
    await send(board, "k1")
    answer = await send(board, "k1", path, body, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (422, "key_reused")
    assert await titles(board) == ["one"]


async def test_another_version_asked_for_is_another_request(board):
    card = await board.post("cards", CARD)
    path = f"cards/{card['key']}/move"
    moved = await send(board, "k1", path, {"state": "doing"}, headers={"If-Match": '"1"'})
    assert moved.status_code == 200
    answer = await send(board, "k1", path, {"state": "doing"}, headers={"If-Match": '"2"'})
    assert answer.json()["code"] == "key_reused"


async def test_a_key_belongs_to_whoever_sent_it(board):
    assert not replayed(await send(board, "k1"))
    assert not replayed(await send(board, "k1", who="member"))
    assert await titles(board) == ["one", "one"]


async def test_a_session_whose_beginning_is_asked_for_again_is_that_session(board):
    secret = (await board.post("tokens", {"kind": "runner", "agents": ["echo"]}))["secret"]
    as_runner = {"headers": {"Authorization": f"Bearer {secret}"}}
    first = await send(board, "k1", "sessions", {}, **as_runner)
    again = await send(board, "k1", "sessions", {}, **as_runner)
    other = await send(board, "k2", "sessions", {}, **as_runner)
    assert (first.status_code, again.status_code) == (201, 201)
    assert (again.json(), replayed(again)) == (first.json(), True)
    assert other.json()["code"] == "session_live"


async def test_a_refusal_is_not_kept(board):
    refused = await send(board, "k1", body={**CARD, "state": "nowhere"})
    assert refused.status_code == 422
    assert (await send(board, "k1")).status_code == 201


async def test_an_invalid_body_is_refused_in_the_transaction_and_leaves_nothing(board, admin):
    answer = await send(board, "k1", body={"title": 5})
    assert answer.status_code == 422
    kept = "select count(*) from mainspring.idempotency where tenant_id = $1"
    assert await admin.fetchval(kept, board.tenant) == 0


async def test_a_kept_answer_reaches_only_whom_the_command_reaches(board):
    made = (await board.post("tokens", {"kind": "user", "role": "viewer"}))[
        "secret"
    ]  # the operator's, read only
    await send(board, "k1")
    answer = await board.client.post(
        "/api/v1/cards", json=CARD, headers={"Authorization": f"Bearer {made}", "Idempotency-Key": "k1"}
    )
    assert answer.status_code == 403


async def test_a_secret_is_not_kept_and_that_is_said(board, admin):
    ask = {"kind": "user", "role": "member", "account": "guest"}
    made = (await send(board, "k1", "tokens", ask)).json()
    answer = await send(board, "k1", "tokens", ask)
    assert (answer.status_code, answer.json()["code"]) == (409, "answer_withheld")
    assert answer.json()["current"] == {"token": made["token"], "secret": None}
    rows = await admin.fetch("select body from mainspring.idempotency where tenant_id = $1", board.tenant)
    assert [made["secret"] in row["body"] for row in rows] == [False]


@pytest.mark.parametrize("key", ["", " ", "a b", "x" * 201, "ü"])
async def test_a_key_that_is_none_is_refused(board, key):
    answer = await board.call("POST", "cards", json=CARD, headers={"Idempotency-Key": key.encode()})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/Idempotency-Key"
    assert await titles(board) == []


async def test_a_key_is_forgotten_after_48_hours_and_swept(board, admin, services):
    await send(board, "k1")
    await age(admin, 48 * 3_600 - 60, {"idempotency": DEADLINES["idempotency"]})
    assert replayed(await send(board, "k1"))
    await age(admin, 61, {"idempotency": DEADLINES["idempotency"]})
    assert not replayed(await send(board, "k1"))  # the old row stood in the way of nothing
    await age(admin, 48 * 3_600 + 1, {"idempotency": DEADLINES["idempotency"]})
    assert await services.keys.trim() is False
    assert (
        await admin.fetchval("select count(*) from mainspring.idempotency where tenant_id = $1", board.tenant)
        == 0
    )


async def test_rules_tell_their_seq_under_a_key_as_without(board):
    rule = {
        "name": "r",
        "when": {"kinds": ["card.created"]},
        "do": {"launch": {"agent": "echo", "prompt": "x"}},
    }
    made = (await send(board, "k1", "rules", rule)).json()
    assert made["from_seq"] == (await board.get("events", kind="rule.*", last=1))["data"][0]["seq"]


async def test_a_long_job_is_begun_once(board):
    said = {"all": True, "reason": "none there"}
    first, again = [await send(board, "k1", "desk/discard", said) for _ in range(2)]
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json()["id"] == again.json()["id"]
    assert replayed(again)


# Two at once, and deaths --------------------------------------------------------------------------------------


async def holding(board: Any, dsn: dict[str, Any], key: str) -> asyncpg.Connection:
    """Hold a key as a command does that is still running elsewhere."""
    conn = await asyncpg.connect(**dsn)
    await conn.execute("begin")
    held = await conn.fetchval(
        "select pg_try_advisory_xact_lock(hashtextextended($1::uuid || ' ' || $2::uuid || ' ' || $3::text, 7700))",
        board.tenant, board.actors["operator"].account_id, key,
    )  # fmt: skip
    assert held
    return conn


async def test_a_key_that_is_being_carried_out_is_409_until_it_is_not(board, database):
    other = await holding(board, database.admin, "k1")
    answer = await send(board, "k1")
    assert (answer.status_code, answer.json()["code"]) == (409, "key_in_progress")
    assert answer.json()["retryable"]
    assert answer.headers["retry-after"] == "1"
    assert (await send(board, "k2")).status_code == 201
    await other.close()  # its process died
    while (answer := await send(board, "k1")).status_code == 409:
        pass
    assert answer.status_code == 201
    assert not replayed(answer)


async def test_equal_requests_at_once_are_one_effect(board):
    for n in range(10):
        answers = await asyncio.gather(
            *(send(board, f"k{n}", body={**CARD, "title": str(n)}) for _ in range(4))
        )
        assert {answer.status_code for answer in answers} <= {201, 409}
        done = [answer for answer in answers if answer.status_code == 201]
        assert sum(not replayed(answer) for answer in done) == 1
        assert len({answer.json()["id"] for answer in done}) == 1
        assert replayed(await send(board, f"k{n}", body={**CARD, "title": str(n)}))
    assert sorted(await titles(board)) == [str(n) for n in range(10)]


@pytest.mark.parametrize("point", [FaultPoint.APPEND_BEFORE_COMMIT, FaultPoint.APPEND_AFTER_COMMIT])
async def test_whoever_fails_around_the_commit_may_ask_again(board, point):
    faultpoints.arm(f"{point}:raise")
    try:
        assert (await send(board, "k1")).status_code == 500
    finally:
        faultpoints.disarm()
    again = await send(board, "k1")
    assert again.status_code == 201
    assert replayed(again) == (point is FaultPoint.APPEND_AFTER_COMMIT)
    assert await titles(board) == ["one"]


async def test_others_are_woken_only_when_a_keyed_command_is_committed(board, services):
    heard: list[bool] = []

    def listen(tenant, _kinds):
        if tenant == board.tenant:
            heard.append(True)

    services.spine.on_commit(listen)
    faultpoints.arm(f"{FaultPoint.APPEND_BEFORE_COMMIT}:raise")
    try:
        await send(board, "k1")
    finally:
        faultpoints.disarm()
    assert heard == []
    await send(board, "k1")
    assert heard == [True]
    await send(board, "k1")
    assert heard == [True]


# Every command takes one --------------------------------------------------------------------------------------


def test_every_command_takes_a_key_and_nothing_else_does(app):
    keyed, other = set(), set()
    for _, route in routes_of(app):
        if isinstance(route, Route) and route.is_keyed:
            keyed.add(route.verb)
        elif (route.methods or set()) & {"POST", "PUT", "PATCH", "DELETE"}:
            other.add(getattr(route, "verb", None))
    assert other == UNKEYED & set(VERBS)
    assert not keyed & UNKEYED
    described = app.openapi()["paths"]["/api/v1/cards"]["post"]["parameters"]
    assert [one["name"] for one in described] == ["Idempotency-Key"]


# Units ----------------------------------------------------------------------------------------------------------


async def test_scopes_of_a_unit_share_its_transaction_and_its_end(services, world):
    db, tenant = services.db, world.tenant
    with pytest.raises(FaultRaised):
        async with db.unit(tenant):
            async with services.spine.open(tenant) as tx:
                await tx.handle.execute("update mainspring.tenants set name = 'other' where id = $1", tenant)
            async with db.tenant(tenant) as scope:
                assert await scope.fetchval("select name from mainspring.tenants") == "other"
            raise FaultRaised
    async with db.tenant(tenant) as scope:
        assert await scope.fetchval("select name from mainspring.tenants") == "Test"


async def test_what_a_block_of_a_unit_raises_undoes_the_block_alone(services, world):
    db, tenant = services.db, world.tenant
    async with db.unit(tenant):
        async with db.tenant(tenant) as scope:
            await scope.execute("update mainspring.tenants set name = 'kept' where id = $1", tenant)
        with pytest.raises(FaultRaised):
            async with db.tenant(tenant) as scope:
                await scope.execute("update mainspring.tenants set name = 'lost' where id = $1", tenant)
                raise FaultRaised
    async with db.tenant(tenant) as scope:
        assert await scope.fetchval("select name from mainspring.tenants") == "kept"


async def test_a_unit_takes_no_other_tenant_no_system_scope_and_no_nesting(services, world):
    db, tenant = services.db, world.tenant
    async with db.unit(tenant):
        for scope in (db.tenant(new_id()), db.system("test"), db.unit(tenant)):
            with pytest.raises(Misuse):
                async with scope:
                    pass
        async with db.tenant(tenant):
            with pytest.raises(Misuse):
                async with db.tenant(tenant):
                    pass
