"""Boards and cards over HTTP: status, headers, problems, and who may do what."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import SimpleNamespace

import httpx
import pytest

from mainspring.agents.tokens import Holder
from mainspring.ids import new_id
from mainspring.operators.deeds import DeedService
from mainspring.server.app import create_app

API = "http://test/api/v1"


@dataclass(frozen=True)
class Secrets:
    """Tokens by their secret."""

    callers: dict[str, Holder]

    async def authenticate(self, secret: str) -> Holder | None:
        return self.callers.get(secret)


@pytest.fixture
async def api(house) -> AsyncIterator[httpx.AsyncClient]:
    """The API as ana, an operator; `headers=VIEWER` is a viewer."""
    callers = {
        "operator": Holder(token_id=new_id(), actor=house.ana, kind="user", role="operator"),
        "member": Holder(token_id=new_id(), actor=house.qa, kind="user", role="member"),
        "viewer": Holder(token_id=new_id(), actor=house.qa, kind="user", role="viewer"),
    }
    app = create_app(
        SimpleNamespace(boards=house.boards, tokens=Secrets(callers), audit=DeedService(house.db))
    )
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url=API, headers={"Authorization": "Bearer operator"}
    ) as client:
        yield client


MEMBER = {"Authorization": "Bearer member"}
VIEWER = {"Authorization": "Bearer viewer"}


async def test_a_board_is_made_shown_and_listed(api):
    made = await api.post(
        "/boards",
        json={
            "key": "dev",
            "name": "Development",
            "states": [{"name": "todo", "eligible": True}, {"name": "done", "terminal": True}],
            "reflect": {"done": "done"},
        },
    )
    assert (made.status_code, made.headers["etag"]) == (201, '"1"')
    assert made.headers["location"] == "/api/v1/boards/DEV"
    board = made.json()
    assert board["states"][0] == {"name": "todo", "eligible": True, "terminal": False}
    assert (await api.get("/boards/dev")).json() == board
    assert (await api.get(f"/boards/{board['id']}/states")).json()["data"] == board["states"]
    first = (await api.get("/boards", params={"limit": 1})).json()
    assert [one["key"] for one in first["data"]] == ["OPS"]
    second = (await api.get("/boards", params={"limit": 1, "after": first["next"]})).json()
    assert ([one["key"] for one in second["data"]], second["next"]) == (["DEV"], None)


async def test_a_board_that_cannot_be_is_refused_by_field(api):
    taken = await api.post("/boards", json={"key": "OPS", "name": "x", "states": [{"name": "a"}]})
    assert (taken.status_code, taken.json()["code"]) == (409, "board_key_taken")
    wrong = await api.post(
        "/boards", json={"key": "X", "name": "x", "states": [{"name": "a"}], "reflect": {"done": "b"}}
    )
    assert wrong.status_code == 422
    assert [error["pointer"] for error in wrong.json()["errors"]] == ["/reflect/done"]


async def test_a_cards_life(api):
    made = await api.post(
        "/cards", json={"board": "OPS", "title": "Mend it", "labels": ["Bug"], "agent": "echo"}
    )
    assert (made.status_code, made.headers["etag"], made.headers["location"]) == (
        201,
        '"1"',
        "/api/v1/cards/OPS-1",
    )
    card = made.json()
    assert (card["labels"], card["agent"], card["state"]) == (["bug"], "echo", "inbox")
    moved = await api.post("/cards/ops-1/move", json={"state": "ready"}, headers={"If-Match": '"1"'})
    assert (moved.status_code, moved.headers["etag"], moved.json()["eligible_version"]) == (200, '"2"', 2)
    edited = await api.patch(f"/cards/{card['id']}", json={"title": "Mended", "fields": {"fixed": True}})
    assert (edited.json()["title"], edited.json()["fields"]) == ("Mended", {"fixed": True})
    labels = await api.post("/cards/OPS-1/labels", json={"add": ["p1"], "remove": ["bug"]})
    assert labels.json()["labels"] == ["p1"]
    assigned = await api.post("/cards/OPS-1/assign", json={"assignee": "qa"})
    assert (assigned.json()["assignee"], assigned.json()["agent"]) == ("qa", "echo")
    unpinned = await api.post("/cards/OPS-1/assign", json={"agent": None, "expected_version": 5})
    assert (unpinned.json()["assignee"], unpinned.json()["agent"]) == ("qa", None)
    assert (await api.get("/cards/OPS-1")).json() == unpinned.json()
    gone = await api.delete("/cards/OPS-1", headers={"If-Match": '"6"'})
    assert (gone.status_code, gone.content) == (204, b"")
    assert (await api.get("/cards/OPS-1")).status_code == 404


async def test_a_card_changed_meanwhile_is_412_with_who_did_it(api):
    await api.post("/cards", json={"board": "OPS", "title": "t"})
    await api.post("/cards/OPS-1/move", json={"state": "doing"}, headers=MEMBER)
    for refused in (
        await api.post("/cards/OPS-1/move", json={"state": "done"}, headers={"If-Match": '"1"'}),
        await api.post("/cards/OPS-1/move", json={"state": "done", "expected_version": 1}),
        await api.patch("/cards/OPS-1", json={"title": "x"}, headers={"If-Match": 'W/"1"'}),
        await api.delete("/cards/OPS-1", headers={"If-Match": "1"}),
    ):
        problem = refused.json()
        assert (refused.status_code, problem["code"]) == (412, "version_conflict")
        assert (problem["current"]["state"], problem["current"]["changed_by"]["handle"]) == ("doing", "qa")
    assert (await api.post("/cards/OPS-1/move", json={"state": "done"}, headers={"If-Match": "*"})).is_success
    both = await api.post(
        "/cards/OPS-1/move", json={"state": "doing", "expected_version": 1}, headers={"If-Match": '"3"'}
    )
    assert both.status_code == 422


@pytest.mark.parametrize(
    ("method", "path", "body", "pointer"),
    [
        ("POST", "/cards", {"title": "t"}, "/board"),
        ("POST", "/cards", {"board": "OPS", "title": "t", "colour": "red"}, "/colour"),
        ("POST", "/cards", {"board": "OPS", "title": "t", "priority": True}, "/priority"),
        ("POST", "/cards", {"board": "OPS", "title": "t", "priority": "1"}, "/priority"),
        ("POST", "/cards", {"board": "OPS", "title": "t", "labels": ["a", 1]}, "/labels/1"),
        ("POST", "/cards", {"board": "NOPE", "title": "t"}, "/board"),
        ("POST", "/cards", {"board": "OPS", "title": " "}, "/title"),
        ("POST", "/cards", {"board": "OPS", "title": "t", "fields": {"a": [1e300]}}, "/fields/a/0"),
        ("POST", "/cards/OPS-1/move", {"state": "nowhere"}, "/state"),
        ("POST", "/cards/OPS-1/move", {"state": "doing", "expected_version": 0}, "/expected_version"),
        ("POST", "/cards/OPS-1/assign", {"agent": "nobody"}, "/agent"),
        ("POST", "/cards/OPS-1/labels", {"add": ["x" * 65]}, "/add/0"),
        ("PATCH", "/cards/OPS-1", {"body": "é" * 131_073}, "/body"),
    ],
)  # fmt: skip
async def test_bad_input_is_422_with_the_field_named_and_nothing_written(
    api, house, method, path, body, pointer
):
    await house.card()
    refused = await api.request(method, path, json=body)
    assert refused.status_code == 422
    assert pointer in [error["pointer"] for error in refused.json()["errors"]]
    assert await house.head() == 1


async def test_lists_are_filtered_and_paged(api):
    for n in range(3):
        await api.post("/cards", json={"board": "OPS", "title": f"{n}", "labels": ["a"], "assignee": "qa"})
    page = (await api.get("/cards", params={"label": "A", "board": "ops", "limit": 2})).json()
    assert [card["key"] for card in page["data"]] == ["OPS-1", "OPS-2"]
    rest = (await api.get("/cards", params={"label": "A", "limit": 2, "after": page["next"]})).json()
    assert ([card["key"] for card in rest["data"]], rest["next"]) == (["OPS-3"], None)
    assert (await api.get("/cards", params={"label": ["a", "b"]})).json() == {"data": [], "next": None}
    assert len((await api.get("/cards", params={"assignee": "qa", "state": "inbox"})).json()["data"]) == 3
    assert (await api.get("/cards", params={"board": "NOPE"})).status_code == 422
    assert (await api.get("/cards", params={"after": "junk"})).status_code == 422


async def test_several_labels_find_the_cards_that_bear_all_of_them(api):
    for labels in (["a"], ["a", "b"], ["b", "c"], ["a", "b", "c"]):
        await api.post("/cards", json={"board": "OPS", "title": "t", "labels": labels})
    for asked, found in {
        ("a",): [1, 2, 4],
        ("a", "b"): [2, 4],
        ("b", "a"): [2, 4],
        ("b", "B", "b"): [2, 3, 4],
        ("c", "a", "b"): [4],
        ("a", "d"): [],
    }.items():
        answer = (await api.get("/cards", params={"label": list(asked)})).json()
        assert [card["number"] for card in answer["data"]] == found, asked


async def test_each_role_reaches_its_verbs_and_no_others(api):
    card = {"board": "OPS", "title": "t"}
    board = {"key": "X", "name": "x", "states": [{"name": "a"}]}
    assert (await api.post("/cards", json=card, headers=VIEWER)).status_code == 403
    assert (await api.post("/boards", json=board, headers=MEMBER)).status_code == 403
    assert (await api.post("/cards", json=card, headers=MEMBER)).status_code == 201
    assert (await api.get("/cards/OPS-1", headers=VIEWER)).status_code == 200
    assert (await api.get("/cards", headers={"Authorization": "Bearer gone"})).status_code == 401
