"""A runner at work: polls for runs while it has free slots, performs them, reads messages, and drains.

Takes the agents of a runner; leaves every run that it claimed completed, or handed back, or (only if it is killed) to
its lease. Results of earlier runners are sent first, beside the work.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import uuid
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any

from mainspring.sdk import protocol
from mainspring.sdk.backoff import delay_seconds
from mainspring.sdk.client import FOR_EVER, Client
from mainspring.sdk.errors import MainspringError, NotAuthorized, Unreachable
from mainspring.sdk.execution import Agent, Execution, deliver
from mainspring.sdk.listening import Listening, first_of
from mainspring.sdk.liveness import (
    Broken,
    CancelAsked,
    DrainAsked,
    Heard,
    Liveness,
    Lost,
    News,
    Overdue,
    TurnedAway,
)
from mainspring.sdk.protocol import Claimed, Identity, Polled
from mainspring.sdk.slots import Slots
from mainspring.sdk.spool import Spool
from mainspring.sdk.turn import Listener

_log = logging.getLogger("mainspring.sdk")

LAST_ANSWER_SECONDS = 2.0  # how long a draining runner keeps asking whether its last poll claimed something
KILL_SECONDS = 10.0  # how long handlers may take to end once they were cancelled
TOO_SOON_SECONDS = 1.0


class Shift:
    """One process's working time on one server. `serve` it once."""

    def __init__(
        self,
        client: Client,
        name: str,
        agents: Sequence[Agent],
        spool: Spool,
        *,
        wait_seconds: int,
        grace_seconds: float,
        patience_seconds: float,
        labels: Sequence[str] = (),
        listeners: Sequence[Listener] = (),
        slots: Slots | None = None,
    ) -> None:
        """`slots` hears how many the agents have on the server."""
        self._client = client
        self._agents = {agent.handle: agent for agent in agents}
        self._spool = spool
        self._slots = slots or Slots(agents)
        self._wait_seconds = wait_seconds
        self._grace_seconds = grace_seconds
        self._patience_seconds = patience_seconds
        capacity = sum(agent.slots for agent in agents)
        self._identity = Identity(name, str(uuid.uuid4()), capacity, tuple(labels))
        self._loop = asyncio.get_running_loop()
        self._liveness = Liveness(lambda: client.profile, self._tell)
        self._executions: dict[str, Execution] = {}
        self._given_up: set[str] = set()  # claims; the server may not know, and give them again
        self._work: set[asyncio.Task[None]] = set()
        self._drain_asked: asyncio.Future[None] = self._loop.create_future()
        self._drain_by: float = FOR_EVER
        self._signalled = False
        self._hurry = asyncio.Event()
        self._listening = [
            Listening(listener, client, self._liveness, self._drain_asked, wait_seconds=wait_seconds)
            for listener in listeners
        ]
        self._fatal: Exception | None = None

    def drain(self, *, grace_seconds: float | None = None) -> None:
        """Claim no more; finish what is held within the grace (None: however long it takes), hand back the rest."""
        if grace_seconds is not None:
            self._drain_by = min(self._drain_by, self._loop.time() + grace_seconds)
        if not self._drain_asked.done():
            _log.info("draining: %d runs in hand", len(self._executions))
            self._drain_asked.set_result(None)
        self._hurry.set()  # whoever waits for the drain's end looks at the new deadline

    def stop_asked(self) -> None:
        """Take a signal to stop: the first drains, the second hands back at once."""
        self.drain(grace_seconds=0 if self._signalled else self._grace_seconds)
        self._signalled = True

    async def serve(self) -> None:
        """Work until drained. Raises what ended it, if something did: a refused token, most often."""
        leftovers = asyncio.create_task(self._send_leftovers(FOR_EVER), name="send leftovers")
        leftovers.add_done_callback(self._ended)
        first_slot = 0
        for agent in self._agents.values():
            slots = range(first_slot, first_slot + agent.slots)
            self._spawn(self._poll(agent, slots), name=f"poll for {agent.handle}")
            first_slot += agent.slots
        self._listen(once=False)
        try:
            await self._attend()
        finally:
            leftovers.cancel()
            await asyncio.wait({leftovers})
        self._say_what_stays()

    async def serve_once(self) -> None:
        """Claim one run of any agent, finish it, and return; return too if there is none within the wait.

        Agents that are always on read what there is within one.
        """
        if self._agents:
            self._spawn(self._once(), name="once")
        self._listen(once=True)
        await self._attend()
        self._say_what_stays()

    def _listen(self, *, once: bool) -> None:
        for listening in self._listening:
            self._spawn(listening.serve(once=once), name="listen for messages")

    def _spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        task.add_done_callback(self._ended)
        return task

    async def _attend(self) -> None:
        """Wait until the work is done, or a drain's deadline ends it; then leave nothing behind."""
        self._liveness.start()
        try:
            await self._until_done()
            for execution in self._executions.values():
                execution.stop("drain")
            for listening in self._listening:
                listening.stop()
            if self._work:
                await asyncio.wait(self._work, timeout=KILL_SECONDS)
        finally:
            if cut := set(self._work):
                for task in cut:
                    task.cancel()
                await asyncio.wait(cut)
            await asyncio.to_thread(self._liveness.stop)
        if self._fatal is not None:
            raise self._fatal
        if not self._agents:
            return  # it has never claimed, and so is no runner to the server
        with contextlib.suppress(MainspringError):
            await protocol.leave(self._client, self._identity)

    async def _until_done(self) -> None:
        """Return when no work is left, or the drain's deadline has come."""
        while self._work and (now := self._loop.time()) < self._drain_by:
            self._hurry.clear()
            looking = asyncio.create_task(self._hurry.wait())
            left = None if self._drain_by == FOR_EVER else self._drain_by - now
            await first_of(looking, *self._work, timeout=left)
            looking.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        if self._fatal is None:
            self._fatal = error if isinstance(error, Exception) else RuntimeError(repr(error))
            _log.error("stopping: %s", error)
        self.drain(grace_seconds=0)

    def _say_what_stays(self) -> None:
        if left := self._spool.waiting():
            _log.warning(
                "%d results stay in %s until the next start sends them", len(left), self._spool.folder
            )

    # Polling -------------------------------------------------------------------------------------------------

    async def _poll(self, agent: Agent, slots: Sequence[int]) -> None:
        """Keep the agent's slots busy until the drain."""
        free = set(slots)
        freed = asyncio.Event()
        too_soon = 0

        def free_again(slot: int, _: asyncio.Task[None]) -> None:
            free.add(slot)
            freed.set()

        while not self._drain_asked.done():
            if not free:
                freed.clear()
                await self._first(freed.wait())
                continue
            asked_at = self._loop.time()
            polled = await self._ask([agent.handle], sorted(free))
            self._slots.heard(polled.slots)
            if polled.drain:
                self.drain()
            if polled.run is not None:
                too_soon = 0
                free.discard(polled.run.slot)
                performing = self._spawn(self._perform(polled.run), name=f"run {polled.run.run_id}")
                performing.add_done_callback(partial(free_again, polled.run.slot))
            elif self._loop.time() - asked_at < TOO_SOON_SECONDS:
                # A server that is closing answers at once: asking it in a circle would keep it busy.
                too_soon += 1
                rest = min(delay_seconds(too_soon, random.random()), TOO_SOON_SECONDS)  # noqa: S311
                await self._first(asyncio.sleep(rest))

    async def _ask(self, agents: Sequence[str], slots: Sequence[int]) -> Polled:
        """Poll once. A drain cuts the poll short, and then hands back what the cut answer may have brought."""
        poll = asyncio.create_task(self._claim(agents, slots, self._wait_seconds, self._patience_seconds))
        try:
            await first_of(poll, self._drain_asked)
            if poll.done():
                return poll.result()
        finally:
            poll.cancel()
            await asyncio.wait({poll})
        with contextlib.suppress(Unreachable):
            last = await self._claim(agents, slots, 0, LAST_ANSWER_SECONDS)
            if last.run is not None:
                await self._execution(last.run).hand_back()
        return Polled(run=None, drain=True)

    async def _claim(
        self, agents: Sequence[str], slots: Sequence[int], wait_seconds: int, patience_seconds: float
    ) -> Polled:
        return await protocol.claim(
            self._client,
            self._identity,
            agents,
            slots,
            wait_seconds=wait_seconds,
            patience_seconds=patience_seconds,
        )

    async def _once(self) -> None:
        await self._send_leftovers(LAST_ANSWER_SECONDS)
        if self._drain_asked.done():
            return
        polled = await self._ask(list(self._agents), [0])
        if polled.run is not None:
            await self._perform(polled.run)

    async def _first(self, thing: Coroutine[Any, Any, object]) -> None:
        """Wait for `thing` or the drain, whichever comes first."""
        task = asyncio.create_task(thing)
        try:
            await first_of(task, self._drain_asked)
        finally:
            task.cancel()

    # Performing ----------------------------------------------------------------------------------------------

    async def _perform(self, claimed: Claimed) -> None:
        execution = self._execution(claimed)
        self._executions[claimed.claim_id] = execution
        try:
            if claimed.claim_id in self._given_up:
                await execution.complete_given_up()
            else:
                await execution.perform()
        finally:
            del self._executions[claimed.claim_id]
        if execution.given_up:
            self._given_up.add(claimed.claim_id)
        else:
            self._given_up.discard(claimed.claim_id)

    def _execution(self, claimed: Claimed) -> Execution:
        return Execution(claimed, self._agents[claimed.agent], self._client, self._liveness, self._spool)

    async def _send_leftovers(self, patience_seconds: float) -> None:
        """Send what earlier runners finished. What is refused or out of reach stays on disk."""
        for spooled in self._spool.waiting():
            _log.info("run %s: sending the result that an earlier runner left", spooled.run_id)
            try:
                await deliver(self._client, self._spool, spooled, patience_seconds=patience_seconds)
            except NotAuthorized as error:
                _log.warning("run %s: its result stays on disk: %s", spooled.run_id, error)
            except Unreachable as error:
                _log.warning("the results of earlier runners stay on disk: %s", error)
                return

    # News of the liveness thread -----------------------------------------------------------------------------

    def _tell(self, claim_id: str | None, news: News) -> None:
        """Take news in the liveness thread and hand it to the loop."""
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody is left to tell
            self._loop.call_soon_threadsafe(self._hear, claim_id, news)

    def _hear(self, claim_id: str | None, news: News) -> None:
        execution = self._executions.get(claim_id) if claim_id is not None else None
        match news:
            case DrainAsked():
                self.drain()
            case Broken(error):
                self._give_up(error)
            case Lost(_, code) | TurnedAway(_, code) if execution is None:
                for listening in self._listening:
                    if listening.claim_id == claim_id:
                        listening.lost(code)
            case CancelAsked() if execution is not None:
                execution.stop("cancel")
            case Lost(reason) if execution is not None:
                _log.warning("run %s: lost: %s", execution.claimed.run_id, reason)
                execution.stop("lost")
            case Overdue() if execution is not None:
                _log.warning("run %s: its time is up and its handler has not ended", execution.claimed.run_id)
                execution.stop("timeout")
            case TurnedAway(reason) if execution is not None:
                _log.warning("run %s: its heartbeat was refused: %s", execution.claimed.run_id, reason)
                execution.stop("refused")
            case Heard(ask) if execution is not None:
                execution.hear(ask)
            case CancelAsked() | Lost() | Overdue() | TurnedAway() | Heard():
                pass  # it ended while the news was on its way
