"""Questions over HTTP: who may ask, who may answer, what is told of it, and what explain says."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.ids import new_id


@pytest.fixture
async def asking(board):
    """A run of echo that a runner has begun; `asking.ask(...)` asks for it."""
    return await Asking.of(board)


class Asking:
    """A run that is held, and the runner that holds it."""

    def __init__(self, world: Any, runner: Any, run: Any, card: str) -> None:
        self.world, self.runner, self.run, self.card = world, runner, run, card
        self.claim = {"claim_id": run["claim_id"]}

    @classmethod
    async def of(cls, world: Any) -> Asking:
        card = await world.post("cards", {"board": "OPS", "title": "x"})
        await world.post(f"cards/{card['key']}/move", {"state": "doing"})
        await world.settle()
        runner = await world.runner("echo")
        asking = cls(world, runner, await runner.claim(), card["key"])
        await asking.say("heartbeat")
        return asking

    async def say(self, word: str, **said: Any) -> Any:
        return await self.runner.post(f"runs/{self.run['id']}/{word}", self.claim | said)

    async def ask(self, question: str = "Touch the schema?", **more: Any) -> Any:
        return await self.say("ask", question=question, request_id=str(new_id()), **more)


async def test_a_question_over_the_wire(asking):
    world, run = asking.world, asking.run
    ask = await asking.ask(options=["yes", "no"], timeout_seconds=600)
    assert (ask["state"], ask["agent"], ask["card"], ask["run_state"], ask["released"]) == (
        "open", "echo", asking.card, "running", False,
    )  # fmt: skip
    assert [one["id"] for one in (await world.get("asks"))["data"]] == [ask["id"]]
    assert (await world.get(f"asks/{ask['id']}", "viewer")) == ask
    shown = await world.get(f"runs/{run['id']}")
    assert shown["asks"] == [ask]
    assert shown["waiting"].startswith("waiting for an answer since 2")
    assert (await asking.say("heartbeat", asks=[ask["id"]]))["answers"] == []
    answered = await world.post(f"asks/{ask['id']}/answer", {"answer": "YES"}, who="member")
    assert (answered["state"], answered["answer"], answered["answered_by"]) == ("answered", "yes", "member")
    assert (await asking.say("heartbeat", asks=[ask["id"]]))["answers"] == [
        {"id": ask["id"], "state": "answered", "answer": "yes", "reason": None}
    ]
    assert (await world.get("asks"))["data"] == []
    assert len((await world.get("asks", state="all"))["data"]) == 1
    events = (await world.get("events", kind="ask.*"))["data"]
    assert sorted(event["kind"] for event in events) == ["ask.answered", "ask.opened"]


async def test_needs_input_over_the_wire(asking):
    world, run = asking.world, asking.run
    said = await asking.say("complete", outcome="needs_input", question="Which region?", options=["eu", "us"])
    assert (said["state"], said["outcome"]) == ("needs_input", "needs_input")
    answered = await world.post(f"runs/{run['id']}/answer", {"answer": "eu"}, who="member")
    assert (answered["answer"], answered["run_state"], answered["released"]) == ("eu", "queued", True)
    again = await asking.runner.claim()
    assert (again["id"], again["attempt"]) == (run["id"], 1)
    [given] = again["answers"]
    assert given.pop("answered_at")
    assert given == {
        "id": answered["id"], "question": "Which region?", "options": ["eu", "us"], "answer": "eu", "answered_by": "member",
    }  # fmt: skip


async def test_the_second_answer_is_told_who_was_first(asking):
    ask = await asking.ask()
    await asking.world.post(f"asks/{ask['id']}/answer", {"answer": "do it"})
    late = await asking.world.call("POST", f"asks/{ask['id']}/answer", "member", json={"answer": "do not"})
    assert (late.status_code, late.json()["code"]) == (409, "ask_answered")
    assert "operator has answered it: do it" in late.json()["detail"]


async def test_an_answer_that_is_sent_again_with_its_key_is_one_answer(asking):
    ask = await asking.ask()
    sent = [
        await asking.world.call(
            "POST",
            f"asks/{ask['id']}/answer",
            "member",
            json={"answer": "x"},
            headers={"Idempotency-Key": "k"},
        )
        for _ in range(2)
    ]
    assert [one.status_code for one in sent] == [200, 200]
    assert sent[1].headers["idempotency-replayed"] == "true"


@pytest.mark.parametrize(
    ("who", "status"), [("viewer", 403), ("member", 200), ("operator", 200), ("runner", 403), ("run", 403)]
)
async def test_people_answer_from_member_on_and_no_runner_or_run_does(asking, who, status):
    world = asking.world
    world.tokens |= {"runner": asking.runner.secret, "run": asking.run["token"]}
    ask = await asking.ask()
    for path in (f"asks/{ask['id']}/answer", f"runs/{asking.run['id']}/answer"):
        answer = await world.call("POST", path, who, json={"answer": "x"})
        assert answer.status_code == (409 if status == 200 and path.startswith("runs") else status)
    listed = await world.call("GET", "asks", who)
    assert listed.status_code == (403 if who in ("runner", "run") else 200)


async def test_people_do_not_ask_in_a_runs_name(asking):
    body = asking.claim | {"question": "q", "request_id": str(new_id())}
    for who in ("operator", "member"):
        assert (
            await asking.world.call("POST", f"runs/{asking.run['id']}/ask", who, json=body)
        ).status_code == 403


@pytest.mark.parametrize(
    ("said", "pointer"),
    [
        ({"question": ""}, "/question"),
        ({"question": "  "}, "/question"),
        ({"question": "x" * 16_385}, "/question"),
        ({"options": ["a", "A"]}, "/options/1"),
        ({"options": [" "]}, "/options/0"),
        ({"options": ["x"] * 21}, "/options"),
        ({"timeout_seconds": 0}, "/timeout_seconds"),
        ({"request_id": "x"}, "/request_id"),
    ],
)
async def test_what_is_no_question_is_refused_and_nothing_is_asked(asking, said, pointer):
    body = asking.claim | {"question": "q", "request_id": str(new_id())} | said
    headers = {"Authorization": f"Bearer {asking.runner.secret}"}
    path = f"/api/v1/runs/{asking.run['id']}"
    answer = await asking.world.client.post(f"{path}/ask", headers=headers, json=body)
    assert answer.status_code == 422
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]
    if "question" in said or "options" in said:
        body = asking.claim | {"outcome": "needs_input", "question": "q"} | said
        answer = await asking.world.client.post(f"{path}/complete", headers=headers, json=body)
        assert answer.status_code == 422
    assert (await asking.world.get("asks", state="all"))["data"] == []


@pytest.mark.parametrize("said", [{"outcome": "needs_input"}, {"outcome": "done", "question": "q"}])
async def test_a_question_and_needs_input_belong_together(asking, said):
    headers = {"Authorization": f"Bearer {asking.runner.secret}"}
    path = f"/api/v1/runs/{asking.run['id']}/complete"
    answer = await asking.world.client.post(path, headers=headers, json=asking.claim | said)
    assert answer.status_code == 422


async def test_questions_come_in_pages_the_oldest_first(asking):
    asked = [await asking.ask(f"Question {n}?") for n in range(3)]
    first = await asking.world.get("asks", limit=2)
    rest = await asking.world.get("asks", limit=2, after=first["next"])
    assert [one["id"] for one in (*first["data"], *rest["data"])] == [one["id"] for one in asked]
    assert rest["next"] is None


async def test_explain_says_since_when_a_run_waits_for_an_answer_and_what_it_asked(asking):
    world, run = asking.world, asking.run
    ask = await asking.ask()
    await world.settle()
    since = ask["asked_at"][:19].replace("T", " ")
    story = await world.get("explain", ref=run["id"])
    assert f"waiting for an answer since {since}" in story["summary"]
    asked = f"echo on {asking.card} asks: Touch the schema?"
    assert asked in [event["what"] for event in story["events"]]
    await world.post(f"asks/{ask['id']}/answer", {"answer": "yes"})
    story = await world.get("explain", ref=asking.card)
    assert "waiting for an answer" not in story["summary"]
    assert f"{asked} is answered: yes" in [event["what"] for event in story["events"]]

    await asking.say("complete", outcome="needs_input", question="Which region?")
    [waiting] = (await world.get("asks"))["data"]
    since = waiting["asked_at"][:19].replace("T", " ")
    story = await world.get("explain", ref=run["id"])
    assert f"is waiting for an answer since {since}" in story["summary"]
    [told] = story["runs"]
    assert told["standing"] == f"is waiting for an answer since {since}"


async def test_verify_finds_a_run_that_nobody_could_answer_and_a_question_that_nobody_waits_for(
    asking, admin
):
    world, run = asking.world, asking.run
    await asking.say("complete", outcome="needs_input", question="Which region?")
    await world.settle()
    assert (await world.get("verify"))["ok"]
    await admin.execute(
        "update mainspring.asks set state = 'closed', ended_at = clock_timestamp() where tenant_id = $1",
        world.tenant,
    )
    assert await found(world) == [
        f"run {run['id']} needs input, and no question of it is open whose answer would queue it"
    ]
    await admin.execute(
        "update mainspring.asks set state = 'open', ended_at = null where tenant_id = $1", world.tenant
    )
    await admin.execute(
        "update mainspring.runs set state = 'done', ended_at = clock_timestamp() where tenant_id = $1",
        world.tenant,
    )
    [ask] = (await world.get("asks"))["data"]
    assert f"run {run['id']} is done, and its question {ask['id']} is open" in await found(world)


async def found(world: Any) -> list[str]:
    """What verify finds wrong with questions."""
    checks = (await world.get("verify"))["checks"]
    return [what for check in checks if "question" in check["what"] for what in check["violations"]]


async def test_what_a_run_asks_and_is_answered_is_said_in_its_cards_topic(asking):
    world = asking.world
    ask = await asking.ask(options=["yes", "no"])
    await world.settle()
    await world.post(f"asks/{ask['id']}/answer", {"answer": "no"}, who="member")
    await world.settle()
    said = (await world.get("channels/ops/messages"))["data"]
    assert [(one["topic"], one["author"], one["text"]) for one in said] == [
        (asking.card, "member", "Touch the schema?\n→ no"),
        (asking.card, "echo", "Touch the schema? (yes / no)"),
    ]
