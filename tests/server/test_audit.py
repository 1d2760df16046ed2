"""Who did what: noted with the command or not at all, without secrets, and for operators' eyes."""

from __future__ import annotations

import asyncpg
import pytest

from mainspring import faultpoints
from mainspring.server.audited import is_audited, letters_told, without_secrets
from tests.server.conftest import BOARD, RULE


async def deeds(world, **query):
    return (await world.get("audit", **query))["data"]


async def test_what_operators_do_is_noted_with_what_they_asked(board):
    rule = (await board.get("rules"))["data"][0]
    await board.post(f"rules/{rule['id']}/disable")
    await board.post("agents/echo/pause")
    made = await board.post("tokens", {"kind": "user", "role": "viewer", "account": "ana"})
    await board.post(f"tokens/{made['token']['id']}/revoke")
    found = [(one["verb"], one["subject"], one["by"]) for one in await deeds(board)]
    assert found == [
        ("token.revoke", made["token"]["id"], "operator"),
        ("token.create", made["token"]["id"], "operator"),
        ("agent.pause", "echo", "operator"),
        ("rule.disable", rule["id"], "operator"),
        ("board.create", (await board.get("boards"))["data"][0]["id"], "operator"),
    ]
    [creation] = await deeds(board, verb="token.create")
    assert creation["asked"]["body"] == {"kind": "user", "role": "viewer", "account": "ana"}
    assert made["secret"] not in str(await deeds(board))
    assert [one["verb"] for one in await deeds(board, verb="rule.*")] == ["rule.disable"]
    assert await deeds(board, by="nobody") == []
    assert len(await deeds(board, limit=2)) == 2


async def test_what_was_refused_or_changes_nothing_is_not_noted(board):
    before = len(await deeds(board))
    assert (await board.call("POST", "boards", json=BOARD)).status_code == 409
    assert (await board.call("POST", "rules", "member", json={**RULE, "name": "x"})).status_code == 403
    assert (await board.call("POST", "rules", json={"name": "x"})).status_code == 422
    await board.post("desk/plan", {"all": True})
    await board.post("cards", {"board": "OPS", "title": "a member could do it"})
    assert len(await deeds(board)) == before


async def test_a_deed_and_its_note_commit_together_or_not_at_all(board):
    before = len(await deeds(board))
    faultpoints.arm("append.before_commit:1:raise")
    try:
        failed = await board.call("POST", "rules", json={**RULE, "name": "never"})
    finally:
        faultpoints.disarm()
    assert failed.status_code == 500
    assert len(await deeds(board)) == before
    assert "never" not in [one["name"] for one in (await board.get("rules"))["data"]]


async def test_a_command_with_a_key_is_noted_once(board):
    body, key = {**RULE, "name": "once"}, {"Idempotency-Key": "k-1"}
    answers = [await board.call("POST", "rules", json=body, headers=key) for _ in range(3)]
    assert {answer.status_code for answer in answers} == {201}
    assert len(await deeds(board, verb="rule.create")) == 1


async def test_an_operation_is_noted_when_it_begins(board):
    started = await board.call("POST", "desk/replay", json={"all": True})
    [begun] = await deeds(board, verb="desk.replay")
    assert (begun["subject"], begun["asked"]["body"]) == (started.json()["id"], {"all": True})
    assert begun["request_id"] == started.headers["x-request-id"]


async def test_what_is_decided_by_ids_is_noted_with_how_many_letters_and_the_first_of_them(board):
    ids = []
    for n in range(4):
        card = await board.post("cards", {"board": "OPS", "title": str(n)})
        await board.post(f"cards/{card['key']}/move", {"state": "doing"})
        await board.settle()
        ids.append((await (await board.runner("echo")).work("failed", error="x"))["id"])
    await board.post("desk/replay", {"ids": ids[:1]})
    await board.post("desk/discard", {"ids": ids, "reason": "one of them is queued again"})
    by_age = ids[1:]
    [given_up] = await deeds(board, verb="desk.discard")
    [replayed] = await deeds(board, verb="desk.replay")
    assert replayed["subject"] == f"1 letter: run {ids[0]}"
    assert given_up["subject"] == "3 letters: " + ", ".join(f"run {one}" for one in by_age)
    more = [{"kind": "launch", "id": str(n), "subject": ""} for n in range(5)]
    assert letters_told(more) == "5 letters: launch 0, launch 1, launch 2 and 2 more"
    assert letters_told([]) == "0 letters"


async def test_a_fault_and_a_long_body_are_noted_and_the_body_is_not_kept(board):
    try:
        await board.post("dev/faults", {"point": "drain.before_commit:9:raise"})
    finally:
        faultpoints.disarm()
    long = {**RULE, "name": "long", "do": {"launch": {"agent": "echo", "prompt": "x" * 9_000}}}
    await board.post("rules", long)
    written, fault = (await deeds(board))[:2]
    assert (fault["verb"], fault["asked"]["body"]["point"]) == ("dev.fault", "drain.before_commit:9:raise")
    assert written["asked"]["body_bytes"] > 9_000
    assert "body" not in written["asked"]


async def test_only_operators_see_it(world):
    assert (await world.call("GET", "audit", "member")).status_code == 403


@pytest.mark.parametrize(
    "change", ["update mainspring.audit set handle = 'x'", "delete from mainspring.audit"]
)
async def test_the_walls_let_nobody_rewrite_it(world, change):
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        async with world.services.db.tenant(world.tenant) as scope:
            await scope.execute(change)


def test_what_sounds_like_a_secret_is_left_out():
    said = {"url": "x", "secret": "s", "headers": [{"X-Token": "t", "n": 1}], "max_tokens": 5}
    told = {"url": "x", "secret": "…", "headers": [{"X-Token": "…", "n": 1}], "max_tokens": 5}
    assert without_secrets(said) == told


def test_what_asks_for_an_operator_is_noted_and_what_only_asks_is_not():
    assert is_audited("desk.discard")
    assert is_audited("event.skip")
    assert not is_audited("card.move")
    assert not is_audited("desk.plan")
