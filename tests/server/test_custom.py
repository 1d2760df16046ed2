"""Events from outside: one for a key, with the card as it was, and rules that match them."""

from __future__ import annotations

import asyncio

import pytest

from mainspring import telemetry
from mainspring.operators.custom import DATA_BYTES_MAX
from mainspring.spine.events import NewEvent

DEPLOYED = {"kind": "custom.deployed", "subject": "web", "data": {"version": "1.2", "ok": True}}


async def post(world, body, who="operator"):
    return await world.call("POST", "events", who, json=body)


async def customs(world):
    return (await world.get("events", kind="custom.*"))["data"]


async def test_an_event_is_in_the_log_as_it_was_said_and_by_whom(world):
    answer = await post(world, DEPLOYED, "member")
    assert answer.status_code == 201
    made = answer.json()
    assert answer.headers["location"] == f"/api/v1/events/{made['seq']}"
    assert made == await world.get(f"events/{made['seq']}")
    assert (made["kind"], made["subject"], made["trust"], made["depth"]) == (
        "custom.deployed",
        "web",
        "member",
        0,
    )
    assert made["data"]["data"] == {"version": "1.2", "ok": True}
    assert made["data"]["actor"]["handle"] == "member"


async def test_the_same_key_is_one_event(world):
    first = await post(world, {**DEPLOYED, "key": "k1"})
    again = await post(
        world, {**DEPLOYED, "key": "k1"}, "member"
    )  # the key is the tenant's, whoever sends it
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    other = await post(world, {**DEPLOYED, "data": {}, "key": "k1"})
    assert (other.status_code, other.json()["code"]) == (422, "key_reused")
    assert other.json()["errors"][0]["pointer"] == "/key"
    assert len(await customs(world)) == 1


async def test_without_a_key_two_are_two(world):
    for _ in range(2):
        await post(world, DEPLOYED)
    assert len(await customs(world)) == 2


async def test_equal_events_at_once_are_one(world):
    for n in range(5):
        answers = await asyncio.gather(*(post(world, {**DEPLOYED, "key": f"k{n}"}) for _ in range(4)))
        assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 201]
        assert len({answer.json()["seq"] for answer in answers}) == 1
    assert len(await customs(world)) == 5


async def test_both_kinds_of_keys_go_together(world):
    headers = {"Idempotency-Key": "h1"}
    first = await world.call("POST", "events", json={**DEPLOYED, "key": "k1"}, headers=headers)
    again = await world.call("POST", "events", json={**DEPLOYED, "key": "k1"}, headers=headers)
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    known = await world.call(
        "POST", "events", json={**DEPLOYED, "key": "k1"}, headers={"Idempotency-Key": "h2"}
    )
    assert known.status_code == 200


async def test_an_event_about_a_card_carries_it_as_it_is(board):
    card = await board.post("cards", {"board": "OPS", "title": "ship it"})
    made = (await post(board, {"kind": "custom.deployed", "card": card["key"].lower()})).json()
    assert made["subject"] == card["id"]
    assert made["data"]["card"]["title"] == "ship it"
    assert (await post(board, {"kind": "custom.deployed", "card": card["id"]})).json()["subject"] == card[
        "id"
    ]


async def test_a_rule_on_an_event_about_a_card_launches_on_that_card(board):
    card = await board.post("cards", {"board": "OPS", "title": "ship it"})
    when = {"kinds": ["custom.deployed"], "boards": ["OPS"]}
    launch = {"launch": {"agent": "echo", "prompt": "look at {{data.version}} of {{card.title}}"}}
    await board.post("rules", {"name": "deploys", "when": when, "do": launch})
    said = {"kind": "custom.deployed", "card": card["key"], "data": {"version": "1.2"}}
    made = (await post(board, said)).json()
    await post(board, {**said, "card": None})
    await board.settle()
    [run] = (await board.get("runs", card=card["key"]))["data"]
    assert run["event_seq"] == made["seq"]
    assert (await board.get(f"runs/{run['id']}"))["prompt"].endswith("look at 1.2 of ship it")


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"kind": "card.moved"}, "/kind"),
        ({"kind": "custom"}, "/kind"),
        ({"kind": "custom.A"}, "/kind"),
        ({"kind": "custom.a.b"}, "/kind"),
        ({"kind": "custom."}, "/kind"),
        ({"kind": "custom.x", "subject": "x" * 201}, "/subject"),
        ({"kind": "custom.x", "key": ""}, "/key"),
        ({"kind": "custom.x", "key": "x" * 201}, "/key"),
        ({"kind": "custom.x", "data": []}, "/data"),
        ({"kind": "custom.x", "data": {"x": "y" * DATA_BYTES_MAX}}, "/data"),
        ({"kind": "custom.x", "data": {"x": "ü" * (DATA_BYTES_MAX // 2)}}, "/data"),
        ({"kind": "custom.x", "card": "OPS-99"}, "/card"),
        ({"kind": "custom.x", "card": "what"}, "/card"),
        ({"kind": "custom.x", "card": "OPS-1", "subject": "x"}, "/subject"),
        ({"kind": "custom.x", "at": "now"}, "/at"),
    ],
)
async def test_what_is_no_event_is_refused_and_named(board, body, pointer):
    answer = await post(board, body)
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["pointer"] == pointer
    assert await customs(board) == []


async def test_who_may_post(board):
    assert (await post(board, DEPLOYED, "viewer")).status_code == 403
    runner = await board.runner("echo")
    headers = {"Authorization": f"Bearer {runner.secret}"}
    assert (await board.client.post("/api/v1/events", json=DEPLOYED, headers=headers)).status_code == 403


async def test_a_run_posts_with_its_cause_and_only_about_its_own_card(board):
    mine, other = [await board.post("cards", {"board": "OPS", "title": title}) for title in ("a", "b")]
    await board.post(f"cards/{mine['key']}/move", {"state": "doing"})
    await board.settle()
    runner = await board.runner("echo")
    run = await runner.claim()
    headers = {"Authorization": f"Bearer {run['token']}"}

    async def said(body):
        return await board.client.post(
            "/api/v1/events", json={**DEPLOYED, "subject": "", **body}, headers=headers
        )

    assert (await said({"card": other["key"]})).status_code == 404
    about, plain = (await said({"card": mine["key"]})).json(), (await said({})).json()
    for event in (about, plain):
        assert (event["cause_seq"], event["depth"], event["trust"]) == (run["event"]["seq"], 1, "agent")


def counted(kind):
    return telemetry.REGISTRY.get_sample_value("mainspring_events_appended_total", {"kind": kind}) or 0


async def test_metrics_count_what_tenants_name_as_one_and_tell_its_name_to_nobody(board):
    before = counted("custom")
    for kind in ("custom.acme-deal-1", "custom.acme-deal-2"):
        assert (await post(board, {"kind": kind})).status_code == 201
    assert counted("custom") - before == 2
    assert "acme-deal" not in (await board.client.get("/metrics")).text


@pytest.mark.parametrize("in_unit", [False, True], ids=["a transaction", "a unit around it"])
async def test_what_is_rolled_back_is_not_counted_as_committed(board, in_unit):
    spine, db, kind = board.services.spine, board.services.db, "card.counted"

    async def fails(_seq):
        raise ZeroDivisionError

    async def append(stamp=None):
        async with spine.open(board.tenant) as tx:
            tx.append(NewEvent(kind), stamp=stamp)

    with pytest.raises(ZeroDivisionError):
        if in_unit:
            async with db.unit(board.tenant):
                await append()
                raise ZeroDivisionError
        else:
            await append(fails)
    assert counted(kind) == 0
    await append()
    assert counted(kind) == 1
    telemetry.events_appended.remove(kind)
