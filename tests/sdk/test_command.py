"""Programs as agents, with real processes."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from mainspring.sdk import Client, Done, Failed, Retry, Run, leash
from mainspring.sdk.asking import Asking, TimeOut
from mainspring.sdk.command import Command
from mainspring.sdk.protocol import Claimed, Trigger
from mainspring.sdk.runlog import RunLog
from tests.sdk.conftest import seen


class Log:
    """Where the lines go, and a way to wait for one."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._arrived = asyncio.Event()

    async def __call__(self, offset: int, lines: Sequence[str]) -> bool:
        self.lines.extend(lines)
        self._arrived.set()
        return True

    async def first(self, wanted: Callable[[str], bool]) -> str:
        """Wait for a line like that."""
        async with asyncio.timeout(20):
            while not (found := [line for line in self.lines if wanted(line)]):
                self._arrived.clear()
                await self._arrived.wait()
        return found[0]

    async def child(self) -> int:
        """Wait for `child <pid>`."""
        return int((await self.first(lambda line: line.startswith("child "))).split()[1])


class Doing:
    """One run of a program."""

    def __init__(
        self,
        script: str = "",
        *,
        argv: tuple[str, ...] = (),
        prompt: str = "do it",
        env: dict[str, str] | None = None,
    ) -> None:
        self.log = Log()
        lines = RunLog(self.log)
        self._sending = asyncio.create_task(lines.run())
        claimed = Claimed(
            run_id="run-1",
            claim_id="claim-1",
            slot=0,
            agent="coder",
            attempt=2,
            max_attempts=3,
            prompt=prompt,
            trigger=Trigger(None, None, "", None, {}),
            event=None,
            card={"key": "OPS-12"},
            token="ms_run_secret",
            lease_seconds=60,
            heartbeat_seconds=20,
        )
        client = Client("http://mainspring.test", claimed.token)
        clock = TimeOut(60, self.task_is_not_timed, lambda seconds: None)
        asking = Asking(claimed, client, clock, listen=lambda ask: None, lose=self.task_is_not_timed)
        run = Run(claimed, client, lines, asking)
        command = Command(argv or ("/bin/sh", "-c", script), env=env or {}, cwd=None)
        self.task = asyncio.create_task(command(run))

    def task_is_not_timed(self) -> None:
        """Nothing here has a time-out, or a claim to lose."""

    async def cancel(self) -> None:
        """Cancel it and wait for its end."""
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task
        assert self.task.cancelled()


def is_running(pid: int) -> bool:
    """Whether the process does anything any more; a zombie that nobody has collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_gone(pid: int) -> None:
    """Block until the process has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ready, _, _ = select.select([descriptor], [], [], 20)
    os.close(descriptor)
    assert ready, f"process {pid} goes on"


async def test_exit_0_is_done_and_its_output_the_result() -> None:
    assert await Doing("echo one; echo two >&2; echo three").task == Done("one\nthree")


async def test_exit_75_is_try_again() -> None:
    assert await Doing("echo not yet >&2; exit 75").task == Retry(error="not yet")


async def test_any_other_exit_is_failed_with_what_it_said() -> None:
    assert await Doing("echo out; echo why >&2; exit 3").task == Failed("why (exit 3)")
    assert await Doing("echo Traceback >&2; echo why >&2; exit 3").task == Failed(
        "why (exit 3)\nTraceback\nwhy"
    )
    assert await Doing("exit 3").task == Failed("exit 3")


async def test_a_signal_is_failed() -> None:
    assert await Doing("kill -KILL $$").task == Failed("ended by signal 9")


async def test_a_program_that_is_not_there_is_failed_with_its_name() -> None:
    outcome = await Doing(argv=("/no/such/program",)).task
    assert outcome == Failed("cannot start /no/such/program: No such file or directory")


async def test_prompt_and_ids_are_in_its_environment_and_the_runners_secrets_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MAINSPRING_TOKEN", "ms_runner_secret")
    monkeypatch.setenv("MAINSPRING_DATABASE_URL", "postgresql://secret")
    dump = f'{sys.executable} -c "import json, os; print(json.dumps(dict(os.environ)))"'
    outcome = await Doing(dump, env={"MINE": "too"}).task
    assert isinstance(outcome, Done)
    environ = json.loads(outcome.result)
    assert {name: value for name, value in environ.items() if name.startswith("MAINSPRING_")} == {
        "MAINSPRING_AGENT": "coder",
        "MAINSPRING_ATTEMPT": "2",
        "MAINSPRING_CARD_KEY": "OPS-12",
        "MAINSPRING_PROMPT": "do it",
        "MAINSPRING_PROMPT_FILE": environ["MAINSPRING_PROMPT_FILE"],
        "MAINSPRING_RUN_ID": "run-1",
        "MAINSPRING_TOKEN": "ms_run_secret",
        "MAINSPRING_URL": "http://mainspring.test",
    }
    assert environ["MINE"] == "too"
    assert not Path(environ["MAINSPRING_PROMPT_FILE"]).exists()


async def test_a_prompt_longer_than_a_variable_can_be_is_whole_in_its_file() -> None:
    script = 'wc -c < "$MAINSPRING_PROMPT_FILE"; printenv MAINSPRING_PROMPT | tail -n 1'
    outcome = await Doing(script, prompt="é" * 130_000).task
    assert isinstance(outcome, Done)
    size, said = outcome.result.splitlines()
    assert int(size) == 260_000
    assert said.startswith("[cut")


async def test_lines_of_both_streams_reach_the_log_while_it_works() -> None:
    doing = Doing("echo begun; echo odd >&2; exec sleep 600")
    await doing.log.first(lambda line: line == "begun")
    await doing.log.first(lambda line: line == "odd")
    assert not doing.task.done()
    await doing.cancel()


async def test_a_line_without_end_and_bytes_that_are_no_text_do_no_harm() -> None:
    doing = Doing(r"head -c 300000 /dev/zero | tr '\0' x; printf '\n\377\n'")
    assert isinstance(await doing.task, Done)
    await doing.log.first(lambda line: line == "\ufffd")


async def test_a_cancel_ends_the_whole_group() -> None:
    doing = Doing("sleep 600 & echo child $!; wait")
    child = await doing.log.child()
    await doing.cancel()
    await seen(wait_gone, child)


async def test_a_program_may_tidy_up_when_it_is_told_to_end(tmp_path: Path) -> None:
    doing = Doing(f"trap 'touch {tmp_path}/tidied; exit 1' TERM; echo child $$; while :; do sleep 0.05; done")
    await doing.log.child()
    await doing.cancel()
    assert (tmp_path / "tidied").exists()


async def test_what_it_left_in_the_background_does_not_outlive_it() -> None:
    doing = Doing("sleep 600 >/dev/null 2>&1 & echo child $!")
    assert isinstance(await doing.task, Done)
    await seen(wait_gone, await doing.log.child())


async def test_a_background_process_that_holds_its_output_open_does_not_hold_up_the_run() -> None:
    doing = Doing("sleep 600 & echo child $!")
    assert isinstance(await doing.task, Done)
    await seen(wait_gone, await doing.log.child())


async def test_no_descriptor_is_left_open() -> None:
    await Doing("true").task
    before = sorted(os.listdir("/proc/self/fd"))
    for script in ("echo a", "exit 3"):
        await Doing(script).task
    await Doing(argv=("/no/such/program",)).task
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_the_leash_kills_the_group_when_its_holder_dies() -> None:
    held = subprocess.Popen(
        [sys.executable, "-I", "-S", leash.__file__, "/bin/sh", "-c", "sleep 600 & echo $!; wait"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert held.stdin is not None
    assert held.stdout is not None
    child = int(held.stdout.readline())
    assert is_running(child)
    held.stdin.close()  # what the kernel does when a runner is killed
    assert held.wait(timeout=20) == -signal.SIGKILL
    wait_gone(child)
    held.stdout.close()
