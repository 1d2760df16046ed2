"""Any program as an agent: the prompt and the ids by environment, its lines to the run's log, its exit as the outcome.

Takes a run; leaves the program and everything it started ended, whatever happened. On cancel, time-out or a lost claim
its process group is asked to end (SIGTERM) and then killed. If the runner itself is killed, the leash kills the group.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from mainspring.sdk import leash
from mainspring.sdk.errors import Misdeclared
from mainspring.sdk.outcomes import RESULT_LIMIT, Done, Failed, Outcome, Retry
from mainspring.sdk.run import Run

TRY_AGAIN = 75  # EX_TEMPFAIL
TERM_SECONDS = 5.0
PIPES_SECONDS = 2.0  # how long a program's leftovers may hold its output open after it ended
# The kernel takes at most 128 KiB in one variable; a longer prompt stands whole in MAINSPRING_PROMPT_FILE.
VARIABLE_BYTES = 100_000
CUT = "\n[cut: the whole prompt is in the file that MAINSPRING_PROMPT_FILE names]"
_OUTPUT_KEPT = 4 * RESULT_LIMIT


class Command:
    """A handler that runs a program."""

    def __init__(self, argv: tuple[str, ...], *, env: Mapping[str, str], cwd: Path | None) -> None:
        if not argv or not all(isinstance(part, str | os.PathLike) for part in argv):
            raise Misdeclared("a command is a program and its arguments, each a text")
        self._argv = argv
        self._env = env
        self._cwd = cwd

    async def __call__(self, run: Run) -> Outcome:
        """Run it to its end."""
        with tempfile.TemporaryDirectory(prefix="mainspring-run-") as folder:
            prompt = Path(folder) / "prompt"
            prompt.write_text(run.prompt, encoding="utf-8")
            return await self._run(run, self._environment(run, prompt))

    async def _run(self, run: Run, environment: Mapping[str, str]) -> Outcome:
        # Pipes of our own: asyncio's would make the end of the program wait for whoever else holds its output open.
        out, err = await _Tail.of(run), await _Tail.of(run)
        held, leash_end = os.pipe()
        try:
            try:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-I",
                    "-S",
                    leash.__file__,
                    *self._argv,
                    stdin=held,  # its closing is what tells the leash that we are gone
                    stdout=out.writing,
                    stderr=err.writing,
                    env=environment,
                    cwd=self._cwd,
                    start_new_session=True,
                )
            finally:
                for descriptor in (held, out.writing, err.writing):
                    os.close(descriptor)
            code = await _end_of(process)
            await asyncio.wait({out.copying, err.copying}, timeout=PIPES_SECONDS)
        finally:
            os.close(leash_end)
            await out.close()
            await err.close()
        return _outcome(code, out.text(), err.text())

    def _environment(self, run: Run, prompt: Path) -> dict[str, str]:
        # The runner's own token and settings are none of the program's business.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")}
        return {
            **inherited,
            **self._env,
            "MAINSPRING_PROMPT": _fitting(run.prompt),
            "MAINSPRING_PROMPT_FILE": str(prompt),
            "MAINSPRING_RUN_ID": run.id,
            "MAINSPRING_ATTEMPT": str(run.attempt),
            "MAINSPRING_AGENT": run.agent,
            "MAINSPRING_CARD_KEY": run.card_key or "",
            "MAINSPRING_URL": run.client.profile.url,
            "MAINSPRING_TOKEN": run.token,
        }


class _Tail:
    """One stream of the program: copied to the run's log by lines, however long they are; its end is kept."""

    def __init__(
        self, run: Run, stream: asyncio.StreamReader, transport: asyncio.ReadTransport, writing: int
    ) -> None:
        self.writing = writing
        self.copying = asyncio.create_task(self._copy(run))
        self._stream = stream
        self._transport = transport
        self._text = ""

    @classmethod
    async def of(cls, run: Run) -> _Tail:
        """Open a pipe; `writing` is the end for the program."""
        reading, writing = os.pipe()
        stream = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reading, "rb", buffering=0)
        )
        return cls(run, stream, transport, writing)

    def text(self) -> str:
        return self._text.strip()

    async def close(self) -> None:
        self.copying.cancel()
        await asyncio.wait({self.copying})
        self._transport.close()

    async def _copy(self, run: Run) -> None:
        decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        line = ""
        while data := await self._stream.read(64 * 1024):
            text = decode(data)
            self._text = (self._text + text)[-_OUTPUT_KEPT:]
            *lines, line = (line + text).split("\n")
            if len(line) > RESULT_LIMIT:
                lines, line = [*lines, line], ""
            if lines:
                await run.progress("\n".join(lines))
        if line:
            await run.progress(line)


async def _end_of(process: asyncio.subprocess.Process) -> int:
    """Wait for the program's end, then kill what it left behind. When cancelled, ask it to end first."""
    try:
        return await process.wait()
    except asyncio.CancelledError:
        _signal(process.pid, signal.SIGTERM)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), TERM_SECONDS)
        raise
    finally:
        _signal(process.pid, signal.SIGKILL)  # its own background work does not outlive its run
        await process.wait()


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # nobody is left of it
        os.killpg(group, number)


def _outcome(code: int, out: str, err: str) -> Outcome:
    match code:
        case 0:
            return Done(out)
        case 75:
            return Retry(error=err or out or f"exit {TRY_AGAIN}")
        case leash.CANNOT_START:
            return Failed(err or "the program could not be started")
        case _ if code > 128:
            return _failed(f"ended by signal {code - 128}", err or out)
        case _ if code < 0:
            return _failed(f"ended by signal {-code}", err or out)
        case _:
            return _failed(f"exit {code}", err or out)


def _failed(how: str, said: str) -> Failed:
    """Say what went wrong in the first line, where dead letters are told apart by it: the last line is where programs say so."""
    lines = said.strip().splitlines()
    if not lines:
        return Failed(how)
    return Failed("\n".join([f"{lines[-1].strip()} ({how})", *(lines if len(lines) > 1 else [])]))


def _fitting(prompt: str) -> str:
    raw = prompt.encode()
    return prompt if len(raw) <= VARIABLE_BYTES else raw[:VARIABLE_BYTES].decode("utf-8", "ignore") + CUT
