"""Cursors say nothing and survive nothing that is not theirs; pages join without a gap."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from uuid import UUID

import pytest

from mainspring.ids import new_id
from mainspring.rooms import Invalid
from mainspring.server.pages import PageQuery, seal, unseal


def test_a_cursor_carries_what_it_was_given():
    one = new_id()
    assert unseal(seal(one), UUID) == (one,)
    moment = datetime(2026, 11, 2, 3, 4, 5, 6, tzinfo=UTC)
    assert unseal(seal(moment.isoformat(), one), datetime.fromisoformat, UUID) == (moment, one)


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "x",
        "!!!!",
        "e30",
        "W10",
        "WzFd",
        "Ww",
        "ü",
        "W3t9XQ",
        "WyJub3QtYW4taWQiXQ",
        "\x00",
        "W251bGxd",
        "A" * 999,
    ],
)
def test_what_is_no_cursor_of_this_list_is_refused(cursor):
    with pytest.raises(Invalid):
        unseal(cursor, UUID)


def test_a_page_knows_whether_there_is_another():
    query = PageQuery(limit=2, after=None)
    ids = [new_id() for _ in range(3)]
    page, following = query.cut(ids, key=lambda one: (one,))
    assert page == ids[:2]
    assert following is not None
    assert unseal(following, UUID) == (ids[1],)
    assert query.cut(ids[:2], key=lambda one: (one,)) == (ids[:2], None)


def sealed(plain: str) -> str:
    return base64.urlsafe_b64encode(plain.encode()).decode().rstrip("=")


NOTHING_OF_OURS = [
    sealed(plain)
    for plain in (
        "[1e400]",
        "[-1e400]",
        f"[{10**30}]",
        f"[{2**63}]",
        "[NaN]",
        f'[1e400,"{UUID(int=1)}"]',
        f'[{2**63},"{UUID(int=1)}"]',
        f'["0001-01-01T00:00:00+14:00","{UUID(int=1)}"]',
        f'["9999-12-31T23:59:59-14:00","{UUID(int=1)}"]',
    )
]


async def test_no_list_breaks_over_a_cursor_that_somebody_made_up(board):
    await board.post("channels", {"name": "general"})
    names = {"channel": "general", "run": str(new_id())}
    described = board.app.openapi()["paths"]
    lists = [
        path.format(**names)
        for path, verbs in described.items()
        for one in verbs.get("get", {}).get("parameters", ())
        if one["name"] == "after" and one["schema"].get("type") != "integer" and "stream" not in path
    ]
    assert {"/api/v1/channels/general/messages", "/api/v1/channels/general/topics", "/api/v1/desk"} <= set(
        lists
    )
    answers = {
        (path, after): (await board.call("GET", path, params={"after": after})).status_code
        for path in lists
        for after in NOTHING_OF_OURS
    }
    assert {asked: code for asked, code in answers.items() if code != 422} == {}


async def test_pages_join_without_a_gap(board):
    made = [(await board.post("cards", {"board": "OPS", "title": f"n{n}"}))["key"] for n in range(5)]
    seen, after = [], None
    while True:
        page = await board.get("cards", limit=2, **({"after": after} if after else {}))
        seen += [one["key"] for one in page["data"]]
        if (after := page["next"]) is None:
            break
    assert seen == made


async def test_events_go_on_behind_a_seq(board):
    await board.post("cards", {"board": "OPS", "title": "x"})
    first = await board.get("events", limit=1)
    rest = await board.get("events", after=first["next"])
    assert [one["seq"] for one in first["data"] + rest["data"]] == list(range(1, len(rest["data"]) + 2))
    assert rest["next"] is None
    last = await board.get("events", last=1)
    assert last["data"] == rest["data"][-1:]
    assert {one["kind"] for one in (await board.get("events", kind="rule.*"))["data"]} == {"rule.changed"}
