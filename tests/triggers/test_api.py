"""Rules over HTTP: status, headers, problems, and who may do what."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from mainspring.agents.tokens import Holder
from mainspring.ids import new_id
from mainspring.operators.deeds import DeedService
from mainspring.server.app import create_app

from .conftest import House

RULE: dict[str, Any] = {
    "name": "ready to echo",
    "when": {"kinds": ["card.moved"], "to_states": ["ready"]},
    "do": {"launch": {"agent": "echo", "prompt": "{{card.title}}"}},
}
MEMBER = {"Authorization": "Bearer member"}


@pytest.fixture
async def api(house: House) -> AsyncIterator[httpx.AsyncClient]:
    """The API as ana, an operator; `headers=MEMBER` is a member."""

    class Tokens:
        async def authenticate(self, secret: str) -> Holder | None:
            return Holder(token_id=new_id(), actor=house.ana, kind="user", role=secret)  # type: ignore[arg-type]

    services = SimpleNamespace(
        rules=house.rules, preview=house.preview, tokens=Tokens(), audit=DeedService(house.db)
    )
    app = create_app(services)  # type: ignore[arg-type]
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app),
        base_url="http://test/api/v1",
        headers={"Authorization": "Bearer operator"},
    ) as client:
        yield client


async def test_a_rules_life(api: httpx.AsyncClient) -> None:
    made = await api.post("/rules", json=RULE)
    assert (made.status_code, made.headers["etag"]) == (201, '"1"')
    rule = made.json()
    assert made.headers["location"] == f"/api/v1/rules/{rule['id']}"
    assert rule == rule | RULE | {"options": {}, "enabled": True, "remarks": [], "changed_by": "ana"}
    shown = await api.get("/rules/Ready to Echo")
    assert shown.json() | {"remarks": [], "secret": None} == rule | {"held": 0}
    edited = await api.patch(
        f"/rules/{rule['id']}", json={"options": {"recheck": True}}, headers={"If-Match": '"1"'}
    )
    assert (edited.status_code, edited.headers["etag"], edited.json()["options"]) == (
        200,
        '"2"',
        {"recheck": True},
    )
    assert edited.json()["from_seq"] > rule["from_seq"]
    off = await api.post(f"/rules/{rule['id']}/disable")
    assert (off.headers["etag"], off.json()["enabled"]) == ('"3"', False)
    on = await api.post(f"/rules/{rule['id']}/enable", json={})
    assert (on.headers["etag"], on.json()["enabled"]) == ('"4"', True)
    assert [one["version"] for one in (await api.get("/rules")).json()["data"]] == [4]
    assert (await api.delete(f"/rules/{rule['id']}", headers={"If-Match": '"4"'})).status_code == 204
    assert (await api.get(f"/rules/{rule['id']}")).status_code == 404
    assert (await api.get("/rules")).json() == {"data": [], "next": None}


async def test_a_rule_may_be_made_switched_off_and_switched_on_by_an_edit(api: httpx.AsyncClient) -> None:
    rule = (await api.post("/rules", json=RULE | {"enabled": False})).json()
    assert rule["enabled"] is False
    edited = await api.patch(f"/rules/{rule['id']}", json={"enabled": True, "expected_version": 1})
    assert (edited.json()["enabled"], edited.json()["version"]) == (True, 2)


@pytest.mark.parametrize(
    ("change", "code", "pointer"),
    [
        ({"when": {"cooldown": 1}}, "invalid", "/when/cooldown"),
        ({"when": {"sources": ["x"]}}, "not_available_yet", "/when/sources"),
        ({"when": {"min_trust": "me"}}, "invalid", "/when/min_trust"),
        ({"do": {"webhook": {"url": "ftp://x"}}}, "invalid", "/do/webhook/url"),
        ({"options": {"max_per_hour": 0}}, "invalid", "/options/max_per_hour"),
        ({"options": {"while_running": "wait"}}, "invalid", "/options/while_running"),
        ({"when": {"kinds": ["card.created"], "to_states": ["ready"]}}, "invalid", "/when/to_states"),
        ({"when": {"boards": ["NONE"]}}, "invalid", "/when/boards"),
        ({"enabled": 1}, "invalid", "/enabled"),
        ({"unknown": 1}, "invalid", "/unknown"),
        ({"id": "x"}, "invalid", "/id"),
    ],
)
async def test_what_is_refused_names_its_field(
    api: httpx.AsyncClient, change: dict[str, Any], code: str, pointer: str
) -> None:
    refused = await api.post("/rules", json=RULE | change)
    assert (refused.status_code, refused.json()["code"]) == (422, code)
    assert pointer in [error["pointer"] for error in refused.json()["errors"]]
    assert (await api.get("/rules")).json()["data"] == []
    rule = (await api.post("/rules", json=RULE)).json()
    refused = await api.patch(f"/rules/{rule['id']}", json=change)
    assert (refused.status_code, refused.json()["code"]) == (422, code)


async def test_a_webhooks_secret_is_in_the_answer_that_makes_it_and_nowhere_else(
    api: httpx.AsyncClient,
) -> None:
    hook = {"do": {"webhook": {"url": "https://hooks.example.com/x"}}}
    made = await api.post("/rules", json=RULE | hook)
    assert made.json()["secret"].startswith("whsec_")
    assert made.headers["cache-control"] == "no-store"
    edited = await api.patch(f"/rules/{made.json()['id']}", json=hook | {"name": "other"})
    assert (edited.json()["secret"], "cache-control" in edited.headers) == (None, False)
    shown = (await api.get(f"/rules/{made.json()['id']}")).json()
    assert (shown["do"], "secret" in shown) == (hook["do"], False)


async def test_conflicts(api: httpx.AsyncClient) -> None:
    rule = (await api.post("/rules", json=RULE)).json()
    taken = await api.post("/rules", json=RULE)
    assert (taken.status_code, taken.json()["code"]) == (409, "rule_name_taken")
    for method, path, more in (
        ("PATCH", "", {"json": {"name": "x"}, "headers": {"If-Match": '"7"'}}),
        ("PATCH", "", {"json": {"name": "x", "expected_version": 7}}),
        ("POST", "/disable", {"headers": {"If-Match": '"7"'}}),
        ("DELETE", "", {"headers": {"If-Match": '"7"'}}),
    ):
        stale = await api.request(method, f"/rules/{rule['id']}{path}", **more)
        assert stale.status_code == 412
        assert (stale.json()["current"]["version"], stale.json()["current"]["changed_by"]) == (1, "ana")
    odd = await api.patch(f"/rules/{rule['id']}", json={"expected_version": True})
    assert odd.json()["errors"][0]["pointer"] == "/expected_version"


@pytest.mark.slow
async def test_a_body_that_is_no_object_is_refused(api: httpx.AsyncClient) -> None:
    for body in ("[]", "7", "null", "{", '"x"'):
        refused = await api.post("/rules", content=body, headers={"Content-Type": "application/json"})
        assert refused.status_code in (400, 422)


async def test_pages(api: httpx.AsyncClient) -> None:
    for n in range(3):
        await api.post("/rules", json=RULE | {"name": f"r{n}"})
    first = (await api.get("/rules", params={"limit": 2})).json()
    second = (await api.get("/rules", params={"limit": 2, "after": first["next"]})).json()
    assert [one["name"] for one in first["data"] + second["data"]] == ["r0", "r1", "r2"]
    assert second["next"] is None


async def test_members_see_rules_and_operators_change_them(api: httpx.AsyncClient) -> None:
    rule = (await api.post("/rules", json=RULE)).json()
    assert (await api.get("/rules", headers=MEMBER)).status_code == 200
    assert (await api.get(f"/rules/{rule['id']}", headers=MEMBER)).status_code == 200
    for method, path in (
        ("POST", "/rules"),
        ("PATCH", f"/rules/{rule['id']}"),
        ("POST", f"/rules/{rule['id']}/enable"),
        ("POST", f"/rules/{rule['id']}/disable"),
        ("POST", f"/rules/{rule['id']}/pause"),
        ("POST", f"/rules/{rule['id']}/resume"),
        ("DELETE", f"/rules/{rule['id']}"),
    ):
        refused = await api.request(
            method, path, headers=MEMBER, **({"json": {}} if method != "DELETE" else {})
        )
        assert refused.status_code == 403


async def test_a_rule_with_every_term_and_option_comes_back_as_it_was_said(api: httpx.AsyncClient) -> None:
    said = {
        "name": "all",
        "when": {
            "kinds": ["card.moved"],
            "fields": {"team": ["a", "b"], "urgent": True, "owner": None},
            "min_trust": "stranger",
        },
        "do": {"launch": {"agent": "echo", "prompt": "go"}},
        "options": {
            "max_event_age_seconds": 60,
            "cooldown_seconds": 1.5,
            "max_per_hour": 5,
            "while_running": "queue_one",
            "queued_timeout_seconds": 30,
        },
    }
    made = (await api.post("/rules", json=said)).json()
    assert made == made | said
    shown = (await api.get("/rules/all")).json()
    assert {name: shown[name] for name in said} == said
    pinned = said | {"name": "pin", "do": {"promote": {"agent": "echo"}}, "options": {"max_per_hour": 5}}
    assert (await api.post("/rules", json=pinned)).json()["do"] == {"promote": {"agent": "echo"}}


async def test_a_rule_is_paused_and_resumed(api: httpx.AsyncClient, house: House) -> None:
    rule = (await api.post("/rules", json=RULE)).json()
    assert (rule["paused_because"], rule["paused_at"]) == (None, None)
    path = f"/rules/{rule['id']}"
    early = await api.post(f"{path}/resume", json={"owed": "run"})
    assert (early.status_code, early.json()["code"]) == (409, "rule_not_paused")
    paused = await api.post(f"{path}/pause", json={"because": "looking into it"})
    assert (paused.status_code, paused.headers["etag"]) == (200, '"1"')
    assert paused.json()["paused_because"] == "looking into it"
    await house.move(await house.card(), "ready")
    await house.spine.run_once()
    assert (await api.get(path)).json()["held"] == 1
    for odd in ({}, {"owed": "both"}, {"owed": "run", "x": 1}):
        assert (await api.post(f"{path}/resume", json=odd)).status_code == 422
    resumed = await api.post(f"{path}/resume", json={"owed": "discard"})
    assert (resumed.json()["held"], resumed.json()["paused_because"]) == (1, None)
    assert (await api.post(f"{path}/pause")).json()["paused_because"] == "by ana"  # no body at all
    await api.post(f"{path}/disable")
    off = await api.post(f"{path}/pause")
    assert (off.status_code, off.json()["code"]) == (409, "rule_disabled")
    assert (await api.post("/rules/none/pause")).status_code == 404


@pytest.mark.slow
async def test_a_rule_is_tried_out_saved_or_not(api: httpx.AsyncClient, house: House) -> None:
    card = await house.card()
    await house.move(card, "ready")
    before = len(await house.events())
    unsaved = await api.post("/rules/test", json={"when": RULE["when"], "do": RULE["do"]})
    tried = unsaved.json()
    assert (unsaved.status_code, tried["events"], tried["matched"], tried["would_happen"]) == (
        200,
        before,
        1,
        1,
    )
    assert tried["missed_by"] == {"kinds": before - 1}
    [hit] = [one for one in tried["data"] if one["matched"]]
    assert (hit["kind"], hit["subject"], hit["then"], hit["actor"]) == (
        "card.moved",
        "WEB-1",
        "launch echo",
        "ana",
    )
    assert len(await house.events()) == before
    assert await house.launches() == []
    await api.post("/rules", json=RULE)
    saved = (await api.post("/rules/ready to echo/test", json={"last": 2}, headers=MEMBER)).json()
    assert (saved["events"], saved["matched"]) == (2, 1)
    assert (await api.post("/rules/ready to echo/test")).json()["matched"] == 1
    for odd in ({"last": 0}, {"last": 1_001}, {"last": "x"}, {"last": True}):
        assert (await api.post("/rules/ready to echo/test", json=odd)).status_code == 422
        refused = await api.post("/rules/test", json=RULE | odd)
        assert [error["pointer"] for error in refused.json()["errors"]] == ["/last"]
    refused = await api.get("/rules/test")
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
    wrong = await api.post("/rules/test", json=RULE | {"when": {"boards": ["NONE"]}})
    assert (wrong.status_code, wrong.json()["errors"][0]["pointer"]) == (422, "/when/boards")


async def test_who_would_wake_is_told_before_the_move(api: httpx.AsyncClient, house: House) -> None:
    await api.post("/rules", json=RULE)
    card = await house.card()
    found = await api.get(f"/cards/{card.key}/preview", params={"to": "Ready"}, headers=MEMBER)
    assert found.status_code == 200
    told = found.json()
    assert (told["card"], told["from"], told["to"], told["moves"]) == ("WEB-1", "inbox", "ready", True)
    assert [(one["do"], one["agent"], one["rule"]["name"], one["happens"]) for one in told["wakes"]] == [
        ("launch", "echo", "ready to echo", True)
    ]
    nowhere = await api.get(f"/cards/{card.key}/preview", params={"to": "nowhere"})
    assert (nowhere.status_code, nowhere.json()["errors"][0]["pointer"]) == (422, "/to")
    assert (await api.get(f"/cards/{card.key}/preview")).status_code == 422
    assert (await api.get("/cards/WEB-99/preview", params={"to": "ready"})).status_code == 404


async def test_the_api_describes_rules(api: httpx.AsyncClient) -> None:
    described = (await api.get("/openapi.json")).json()
    new = described["paths"]["/api/v1/rules"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert "labels_added" in new["properties"]["when"]["properties"]
