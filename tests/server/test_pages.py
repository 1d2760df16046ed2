"""Cursors say nothing and survive nothing that is not theirs; pages join without a gap."""

from __future__ import annotations

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
