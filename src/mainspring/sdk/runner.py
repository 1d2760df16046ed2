"""The public face of a runner: which agents it offers, and `run()`."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from mainspring.sdk.client import FOR_EVER, Client
from mainspring.sdk.command import Command
from mainspring.sdk.errors import MainspringError
from mainspring.sdk.execution import Agent, Handler
from mainspring.sdk.introduction import introduced
from mainspring.sdk.shift import Shift
from mainspring.sdk.spool import Spool

TIMEOUT_SECONDS = 3600.0
GRACE_SECONDS = 25.0  # less than the 30 s that most supervisors wait before they kill
NAME_CHARACTERS = 200
WAIT_SECONDS_MAX = 60

H = TypeVar("H", bound=Handler)


class Runner:
    """Runs agents on this machine. It only ever connects outwards, so it works behind any firewall or proxy.

    Address and token: arguments, MAINSPRING_URL and MAINSPRING_TOKEN, the `mainspring dev` that runs in this folder, or the
    login profile.
    `name` is what people see (default: this host and its agents), `spool` the folder for results that wait for the
    server, `wait_seconds` how long one poll waits, `grace_seconds` how long runs may go on after a signal to stop.
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        token: str | None = None,
        name: str | None = None,
        spool: Path | None = None,
        wait_seconds: int = 30,
        grace_seconds: float = GRACE_SECONDS,
    ) -> None:
        self._url = url
        self._token = token
        self._name = name
        self._spool = spool
        self._wait_seconds = wait_seconds
        self._grace_seconds = grace_seconds
        self._agents: dict[str, Agent] = {}
        self._shift: Shift | None = None
        if not 0 <= wait_seconds <= WAIT_SECONDS_MAX:
            raise MainspringError(f"wait_seconds must be between 0 and {WAIT_SECONDS_MAX}")

    def __repr__(self) -> str:
        return f"<Runner {self.name!r} agents {sorted(self._agents)}>"

    @property
    def name(self) -> str:
        """Return the name that people see."""
        return (self._name or f"{socket.gethostname()} ({', '.join(self._agents)})")[:NAME_CHARACTERS]

    def agent(
        self, handle: str, *, slots: int = 1, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> Callable[[H], H]:
        """Let the decorated async function do the runs of agent `handle`, at most `slots` at once.

        What it returns is the result (done); what it raises is why the run failed. After `timeout_seconds` it is
        cancelled and the run fails.
        """

        def decorate(handler: H) -> H:
            _must_be_async(handle, handler)
            self._add(Agent(handle, slots, timeout_seconds, handler))
            return handler

        return decorate

    def command(
        self,
        handle: str,
        argv: Sequence[str],
        *,
        slots: int = 1,
        timeout_seconds: float = TIMEOUT_SECONDS,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        """Let a program do the runs of agent `handle`.

        It finds MAINSPRING_PROMPT, MAINSPRING_PROMPT_FILE, MAINSPRING_RUN_ID, MAINSPRING_CARD_KEY, MAINSPRING_ATTEMPT,
        MAINSPRING_URL and MAINSPRING_TOKEN (the run's own) in its environment. Exit 0 is done, with the end of its
        output as the result; 75 is try again; anything else is failed. Its lines go to the run's log.
        """
        self._add(Agent(handle, slots, timeout_seconds, Command(tuple(argv), env=dict(env or {}), cwd=cwd)))

    def run(self, *, once: bool = False) -> None:
        """Work until SIGTERM or SIGINT, then drain: claim no more, finish what is held, hand back the rest.

        `once`: claim one run, finish it, and return; return too if there is none. Raises NotAuthorized when the token
        is refused, NotConfigured when there is none.
        """
        _log_to_stderr()
        asyncio.run(self._until_signalled(once=once))

    async def serve(self, *, once: bool = False) -> None:
        """Work inside an event loop of your own, without touching signals, until `drain` is called."""
        if not self._agents:
            raise MainspringError(
                "this runner has no agent: add one with @runner.agent(...) or runner.command(...)"
            )
        patience = float(max(self._wait_seconds, 1)) if once else FOR_EVER
        agents = list(self._agents.values())
        async with Client(self._url, self._token, patience_seconds=patience) as found:
            profile = found.profile
            offered = ", ".join(f"{agent.handle} ×{agent.slots}" for agent in agents)
            _log.info("runner %s: %s at %s (from %s)", self.name, offered, profile.url, profile.source)
            async with introduced(found, agents) as client:
                self._shift = Shift(
                    client,
                    self.name,
                    agents,
                    Spool(self._spool) if self._spool else Spool.of(profile.url),
                    wait_seconds=self._wait_seconds,
                    grace_seconds=self._grace_seconds,
                    patience_seconds=patience,
                )
                await (self._shift.serve_once() if once else self._shift.serve())

    def drain(self, *, grace_seconds: float | None = None) -> None:
        """Stop claiming, finish what is held within the grace (None: however long it takes), hand back the rest.

        It is for a runner that serves; before that there is nothing to stop.
        """
        if self._shift is not None:
            self._shift.drain(grace_seconds=grace_seconds)

    def _add(self, agent: Agent) -> None:
        if agent.handle in self._agents:
            raise MainspringError(f"agent {agent.handle!r} is already on this runner")
        if agent.slots < 1 or agent.timeout_seconds <= 0:
            raise MainspringError(f"agent {agent.handle!r}: slots and timeout_seconds must be positive")
        self._agents[agent.handle] = agent

    async def _until_signalled(self, *, once: bool) -> None:
        loop = asyncio.get_running_loop()
        serving = asyncio.create_task(self.serve(once=once), name="serve")

        def stop_asked() -> None:
            if self._shift is None:
                serving.cancel()  # it has not even met the server yet: there is nothing to finish
            else:
                self._shift.stop_asked()

        with contextlib.suppress(
            NotImplementedError
        ):  # where loops take no signals, Ctrl-C ends it without a drain
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, stop_asked)
        await asyncio.wait({serving})
        if not serving.cancelled():
            serving.result()


_log = logging.getLogger("mainspring.sdk")


def _must_be_async(handle: str, handler: object) -> None:
    if not inspect.iscoroutinefunction(handler):
        raise TypeError(
            f"agent {handle!r}: an agent is an async function; wrap blocking code in asyncio.to_thread"
        )


def _log_to_stderr() -> None:
    """Show what happens, unless the program has set up its own logging."""
    if logging.getLogger().handlers or _log.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
