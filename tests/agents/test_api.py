"""The room over HTTP: who may do what, what is refused, and the runner protocol as it goes over the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from mainspring.ids import new_id

API = "http://test/api/v1"


class Api:
    """The API, called with a secret."""

    def __init__(self, client: httpx.AsyncClient, place: Any, secret: str) -> None:
        self.client = client
        self.place = place
        self.secret = secret

    def holding(self, secret: str) -> Api:
        return Api(self.client, self.place, secret)

    async def call(self, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.secret}", **more.pop("headers", {})}
        return await self.client.request(method, path, headers=headers, **more)

    async def get(self, path: str, **params: Any) -> httpx.Response:
        return await self.call("GET", path, params=params)

    async def post(self, path: str, body: Any = None, **params: Any) -> httpx.Response:
        return await self.call("POST", path, json={} if body is None else body, params=params)

    async def token(self, **asked: Any) -> Api:
        made = await self.post("/tokens", asked)
        assert made.status_code == 201, made.text
        return self.holding(made.json()["secret"])


@pytest.fixture
async def api(app, place) -> AsyncIterator[Api]:
    """The API as the tenant's operator."""
    _, secret = await place.room.tokens.create(place.admin, kind="user", role="operator")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=API) as client:
        yield Api(client, place, secret)


async def test_an_agent_is_made_changed_paused_and_listed(api):
    made = await api.post("/agents", {"handle": " Coder ", "slots": 2})
    assert (made.status_code, made.headers["location"]) == (201, "/api/v1/agents/coder")
    agent = made.json()
    assert (agent["handle"], agent["name"], agent["slots"], agent["waiting"]) == ("coder", "coder", 2, None)
    assert (await api.post("/agents", {"handle": "coder"})).status_code == 409
    changed = await api.call(
        "PATCH", "/agents/coder", json={"slots": 3, "name": "The Coder"}, headers={"If-Match": '"1"'}
    )
    assert (changed.json()["slots"], changed.json()["name"], changed.headers["etag"]) == (
        3,
        "The Coder",
        '"2"',
    )
    stale = await api.call("PATCH", "/agents/coder", json={"slots": 1}, headers={"If-Match": '"1"'})
    assert (stale.status_code, stale.json()["current"]["version"]) == (412, 2)
    assert (await api.post("/agents/coder/pause")).json()["paused"] is True
    assert (await api.post(f"/agents/{agent['id']}/resume")).json()["paused"] is False
    await api.post("/agents", {"handle": "tester"})
    first = (await api.get("/agents", limit=1)).json()
    second = (await api.get("/agents", limit=1, after=first["next"])).json()
    assert [one["handle"] for one in first["data"] + second["data"]] == ["coder", "tester"]
    assert second["next"] is None


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"handle": ""},
        {"handle": "no spaces"},
        {"handle": "Ünicode"},
        {"handle": "agents"},
        {"handle": "a", "slots": 0},
        {"handle": "a", "slots": 1001},
        {"handle": "a", "slots": True},
        {"handle": "a", "wake": "yes"},
        {"handle": "a", "name": "   "},
        {"handle": "a", "name": "x" * 201},
    ],
)
async def test_an_agent_that_cannot_be_is_refused_by_field(api, body):
    refused = await api.post("/agents", body)
    assert refused.status_code == 422
    assert refused.json()["errors"]
    assert (await api.get("/agents")).json()["data"] == []


async def test_who_may_do_what(api):
    await api.post("/agents", {"handle": "coder"})
    viewer = await api.token(kind="user", role="viewer", account="vera")
    member = await api.token(kind="user", role="member", account="max")
    agent = await api.token(kind="agent", account="coder")
    runner = await api.token(kind="runner", agents=["coder"])
    assert (await viewer.get("/agents")).status_code == 200
    assert (await agent.get("/agents/coder")).status_code == 200
    for one in (viewer, member, agent, runner):
        assert (await one.post("/agents", {"handle": "x"})).status_code == 403
        assert (await one.get("/tokens")).status_code == 403
        assert (await one.post("/runners/laptop/drain")).status_code == 403
    ask = {"runner": "r", "incarnation": str(new_id()), "slots": [0]}
    assert (await api.post("/runner/claim", ask, wait=0)).status_code == 403
    assert (await runner.post("/runner/claim", ask, wait=0)).status_code == 200
    assert (await runner.get("/agents")).status_code == 403
    assert (await api.holding("ms_user_nobody").get("/agents")).status_code == 401
    assert (await api.holding("x" * 5000).get("/agents")).status_code == 401


async def test_a_claim_tells_how_many_slots_the_agents_have_that_it_asks_for(api):
    for handle, slots in (("coder", 2), ("tester", 3)):
        await api.post("/agents", {"handle": handle, "slots": slots})
    runner = await api.token(kind="runner", agents=["coder", "tester"])
    ask = {"runner": "r", "incarnation": str(new_id()), "slots": [0]}
    told = await runner.post("/runner/claim", {**ask, "agents": ["coder"]}, wait=0)
    assert told.json() == {"run": None, "drain": False, "slots": {"coder": 2}}
    told = await runner.post("/runner/claim", ask, wait=0)
    assert told.json()["slots"] == {"coder": 2, "tester": 3}


async def test_a_tokens_secret_is_shown_once_and_revoked_for_good(api):
    made = (await api.post("/tokens", {"kind": "user", "account": "Vera"})).json()
    token, secret = made["token"], made["secret"]
    assert secret.startswith(token["prefix"])
    assert (token["account"], token["role"], token["kind"], token["valid"]) == (
        "vera",
        "member",
        "user",
        True,
    )
    vera = api.holding(secret)
    assert (await vera.get("/agents")).status_code == 200
    listed = (await api.get("/tokens")).json()["data"]
    assert token in listed
    assert secret not in str(listed)
    for _ in range(2):
        assert (await api.post(f"/tokens/{token['id']}/revoke")).json()["valid"] is False
    assert (await vera.get("/agents")).status_code == 401
    assert (await api.post(f"/tokens/{new_id()}/revoke")).status_code == 404


async def test_a_token_ends_when_its_time_is_over(api):
    short = await api.token(kind="user", account="vera", expires_in_seconds=3600)
    assert (await short.get("/agents")).status_code == 200
    await api.place.home.age(3601)
    assert (await short.get("/agents")).status_code == 401
    [listed] = [one for one in (await api.get("/tokens")).json()["data"] if one["account"] == "vera"]
    assert listed["valid"] is False


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"kind": "run"}, 422),
        ({"kind": "user", "role": "root"}, 422),
        ({"kind": "runner"}, 422),
        ({"kind": "runner", "agents": ["nobody"]}, 404),
        ({"kind": "runner", "agents": ["admin"]}, 404),
        ({"kind": "runner", "agents": ["coder"], "role": "operator"}, 422),
        ({"kind": "agent"}, 422),
        ({"kind": "agent", "account": "admin"}, 404),
        ({"kind": "agent", "account": "coder", "role": "operator"}, 422),
        ({"kind": "user", "account": "coder"}, 422),
        ({"kind": "user", "account": "not a handle"}, 422),
        ({"kind": "user", "agents": ["coder"]}, 422),
        ({"kind": "user", "extras": ["root"]}, 422),
        ({"kind": "user", "expires_in_seconds": 0}, 422),
        ({"kind": "user", "expires_in_seconds": 1e300}, 422),
        ({"kind": "user", "demo": True}, 422),
    ],
)
async def test_a_token_that_cannot_be_is_refused(api, body, status):
    await api.post("/agents", {"handle": "coder"})
    before = len((await api.get("/tokens")).json()["data"])
    assert (await api.post("/tokens", body)).status_code == status
    assert len((await api.get("/tokens")).json()["data"]) == before


async def test_a_run_over_the_wire(api):
    place = api.place
    agent = await place.agent()
    runner = await api.token(kind="runner", agents=["coder"])
    ask = {"runner": "laptop", "incarnation": str(new_id()), "agents": ["Coder"], "slot": 0, "capacity": 4}
    polling = asyncio.create_task(runner.post("/runner/claim", ask, wait=30))
    while place.room.polls.asleep < 1:  # noqa: ASYNC110 - the server's side is what is waited for
        await asyncio.sleep(0)
    run_id = str(await place.queue(agent))
    await place.room.polls.run_once()
    answer = (await polling).json()
    assert answer["drain"] is False
    run = answer["run"]
    assert (run["id"], run["slot"], run["lease_seconds"], run["heartbeat_seconds"]) == (run_id, 0, 60, 20)

    own = api.holding(run["token"])
    assert (await own.get(f"/runs/{run_id}")).json()["state"] == "claimed"
    assert (await own.get(f"/runs/{new_id()}")).status_code == 404
    assert (await own.get("/runs")).status_code == 403
    claim = {"claim_id": run["claim_id"]}
    for word in ("heartbeat", "ask", "complete"):
        assert (await own.post(f"/runs/{run_id}/{word}", claim)).status_code == 403

    beat = (await runner.post(f"/runs/{run_id}/heartbeat", claim)).json()
    assert beat == {
        "cancel": False, "drain": False, "steer": [], "answers": [], "state": "running", "attempt": 1, "lease_seconds": 60,
    }  # fmt: skip
    taken = await runner.post(f"/runs/{run_id}/log", claim | {"lines": ["a", "b", "c"], "offset": 0})
    assert taken.json() == {"next": 3, "truncated": False}
    said = claim | {"outcome": "done", "result": "fixed"}
    assert (await runner.post(f"/runs/{run_id}/complete", said)).json() == {
        "id": run_id, "state": "done", "outcome": "done", "recorded": False,
    }  # fmt: skip
    assert (await runner.post(f"/runs/{run_id}/complete", said)).json()["recorded"] is True
    lost = await runner.post(f"/runs/{run_id}/heartbeat", claim)
    assert (lost.status_code, lost.json()["code"], lost.json()["retryable"]) == (409, "claim_lost", False)
    assert (await own.get(f"/runs/{run_id}")).status_code == 401

    shown = (await api.get(f"/runs/{run_id}")).json()
    assert (shown["state"], shown["outcome"], shown["card"], shown["agent"]) == (
        "done",
        "fixed",
        "OPS-1",
        "coder",
    )
    assert [attempt["outcome"] for attempt in shown["attempt_list"]] == ["done"]
    assert shown["cause"]["event_seq"] == 1
    page = (await api.get(f"/runs/{run_id}/log", limit=2)).json()
    assert ([line["text"] for line in page["data"]], page["ended"]) == (["a", "b"], True)
    rest = (await api.get(f"/runs/{run_id}/log", after=page["next"])).json()
    assert ([line["text"] for line in rest["data"]], rest["next"]) == (["c"], None)
    listed = (await api.get("/runners")).json()["data"]
    assert [(one["name"], one["slots"], one["live"], one["busy"]) for one in listed] == [
        ("laptop", 4, True, 0)
    ]
    assert (await api.post("/runners/laptop/drain")).json()["draining"] is True


async def test_a_run_is_handed_back_over_the_wire(api):
    run_id = await api.place.queue(await api.place.agent())
    runner = await api.token(kind="runner", agents=["coder"])
    ask = {"runner": "laptop", "incarnation": str(new_id()), "slots": [0]}
    claim = {"claim_id": (await runner.post("/runner/claim", ask, wait=0)).json()["run"]["claim_id"]}
    assert (await runner.post(f"/runs/{run_id}/heartbeat", claim)).json()["attempt"] == 1
    said = claim | {"outcome": "retry", "after_seconds": 0, "error": "shut down", "handed_back": True}
    assert (await runner.post(f"/runs/{run_id}/complete", said)).json() == {
        "id": str(run_id), "state": "queued", "outcome": "retry", "recorded": False,
    }  # fmt: skip
    assert (await runner.post(f"/runs/{run_id}/complete", said)).json()["recorded"] is True
    shown = (await api.get(f"/runs/{run_id}")).json()
    assert (shown["attempts"], shown["error"]) == (0, "shut down")
    assert [attempt["outcome"] for attempt in shown["attempt_list"]] == ["handed back"]


async def test_a_runners_token_sees_the_runs_of_its_agents_alone(api):
    place = api.place
    mine, other = await place.agent("one"), await place.agent("other")
    seen, unseen = await place.queue(mine), await place.queue(other)
    runner = await api.token(kind="runner", agents=["one"])
    assert (await runner.get(f"/runs/{seen}")).status_code == 200
    assert (await runner.get(f"/runs/{unseen}")).status_code == 404
    body = {"claim_id": str(new_id()), "outcome": "done"}
    assert (await runner.post(f"/runs/{unseen}/complete", body)).status_code == 404
    assert (await runner.post(f"/runs/{seen}/complete", body)).status_code == 409


async def test_runs_are_listed_by_state_agent_and_card(api):
    place = api.place
    one, other = await place.agent("one"), await place.agent("other")
    first, second = await place.queue(one), await place.queue(other, card=False)
    await api.post(f"/runs/{first}/cancel", {"reason": "no"})

    async def ids(**query: Any) -> list[str]:
        answer = await api.get("/runs", **query)
        assert answer.status_code == 200, answer.text
        return [run["id"] for run in answer.json()["data"]]

    assert await ids() == [str(second), str(first)]
    assert await ids(state="cancelled") == [str(first)]
    assert await ids(state=["cancelled", "queued"]) == [str(second), str(first)]
    assert await ids(agent="one") == [str(first)]
    assert await ids(card="ops-1") == [str(first)]
    assert await ids(card=str(place.card.id)) == [str(first)]
    page = (await api.get("/runs", limit=1)).json()
    assert await ids(after=page["next"]) == [str(first)]
    assert (await api.get("/runs", state="asleep")).status_code == 422
    assert (await api.get("/runs", agent="nobody")).status_code == 404


async def test_cancel_and_retry_answer_what_stands_in_the_way(api):
    place = api.place
    run_id = await place.queue(await place.agent())
    assert (await api.post(f"/runs/{run_id}/retry")).json()["code"] == "run_not_dead"
    assert (await api.call("POST", f"/runs/{run_id}/cancel")).json()["state"] == "cancelled"
    assert (await api.post(f"/runs/{run_id}/cancel")).status_code == 200
    assert (await api.post(f"/runs/{new_id()}/cancel")).status_code == 404
    assert (await api.post("/runs/x/cancel")).status_code == 422
    runner = await place.runner("coder")
    done = await place.queue((await place.room.agents.get(place.tenant, "coder")).agent.id)
    await runner.complete(await runner.take(), "done")
    assert (await api.post(f"/runs/{done}/cancel")).json()["code"] == "run_ended"


@pytest.mark.parametrize(
    "change",
    [
        {"runner": ""},
        {"incarnation": "x"},
        {"slots": []},
        {"slots": [-1]},
        {"slots": ["0"]},
        {"slots": [1000]},
        {"agents": [""]},
        {"capacity": 0},
        {"more": 1},
    ],
)
async def test_a_claim_that_cannot_be_is_refused_by_field(api, change):
    await api.place.agent()
    runner = await api.token(kind="runner", agents=["coder"])
    ask = {"runner": "r", "incarnation": str(new_id()), "slots": [0]}
    assert (await runner.post("/runner/claim", ask | change, wait=0)).status_code == 422
    assert (await api.get("/runners")).json()["data"] == []


@pytest.mark.parametrize("wait", ["-1", "61", "nan", "inf", "soon"])
async def test_a_wait_that_cannot_be_is_refused(api, wait):
    await api.place.agent()
    runner = await api.token(kind="runner", agents=["coder"])
    ask = {"runner": "r", "incarnation": str(new_id()), "slots": [0]}
    assert (await runner.post("/runner/claim", ask, wait=wait)).status_code == 422


@pytest.mark.parametrize(
    "change",
    [
        {"outcome": "finished"},
        {"after_seconds": -1},
        {"after_seconds": 1e9},
        {"result": 5},
        {"handed_back": "yes"},
        {"claim_id": "x"},
        {"more": 1},
    ],
)
async def test_a_completion_that_cannot_be_is_refused_by_field(api, change):
    place = api.place
    run_id = await place.queue(await place.agent())
    runner = await api.token(kind="runner", agents=["coder"])
    body = {"claim_id": str(new_id()), "outcome": "done"} | change
    assert (await runner.post(f"/runs/{run_id}/complete", body)).status_code == 422
