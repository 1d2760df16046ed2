"""How a runner and its handlers are told to stop: once, and whenever it is said."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mainspring.sdk import Run, Runner
from mainspring.sdk import execution as executions
from tests.sdk.conftest import AtWork, no_thread_is_left, seen
from tests.sdk.wire_server import CLAIM_LOST, Says, WireServer, a_run, problem


async def test_a_cancel_that_every_heartbeat_repeats_cancels_the_handler_once(
    runner: Runner, wire: WireServer
) -> None:
    cancelled = []

    @runner.agent("coder")
    async def coder(run: Run) -> str:
        wire.always("heartbeat", Says(body={"cancel": True}))
        before = len(wire.of("heartbeat"))
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append("once")
        try:
            await seen(wire.wait_asked, "heartbeat", before + 5)  # clearing up takes its time
        except asyncio.CancelledError:
            cancelled.append("again")
        return "cleared up"

    wire.offer(a_run())
    async with AtWork(runner):
        await seen(wire.wait_asked, "complete")
    assert cancelled == ["once"]
    assert wire.of("complete")[0].body["result"] == "cleared up"


async def test_a_claim_lost_after_a_cancel_does_not_cancel_again_and_keeps_no_result(
    runner: Runner, wire: WireServer
) -> None:
    cancelled = []
    over = asyncio.Event()

    async def hears_that_it_is_lost() -> None:
        assert runner._shift is not None
        [mine] = runner._shift._executions.values()
        while mine._why != "lost":  # noqa: ASYNC110 - nothing signals what is only written down
            await asyncio.sleep(0)

    @runner.agent("coder")
    async def coder(run: Run) -> str:
        wire.script("heartbeat", Says(body={"cancel": True}), CLAIM_LOST)
        for wait in (asyncio.Event().wait, hears_that_it_is_lost):
            try:
                await wait()
            except asyncio.CancelledError:
                cancelled.append(run.id)
        over.set()
        return "too late"

    wire.offer(a_run())
    async with AtWork(runner):
        await asyncio.wait_for(over.wait(), 20)
    assert len(cancelled) == 1
    assert wire.of("complete") == []


async def test_a_handler_that_swallows_its_cancellation_is_cancelled_again_by_one_timer(
    runner: Runner, wire: WireServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executions, "NUDGE_SECONDS", 0.01)
    swallowed = 0

    @runner.agent("coder")
    async def coder(run: Run) -> str:
        nonlocal swallowed
        wire.script("heartbeat", Says(body={"cancel": True}))
        while swallowed < 5:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed += 1
        await asyncio.Event().wait()
        return "never"

    wire.offer(a_run())
    async with AtWork(runner):
        await seen(wire.wait_asked, "complete")
    assert swallowed == 5
    assert wire.of("complete")[0].body["outcome"] == "cancelled"


# Draining before there is anything to drain ---------------------------------------------------------------------


async def test_a_drain_before_it_serves_is_remembered(runner: Runner, wire: WireServer) -> None:
    runner.command("coder", ["true"])
    wire.offer(a_run())
    runner.drain()
    async with asyncio.timeout(20):
        await runner.serve()
    assert wire.of("claim") == []


async def test_a_drain_while_it_looks_for_the_server_ends_it(runner: Runner, wire: WireServer) -> None:
    wire.always("whoami", problem(503, "unavailable", retryable=True))
    runner.command("coder", ["true"])
    async with AtWork(runner):
        await seen(wire.wait_asked, "whoami")
        runner.drain(grace_seconds=0)
    assert wire.of("claim") == []
    assert no_thread_is_left()


@pytest.mark.parametrize("once", [False, True])
async def test_a_drain_that_comes_with_the_shifts_first_step_claims_nothing(
    runner: Runner, wire: WireServer, once: bool
) -> None:
    runner.command("coder", ["true"])
    wire.offer(a_run())
    serving = asyncio.create_task(runner.serve(once=once))
    while runner._shift is None:  # noqa: ASYNC110 - at the very step, not after a signal
        await asyncio.sleep(0)
    runner.drain()
    async with asyncio.timeout(20):
        await serving
    assert wire.of("heartbeat") == []


async def test_a_runner_that_was_drained_serves_again_when_it_is_asked_to(
    runner: Runner, wire: WireServer, spool: Path
) -> None:
    @runner.agent("coder")
    async def coder(run: Run) -> str:
        return "did it"

    for times in (1, 2):
        wire.offer(a_run())
        async with AtWork(runner):
            await seen(wire.wait_asked, "complete", times)
        assert runner._shift is None
        runner.drain()  # of nothing: the next time is another one
    assert len(wire.of("complete")) == 2


async def test_a_serve_that_is_cancelled_leaves_nothing_behind(runner: Runner, wire: WireServer) -> None:
    runner.command("coder", ["true"])
    serving = asyncio.create_task(runner.serve())
    await seen(wire.wait_asked, "claim")
    serving.cancel()
    await asyncio.wait({serving})
    assert serving.cancelled()
    assert runner._shift is None
    assert no_thread_is_left()
