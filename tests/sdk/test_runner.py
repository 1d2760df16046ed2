"""What a runner says on the wire, from claim to complete."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from mainspring.sdk import (
    Client,
    Conflict,
    Done,
    MainspringError,
    NotAuthorized,
    Outcome,
    Run,
    Runner,
    Unreachable,
)
from mainspring.sdk import execution as executions
from mainspring.sdk.errors import Misdeclared
from mainspring.sdk.execution import Agent
from mainspring.sdk.introduction import introduced
from mainspring.sdk.spool import Spool, Spooled
from tests.sdk.conftest import AtWork, no_thread_is_left, seen
from tests.sdk.wire_server import CLAIM_LOST, CUT, Says, WireServer, a_run, problem


async def finish_one(runner: Runner, wire: WireServer, run: dict[str, Any] | None = None) -> dict[str, Any]:
    """Let the runner do one run and return the body of its complete."""
    wire.offer(run or a_run())
    async with AtWork(runner):
        await seen(wire.wait_asked, "complete")
    return wire.of("complete")[0].body


async def test_a_returned_text_is_the_result(runner: Runner, wire: WireServer, spool: Path) -> None:
    @runner.agent("coder")
    async def coder(run: Run) -> str:
        await run.progress("one\ntwo")
        return f"did: {run.prompt} ({run.card_key}, {run.trigger.summary})"

    run = wire.offer(a_run())
    async with AtWork(runner):
        await seen(wire.wait_asked, "complete")
    claim, complete = wire.of("claim")[0], wire.of("complete")[0]
    assert claim.body["runner"] == "laptop"
    assert claim.body["agents"] == ["coder"]
    assert claim.body["slots"] == [0]
    assert claim.headers["authorization"] == "Bearer ms_runner_secret"
    assert complete.path == f"/runs/{run['id']}/complete"
    assert complete.body == {
        "claim_id": run["claim_id"],
        "outcome": "done",
        "result": "did: do it (OPS-12, OPS-12 moved to doing)",
    }
    assert [line for log in wire.of("log") for line in log.body["lines"]] == ["one", "two"]
    order = [asked.path.rsplit("/", 1)[-1] for asked in wire.asked]
    assert order.index("heartbeat") < order.index("log") < order.index("complete")
    assert Spool(spool).waiting() == []
    assert no_thread_is_left()


async def test_what_a_handler_raises_is_why_the_run_failed(runner: Runner, wire: WireServer) -> None:
    @runner.agent("coder")
    async def coder(run: Run) -> str:
        raise ValueError("no such branch")

    body = await finish_one(runner, wire)
    assert body["outcome"] == "failed"
    assert "in coder" in body["error"]
    assert body["error"].rstrip().endswith("ValueError: no such branch")


async def test_sys_exit_in_a_handler_fails_its_run_and_not_the_runner(
    runner: Runner, wire: WireServer
) -> None:
    @runner.agent("coder")
    async def coder(run: Run) -> str:
        raise SystemExit(3)

    assert (await finish_one(runner, wire))["error"] == "the handler left by sys.exit(3)"


async def test_a_decided_outcome_stands_even_if_the_handler_swallows_it(
    runner: Runner, wire: WireServer
) -> None:
    @runner.agent("coder")
    async def coder(run: Run) -> str:
        try:
            await run.blocked("waiting for a decision")
        except BaseException:
            return "went on"

    body = await finish_one(runner, wire)
    assert (body["outcome"], body["reason"]) == ("blocked", "waiting for a decision")


async def test_a_decision_inside_a_task_group_counts(runner: Runner, wire: WireServer) -> None:
    @runner.agent("coder")
    async def coder(run: Run) -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(run.failed("one of many"))
        return "never"

    assert await finish_one(runner, wire) | {"claim_id": ""} == {
        "claim_id": "",
        "outcome": "failed",
        "error": "one of many",
    }


async def test_retry_names_its_wait(runner: Runner, wire: WireServer) -> None:
    @runner.agent("coder")
    async def coder(run: Run) -> str:
        return await run.retry(after_seconds=30, error="the forge is down")

    body = await finish_one(runner, wire)
    assert (body["outcome"], body["after_seconds"], body["error"]) == ("retry", 30, "the forge is down")


async def test_a_result_that_is_no_text_fails_the_run(runner: Runner, wire: WireServer) -> None:
    @runner.agent("coder")
    async def coder(run: Run) -> str:
        return {"not": "text"}  # type: ignore[return-value]

    assert (await finish_one(runner, wire))["error"] == "the handler returned dict; a result is text"


async def test_a_result_that_cannot_be_sent_ends_neither_its_runner_nor_the_next(
    runner: Runner, wire: WireServer, spool: Path
) -> None:
    left = a_run()
    Spool(spool).put(Spooled(left["id"], left["claim_id"], {"outcome": "done", "result": "\udc80"}))

    @runner.agent("coder")
    async def coder(run: Run) -> Outcome:
        if run.id == bad["id"]:
            return Done({"not": "text"})  # type: ignore[arg-type]
        return Done("text")

    bad, good = wire.offer(a_run()), wire.offer(a_run())
    async with AtWork(runner):
        await seen(wire.wait_asked, "complete", 3)
    said = {asked.path.split("/")[2]: asked.body for asked in wire.of("complete")}
    assert said[left["id"]]["outcome"] == "failed"
    assert said[left["id"]]["error"].startswith("its result was refused: it cannot be sent")
    assert said[bad["id"]]["error"] == "the handler ended with Done, and dict where a text belongs"
    assert said[good["id"]]["result"] == "text"
    assert Spool(spool).waiting() == []


# Stopping -----------------------------------------------------------------------------------------------------


async def test_a_cancel_asked_by_heartbeat_cancels_the_handler(runner: Runner, wire: WireServer) -> None:
    @runner.agent("coder")
    async def coder(run: Run) -> str:
        wire.script("heartbeat", Says(body={"cancel": True}))
        await asyncio.Event().wait()
        return "never"

    assert (await finish_one(runner, wire))["outcome"] == "cancelled"


async def test_a_run_cancelled_before_it_began_is_never_begun(runner: Runner, wire: WireServer) -> None:
    begun = []

    @runner.agent("coder")
    async def coder(run: Run) -> str:
        begun.append(run.id)
        return "never"

    wire.script("heartbeat", Says(body={"cancel": True}))
    assert (await finish_one(runner, wire))["outcome"] == "cancelled"
    assert begun == []


async def test_a_lost_claim_stops_the_handler_and_discards_its_result(
    runner: Runner, wire: WireServer, spool: Path
) -> None:
    stopped = asyncio.Event()

    @runner.agent("coder")
    async def coder(run: Run) -> str:
        wire.script("heartbeat", CLAIM_LOST)
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return "never"

    wire.offer(a_run())
    async with AtWork(runner):
        await asyncio.wait_for(stopped.wait(), 20)
    assert wire.of("complete") == []
    assert Spool(spool).waiting() == []


async def test_a_claim_lost_before_the_first_heartbeat_is_never_begun(
    runner: Runner, wire: WireServer
) -> None:
    begun = []

    @runner.agent("coder")
    async def coder(run: Run) -> str:
        begun.append(run.id)
        return "did it"

    wire.script("heartbeat", CLAIM_LOST)
    lost, kept = wire.offer(a_run()), wire.offer(a_run())
    async with AtWork(runner):
        await seen(wire.wait_asked, "complete")
    assert begun == [kept["id"]] != [lost["id"]]


async def test_a_handler_past_its_time_is_cancelled_and_failed(runner: Runner, wire: WireServer) -> None:
    @runner.agent("coder", timeout_seconds=0.05)
    async def coder(run: Run) -> str:
        await asyncio.Event().wait()
        return "never"

    body = await finish_one(runner, wire)
    assert body["outcome"] == "failed"
    assert body["error"].startswith("timed out after 0.05 s")


async def test_the_lease_is_kept_while_the_handler_blocks_the_event_loop(
    runner: Runner, wire: WireServer
) -> None:
    @runner.agent("coder")
    async def coder(run: Run) -> str:
        wire.wait_asked("heartbeat", 4)  # blocks the loop's own thread: only another one can send these
        return "blocked, and kept"

    assert (await finish_one(runner, wire))["result"] == "blocked, and kept"


# Links that break ---------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_complete_whose_answer_was_lost_is_sent_again_word_for_word(
    runner: Runner, wire: WireServer, spool: Path
) -> None:
    @runner.agent("coder")
    async def coder(run: Run) -> str:
        return "did it"

    wire.script("complete", CUT, problem(503, "unavailable"), Says(502, b"<html>bad gateway</html>"))
    wire.offer(a_run())
    async with AtWork(runner):
        await seen(wire.wait_asked, "complete", 4)
    assert len({str(asked.body) for asked in wire.of("complete")}) == 1
    assert Spool(spool).waiting() == []


@pytest.mark.slow
async def test_no_slot_is_offered_as_free_while_its_complete_is_unanswered(
    runner: Runner, wire: WireServer
) -> None:
    @runner.agent("coder", slots=2)
    async def coder(run: Run) -> str:
        return "did it"

    wire.always("complete", problem(503, "unavailable"))
    first = wire.offer(a_run())
    async with AtWork(runner):
        await seen(wire.wait_asked, "complete", 2)
        wire.always("complete", Says())
        second = wire.offer(a_run())
        await seen(wire.wait_for, lambda: {a.path for a in wire.asked} >= {f"/runs/{second['id']}/complete"})
    polls = wire.of("claim")
    assert polls[0].body["slots"] == [0, 1]
    assert polls[1].body["slots"] == [1]
    assert first["id"] != second["id"]


async def test_a_claim_that_is_finished_already_is_completed_again_and_not_done_again(
    runner: Runner, wire: WireServer, spool: Path
) -> None:
    begun = []

    @runner.agent("coder")
    async def coder(run: Run) -> str:
        begun.append(run.id)
        return "twice"

    run = a_run()
    body = {"outcome": "done", "result": "once"}
    wire.always("complete", problem(503, "unavailable"))
    Spool(spool).put(Spooled(run["id"], run["claim_id"], body))
    wire.offer(run)
    async with AtWork(runner):
        await seen(wire.wait_asked, "complete", 2)
        wire.always("complete", Says())
    assert begun == []
    assert {asked.body["result"] for asked in wire.of("complete")} == {"once"}


async def test_what_an_earlier_runner_left_is_sent_at_the_start(
    runner: Runner, wire: WireServer, spool: Path
) -> None:
    run = a_run()
    Spool(spool).put(Spooled(run["id"], run["claim_id"], {"outcome": "done", "result": "from before"}))
    runner.command("coder", ["true"])
    async with AtWork(runner):
        await seen(wire.wait_asked, "complete")
    assert wire.of("complete")[0].body == {
        "claim_id": run["claim_id"],
        "outcome": "done",
        "result": "from before",
    }


async def test_what_an_earlier_runner_left_is_sent_before_a_single_run(wire: WireServer, spool: Path) -> None:
    run = a_run()
    Spool(spool).put(Spooled(run["id"], run["claim_id"], {"outcome": "done", "result": "from before"}))
    runner = Runner(url=wire.url, token="t", spool=spool, wait_seconds=0)
    runner.command("coder", ["true"])
    await runner.serve(once=True)
    assert [asked.path.rsplit("/", 1)[-1] for asked in wire.asked] == ["whoami", "complete", "claim", "leave"]
    assert Spool(spool).waiting() == []


@pytest.mark.parametrize(("answer", "kept"), [(CLAIM_LOST, "nowhere"), (problem(422, "invalid"), "refused")])
async def test_a_result_that_nobody_wants_is_not_sent_for_ever(
    runner: Runner, wire: WireServer, spool: Path, answer: Says, kept: str
) -> None:
    @runner.agent("coder")
    async def coder(run: Run) -> str:
        return "did it"

    wire.script("complete", answer)
    wire.offer(a_run())
    async with AtWork(runner):
        await seen(wire.wait_asked, "complete", 2 if kept == "refused" else 1)
    assert [asked.body["outcome"] for asked in wire.of("complete")] == ["done", "failed"][
        : 2 if kept == "refused" else 1
    ]
    assert Spool(spool).waiting() == []
    assert (spool / "refused").is_dir() == (kept == "refused")


async def test_a_claim_that_was_given_up_and_comes_again_is_completed_and_not_done_again(
    runner: Runner, wire: WireServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executions, "GIVEN_AGAIN_SECONDS", 0.0)
    begun = []

    @runner.agent("coder")
    async def coder(run: Run) -> str:
        begun.append(run.id)
        return "did it"

    wire.script("complete", problem(422, "invalid"), problem(422, "invalid"))
    run = wire.offer(a_run())
    async with AtWork(runner):
        await seen(wire.wait_asked, "complete", 2)
        wire.offer(run)
        await seen(wire.wait_asked, "complete", 3)
    assert len(begun) == 1
    assert [asked.body["outcome"] for asked in wire.of("complete")] == ["done", "failed", "retry"]


async def test_a_full_disk_does_not_keep_a_result_from_the_server(
    runner: Runner, wire: WireServer, spool: Path
) -> None:
    spool.write_text("a file where the folder should be")

    @runner.agent("coder")
    async def coder(run: Run) -> str:
        return "did it"

    assert (await finish_one(runner, wire))["result"] == "did it"


async def test_a_cut_poll_is_asked_again_with_the_same_slot_and_incarnation(
    runner: Runner, wire: WireServer
) -> None:
    @runner.agent("coder")
    async def coder(run: Run) -> str:
        return "did it"

    wire.script("claim", CUT)
    await finish_one(runner, wire)
    first, second, *_ = wire.of("claim")
    assert first.body == second.body


async def test_what_the_machine_has_is_said_at_each_claim(wire: WireServer, spool: Path) -> None:
    runner = Runner(url=wire.url, token="t", spool=spool, wait_seconds=0, labels=["gpu", " linux", "gpu"])

    @runner.agent("coder")
    async def coder(run: Run) -> str:
        return "did it"

    await finish_one(runner, wire)
    assert wire.of("claim")[0].body["labels"] == ["gpu", "linux"]


async def test_a_machine_of_no_labels_says_none_to_a_server_that_may_not_know_them(
    runner: Runner, wire: WireServer
) -> None:
    @runner.agent("coder")
    async def coder(run: Run) -> str:
        return "did it"

    await finish_one(runner, wire)
    assert "labels" not in wire.of("claim")[0].body


@pytest.mark.parametrize("labels", ["gpu", [""], ["x" * 65], ["x"] * 101])
def test_labels_that_the_server_would_refuse_are_refused_at_once(labels: Any) -> None:
    with pytest.raises(Misdeclared, match="labels"):
        Runner(labels=labels)


async def test_a_refused_token_ends_the_runner(runner: Runner, wire: WireServer) -> None:
    @runner.agent("coder")
    async def coder(run: Run) -> str:
        return "never"

    wire.always("claim", problem(401, "unauthorized", detail="this token is not valid any more"))
    with pytest.raises(NotAuthorized, match="not valid any more"):
        await runner.serve()
    assert no_thread_is_left()


# Draining -----------------------------------------------------------------------------------------------------


async def test_a_drain_finishes_what_is_held_and_claims_no_more(runner: Runner, wire: WireServer) -> None:
    go_on = threading.Event()

    @runner.agent("coder")
    async def coder(run: Run) -> str:
        await asyncio.to_thread(go_on.wait, 20)
        return "finished in the drain"

    wire.offer(a_run())
    async with AtWork(runner):
        await seen(wire.wait_asked, "heartbeat")
        runner.drain()
        wire.offer(a_run())
        go_on.set()
    assert [asked.body["result"] for asked in wire.of("complete")] == ["finished in the drain"]


async def test_what_is_not_finished_within_the_grace_is_handed_back(runner: Runner, wire: WireServer) -> None:
    @runner.agent("coder")
    async def coder(run: Run) -> str:
        await asyncio.Event().wait()
        return "never"

    wire.offer(a_run())
    async with AtWork(runner):
        await seen(wire.wait_asked, "heartbeat", 2)
        runner.drain(grace_seconds=0)
    body = wire.of("complete")[0].body
    assert (body["outcome"], body["after_seconds"], body["handed_back"]) == ("retry", 0, True)
    assert body["error"] == "the runner shut down"


async def test_a_run_whose_claim_answer_the_drain_cut_off_is_handed_back(
    runner: Runner, wire: WireServer
) -> None:
    @runner.agent("coder")
    async def coder(run: Run) -> str:
        return "never"

    async with AtWork(runner):
        await seen(wire.wait_asked, "claim")
        wire.script("claim", Says(body={"run": a_run(), "drain": False}))  # what asking once more brings
        runner.drain()
        await seen(wire.wait_asked, "complete")
    assert wire.of("claim")[1].query["wait"] == ["0"]
    assert wire.of("complete")[0].body["handed_back"] is True
    assert wire.of("heartbeat") == []  # the first one would have counted as an attempt


@pytest.mark.parametrize("verb", ["claim", "heartbeat"])
async def test_the_server_may_ask_for_a_drain(runner: Runner, wire: WireServer, verb: str) -> None:
    @runner.agent("coder")
    async def coder(run: Run) -> str:
        return "did it"

    if verb == "claim":
        wire.script("claim", Says(body={"run": None, "drain": True}))
    else:
        wire.always("heartbeat", Says(body={"drain": True}))

        @runner.agent("patient")
        async def patient(run: Run) -> str:
            await seen(
                wire.wait_asked, "heartbeat", 2
            )  # the second is the thread's own, and tells of the drain
            return "did it"

        wire.offer(a_run("patient"))
    async with asyncio.timeout(20):
        await runner.serve()


async def test_a_signal_after_a_drain_that_the_server_asked_for_still_gives_the_grace(
    runner: Runner, wire: WireServer
) -> None:
    go_on = threading.Event()

    @runner.agent("coder")
    async def coder(run: Run) -> str:
        await asyncio.to_thread(go_on.wait, 20)
        return "finished in the grace"

    wire.offer(a_run())
    async with AtWork(runner):
        await seen(wire.wait_asked, "heartbeat")
        runner.drain()
        assert runner._shift is not None
        runner._shift.stop_asked()
        go_on.set()
    assert [asked.body["result"] for asked in wire.of("complete")] == ["finished in the grace"]


async def test_a_second_signal_hands_back_at_once(runner: Runner, wire: WireServer) -> None:
    @runner.agent("coder")
    async def coder(run: Run) -> str:
        await asyncio.Event().wait()
        return "never"

    wire.offer(a_run())
    async with AtWork(runner):
        await seen(wire.wait_asked, "heartbeat", 2)
        assert runner._shift is not None
        runner._shift.stop_asked()
        runner._shift.stop_asked()
        await seen(wire.wait_asked, "complete")
    assert wire.of("complete")[0].body["outcome"] == "retry"


def test_a_wait_that_the_server_would_refuse_is_refused_at_once(wire: WireServer) -> None:
    with pytest.raises(MainspringError, match="between 0 and 60"):
        Runner(url=wire.url, token="t", wait_seconds=61)


# Once ---------------------------------------------------------------------------------------------------------


async def test_once_does_one_run_of_any_agent_and_returns(runner: Runner, wire: WireServer) -> None:
    for handle in ("coder", "helper"):

        @runner.agent(handle)
        async def work(run: Run) -> str:
            return f"done by {run.agent}"

    wire.offer(a_run("helper"))
    wire.offer(a_run("helper"))
    await runner.serve(once=True)
    assert [asked.body["result"] for asked in wire.of("complete")] == ["done by helper"]
    assert wire.of("claim")[0].body["agents"] == ["coder", "helper"]


async def test_once_with_nothing_to_do_returns(wire: WireServer, spool: Path) -> None:
    runner = Runner(url=wire.url, token="t", spool=spool, wait_seconds=0)

    @runner.agent("coder")
    async def coder(run: Run) -> str:
        return "never"

    await runner.serve(once=True)
    assert len(wire.of("claim")) == 1
    assert wire.of("complete") == []


# Agents -------------------------------------------------------------------------------------------------------


def test_two_agents_of_one_name_are_refused(runner: Runner) -> None:
    runner.command("coder", ["true"])
    with pytest.raises(MainspringError, match="already"):
        runner.command("coder", ["false"])


async def test_each_agent_polls_for_its_own_slots(runner: Runner, wire: WireServer) -> None:
    runner.command("coder", ["true"], slots=2)
    runner.command("helper", ["true"])
    async with AtWork(runner):
        await seen(wire.wait_asked, "claim", 2)
    polled = {asked.body["agents"][0]: asked.body["slots"] for asked in wire.of("claim")[:2]}
    assert polled == {"coder": [0, 1], "helper": [2]}
    assert {asked.body["capacity"] for asked in wire.of("claim")} == {3}


# Cards --------------------------------------------------------------------------------------------------------

CARD = {
    "id": "c1",
    "key": "OPS-12",
    "board": "OPS",
    "title": "t",
    "state": "doing",
    "labels": ["b", "a"],
    "version": 7,
}


async def test_a_card_moves_with_the_runs_token_at_the_version_it_was_read(
    runner: Runner, wire: WireServer
) -> None:
    wire.always("OPS-12", Says(body=CARD))
    wire.script("move", CUT, Says(body={**CARD, "state": "review", "version": 8}))

    @runner.agent("coder")
    async def coder(run: Run) -> str:
        card = await run.card()
        moved = await card.move("review", if_version=card.version)
        return f"{moved.state} {moved.version} {sorted(moved.labels)}"

    assert (await finish_one(runner, wire))["result"] == "review 8 ['a', 'b']"
    lost, again = wire.of("move")
    assert again.headers["authorization"] == "Bearer ms_run_secret"
    assert again.headers["if-match"] == '"7"'
    assert again.headers["idempotency-key"] == lost.headers["idempotency-key"]
    assert again.body == {"state": "review"}


async def test_a_card_that_somebody_moved_meanwhile_raises_conflict(runner: Runner, wire: WireServer) -> None:
    wire.always("OPS-12", Says(body=CARD))
    wire.always("move", problem(412, "version_conflict", detail="it is at version 8", current={"version": 8}))

    @runner.agent("coder")
    async def coder(run: Run) -> str:
        card = await run.card()
        try:
            await card.move("review", if_version=card.version)
        except Conflict as conflict:
            return f"kept theirs: {conflict.current}"
        return "overwrote"

    assert (await finish_one(runner, wire))["result"] == "kept theirs: {'version': 8}"


async def test_a_client_gives_up_when_its_patience_ends(wire: WireServer) -> None:
    wire.always("cards", problem(503, "unavailable", detail="starting"))
    async with Client(wire.url, "t", patience_seconds=0) as client:
        with pytest.raises(Unreachable, match="starting"):
            await client.get("/cards")


# Who the runner is --------------------------------------------------------------------------------------------


async def test_a_persons_token_makes_the_agents_that_are_missing_and_a_token_for_the_runner(
    runner: Runner, wire: WireServer
) -> None:
    wire.always("whoami", Says(body={"token_kind": "user", "handle": "ada", "role": "operator"}))
    wire.always("known", Says(body={"handle": "known"}))
    wire.always("agents", Says(201))
    wire.always("tokens", Says(201, {"token": {"id": "t1"}, "secret": "ms_runner_fresh"}))
    wire.always("revoke", Says())
    runner.command("known", ["true"])
    runner.command("new", ["true"], slots=3)
    async with AtWork(runner):
        await seen(wire.wait_asked, "claim", 2)
    assert [asked.body for asked in wire.of("agents")] == [{"handle": "new", "slots": 3}]
    assert [asked.body for asked in wire.of("tokens")] == [
        {"kind": "runner", "agents": ["known", "new"], "expires_in_seconds": 86_400.0}
    ]
    assert {asked.headers["authorization"] for asked in wire.of("claim")} == {"Bearer ms_runner_fresh"}
    assert [asked.path for asked in wire.of("revoke")] == ["/tokens/t1/revoke"]


# More slots than are of use -----------------------------------------------------------------------------------


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was said of slots."""
    return [text for one in caplog.records if "slots for it" in (text := one.getMessage())]


async def test_a_runner_with_more_slots_than_its_agent_has_says_so_once(
    runner: Runner, wire: WireServer, caplog: pytest.LogCaptureFixture
) -> None:
    wire.always("claim", Says(body={"run": None, "drain": False, "slots": {"coder": 2, "tester": 3}}))
    runner.command("coder", ["true"], slots=5)
    runner.command("tester", ["true"], slots=3)
    async with AtWork(runner):
        await seen(wire.wait_asked, "claim", 4)
    [said] = warned(caplog)
    assert said.startswith(
        "agent coder: this runner has 5 slots for it, and no more than 2 of its runs go on at once"
    )
    assert said.endswith("mainspring agent edit coder --slots 5")
    assert {asked.path for asked in wire.asked} == {"/whoami", "/runner/claim", "/runner/leave"}


async def test_a_person_who_starts_a_runner_is_told_of_slots_before_it_claims_and_not_again(
    runner: Runner, wire: WireServer, caplog: pytest.LogCaptureFixture
) -> None:
    makes_tokens(wire)
    wire.always("coder", Says(body={"handle": "coder", "slots": 1}))
    wire.always("claim", Says(body={"run": None, "drain": True, "slots": {"coder": 1}}))
    runner.command("coder", ["true"], slots=2)
    await runner.serve()
    assert len(warned(caplog)) == 1


async def test_a_runner_that_does_one_run_or_is_told_of_no_slots_says_nothing_of_them(
    runner: Runner, wire: WireServer, caplog: pytest.LogCaptureFixture
) -> None:
    makes_tokens(wire)
    runner.command("coder", ["true"], slots=2)
    wire.script("coder", Says(body={"handle": "coder", "slots": 1}))
    wire.script("claim", Says(body={"run": None, "drain": False, "slots": {"coder": 1}}))
    await runner.serve(once=True)
    wire.script("claim", Says(body={"run": None, "drain": True}))
    await runner.serve()
    assert warned(caplog) == []


def makes_tokens(wire: WireServer) -> None:
    """Whoever asks is an operator, and gets a token with a number each time."""
    wire.always("whoami", Says(body={"token_kind": "user", "handle": "ada", "role": "operator"}))
    wire.always("coder", Says(body={"handle": "coder"}))
    wire.script(
        "tokens", *(Says(201, {"token": {"id": f"t{n}"}, "secret": f"ms_runner_{n}"}) for n in range(1000))
    )
    wire.always("revoke", Says())


async def test_a_token_made_for_a_runner_is_replaced_before_it_ends_and_a_killed_ones_ends_by_itself(
    wire: WireServer,
) -> None:
    makes_tokens(wire)
    agents = [Agent("coder", 1, 60, _never)]
    async with Client(wire.url, "ms_user_ada") as person:
        async with introduced(person, agents, lifetime_seconds=0.1) as client:
            first = client.profile.token
            await seen(wire.wait_asked, "tokens", 3)
            await client.get("/whoami")
            sent = wire.asked[-1].headers["authorization"]
        assert first == "ms_runner_0"
        assert sent not in (f"Bearer {first}", "Bearer ms_user_ada")
    assert {asked.body["expires_in_seconds"] for asked in wire.of("tokens")} == {0.1}
    assert {asked.headers["authorization"] for asked in wire.of("tokens")} == {"Bearer ms_user_ada"}
    [revoked] = wire.of("revoke")
    assert revoked.path == f"/tokens/t{len(wire.of('tokens')) - 1}/revoke"


async def test_a_runner_that_slept_longer_than_its_token_lives_makes_another(
    runner: Runner, wire: WireServer
) -> None:
    makes_tokens(wire)
    wire.script("claim", problem(401, "unauthorized"))

    @runner.agent("coder")
    async def coder(run: Run) -> str:
        return "did it"

    assert (await finish_one(runner, wire))["result"] == "did it"
    assert [asked.headers["authorization"] for asked in wire.of("claim")[:2]] == [
        "Bearer ms_runner_0",
        "Bearer ms_runner_1",
    ]
    assert {asked.headers["authorization"] for asked in wire.of("complete")} == {"Bearer ms_runner_1"}
    assert len(wire.of("tokens")) == 2


async def test_a_token_that_is_refused_though_it_is_fresh_ends_the_runner(
    runner: Runner, wire: WireServer
) -> None:
    makes_tokens(wire)
    wire.always("claim", problem(401, "unauthorized"))
    runner.command("coder", ["true"])
    with pytest.raises(NotAuthorized):
        await runner.serve()
    assert len(wire.of("tokens")) == 2


async def _never(run: Run) -> str:
    raise AssertionError("nothing is claimed here")


async def test_a_token_that_may_not_make_one_says_what_to_ask_for(runner: Runner, wire: WireServer) -> None:
    wire.always("whoami", Says(body={"token_kind": "user", "handle": "ada", "role": "member"}))
    wire.always("coder", Says(body={"handle": "coder"}))
    wire.always("tokens", problem(403, "forbidden"))
    runner.command("coder", ["true"])
    with pytest.raises(NotAuthorized, match="token create --kind runner --agent coder"):
        await runner.serve()


@pytest.mark.slow
async def test_once_does_not_wait_for_ever_for_a_server_that_is_not_there(
    wire: WireServer, spool: Path
) -> None:
    wire.always("whoami", problem(503, "unavailable", retryable=True))
    runner = Runner(url=wire.url, token="t", spool=spool, wait_seconds=0)
    runner.command("coder", ["true"])
    with pytest.raises(Unreachable):
        await runner.serve(once=True)
