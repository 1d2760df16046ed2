"""Agents as a program declares them: what cannot work is refused at once, by one error, and not by the first run."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from mainspring import sdk
from mainspring.sdk import Client, MainspringError, Message, Misdeclared, NotFound, Reply, Run, Runner
from mainspring.sdk.card import get_card
from tests.sdk.conftest import AtWork, seen
from tests.sdk.wire_server import Says, WireServer, a_run


async def works(run: Run) -> str:
    return "did it"


async def of_three(prefix: str, run: Run, *, suffix: str) -> str:
    return f"{prefix} {run.prompt} {suffix}"


class Object:
    """A handler with a state of its own."""

    def __init__(self, said: str) -> None:
        self.said = said

    async def __call__(self, run: Run) -> str:
        return self.said

    async def method(self, run: Run) -> str:
        return f"{self.said} by a method"


def blocks(run: Run) -> str:
    return "no"


async def generates(run: Run) -> Any:
    yield "no"


async def takes_nothing() -> str:
    return "no"


async def takes_two(run: Run, other: str) -> str:
    return "no"


@pytest.mark.parametrize("handler", [blocks, generates, takes_nothing, takes_two, Object, object(), None])
def test_a_handler_that_no_run_could_be_given_to_is_refused(runner: Runner, handler: Any) -> None:
    with pytest.raises(Misdeclared, match="coder"):
        runner.agent("coder")(handler)


@pytest.mark.parametrize(
    ("handler", "result"),
    [
        (works, "did it"),
        (Object("an object"), "an object"),
        (Object("an object").method, "an object by a method"),
        (partial(of_three, "a", suffix="b"), "a do it b"),
        (partial(Object("bound")), "bound"),
    ],
)
async def test_whatever_is_async_when_it_is_called_does_the_work(
    runner: Runner, wire: WireServer, handler: Any, result: str
) -> None:
    assert runner.agent("coder")(handler) is handler
    wire.offer(a_run())
    async with AtWork(runner):
        await seen(wire.wait_asked, "complete")
    assert wire.of("complete")[0].body["result"] == result


@pytest.mark.parametrize(
    "declared",
    [
        {"slots": 0},
        {"slots": 1_001},
        {"slots": 1.5},
        {"timeout_seconds": 0},
        {"timeout_seconds": float("nan")},
        {"handle": ""},
        {"handle": "-x"},
        {"handle": "a b"},
        {"handle": "x" * 65},
        {"handle": None},
    ],
)
def test_an_agent_that_the_server_would_refuse_is_refused_by_the_same_error(
    runner: Runner, declared: dict[str, Any]
) -> None:
    handle = declared.pop("handle", "coder")
    with pytest.raises(Misdeclared):
        runner.agent(handle, **declared)(works)
    with pytest.raises(Misdeclared):
        runner.command(handle, ["true"], **declared)


@pytest.mark.parametrize("argv", [[], "echo hello", [1]])
def test_a_command_is_a_list_of_texts(runner: Runner, argv: Any) -> None:
    with pytest.raises(Misdeclared):
        runner.command("coder", argv)


async def test_a_runner_without_an_agent_and_one_that_serves_already_are_refused(
    runner: Runner, wire: WireServer
) -> None:
    with pytest.raises(Misdeclared, match="no agent"):
        await runner.serve()
    runner.agent("coder")(works)
    async with AtWork(runner):
        await seen(wire.wait_asked, "claim")
        with pytest.raises(Misdeclared, match="already"):
            await runner.serve()


async def test_case_and_outer_space_of_a_handle_are_the_servers(runner: Runner, wire: WireServer) -> None:
    runner.agent(" Coder ")(works)
    with pytest.raises(Misdeclared, match="already"):
        runner.agent("CODER")(works)
    wire.offer(a_run("coder"))
    async with AtWork(runner):
        await seen(wire.wait_asked, "complete")
    assert wire.of("claim")[0].body["agents"] == ["coder"]


def test_everything_misdeclared_is_one_kind_of_our_errors() -> None:
    assert issubclass(Misdeclared, MainspringError)
    assert not issubclass(Misdeclared, TypeError | ValueError)


@pytest.mark.parametrize(
    ("ref", "path"),
    [
        ("OPS-12", "/cards/OPS-12"),
        ("../tokens", "/cards/..%2Ftokens"),
        ("a/b?c#d", "/cards/a%2Fb%3Fc%23d"),
        ("é \udc80", "/cards/%C3%A9%20%3F"),
    ],
)
async def test_a_reference_is_one_segment_of_the_path_whatever_it_says(
    wire: WireServer, ref: str, path: str
) -> None:
    wire.always(path.removeprefix("/cards/"), Says(404, {"code": "not_found"}))
    async with Client(wire.url, "t", patience_seconds=0) as client:
        with pytest.raises(NotFound):
            await get_card(client, ref)
    assert [asked.path for asked in wire.asked] == [path]


@pytest.mark.parametrize("ref", ["", ".", ".."])
async def test_a_reference_that_would_name_another_path_names_nothing(wire: WireServer, ref: str) -> None:
    async with Client(wire.url, "t", patience_seconds=0) as client:
        with pytest.raises(NotFound):
            await get_card(client, ref)
    assert wire.asked == []


def test_dir_tells_what_the_package_offers_before_it_was_used() -> None:
    assert set(sdk.__all__) <= set(dir(sdk))
    assert sorted(sdk._MODULES) == sorted(sdk.__all__)


async def reads(message: Message, reply: Reply) -> None:
    await reply(message.text)


@pytest.mark.parametrize("handler", [works, blocks, takes_nothing, Object("x"), object(), None])
def test_a_handler_that_no_message_could_be_given_to_is_refused(runner: Runner, handler: Any) -> None:
    with pytest.raises(Misdeclared, match="helper"):
        runner.on_message("helper")(handler)


def test_an_agent_may_do_runs_and_read_messages_but_is_listened_for_once(runner: Runner) -> None:
    runner.agent("helper")(works)
    assert runner.on_message(" Helper ")(reads) is reads
    with pytest.raises(Misdeclared, match="already listened for"):
        runner.on_message("helper")(reads)
    with pytest.raises(Misdeclared, match="timeout_seconds"):
        runner.on_message("other", timeout_seconds=0)(reads)
