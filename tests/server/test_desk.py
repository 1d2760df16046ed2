"""The desk: dead effects and failed runs alike, grouped, planned, replayed, discarded; and what the engine's part decides."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mainspring import faultpoints
from mainspring.ids import new_id
from mainspring.operators.model import Described, Heap, grouped
from mainspring.operators.operations import step_of
from mainspring.spine.desk import cause_of, plan
from mainspring.spine.effects import EffectRow, EffectState, NewEffect
from tests.server.conftest import RULE, people

NAMELESS = {
    **RULE,
    "name": "letters",
    "do": {"launch": {"agent": "scribe", "prompt": "write to {{card.fields.who}}"}},
}
NO_NAME = "the prompt names {{card.fields.who}}, and event … (card.moved) has no such thing"
MOMENT = datetime(2026, 11, 2, tzinfo=UTC)


@pytest.fixture
async def haunted(board):
    """A board whose cards, moved to doing, leave a dead launch (its prompt lacks a field) beside a run of echo."""
    await board.services.agents.create(board.actors["operator"], handle="scribe")
    await board.post("rules", NAMELESS)
    return board


async def moved(world, title="x"):
    card = await world.post("cards", {"board": "OPS", "title": title})
    await world.post(f"cards/{card['key']}/move", {"state": "doing"})
    await world.settle()
    return card


async def failed(world, error="no such file 'a.txt'"):
    card = await moved(world)
    runner = await world.runner("echo")
    run = await runner.work("failed", error=error)
    await world.settle()
    return card, run


async def accepted(world, path, body):
    answer = await world.call("POST", path, json=body)
    assert answer.status_code == 202, answer.text
    assert answer.headers["location"] == f"/api/v1/operations/{answer.json()['id']}"
    return answer.json()


async def test_dead_effects_and_failed_runs_lie_side_by_side(haunted):
    card, run = await failed(haunted)
    letters = (await haunted.get("desk"))["data"]
    assert [(one["kind"], one["subject"]) for one in letters] == [
        ("run", card["key"]),
        ("launch", card["key"]),
    ]
    assert letters[0]["id"] == run["id"]
    assert letters[1]["cause"] == NO_NAME
    assert [one["kind"] for one in (await haunted.get("desk", kind="run"))["data"]] == ["run"]
    first = await haunted.get("desk", limit=1)
    second = await haunted.get("desk", limit=1, after=first["next"])
    assert [*first["data"], *second["data"]] == letters
    assert second["next"] is None


async def test_a_letter_shows_what_it_was_to_do_and_every_attempt(haunted):
    _, run = await failed(haunted)
    shown = await haunted.get(f"desk/{run['id']}")
    assert shown["prompt"] == "work on x"
    assert [(one["outcome"], one["error"]) for one in shown["history"]] == [
        ("failed", "no such file 'a.txt'")
    ]
    launch = (await haunted.get("desk", kind="launch"))["data"][0]
    shown = await haunted.get(f"desk/{launch['id']}")
    assert shown["payload"]["agent"] == "scribe"
    assert [one["outcome"] for one in shown["history"]] == ["failed"]


async def test_a_letter_names_its_rule_and_whom_it_launches_or_calls(haunted):
    await failed(haunted)
    await haunted.post(
        "rules", {**RULE, "name": "tell", "do": {"webhook": {"url": "http://127.0.0.1:9/hook"}}}
    )
    await moved(haunted)
    told = {}
    for letter in (await haunted.get("desk"))["data"]:
        shown = await haunted.get(f"desk/{letter['id']}")
        assert (shown["rule"], shown["agent"]) == (letter["rule"], letter["agent"])
        told[letter["kind"]] = (shown["rule"], shown["agent"], shown.get("target"))
    assert told == {
        "run": ("doing to echo", "echo", None),
        "launch": ("letters", "scribe", ""),
        "webhook": ("tell", None, "127.0.0.1:9"),
    }


async def test_causes_are_counted_without_what_differs(haunted):
    await failed(haunted, "no such file 'a.txt' (12 tries)")
    await failed(haunted, "no such file 'b.txt' (3 tries)")
    groups = (await haunted.get("desk", group_by="cause"))["data"]
    assert [(one["count"], one["cause"], one["kinds"]) for one in groups] == [
        (2, "no such file … (… tries)", ["run"]),
        (2, NO_NAME, ["launch"]),
    ]
    planned = await haunted.post("desk/plan", {"cause": "no such file … (… tries)"})
    assert [one["kind"] for one in planned["eligible"]] == ["run", "run"]


async def test_a_plan_changes_nothing_and_a_replay_does_what_it_said(haunted):
    card, run = await failed(haunted)
    planned = await haunted.post("desk/plan", {"all": True})
    assert [one["kind"] for one in planned["eligible"]] == ["launch", "run"]
    assert planned["skipped"] == []
    assert len((await haunted.get("desk"))["data"]) == 2
    await haunted.call("PATCH", f"cards/{card['key']}", json={"fields": {"who": "ana"}})
    started = await accepted(haunted, "desk/replay", {"all": True})
    assert (started["state"], started["total"], started["done"]) == ("running", 2, 0)
    await haunted.settle()
    done = await haunted.get(f"operations/{started['id']}")
    assert (done["state"], done["done"], done["skipped"], done["by"]) == ("done", 2, 0, "operator")
    assert (await haunted.get("desk"))["data"] == []
    assert (await haunted.get(f"runs/{run['id']}"))["state"] == "queued"
    assert len((await haunted.get("runs"))["data"]) == 2
    events = (await haunted.get("events", last=20))["data"]
    named = [one["kind"] for one in events if one["data"].get("operation") == started["id"]]
    assert sorted(named) == ["effect.replayed", "run.queued"]
    told = str((await haunted.get("explain", ref=run["id"]))["tree"])
    assert "is queued by operator: replayed" in told
    assert (await haunted.get("verify"))["ok"]


async def test_a_cause_that_no_letter_has_is_refused_and_a_letters_own_error_names_its_cause(haunted):
    _, run = await failed(haunted)
    for path, more in (("plan", {}), ("replay", {}), ("discard", {"reason": "over"})):
        answer = await haunted.call("POST", f"desk/{path}", json={"cause": "none of these", **more})
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert (await haunted.get("operations"))["data"] == []
    [letter] = [one for one in (await haunted.get("desk"))["data"] if one["id"] == run["id"]]
    planned = await haunted.post("desk/plan", {"cause": letter["error"]})
    assert run["id"] in [one["id"] for one in planned["eligible"]]


async def of_two_rules(haunted):
    """Two letters of either rule and agent; return (kind, id) by whom they are of. A pin owed one of scribe's, and no rule."""
    _, run = await failed(haunted)
    card = await moved(haunted)
    # whom a pin launches stands in its effect by id alone
    scribe = (await haunted.get("agents/scribe"))["id"]
    payload = {"card_id": str(new_id()), "agent_id": scribe, "eligible_version": 1}
    async with haunted.services.spine.open(haunted.tenant) as tx:
        await tx.owe(NewEffect("launch", key="dispatch:x:1", payload=payload, event_seq=10**6))
    await haunted.settle()
    found = (await haunted.get("desk"))["data"]
    by_rule = {one["id"]: one for one in (await haunted.get("desk", rule="letters"))["data"]}
    assert {(one["kind"], one["rule"], one["agent"]) for one in by_rule.values()} == {
        ("launch", "letters", "scribe")
    }
    pinned = [one for one in found if one["kind"] == "launch" and one["id"] not in by_rule]
    assert [(one["rule"], one["agent"]) for one in pinned] == [(None, "scribe")]
    return {"run": {run["id"]}, "letters": set(by_rule), "pin": {pinned[0]["id"]}, "card": card}


@pytest.mark.slow
async def test_the_desk_is_told_apart_by_rule_and_by_agent_wherever_it_is_read(haunted):
    one = await of_two_rules(haunted)
    assert [len(one[name]) for name in ("run", "letters", "pin")] == [1, 2, 1]
    rules = {rule["name"]: rule["id"] for rule in (await haunted.get("rules"))["data"]}
    agents = {name: (await haunted.get(f"agents/{name}"))["id"] for name in ("echo", "scribe")}
    for asked, meant in (
        ({"rule": "doing to echo"}, one["run"]),
        ({"rule": " Letters "}, one["letters"]),
        ({"rule": rules["letters"]}, one["letters"]),
        ({"agent": "echo"}, one["run"]),
        ({"agent": "Scribe"}, one["letters"] | one["pin"]),
        ({"agent": agents["scribe"]}, one["letters"] | one["pin"]),
        ({"agent": "scribe", "rule": "letters"}, one["letters"]),
        ({"agent": "echo", "rule": "letters"}, set()),
        ({"agent": "scribe", "kind": "launch"}, one["letters"] | one["pin"]),
        ({"agent": "scribe", "kind": "run"}, set()),
        ({"rule": "doing to echo", "kind": "run"}, one["run"]),
        ({"rule": "letters", "kind": "launch"}, one["letters"]),
        ({"rule": "letters", "kind": "run"}, set()),
    ):
        listed = (await haunted.get("desk", **asked))["data"]
        groups = (await haunted.get("desk", group_by="cause", **asked))["data"]
        planned = await haunted.post("desk/plan", asked)
        exported = (await haunted.call("GET", "desk/export", params=asked)).text.splitlines()
        assert {each["id"] for each in listed} == meant, asked
        assert sum(group["count"] for group in groups) == len(meant), asked
        assert {each["id"] for each in planned["eligible"]} == meant, asked
        assert planned["total"] == len(meant), asked
        assert {json.loads(line)["id"] for line in exported} == meant, asked


async def test_an_operation_keeps_to_the_rule_or_the_agent_that_it_was_begun_for(haunted):
    one = await of_two_rules(haunted)
    [cause] = (await haunted.get("desk", group_by="cause", rule="letters"))["data"]
    given_up = await accepted(
        haunted, "desk/discard", {"rule": "LETTERS", "cause": cause["cause"], "reason": "no letters any more"}
    )
    assert (given_up["rule"], given_up["agent"], given_up["total"]) == ("letters", None, 2)
    await haunted.settle()
    left = {each["id"] for each in (await haunted.get("desk"))["data"]}
    assert left == one["run"] | one["pin"]
    replayed = await accepted(haunted, "desk/replay", {"agent": "echo", "rate_per_second": 1})
    await haunted.settle()
    assert {each["id"] for each in (await haunted.get("desk"))["data"]} == one["pin"]
    done = await haunted.get(f"operations/{replayed['id']}")
    assert (done["state"], done["rule"], done["agent"], done["done"]) == ("running", None, "echo", 1)
    assert [each["done"] for each in (await haunted.get("operations"))["data"]] == [1, 2]


async def test_a_rule_and_an_agent_that_are_not_there_are_not_found_and_a_deleted_rules_letters_are(
    haunted, services
):
    one = await of_two_rules(haunted)
    elsewhere, actors, _ = await people(services)
    await services.agents.create(actors["operator"], handle="stranger")
    assert elsewhere != haunted.tenant
    for asked in ({"rule": "lettres"}, {"rule": str(new_id())}, {"agent": "stranger"}, {"agent": "operator"}):
        for answer in (
            await haunted.call("GET", "desk", params=asked),
            await haunted.call("GET", "desk", params={**asked, "group_by": "cause"}),
            await haunted.call("GET", "desk/export", params=asked),
            await haunted.call("POST", "desk/plan", json=asked),
            await haunted.call("POST", "desk/replay", json=asked),
            await haunted.call("POST", "desk/discard", json={**asked, "reason": "x"}),
        ):
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), answer.text
            assert next(iter(asked.values())) in answer.json()["detail"]
    assert (await haunted.get("operations"))["data"] == []
    assert (await haunted.call("DELETE", "rules/letters")).status_code == 204
    assert {each["id"] for each in (await haunted.get("desk", rule="letters"))["data"]} == one["letters"]


def test_a_step_of_an_operation_on_one_rules_letters_is_none_to_a_server_that_knows_no_rules_there():
    """It would take the step for one on all letters."""
    assert step_of(new_id(), 3).payload["step"] == 3
    assert "step" not in step_of(new_id(), 3, narrowed=True).payload


async def test_what_is_left_alone_is_said(haunted):
    _, run = await failed(haunted)
    nobody = str(new_id())
    effect = (await haunted.get("effects", state="done"))["data"][0]["id"]
    asked = {"ids": [run["id"], nobody, effect]}
    planned = await haunted.post("desk/plan", asked)
    assert {one["id"]: one["because"] for one in planned["skipped"]} == {
        nobody: "there is no such dead letter",
        effect: "it is done, not dead",
    }
    done = await haunted.post("desk/replay", asked)
    assert [one["id"] for one in done["replayed"]] == [run["id"]]
    again = await haunted.call("POST", "desk/replay", json={"ids": [run["id"]]})
    assert (again.status_code, again.json()["code"]) == (409, "not_dead")
    assert (await haunted.call("POST", "desk/replay", json={"ids": [nobody]})).status_code == 404


async def test_a_discard_keeps_its_reason(haunted):
    await failed(haunted)
    ids = [one["id"] for one in (await haunted.get("desk"))["data"]]
    done = await haunted.post("desk/discard", {"ids": ids, "reason": "nobody needs it"})
    assert {one["id"] for one in done["discarded"]} == set(ids)
    await haunted.settle()
    assert (await haunted.get("desk"))["data"] == []
    [effect] = (await haunted.get("effects", state="discarded"))["data"]
    assert "nobody needs it" in effect["outcome"]
    [run] = (await haunted.get("runs", state="discarded"))["data"]
    assert "nobody needs it" in run["outcome"]
    events = (await haunted.get("events", last=20))["data"]
    reasons = [one["data"].get("reason") for one in events if one["kind"].endswith("discarded")]
    assert reasons == ["nobody needs it", "nobody needs it"]
    assert (await haunted.get("verify"))["ok"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"ids": []},
        {"ids": ["x"]},
        {"ids": [str(UUID(int=1))], "all": True},
        {"ids": [str(UUID(int=1))], "kind": "run"},
        {"kind": ""},
        {"rule": ""},
        {"ids": [str(UUID(int=1))], "agent": "echo"},
        {"every": True},
        {"ids": [str(UUID(int=n)) for n in range(1, 1003)]},
    ],
)
async def test_what_is_meant_has_to_be_said(world, body):
    assert (await world.call("POST", "desk/plan", json=body)).status_code == 422


async def test_a_replay_that_dies_before_its_commit_has_not_happened(haunted):
    await failed(haunted)
    ids = [one["id"] for one in (await haunted.get("desk"))["data"]]
    faultpoints.arm("desk.after_replay:1:raise")
    try:
        assert (await haunted.call("POST", "desk/replay", json={"ids": ids})).status_code == 500
    finally:
        faultpoints.disarm()
    assert len((await haunted.get("desk"))["data"]) == 2
    kinds = {one["kind"] for one in (await haunted.get("events", last=50))["data"]}
    assert "effect.replayed" not in kinds


async def test_two_operators_replay_one_letter_once(haunted):
    import asyncio

    _, run = await failed(haunted)
    answers = await asyncio.gather(
        *(haunted.call("POST", "desk/replay", json={"ids": [run["id"]]}) for _ in range(4))
    )
    replayed = [one for answer in answers for one in answer.json().get("replayed", [])]
    assert [one["id"] for one in replayed] == [run["id"]]


# The engine's part, pure --------------------------------------------------------------------------------------


def row(state=EffectState.DEAD, outcome="failed", seq: int | None = 1) -> EffectRow:
    return EffectRow(
        tenant_id=UUID(int=1), id=new_id(), kind="mail", family="executed", key="k", event_seq=seq, rule_id=None,
        rule_version=None, target="", payload={}, state=state, attempts=1, crashes=0, deferrals=0, epoch=0,
        claim_id=None, worker=None, lease_until=None, not_before=MOMENT, cancel_requested=False, outcome=outcome,
        error="x", created_at=MOMENT, settled_at=MOMENT,
    )  # fmt: skip


def test_only_a_definite_failure_gets_a_new_key_unasked():
    rows = [row(outcome=word) for word in ("failed", "unknown", "exhausted", "worker_crashed", "target_down")]
    ids = [one.id for one in rows]
    once = dict.fromkeys(ids, 1)
    assert [one.new_key for one in plan(ids, rows, tried=once).eligible] == [True, False, False, False, False]
    assert {one.new_key for one in plan(ids, rows, tried=once, new_key=True).eligible} == {True}
    assert {one.new_key for one in plan(ids, rows, tried=once, new_key=False).eligible} == {False}


@pytest.mark.parametrize(
    ("of", "tried"),
    [({}, 2), ({}, 0), ({"crashes": 1}, 1), ({"deferrals": 1}, 1)],
    ids=["an attempt before it", "no attempt is known", "a worker ended while it ran it", "it was put off"],
)
def test_a_definite_failure_says_nothing_of_what_was_before_it(of, tried):
    one = replace(row(), **of)
    assert [each.new_key for each in plan([one.id], [one], tried={one.id: tried}).eligible] == [False]


def test_a_plan_goes_by_the_age_of_events():
    rows = [row(seq=None), row(seq=9), row(seq=2)]
    planned = plan([one.id for one in rows], rows, tried={})
    assert [one.row.event_seq for one in planned.eligible] == [2, 9, None]


def test_what_is_asked_twice_is_planned_once():
    one = row()
    alive = replace(row(), state=EffectState.PENDING)
    planned = plan([one.id, one.id, alive.id, alive.id], [one, alive], tried={})
    assert [each.row.id for each in planned.eligible] == [one.id]
    assert [each.because for each in planned.skipped] == ["it is pending, not dead"]


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("TimeoutError: after 30.5 s", "TimeoutError: after …… s"),
        ("no card 01a22d41-b0a3-7350-9f4f-8db548c330a1", "no card …"),
        ("\n  Oops: 'x y' is not \"z\"\nTraceback", "Oops: … is not …"),
        ("added a bad face", "added a bad face"),
        ("disk /dev/sd8a2f is full", "disk /dev/… is full"),
        ("shop.example: answered 410: gone since 2024", "shop.example: answered 410: gone since …"),
        ("no file x-17 (exit 3)", "no file x-… (exit 3)"),
        ("HTTP/1.1 502 from node 7", "HTTP/1.1 502 from node …"),
        ("ended by signal 9", "ended by signal 9"),
        ("code 123456", "code …"),
        (None, "exhausted"),
        ("", "exhausted"),
    ],
)
def test_a_cause_is_what_failures_have_in_common(error, cause):
    found = cause_of("exhausted", error)
    assert found == cause.replace("……", "….…")
    assert cause_of(None, found) == found, "a group's name names it"


@example(error=f"'{'a1' * 150}'")  # a quotation that is too long to be one
@given(error=st.text(alphabet="abc 12'\"-:\n", max_size=400))
def test_a_letter_is_taken_by_the_cause_that_it_is_listed_under(error):
    assert Described(cause=cause_of("failed", error)).takes("failed", error)


def test_heaps_of_one_cause_are_one_group():
    heaps = [
        Heap(
            kind=kind,
            outcome="failed",
            error=f"no file {n}",
            count=n,
            oldest=MOMENT,
            newest=MOMENT,
            ids=[new_id()],
        )
        for n, kind in ((1, "run"), (2, "mail"))
    ]
    [group] = grouped(heaps)
    assert (group["count"], group["kinds"], len(group["ids"])) == (3, ["mail", "run"], 2)
