"""An attempt that asks people: what it is told, what it costs of its time, and what is on the wire."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mainspring.sdk import AskClosed, Misdeclared, NeedsInput, Run, Runner
from mainspring.sdk.asking import TimeOut, question_of
from mainspring.sdk.outcomes import to_wire
from tests.sdk.conftest import AtWork, seen
from tests.sdk.test_liveness import CLAIM, Kept, kept
from tests.sdk.wire_server import CLAIM_LOST, CUT, Says, WireServer, a_run, problem

__all__ = ["kept"]


def asked(state: str = "open", **more: Any) -> dict[str, Any]:
    """How a question stands, as the server says it."""
    return {"id": "ask-1", "state": state, "answer": None, "reason": None, **more}


def beat(*answers: dict[str, Any], **more: Any) -> Says:
    """The answer to a heartbeat."""
    return Says(body={"cancel": False, "drain": False, "answers": list(answers), **more})


async def finish(runner: Runner, wire: WireServer, run: dict[str, Any] | None = None) -> dict[str, Any]:
    """Let the runner do one run; return the body of its complete."""
    wire.offer(run or a_run())
    async with AtWork(runner):
        await seen(wire.wait_asked, "complete")
    body: dict[str, Any] = wire.of("complete")[0].body
    return body


def asks(runner: Runner, **how: Any) -> None:
    """Let the agent ask one thing and return the answer."""

    @runner.agent("coder", timeout_seconds=how.pop("timeout", 60))
    async def coder(run: Run) -> str:
        wire_said = await run.ask("Touch the schema?", ["yes", "no"], **how)
        return f"they said {wire_said}"


# Asking, and waiting ---------------------------------------------------------------------------------------------


async def test_the_answer_comes_by_the_heartbeat_that_names_the_question(
    runner: Runner, wire: WireServer
) -> None:
    asks(runner)
    wire.always("ask", Says(body=asked()))
    run = wire.offer(a_run())
    async with AtWork(runner):
        await seen(wire.wait_for, lambda: any("asks" in one.body for one in wire.of("heartbeat")))
        wire.script("heartbeat", beat(), beat(asked("answered", answer="yes")))
        await seen(wire.wait_asked, "complete")
    assert wire.of("complete")[0].body["result"] == "they said yes"
    [ask] = wire.of("ask")
    assert ask.path == f"/runs/{run['id']}/ask"
    assert ask.headers["authorization"] == "Bearer ms_runner_secret"
    assert ask.body.pop("request_id")
    assert ask.body == {
        "claim_id": run["claim_id"],
        "question": "Touch the schema?",
        "options": ["yes", "no"],
        "timeout_seconds": None,
    }
    named = [one.body.get("asks") for one in wire.of("heartbeat")]
    assert named[0] is None
    assert ["ask-1"] in named


async def test_an_ask_whose_answer_was_cut_off_is_sent_again_as_the_same_one(
    runner: Runner, wire: WireServer
) -> None:
    asks(runner)
    wire.script("ask", CUT, Says(body=asked("answered", answer="no")))
    assert (await finish(runner, wire))["result"] == "they said no"
    first, again = wire.of("ask")
    assert first.body == again.body


async def test_nobody_who_answers_in_time_is_no_answer_and_the_server_says_when(
    runner: Runner, wire: WireServer
) -> None:
    asks(runner, timeout_seconds=5)
    wire.always("ask", Says(body=asked()))
    wire.script("heartbeat", beat(), *[beat()] * 3, beat(asked("expired")))
    assert (await finish(runner, wire))["result"] == "they said None"
    assert wire.of("ask")[0].body["timeout_seconds"] == 5


async def test_two_questions_at_once_are_each_told_their_own_answer(runner: Runner, wire: WireServer) -> None:
    wire.script("ask", Says(body=asked()), Says(body=asked() | {"id": "ask-2"}))

    @runner.agent("coder")
    async def coder(run: Run) -> str:
        one = asyncio.create_task(run.ask("One?"))
        await seen(wire.wait_asked, "ask", 1)
        two = asyncio.create_task(run.ask("Two?"))
        await seen(wire.wait_for, lambda: wire.of("heartbeat")[-1].body.get("asks") == ["ask-1", "ask-2"])
        wire.script("heartbeat", beat(asked("answered", answer="second") | {"id": "ask-2"}))
        said = await two
        await seen(wire.wait_for, lambda: wire.of("heartbeat")[-1].body.get("asks") == ["ask-1"])
        wire.script("heartbeat", beat(asked("answered", answer="first")))
        return f"{await one}, {said}"

    assert (await finish(runner, wire))["result"] == "first, second"


async def test_a_question_that_is_closed_raises(runner: Runner, wire: WireServer) -> None:
    wire.always("ask", Says(body=asked("closed", reason="the run is to be cancelled")))

    @runner.agent("coder")
    async def coder(run: Run) -> str:
        with pytest.raises(AskClosed, match="to be cancelled"):
            await run.ask("Go on?")
        return "went on without"

    assert (await finish(runner, wire))["result"] == "went on without"


@pytest.mark.slow
async def test_a_cancel_that_comes_with_the_closed_question_is_a_cancel(
    runner: Runner, wire: WireServer
) -> None:
    asks(runner)
    wire.always("ask", Says(body=asked()))
    wire.script("heartbeat", beat(), beat(asked("closed", reason="the run is to be cancelled"), cancel=True))
    assert (await finish(runner, wire))["outcome"] == "cancelled"


async def test_a_claim_that_is_lost_when_it_asks_is_lost(runner: Runner, wire: WireServer) -> None:
    asks(runner)
    wire.always("ask", CLAIM_LOST)
    wire.offer(a_run())
    async with AtWork(runner):
        await seen(wire.wait_asked, "ask")
        await seen(wire.wait_asked, "claim", 2)  # its slot is free again
    assert wire.of("complete") == []


async def test_what_the_server_refuses_to_ask_is_raised(runner: Runner, wire: WireServer) -> None:
    asks(runner)
    wire.always("ask", problem(422, "invalid", detail="no question"))
    body = await finish(runner, wire)
    assert (body["outcome"], "no question" in body["error"]) == ("failed", True)


# The clock --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_the_time_that_people_take_is_not_the_handlers(runner: Runner, wire: WireServer) -> None:
    asks(runner, timeout=0.2)
    wire.always("ask", Says(body=asked()))
    run = a_run(heartbeat_seconds=0.05)
    wire.offer(run)
    async with AtWork(runner):
        # far more beats than its time would have room for
        await seen(wire.wait_for, lambda: len(wire.of("heartbeat")) > 12)
        wire.script("heartbeat", beat(asked("answered", answer="yes")))
        await seen(wire.wait_asked, "complete")
    assert wire.of("complete")[0].body["result"] == "they said yes"


async def test_after_the_answer_the_clock_runs_on_from_where_it_stood(
    runner: Runner, wire: WireServer
) -> None:
    wire.always("ask", Says(body=asked("answered", answer="yes")))

    @runner.agent("coder", timeout_seconds=0.2)
    async def coder(run: Run) -> str:
        await run.ask("Go on?")
        await asyncio.Event().wait()
        return "never"

    body = await finish(runner, wire)
    assert body["error"].startswith("timed out after 0.2 s")


class Clocked:
    """A time-out, and what it has said."""

    def __init__(self, seconds: float) -> None:
        self.fired = asyncio.Event()
        self.kept: list[float] = []
        self.clock = TimeOut(seconds, self.fired.set, self.kept.append)


async def test_a_clock_that_stands_still_does_not_fire_and_several_stops_are_one() -> None:
    clocked = Clocked(0.01)
    clocked.clock.start()
    with clocked.clock.stopped():
        with clocked.clock.stopped():
            pass
        assert clocked.kept == [0.01, float("inf")]
        await asyncio.sleep(0)
        assert not clocked.fired.is_set()
    assert len(clocked.kept) == 3
    assert clocked.kept[2] <= 0.01
    await asyncio.wait_for(clocked.fired.wait(), 20)
    with clocked.clock.stopped():  # it is over: what a handler does in its last breath starts nothing
        pass
    assert len(clocked.kept) == 3


async def test_a_clock_that_was_ended_is_not_started_by_the_end_of_a_question() -> None:
    clocked = Clocked(60)
    clocked.clock.start()
    with clocked.clock.stopped():
        clocked.clock.cancel()
    assert clocked.kept == [60, float("inf")]


def test_a_claim_that_waits_for_an_answer_beats_more_often_until_it_has_it(
    kept: Kept, wire: WireServer
) -> None:
    kept.liveness.hold(CLAIM)
    kept.liveness.listen("c", "ask-1")
    wire.script("heartbeat", beat(), beat(asked("answered", answer="yes")))
    for seconds in (2, 3, 5, 6, 9, 25, 26):
        kept.at(seconds)
    assert [one.body for one in wire.of("heartbeat")] == [
        {"claim_id": "c", "asks": ["ask-1"]},
        {"claim_id": "c", "asks": ["ask-1"]},
        {"claim_id": "c"},
    ]
    [(claim_id, heard)] = kept.news
    assert (claim_id, heard.ask.answer) == ("c", "yes")  # type: ignore[union-attr]


# Letting the run go -----------------------------------------------------------------------------------------------

ANSWER = {
    "id": "ask-0",
    "question": "Which region?",
    "options": ["eu", "us"],
    "answer": "eu",
    "answered_by": "ada",
}


def needs(runner: Runner) -> None:
    @runner.agent("coder")
    async def coder(run: Run) -> str:
        region = await run.needs_input("Which region?", ["eu", "us"])
        return f"deployed to {region}"


async def test_a_run_that_needs_input_ends_here_with_its_question(runner: Runner, wire: WireServer) -> None:
    needs(runner)
    body = await finish(runner, wire)
    assert body.pop("claim_id")
    assert body == {"outcome": "needs_input", "question": "Which region?", "options": ["eu", "us"]}
    assert wire.of("ask") == []


async def test_the_next_attempt_is_given_the_answer_and_goes_on(runner: Runner, wire: WireServer) -> None:
    needs(runner)
    assert (await finish(runner, wire, a_run(answers=[ANSWER])))["result"] == "deployed to eu"


@pytest.mark.parametrize("options", [["eu"], ["us", "eu"], []])
async def test_an_answer_to_another_question_is_none_to_this(
    runner: Runner, wire: WireServer, options: list[str]
) -> None:
    needs(runner)
    assert (await finish(runner, wire, a_run(answers=[ANSWER | {"options": options}])))[
        "outcome"
    ] == "needs_input"


async def test_what_is_asked_twice_needs_two_answers_and_they_come_in_their_order(
    runner: Runner, wire: WireServer
) -> None:
    @runner.agent("coder")
    async def coder(run: Run) -> str:
        said = [await run.ask("Next?"), await run.needs_input("Next?"), await run.needs_input("Next?")]
        return " ".join(said)

    given = [{**ANSWER, "question": "Next?", "options": [], "answer": answer} for answer in ("a", "b")]
    body = await finish(runner, wire, a_run(answers=given))
    assert (body["outcome"], body["question"]) == ("needs_input", "Next?")
    assert wire.of("ask") == []


async def test_all_that_was_answered_can_be_read(runner: Runner, wire: WireServer) -> None:
    @runner.agent("coder")
    async def coder(run: Run) -> str:
        [one] = run.answers
        return f"{one.question} {one.options} {one.answer} {one.answered_by}"

    body = await finish(runner, wire, a_run(answers=[ANSWER]))
    assert body["result"] == "Which region? ('eu', 'us') eu ada"


async def test_an_outcome_that_is_returned_asks_too(runner: Runner, wire: WireServer) -> None:
    @runner.agent("coder")
    async def coder(run: Run) -> NeedsInput:
        return NeedsInput("Which region?")

    assert (await finish(runner, wire))["question"] == "Which region?"


def test_text_that_no_server_takes_does_not_cost_a_question() -> None:
    assert to_wire(NeedsInput("a\0b\udc80c", ("x\0",))) == {
        "outcome": "needs_input",
        "question": "a\ufffdb?c",
        "options": ["x\ufffd"],
    }


@pytest.mark.parametrize(
    ("question", "options"),
    [
        ("", ()),
        ("  ", ()),
        ("x" * 16_385, ()),
        (None, ()),
        ("q", "yes"),
        ("q", [""]),
        ("q", ["a", "A "]),
        ("q", ["x" * 201]),
        ("q", [str(n) for n in range(21)]),
        ("q", [1]),
    ],
)
def test_what_the_server_would_refuse_is_not_sent(question: Any, options: Any) -> None:
    with pytest.raises(Misdeclared):
        question_of(question, options)


def test_a_question_is_what_the_server_makes_of_it() -> None:
    assert question_of(" Go on?\n", [" Yes", "no\0"]) == ("Go on?", ("Yes", "no\ufffd"))
