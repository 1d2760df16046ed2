"""The public face of a runner: which agents it offers, and `run()`."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import re
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from mainspring.sdk.client import FOR_EVER, Client
from mainspring.sdk.command import Command
from mainspring.sdk.errors import Misdeclared
from mainspring.sdk.execution import Agent, Handler
from mainspring.sdk.introduction import Named, introduced
from mainspring.sdk.shift import Shift
from mainspring.sdk.slots import Slots
from mainspring.sdk.spool import Spool
from mainspring.sdk.turn import Listener, MessageHandler

TIMEOUT_SECONDS = 3600.0
READING_SECONDS = 600.0
GRACE_SECONDS = 25.0  # less than the 30 s that most supervisors wait before they kill
NAME_CHARACTERS = 200
WAIT_SECONDS_MAX = 60
SLOTS_MAX = 1_000
LABELS_MAX = 100
LABEL_CHARACTERS = 64
_HANDLE = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")

H = TypeVar("H", bound=Handler)
M = TypeVar("M", bound=MessageHandler)


class Runner:
    """Runs agents on this machine. It only ever connects outwards, so it works behind any firewall or proxy.

    Address and token: arguments, MAINSPRING_URL and MAINSPRING_TOKEN, the `mainspring dev` that runs in this folder, or the
    login profile.
    `name` is what people see (default: this host and its agents), `spool` the folder for results that wait for the
    server, `wait_seconds` how long one poll waits, `grace_seconds` how long runs may go on after a signal to stop,
    `labels` what this machine has: a rule's launch may ask for a runner that has them.
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
        labels: Sequence[str] = (),
    ) -> None:
        self._url = url
        self._token = token
        self._name = name
        self._spool = spool
        self._wait_seconds = wait_seconds
        self._grace_seconds = grace_seconds
        self._labels = _checked_labels(labels)
        self._agents: dict[str, Agent] = {}
        self._listeners: dict[str, Listener] = {}
        self._serving: asyncio.Task[None] | None = None
        self._shift: Shift | None = None
        self._has_served = False
        self._drained_before = False
        if not 0 <= wait_seconds <= WAIT_SECONDS_MAX:
            raise Misdeclared(f"wait_seconds must be between 0 and {WAIT_SECONDS_MAX}")
        if not grace_seconds >= 0:
            raise Misdeclared("grace_seconds must not be negative")

    def __repr__(self) -> str:
        return f"<Runner {self.name!r} agents {sorted({*self._agents, *self._listeners})}>"

    @property
    def name(self) -> str:
        """Return the name that people see."""
        return (self._name or f"{socket.gethostname()} ({', '.join({**self._agents, **self._listeners})})")[
            :NAME_CHARACTERS
        ]

    def agent(
        self, handle: str, *, slots: int = 1, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> Callable[[H], H]:
        """Let the decorated async function do the runs of agent `handle`, at most `slots` at once.

        An object whose `__call__` is async will do too. What it returns is the result (done); what it raises is why the run
        failed. After `timeout_seconds` it is cancelled and the run fails. Raises Misdeclared.
        """

        def decorate(handler: H) -> H:
            _check_handler(handle, handler, "the run alone")
            self._add(handle, slots, timeout_seconds, handler)
            return handler

        return decorate

    def on_message(self, handle: str, *, timeout_seconds: float = READING_SECONDS) -> Callable[[M], M]:
        """Let the decorated async function read the messages of agent `handle`: one after the other, as `handler(message, reply)`.

        The agent is always on while this runner is: it has one session, and of two runners that listen for it one reads and the
        other stands by. A message is acked when the handler has returned; when it raises, or takes longer than `timeout_seconds`,
        the message is refused with the error and comes again later, until it lies on the desk. What it posts by `reply` is held
        from other agents until it returns, and posted once however often the message comes. Raises Misdeclared.
        """

        def decorate(handler: M) -> M:
            _check_handler(handle, handler, "the message and the reply", 2)
            folded = self._checked(handle, timeout_seconds)
            if folded in self._listeners:
                raise Misdeclared(f"agent {folded!r} is already listened for on this runner")
            self._listeners[folded] = Listener(folded, timeout_seconds, handler)
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
        output as the result; 75 is try again; anything else is failed. Its lines go to the run's log. Raises Misdeclared.
        """
        if isinstance(argv, str):
            raise Misdeclared(f"agent {handle!r}: name the program and its arguments one by one, in a list")
        self._add(handle, slots, timeout_seconds, Command(tuple(argv), env=dict(env or {}), cwd=cwd))

    def run(self, *, once: bool = False) -> None:
        """Work until SIGTERM or SIGINT, then drain: claim no more, finish what is held, hand back the rest.

        `once`: claim one run, finish it, and return; return too if there is none. Raises NotAuthorized when the token
        is refused, NotConfigured when there is none.
        """
        _log_to_stderr()
        asyncio.run(self._until_signalled(once=once))

    async def serve(self, *, once: bool = False) -> None:
        """Work inside an event loop of your own, without touching signals, until `drain` is called.

        Raises Misdeclared when there is no agent, or it serves already.
        """
        if not self._agents and not self._listeners:
            raise Misdeclared(
                "this runner has no agent: add one with @runner.agent(...), @runner.on_message(...) or runner.command(...)"
            )
        if self._serving is not None:
            raise Misdeclared("this runner serves already")
        drained, self._drained_before = self._drained_before, False
        if drained:
            return
        serving = self._serving = asyncio.create_task(self._serve(once=once), name="serve")
        try:
            await asyncio.wait({serving})
        finally:
            serving.cancel()  # of use only if we ourselves are being cancelled
            await asyncio.wait({serving})
            self._serving, self._shift, self._has_served = None, None, True
        if not serving.cancelled():
            serving.result()

    async def _serve(self, *, once: bool) -> None:
        patience = float(max(self._wait_seconds, 1)) if once else FOR_EVER
        agents = list(self._agents.values())
        async with Client(self._url, self._token, patience_seconds=patience) as found:
            profile = found.profile
            listeners = list(self._listeners.values())
            offered = ", ".join(
                [
                    *(f"{agent.handle} ×{agent.slots}" for agent in agents),
                    *(f"{listener.handle} listens" for listener in listeners),
                ]
            )
            _log.info("runner %s: %s at %s (from %s)", self.name, offered, profile.url, profile.source)
            slots = Slots([] if once else agents)  # a runner that does one run has use for one slot
            named: list[Named] = [*agents, *(one for one in listeners if one.handle not in self._agents)]
            async with introduced(found, named, slots=slots) as client:
                self._shift = Shift(
                    client,
                    self.name,
                    agents,
                    Spool(self._spool) if self._spool else Spool.of(profile.url),
                    wait_seconds=self._wait_seconds,
                    grace_seconds=self._grace_seconds,
                    patience_seconds=patience,
                    labels=self._labels,
                    listeners=listeners,
                    slots=slots,
                )
                await (self._shift.serve_once() if once else self._shift.serve())

    def drain(self, *, grace_seconds: float | None = None) -> None:
        """Stop claiming, finish what is held within the grace (None: however long it takes), hand back the rest.

        A runner that has not met the server yet stops looking for it; one that was never asked to serve returns at once
        when it is. After its end there is nothing to stop.
        """
        if self._shift is not None:
            self._shift.drain(grace_seconds=grace_seconds)
        elif self._serving is not None:
            self._serving.cancel()
        else:
            self._drained_before = not self._has_served

    def _add(self, handle: str, slots: int, timeout_seconds: float, handler: Handler) -> None:
        folded = self._checked(handle, timeout_seconds)
        if folded in self._agents:
            raise Misdeclared(f"agent {folded!r} is already on this runner")
        if not isinstance(slots, int) or not 1 <= slots <= SLOTS_MAX:
            raise Misdeclared(f"agent {folded!r}: slots must be a number from 1 to {SLOTS_MAX}")
        self._agents[folded] = Agent(folded, slots, timeout_seconds, handler)

    @staticmethod
    def _checked(handle: str, timeout_seconds: float) -> str:
        """Return the handle as the server has it. Raises Misdeclared."""
        folded = handle.strip().lower() if isinstance(handle, str) else ""  # as the server has it
        if _HANDLE.fullmatch(folded) is None:
            raise Misdeclared(
                f"{handle!r} is no agent's handle: up to 64 letters, digits, _ and -, not beginning with _ or -"
            )
        if not timeout_seconds > 0:
            raise Misdeclared(f"agent {folded!r}: timeout_seconds must be positive")
        return folded

    async def _until_signalled(self, *, once: bool) -> None:
        loop = asyncio.get_running_loop()
        serving = asyncio.create_task(self.serve(once=once), name="serve")

        def stop_asked() -> None:
            if self._shift is None:
                self.drain()  # it has not even met the server yet: there is nothing to finish
            else:
                self._shift.stop_asked()

        with contextlib.suppress(
            NotImplementedError
        ):  # where loops take no signals, Ctrl-C ends it without a drain
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, stop_asked)
        await serving


_log = logging.getLogger("mainspring.sdk")


def _checked_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """Return the labels once each; the server folds their case. Raises Misdeclared."""
    if isinstance(labels, str):
        raise Misdeclared("labels: name them one by one, in a list")
    stripped = [label.strip() for label in labels]
    if len(stripped) > LABELS_MAX or not all(0 < len(label) <= LABEL_CHARACTERS for label in stripped):
        raise Misdeclared(f"labels: at most {LABELS_MAX}, each of 1 to {LABEL_CHARACTERS} characters")
    return tuple(dict.fromkeys(stripped))


def _check_handler(handle: str, handler: object, given: str, arguments: int = 1) -> None:
    """Refuse what would only be found out by the first run. Raises Misdeclared."""
    if not _is_async(handler):
        raise Misdeclared(
            f"agent {handle!r}: an agent is an async function, or an object whose __call__ is one; wrap blocking code in "
            "asyncio.to_thread"
        )
    assert callable(handler)
    try:
        inspect.signature(handler).bind(*[object()] * arguments)
    except TypeError as error:
        raise Misdeclared(f"agent {handle!r}: it is called with {given}: {error}") from error


def _is_async(handler: object) -> bool:
    while isinstance(handler, partial):
        handler = handler.func
    if isinstance(handler, type):  # calling it would make an instance
        return False
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - whether it is async is asked, not whether it is there
    )


def _log_to_stderr() -> None:
    """Show what happens, unless the program has set up its own logging."""
    if logging.getLogger().handlers or _log.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
