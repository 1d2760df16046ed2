"""Bad input is a 4xx that names the place, and writes nothing."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.server.middleware import BODY_BYTES_MAX, DEPTH_MAX, body_problem, faults
from tests.server.test_auth import routes_of


def raw(body: bytes) -> dict[str, object]:
    return {"content": body, "headers": {"Content-Type": "application/json"}}


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (rb'{"board": "OPS", "title": "a\u0000b"}', "/title"),
        (rb'{"board": "OPS", "title": "\ud800"}', "/title"),
        (rb'{"board": "OPS", "title": "x", "fields": {"a": [1, "\udfff"]}}', "/fields/a/1"),
        (rb'{"board": "OPS", "title": "x", "fields": {"a\u0000": 1}}', r"/fields/a\u0000"),
        (rb'{"board": "OPS", "title": "x", "fields": {"n": NaN}}', "/fields/n"),
        (rb'{"board": "OPS", "title": "x", "fields": {"n": 1e999}}', "/fields/n"),
        (rb'{"board": "OPS", "title": "x", "fields": {"n": 99999999999999999999}}', "/fields/n"),
        (rb'{"board": "OPS", "title": "x", "fields": {"a/b": {"~": "\u0000"}}}', "/fields/a~1b/~0"),
    ],
)
async def test_text_and_numbers_that_cannot_be_stored_are_named(board, body, pointer):
    answer = await board.call("POST", "cards", **raw(body))
    assert answer.status_code == 422, answer.text
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]
    assert (await board.get("cards"))["data"] == []


@pytest.mark.parametrize(
    ("body", "pointers"),
    [
        (b'{"board": "OPS", "title": "x", "title": "y"}', ["/title"]),
        (b'{"board": "OPS", "title": "x", "title": "x"}', ["/title"]),
        (rb'{"board": "OPS", "title": "x", "t\u0069tle": "y"}', ["/title"]),
        (
            b'{"board": "OPS", "title": "x", "fields": {"a": [{"b/c": 1, "b/c": 2, "b/c": 3}]}}',
            ["/fields/a/0/b~1c"],
        ),
        (
            b'{"board": "OPS", "board": "OPS", "title": "x", "fields": {"n": 1, "n": {}}}',
            ["/board", "/fields/n"],
        ),
    ],
)
async def test_a_member_that_is_given_twice_is_named_and_neither_is_taken(board, body, pointers):
    answer = await board.call("POST", "cards", **raw(body))
    assert answer.status_code == 422, answer.text
    assert [(error["pointer"], error["detail"]) for error in answer.json()["errors"]] == [
        (pointer, "is given more than once") for pointer in pointers
    ]
    assert (await board.get("cards"))["data"] == []


async def test_every_route_with_a_body_refuses_a_member_that_is_given_twice(app, board):
    asked = 0
    for path, route in routes_of(app):
        for method in route.methods - {"GET", "HEAD"}:
            answer = await board.call(method, re.sub(r"\{[^}]*\}", "x", path), **raw(b'{"a": 1, "a": 2}'))
            named = [error["pointer"] for error in answer.json()["errors"]]
            assert (answer.status_code, named) == (422, ["/a"]), (method, path)
            asked += 1
    assert asked > 30


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"\xff\xfe{}",
        b'{"title": "\xc3\x28"}',
        b"[" * 100_000,
        b'{"a":' * 200 + b"1" + b"}" * 200,
        b"1" * 5_000,
        b'"' + b"x" * 100,
        b"\x00",
    ],
)
async def test_what_is_no_json_of_ours_is_refused(board, body):
    answer = await board.call("POST", "cards", **raw(body))
    assert answer.status_code == 422, answer.text
    assert answer.json()["code"] == "invalid"


@pytest.mark.parametrize(
    "path",
    [
        "cards?state=%00",
        "cards?state=%ff",
        "events?kind=%ed%a0%80",
        "explain?ref=a%00b",
        "cards?%00=1",
        "cards/%00",
    ],
)
async def test_addresses_that_hold_no_text_are_refused(world, path):
    answer = await world.client.get(f"/api/v1/{path}", headers=world.headers())
    assert answer.status_code == 422
    assert answer.json()["code"] == "invalid"


async def test_a_misspelt_filter_is_not_ignored(board):
    answer = await board.call("GET", "cards", params={"sate": "doing"})
    assert answer.status_code == 422
    assert answer.json()["errors"] == [
        {"pointer": "/sate", "detail": "there is no such parameter; did you mean state?"}
    ]
    nobody = await board.client.get("/api/v1/cards?sate=doing")
    assert nobody.status_code == 401


async def test_of_what_is_asked_twice_the_first_is_not_forgotten(board):
    twice = await board.call("GET", "desk?kind=launch&kind=run&limit=5")
    assert twice.json()["errors"] == [{"pointer": "/kind", "detail": "is given more than once"}]
    for several in ("runs?state=failed&state=lost", "cards?label=a&label=b"):
        assert (await board.call("GET", several)).status_code == 200


@pytest.mark.parametrize("name", ["If-Match", "Idempotency-Key", "Authorization"])
async def test_a_header_that_decides_is_given_once(board, name):
    card = await board.post("cards", {"board": "OPS", "title": "x"})
    values = {
        "If-Match": ('"1"', '"999"'),
        "Idempotency-Key": ("a", "b"),
        "Authorization": ("Bearer x", "Bearer y"),
    }[name]
    headers = [*board.headers().items(), *((name, value) for value in values)]
    answer = await board.client.patch(f"/api/v1/cards/{card['key']}", headers=headers, json={"title": "y"})
    assert (answer.status_code, answer.json()["errors"][0]["detail"]) == (422, "is given more than once")
    assert (await board.get(f"cards/{card['key']}"))["title"] == "x"


async def test_a_body_over_the_limit_is_413_announced_or_not(board):
    large = json.dumps({"board": "OPS", "title": "x", "body": "y" * BODY_BYTES_MAX}).encode()

    async def pieces():
        for start in range(0, len(large), 65_536):
            yield large[start : start + 65_536]

    for content in (large, pieces()):
        answer = await board.call(
            "POST", "cards", content=content, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == 413
        assert answer.json()["code"] == "body_too_large"


async def test_a_token_of_any_bytes_is_only_unknown(world):
    for secret in (b"\x00", b"\xff\xfe", b"ms_user_" + b"x" * 10_000, "ü".encode()):
        answer = await world.client.get("/api/v1/cards", headers=[(b"Authorization", b"Bearer " + secret)])
        assert answer.status_code == 401


@pytest.mark.parametrize(
    "said",
    ["application/JSON", "Application/Json; charset=UTF-8", "application/vnd.x+JSON", "text/plain", ""],
)
@pytest.mark.parametrize(
    "body",
    [
        b'{"kind": "custom.x", "data": {"a": 1, "a": 2}}',
        rb'{"kind": "custom.x", "data": {"a": "\ud800"}}',
        b'{"kind": "custom.x", "data": {"a": 1e999}}',
    ],
    ids=["doubled", "surrogate", "beyond a float"],
)
async def test_a_body_is_looked_at_whatever_its_type_is_said_to_be_and_however_that_is_spelled(
    board, said, body
):
    answer = await board.call("POST", "events", content=body, headers={"Content-Type": said})
    assert answer.status_code == 422, answer.text
    assert [error["pointer"] for error in answer.json()["errors"]] == ["/data/a"]
    assert (await board.get("events", kind="custom.*"))["data"] == []


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc/~", max_size=3), inner, max_size=3),
    max_leaves=20,
)  # fmt: skip


@pytest.mark.slow
@given(json_values)
def test_what_can_be_stored_has_no_fault(value):
    assert list(faults(value)) == []
    assert body_problem(json.dumps(value).encode()) is None


def test_the_deepest_document_is_the_limit():
    def nested(depth: int) -> bytes:
        return b"[" * depth + b"]" * depth

    assert body_problem(nested(DEPTH_MAX)) is None
    assert body_problem(nested(DEPTH_MAX + 2)) is not None


async def test_a_client_that_leaves_before_its_body_is_whole_is_nobodys_error(app):
    messages = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
    sent = []

    async def receive():
        return messages.pop(0)

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/api/v1/cards", "query_string": b"", "headers": [],
        "http_version": "1.1", "scheme": "http", "server": ("test", 80), "client": ("x", 1), "root_path": "",
        "raw_path": b"/api/v1/cards",
    }  # fmt: skip
    await app(scope, receive, send)
    assert sent == []


HOSTILE = [
    rb'{"kind": "custom.x", "subject": "a\u0000b", "title": "\ud800", "reason": "\udfff", "name": "\u0000"}',
    b'{"a":' * 200 + b"1" + b"}" * 200,
    b'{"n": 99999999999999999999999, "data": {"n": 1e999}}',
    b'{"data": NaN}',
    b"\xff\xfe{}",
    b"[1, 2]",
    b'"text"',
    b"null",
    b"{" + b'"x": 1, ' * 2_000 + b'"y": 2}',
    json.dumps(dict.fromkeys(("title", "kind", "key"), "x" * 300000)).encode(),
    json.dumps(
        {name: ["\x7f", {}, -1] for name in ("key", "kind", "state", "ids", "states", "data")}
    ).encode(),
]


@pytest.mark.slow
async def test_no_command_of_any_route_takes_what_it_cannot_keep(board, app, admin):
    """Whatever is sent wherever: a refusal that says why, on a connection that lives, with or without a key; and nothing is written."""
    await board.post("cards", {"board": "OPS", "title": "x"})
    counted = "select (select count(*) from mainspring.events where tenant_id = $1), (select count(*) from mainspring.idempotency where tenant_id = $1)"
    before = await admin.fetchrow(counted, board.tenant)
    for path, route in routes_of(app):
        if route.body_field is None:
            continue
        for method in route.methods or ():
            url = re.sub(r"\{\w+(:\w+)?\}", "01890a5d-ac96-774b-bcce-b302099a8057", path)
            for n, body in enumerate(HOSTILE):
                headers = {
                    "Content-Type": "application/json",
                    **({"Idempotency-Key": f"h{n}"} if n % 2 else {}),
                }
                answer = await board.call(method, url, content=body, headers=headers)
                told = (method, path, body[:40], answer.status_code)
                assert 400 <= answer.status_code < 500, told
                assert answer.headers["content-type"] == "application/problem+json", told
                assert answer.json()["detail"], told
    assert await admin.fetchrow(counted, board.tenant) == before


@pytest.mark.parametrize(
    "query",
    ["after=-1", "after=1e3", f"after={2**63}", "kind=%00", "card=" + "x" * 101, "afterr=1", "subject=%ff"],
)
async def test_a_stream_that_is_asked_for_wrongly_does_not_begin(world, query):
    answer = await world.call("GET", f"events/stream?{query}")
    assert answer.status_code == 422
    assert world.app.state.load.waiting == 0
