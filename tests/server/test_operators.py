"""Events, effects, explain and the gauges over HTTP, on work that the engine has really done."""

from __future__ import annotations

import httpx
import pytest

from mainspring import wiring
from mainspring.db import create_pool, unscoped_read_is_refused
from mainspring.ids import new_id
from mainspring.operators.model import CardKey, Id, RuleName, Seq, parse_ref
from mainspring.server.app import create_app
from mainspring.spine.drain import ENGINE_VERSION
from mainspring.spine.errors import Transient
from mainspring.spine.ports import ClaimRequest
from mainspring.triggers import history
from mainspring.triggers.explain import verdicts
from tests.server.conftest import RULE


async def moved(world, to="doing", **more):
    card = await world.post("cards", {"board": "OPS", "title": "mend it", **more})
    await world.post(f"cards/{card['key']}/move", {"state": to})
    await world.settle()
    return card


async def violations(world):
    report = await world.get("verify")
    return {one["invariant"]: one["violations"] for one in report["checks"] if not one["ok"]}


def event_of(story, kind):
    return next(one for one in story["events"] if one["kind"] == kind)


def lines(node, depth=0):
    yield f"{'  ' * depth}{node['text']}"
    for child in node["children"]:
        yield from lines(child, depth + 1)


# explain ------------------------------------------------------------------------------------------------------


async def test_a_cards_story_goes_from_the_move_to_what_the_run_waits_for(board):
    card = await moved(board)
    story = await board.get("explain", ref=card["key"])
    assert story["noun"] == "card"
    move = event_of(story, "card.moved")
    assert [(one["name"], one["matched"]) for one in move["verdicts"]] == [("doing to echo", True)]
    [effect] = story["effects"]
    assert move["owed"] == [effect["id"]]
    assert (effect["rule"], effect["standing"]) == ("doing to echo", "done: launched echo")
    [run] = story["runs"]
    assert effect["runs"] == [run["id"]]
    assert run["standing"] == "is waiting for a runner"
    assert "waiting for a runner" in story["summary"]
    text = "\n".join(lines(story["tree"]))
    assert "card.moved: OPS-1 todo → doing by operator" in text
    assert "owes launch (rule 'doing to echo' v1): done: launched echo" in text


async def test_a_launch_that_a_pin_owes_says_so(board):
    await board.post(
        "boards", {"key": "PIN", "name": "Pinned", "states": [{"name": "ready", "eligible": True}]}
    )
    card = await board.post("cards", {"board": "PIN", "title": "x", "agent": "echo"})
    await board.settle()
    text = "\n".join(lines((await board.get("explain", ref=card["key"]))["tree"]))
    assert "owes launch (no rule: the card is pinned to echo): done: launched echo" in text


async def test_what_did_not_match_is_told_with_the_first_term_that_failed(board):
    card = await moved(board, to="review")
    story = await board.get("explain", ref=card["key"])
    assert [one["failed_term"] for one in event_of(story, "card.created")["verdicts"]] == ["kinds"]
    [verdict] = event_of(story, "card.moved")["verdicts"]
    assert verdict["failed_term"] == "to_states"
    assert "it went to review" in verdict["why"]
    obligations = {one["name"]: one["term"] for one in event_of(story, "card.moved")["obligations"]}
    assert obligations["dispatch"] == "eligible"
    seq = event_of(story, "card.moved")["seq"]
    near = "rule 'doing to echo' v1: no: to_states: it went to review, the rule asks for doing"
    assert story["summary"] == f"nothing came of event {seq} (card.moved): {near}"


async def test_a_switched_off_rule_says_so(board):
    rule = (await board.get("rules"))["data"][0]
    await board.post(f"rules/{rule['id']}/disable")
    card = await moved(board)
    [verdict] = event_of(await board.get("explain", ref=card["key"]), "card.moved")["verdicts"]
    assert (verdict["failed_term"], verdict["why"]) == ("not in force", "not in force: disabled")


async def test_what_is_not_drained_yet_is_said(board):
    card = await board.post("cards", {"board": "OPS", "title": "x"})
    story = await board.get("explain", ref=card["key"])
    assert event_of(story, "card.created")["drained"] is False
    assert "not drained yet" in story["summary"]


async def test_a_paused_agent_and_a_silent_runner_are_told(board):
    card = await moved(board)
    await board.post("agents/echo/pause")
    [run] = (await board.get("explain", ref=card["key"]))["runs"]
    assert run["standing"] == "is waiting: echo is paused"
    await board.post("agents/echo/resume")
    runner = await board.runner("echo")
    await runner.claim()
    [run] = (await board.get("explain", ref=card["key"]))["runs"]
    assert run["standing"].startswith("is claimed on laptop")


async def test_a_failed_run_is_told_with_every_attempt(board):
    card = await moved(board)
    runner = await board.runner("echo")
    await runner.work("failed", error="no such branch")
    await board.settle()
    story = await board.get("explain", ref=card["key"])
    [run] = story["runs"]
    assert run["standing"] == "failed after 1 attempt: no such branch"
    assert [(one["n"], one["outcome"], one["error"]) for one in run["history"]] == [
        (1, "failed", "no such branch")
    ]
    assert "1 dead letter on the desk" in story["summary"]
    assert [one["kind"] for one in story["events"]] == [
        "card.created", "card.moved", "run.queued", "run.started", "run.failed",
    ]  # fmt: skip


async def test_a_run_that_is_done_moves_its_card_and_the_story_shows_by_whom(board):
    card = await moved(board)
    runner = await board.runner("echo")
    await runner.work("done", result="fixed")
    await board.settle()
    story = await board.get("explain", ref=card["key"])
    assert story["now"]["state"] == "review"
    reflect = next(one for one in story["effects"] if one["kind"] == "reflect")
    assert reflect["standing"] == "done: moved OPS-1 to review"
    last = story["events"][-1]
    assert (last["kind"], last["actor"], last["what"]) == ("card.moved", "mainspring", "OPS-1 doing → review")
    done = event_of(story, "run.done")
    assert last["cause_seq"] == done["seq"]
    assert (await board.get("explain", ref=f"event:{done['seq']}"))["events"][0]["caused"] == [last["seq"]]


async def test_every_kind_of_reference_is_told(board):
    card = await moved(board)
    story = await board.get("explain", ref=card["key"])
    run, effect = story["runs"][0]["id"], story["effects"][0]["id"]
    seq = event_of(story, "card.moved")["seq"]
    rule = (await board.get("rules"))["data"][0]["id"]
    for ref, noun in (
        (card["id"], "card"),
        ("ops-1", "card"),
        (f"card:{card['key']}", "card"),
        (run, "run"),
        (f"run:{run}", "run"),
        (effect, "effect"),
        (str(seq), "event"),
        (f"event:{seq}", "event"),
        (rule, "rule"),
        ("doing to echo", "rule"),
        ("rule:Doing To Echo", "rule"),
    ):
        told = await board.get("explain", ref=ref)
        assert told["noun"] == noun, ref
        assert told["events"], ref
    for ref in (f"run:{card['id']}", str(new_id()), "OPS-99", "event:99", "no such rule", "ZZZ-1"):
        assert (await board.call("GET", "explain", params={"ref": ref})).status_code == 404, ref


async def test_a_rules_story_is_what_it_did_and_what_it_ignored(board):
    await board.post("rules", {**RULE, "name": "another"})
    await moved(board)
    story = await board.get("explain", ref="doing to echo")
    said = {one["kind"]: [(v["name"], v["matched"]) for v in one["verdicts"]] for one in story["events"]}
    assert said["card.created"] == [("doing to echo", False)]
    assert said["card.moved"] == [("doing to echo", True)]
    assert [one["standing"] for one in story["effects"]] == ["done: launched echo"]


async def test_many_rules_are_counted_and_those_that_matched_or_nearly_did_are_told(board, monkeypatch):
    monkeypatch.setattr(history, "TOLD_MAX", 3)
    monkeypatch.setattr(history, "_PAGE", 2)
    for n in range(4):
        near = {"kinds": ["card.moved"], "to_states": ["review"]}
        await board.post("rules", {**RULE, "name": f"near {n}", "when": near})
        await board.post("rules", {**RULE, "name": f"far {n}", "when": {"kinds": ["card.deleted"]}})
    await board.post("rules/far%200/disable")
    card = await moved(board)
    moving = event_of(await board.get("explain", ref=card["key"]), "card.moved")
    assert [one["failed_term"] for one in moving["verdicts"]] == [None, "to_states", "to_states"]
    await board.call("PATCH", "rules/far%201", json={"when": RULE["when"]})
    await board.post("rules", {**RULE, "name": "young"})
    moving = event_of(await board.get("explain", ref=card["key"]), "card.moved")
    told = {one["name"]: one["failed_term"] for one in moving["verdicts"]}
    assert told.pop("doing to echo") is None
    assert told == {"far 1": "kinds", "young": "not in force"}  # as they are by now they would have matched
    assert moving["verdicts_left_out"] == 10 - 3
    text = "\n".join(lines((await board.get("explain", ref=f"event:{moving['seq']}"))["tree"]))
    assert "7 more rules did not match" in text


async def test_rules_are_judged_event_by_event_as_one_by_one(board):
    rule = (await board.get("rules"))["data"][0]
    await moved(board)
    await board.call("PATCH", f"rules/{rule['id']}", json={"when": {"kinds": ["card.created"]}})
    await moved(board)
    await board.post(f"rules/{rule['id']}/disable")
    await board.post("rules", {**RULE, "name": "young"})
    await moved(board)
    await board.call("PATCH", "rules/young", json={"when": {"kinds": ["run.queued"]}})
    await board.post("rules", {**RULE, "name": "never", "when": {"kinds": ["card.deleted"]}})
    await board.call("PATCH", "rules/never", json={"when": {"kinds": ["card.created"]}})
    async with board.services.db.tenant(board.tenant) as scope:
        events = await board.services.spine.store.read(scope, board.tenant, after=0, limit=100)
        rules = await history.rules_over(scope, board.tenant, events)
        one_by_one = {event.seq: await verdicts(scope, event) for event in events}
    assert {event.seq: list((await rules.judge(event)).verdicts) for event in events} == one_by_one
    assert any(verdict.matched for told in one_by_one.values() for verdict in told)


async def test_a_deleted_card_is_still_explained(board):
    card = await moved(board)
    assert (await board.call("DELETE", f"cards/{card['key']}")).status_code in (200, 204)
    story = await board.get("explain", ref=card["key"])
    assert story["now"]["deleted"] is True
    assert story["events"][-1]["kind"] == "card.deleted"


async def test_a_long_story_says_that_it_is_cut(board):
    card = await moved(board)
    story = await board.get("explain", ref=card["key"], limit=1)
    assert story["older_events_left_out"] is True
    assert [one["kind"] for one in story["events"]] == ["run.queued"]


@pytest.mark.parametrize(
    ("text", "ref"),
    [
        ("OPS-12", CardKey("OPS", 12)),
        ("card:ops-12", CardKey("OPS", 12)),
        ("12", Seq(12)),
        ("event:12", Seq(12)),
        ("rule:12", RuleName("12")),
        ("rule:OPS-12", RuleName("OPS-12")),
        ("moved → echo", RuleName("moved → echo")),
        ("event:x", None),
        ("run:OPS-1", None),
        ("0", RuleName("0")),
        ("", None),
        ("  ", None),
        ("9" * 30, RuleName("9" * 30)),
    ],
)
def test_a_reference_is_known_by_its_form(text, ref):
    assert parse_ref(text) == ref


def test_an_id_may_say_what_it_is_of():
    one = new_id()
    assert parse_ref(str(one)) == Id(one)
    assert parse_ref(f"run:{one}") == Id(one, "run")


# the log ------------------------------------------------------------------------------------------------------


async def test_a_hole_stops_its_tenant_until_an_operator_leads_the_drain_past_it(board, admin):
    await moved(board)
    card = await board.post("cards", {"board": "OPS", "title": "lost"})
    await board.post(f"cards/{card['key']}/move", {"state": "doing"})
    head = (await board.get("events", last=1))["data"][0]["seq"]
    why = {"reason": "a restore has lost it"}
    early = await board.call("POST", "events/skip", json=why)
    assert (early.status_code, early.json()["code"]) == (409, "no_hole")
    await admin.execute(
        "delete from mainspring.events where tenant_id = $1 and seq = $2", board.tenant, head - 1
    )
    await board.settle()
    assert (await board.get("explain", ref=f"event:{head}"))["events"][0]["drained"] is False
    assert "I-4" in await violations(board)
    assert (await board.call("POST", "events/skip", "member", json=why)).status_code == 403
    skipped = await board.post("events/skip", why)
    assert (skipped["kind"], skipped["data"]["first"], skipped["data"]["last"]) == (
        "log.skipped", head - 1, head - 1,
    )  # fmt: skip
    assert skipped["data"]["actor"]["handle"] == "operator"
    await board.settle()
    story = await board.get("explain", ref=f"event:{head}")
    assert [one["standing"] for one in story["effects"]] == ["done: launched echo"]
    assert (await board.call("POST", "events/skip", json=why)).status_code == 409
    assert await violations(board) == {}


# effects and gauges -------------------------------------------------------------------------------------------


async def test_a_pending_effect_is_cancelled_and_an_ended_one_is_not(board):
    card = await board.post("cards", {"board": "OPS", "title": "x"})
    await board.post(f"cards/{card['key']}/move", {"state": "doing"})
    while (await board.services.spine.drain.run_once()).events:
        pass
    [effect] = (await board.get("effects", state="pending"))["data"]
    cancelled = await board.post(f"effects/{effect['id']}/cancel")
    assert cancelled["state"] == "dropped"
    again = await board.call("POST", f"effects/{effect['id']}/cancel")
    assert (again.status_code, again.json()["code"]) == (409, "effect_ended")
    assert (await board.call("POST", f"effects/{new_id()}/cancel")).status_code == 404
    shown = await board.get(f"effects/{effect['id']}")
    assert shown["history"] == []
    assert (await board.get("effects", event_seq=effect["event_seq"]))["data"] == [cancelled]
    [told] = (await board.get("events", kind="effect.cancelled"))["data"]
    assert (told["subject"], told["data"]["actor"]["handle"]) == (effect["id"], "operator")
    assert told["data"]["effect"]["state"] == "dropped"


async def test_a_claimed_effect_is_asked_once_to_be_dropped(board, admin):
    card = await board.post("cards", {"board": "OPS", "title": "x"})
    await board.post(f"cards/{card['key']}/move", {"state": "doing"})
    while (await board.services.spine.drain.run_once()).events:
        pass
    claimed = await board.services.spine.store.claim(
        ClaimRequest(worker="w", lease_seconds={"launch": 60.0}, limit=200)
    )
    mine = next(effect for effect in claimed.effects if effect.tenant_id == board.tenant)
    for _ in range(2):
        asked = await board.post(f"effects/{mine.id}/cancel")
        assert (asked["state"], asked["cancel_requested"]) == ("claimed", True)
    assert len((await board.get("events", kind="effect.cancelled"))["data"]) == 1


async def test_the_gauges_say_what_is_owed(board):
    card = await board.post("cards", {"board": "OPS", "title": "x"})
    await board.post(f"cards/{card['key']}/move", {"state": "doing"})
    while (await board.services.spine.drain.run_once()).events:
        pass
    text = (await board.client.get("/metrics")).text
    owed = next(
        line for line in text.splitlines() if line.startswith('mainspring_effects_owed{kind="launch"}')
    )
    assert float(owed.split()[-1]) >= 1
    assert "mainspring_build_info" in text
    head, position = (
        next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{name} "))
        for name in ("mainspring_event_head", "mainspring_drained_position")
    )
    assert head > 0
    assert position > 0
    await board.settle()


async def test_readiness_says_what_it_found(world):
    plain = await world.client.get("/readyz")
    assert (plain.status_code, plain.json()) == (200, {"ready": True})
    checks = (await world.client.get("/readyz?verbose")).json()["checks"]
    assert checks["database"] == "ok"
    assert checks["pool"]["most"] == 8
    assert checks["engine_version"] == {"ours": ENGINE_VERSION, "schema": ENGINE_VERSION}
    assert (await world.client.get("/livez")).json() == {"status": "alive"}
    assert (await world.client.get("/version")).json()["engine_version"] == ENGINE_VERSION


async def test_a_server_whose_connections_are_gone_is_not_ready_and_has_no_defect(services, database):
    pool = await create_pool(max_size=1, **database.dsn)
    await pool.close()
    with pytest.raises(Transient):
        await unscoped_read_is_refused(pool)
    with pytest.raises(wiring.CannotStart):
        await wiring.check(pool)
    transport = httpx.ASGITransport(
        create_app(wiring.join(services.settings, pool)), raise_app_exceptions=False
    )
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        answer = await client.get("/readyz?verbose")
    assert (answer.status_code, answer.json()["ready"]) == (503, False)
    assert "pool is closed" in answer.json()["checks"]["database"]


async def test_a_closing_server_is_not_ready(world):
    world.app.state.closing.set()
    try:
        answer = await world.client.get("/readyz")
    finally:
        world.app.state.closing.clear()
    assert (answer.status_code, answer.json()["ready"]) == (503, False)


async def test_faults_are_armed_by_operators_on_this_machine_alone(world):
    from mainspring import faultpoints

    try:
        armed = await world.post("dev/faults", {"point": "drain.before_commit:3:raise"})
        assert (armed["armed"], armed["nth"], armed["action"]) == ("drain.before_commit", 3, "raise")
        assert (await world.call("DELETE", "dev/faults", "member")).status_code == 403
        assert faultpoints.is_armed()
        assert (await world.call("DELETE", "dev/faults")).status_code == 204
        assert not faultpoints.is_armed()
    finally:
        faultpoints.disarm()
    wrong = await world.call("POST", "dev/faults", json={"point": "nowhere"})
    assert wrong.status_code == 422
    assert "drain.before_commit" in wrong.json()["detail"]
    assert (await world.call("POST", "dev/faults", "member", json={"point": "nowhere"})).status_code == 403


async def test_skipping_is_no_place_in_the_log(world):
    answer = await world.call("GET", "events/skip")
    assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
    assert "POST" in answer.headers["allow"]
