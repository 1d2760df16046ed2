"""One claimed run, from its first heartbeat to the complete that the server took.

Takes a claimed run and the agent's handler; leaves exactly one complete for this claim, in the spool before it is sent.
If the runner dies before the spool has it, the lease runs out and the run gets another attempt; if it dies after, the
next runner sends it. A lost claim leaves nothing: what the handler made is another attempt's to make.

Lost is what the server says is lost, and nothing else. A claim that ends here while the server still counts it as held would be
given to this slot again, and its handler begin again, under the same attempt for ever: so whatever ends here is completed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeAlias, assert_never

from mainspring.sdk import protocol
from mainspring.sdk.asking import Asking, TimeOut
from mainspring.sdk.client import FOR_EVER, Client
from mainspring.sdk.errors import ClaimLost, NotAuthorized, NotFound, Refused
from mainspring.sdk.liveness import Liveness
from mainspring.sdk.outcomes import (
    Blocked,
    Cancelled,
    Done,
    Failed,
    HandedBack,
    NeedsInput,
    Outcome,
    Retry,
    sound,
    to_wire,
)
from mainspring.sdk.protocol import AskNow, Claimed
from mainspring.sdk.run import Run
from mainspring.sdk.runlog import RunLog
from mainspring.sdk.spool import Spool, Spooled

_log = logging.getLogger("mainspring.sdk")

LOG_FLUSH_SECONDS = 5.0
NUDGE_SECONDS = 10.0  # a handler that swallowed its cancellation is cancelled again this often
UNRESPONSIVE_SECONDS = 30.0  # past its time-out by this much, a handler keeps its run from others no longer
GIVEN_AGAIN_SECONDS = 1.0  # before a claim that was given up is completed: a server that gives it at once again is not asked in a circle

Handler: TypeAlias = Callable[[Run], Awaitable[str | Outcome | None]]
Why: TypeAlias = Literal["cancel", "lost", "refused", "timeout", "drain"]


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent of a runner: how many of its runs at once, for how long each, and what does the work."""

    handle: str
    slots: int
    timeout_seconds: float
    handler: Handler = field(repr=False)


@dataclass(frozen=True, slots=True)
class Raised:
    """The handler raised this."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Returned:
    """The handler returned this."""

    value: object


Ending: TypeAlias = Raised | Returned


def judge(
    why: Why | None, decided: Outcome | None, ending: Ending, timeout_seconds: float
) -> Outcome | HandedBack | None:
    """Return the outcome of a handler that ended so after being stopped for `why` (None: it was not), or None if lost.

    A result that was there before the stop took hold is a result: it counts, except for a claim that is lost.
    """
    if why == "lost":
        return None
    if decided is not None:
        return sound(decided)
    match ending:
        case Returned(str() as result):
            return Done(result)
        case Returned(None):
            return Done()
        case Returned(Done() | Failed() | Blocked() | NeedsInput() | Retry() | Cancelled() as outcome):
            return sound(outcome)
        case Returned(value):
            return Failed(f"the handler returned {type(value).__name__}; a result is text")
        case Raised(error):
            return _raised(why, error, timeout_seconds)
        case _:
            assert_never(ending)


def _raised(why: Why | None, error: BaseException, timeout_seconds: float) -> Outcome | HandedBack:
    said = "".join(traceback.format_exception(error))
    match why:
        case "cancel":
            return Cancelled()
        case "refused":
            return Retry(f"the server refused the run's heartbeats\n{said}")
        case "timeout":
            return Failed(f"timed out after {timeout_seconds:g} s\n{said}")
        case "drain":
            return HandedBack()
        case None if isinstance(error, asyncio.CancelledError):
            return Failed(f"the handler cancelled itself\n{said}")
        case None if isinstance(error, SystemExit):
            return Failed(f"the handler left by sys.exit({error.code!r})")
        case _:
            return Failed(said)


class Execution:
    """One claimed run being worked on. `stop` may be called at any time, from the loop's thread."""

    def __init__(
        self, claimed: Claimed, agent: Agent, client: Client, liveness: Liveness, spool: Spool
    ) -> None:
        self.claimed = claimed
        self._agent = agent
        self._client = client
        self._liveness = liveness
        self._spool = spool
        self._why: Why | None = None
        self._handling: asyncio.Task[Ending] | None = None
        self._nudging: asyncio.TimerHandle | None = None
        self._asking: Asking | None = None
        self.given_up = False  # ended here, and no complete of it was taken

    def stop(self, why: Why) -> None:
        """Ask the handler to end. The first reason stays, except that a lost claim overrides every other.

        It is cancelled once, whatever is said again: it may be in the middle of clearing up.
        """
        first = self._why is None
        if first or why == "lost":
            self._why = why
        if first:
            self._nudge()

    def hear(self, ask: AskNow) -> None:
        """Take the end of a question that the handler waits for."""
        if self._asking is not None:
            self._asking.hear(ask)

    def _nudge(self) -> None:
        if self._handling is not None and not self._handling.done():
            self._handling.cancel()
            self._nudging = asyncio.get_running_loop().call_later(NUDGE_SECONDS, self._nudge)

    async def perform(self) -> None:
        """Do it all. Raises NotAuthorized when the token is refused."""
        claimed = self.claimed
        if (kept := self._spool.get(claimed.run_id, claimed.claim_id)) is not None:
            # finished before: only the answer to its complete was lost
            self.given_up = not await deliver(self._client, self._spool, kept)
            return
        try:
            if (await protocol.heartbeat(self._client, claimed)).cancel:
                self.stop("cancel")
        except (ClaimLost, NotFound) as gone:
            _log.info("run %s: not ours any more: %s", claimed.run_id, gone)
            self.given_up = True
            return
        self._keep(self._agent.timeout_seconds)
        try:
            await self._work()
        finally:
            self._liveness.release(claimed.claim_id)

    async def hand_back(self) -> None:
        """Give the run back untouched."""
        await self._finish(HandedBack())

    async def complete_given_up(self) -> None:
        """End a claim that this runner has given up and is given again: what was made is gone, and the next attempt begins anew."""
        await asyncio.sleep(GIVEN_AGAIN_SECONDS)
        await self._finish(Retry("its runner had given this attempt up"))

    async def _work(self) -> None:
        claimed = self.claimed
        log = RunLog(partial(protocol.log, self._client, claimed))
        sending = asyncio.create_task(log.run(), name=f"log of {claimed.run_id}")
        try:
            acting = self._client.acting_as(claimed.token, patience_seconds=FOR_EVER)
            clock = TimeOut(self._agent.timeout_seconds, partial(self.stop, "timeout"), self._keep)
            self._asking = Asking(
                claimed,
                self._client,
                clock,
                listen=partial(self._liveness.listen, claimed.claim_id),
                lose=self._lose,
            )
            run = Run(claimed, acting, log, self._asking)
            outcome: Outcome | HandedBack | None = None
            try:
                outcome = await self._handle(run, clock)
            finally:
                await run.close(outcome)
            if outcome is None:
                _log.warning("run %s: lost, what it made is discarded", claimed.run_id)
                self.given_up = True
                return
            if isinstance(outcome, Failed):
                log.write(outcome.error)
            self._liveness.hold(
                claimed
            )  # no time-out any more: the run is ours until the server has the result
            await self._finish(outcome, log)
        finally:
            sending.cancel()
            await asyncio.wait({sending})

    def _lose(self) -> None:
        self._liveness.release(self.claimed.claim_id)  # a late beat would make it ours again
        self.stop("lost")

    def _keep(self, for_seconds: float) -> None:
        self._liveness.hold(self.claimed, for_seconds=for_seconds + UNRESPONSIVE_SECONDS)

    async def _handle(self, run: Run, clock: TimeOut) -> Outcome | HandedBack | None:
        agent = self._agent
        if self._why is not None:  # asked to stop before it began
            return judge(self._why, None, Raised(asyncio.CancelledError()), agent.timeout_seconds)
        _log.info("run %s: %s begins, attempt %d", run.id, agent.handle, run.attempt)
        self._handling = asyncio.create_task(
            guarded(partial(agent.handler, run)), name=f"{agent.handle} {run.id}"
        )
        clock.start()
        try:
            await asyncio.wait({self._handling})
        finally:
            clock.cancel()
            if self._nudging is not None:
                self._nudging.cancel()
            self._handling.cancel()  # of use only if we ourselves are being cancelled
        ending = (
            self._handling.result() if not self._handling.cancelled() else Raised(asyncio.CancelledError())
        )
        outcome = judge(self._why, run.decided, ending, agent.timeout_seconds)
        _log.info("run %s: %s", run.id, _said(outcome))
        return outcome

    async def _finish(self, outcome: Outcome | HandedBack, log: RunLog | None = None) -> None:
        claimed = self.claimed
        spooled = Spooled(claimed.run_id, claimed.claim_id, to_wire(outcome))
        try:
            await asyncio.to_thread(self._spool.put, spooled)
        except (
            OSError,
            TypeError,
            ValueError,
        ) as error:  # a full disk must not keep a result from a server that is there
            _log.error(
                "run %s: its result is not on disk and would be lost with this process: %s",
                claimed.run_id,
                error,
            )
        if log is not None:
            try:
                await asyncio.wait_for(log.flush(), LOG_FLUSH_SECONDS)
            except TimeoutError:
                _log.warning("run %s: the end of its log could not be sent", claimed.run_id)
        self.given_up = not await deliver(self._client, self._spool, spooled)


def _said(outcome: Outcome | HandedBack | None) -> str:
    match outcome:
        case None:
            return "lost"
        case HandedBack():
            return "handed back"
        case NeedsInput(question):
            return f"needs input: {question}"
        case Failed(error) | Retry(error=error):
            return f"{type(outcome).__name__.lower()}: {error.partition(chr(10))[0]}"
        case _:
            return type(outcome).__name__.lower()


async def deliver(
    client: Client, spool: Spool, spooled: Spooled, *, patience_seconds: float = FOR_EVER
) -> bool:
    """Send a complete until it is taken or superseded, then forget it. Raises Unreachable, NotAuthorized: it stays.

    One that is refused for good is set aside, and the run fails instead: it must not be held by nobody. False: nothing was taken.
    """
    run_id, claim_id = spooled.run_id, spooled.claim_id
    refused = await _sent(client, spool, spooled, patience_seconds)
    if refused is None:
        return True
    where = spool.refuse(run_id, claim_id, refused)
    _log.error("run %s: its result was refused: %s; kept in %s", run_id, refused, where)
    instead = Spooled(run_id, claim_id, to_wire(Failed(f"its result was refused: {refused}")))
    with contextlib.suppress(OSError):
        await asyncio.to_thread(spool.put, instead)
    if (again := await _sent(client, spool, instead, patience_seconds)) is None:
        return True
    spool.remove(run_id, claim_id)
    _log.error("run %s: that it failed was refused, too: %s", run_id, again)
    return False


async def _sent(client: Client, spool: Spool, spooled: Spooled, patience_seconds: float) -> str | None:
    """Send a complete until it is answered, and forget it; return why it can never be taken, if so, and leave it."""
    run_id, claim_id = spooled.run_id, spooled.claim_id
    try:
        await protocol.complete(client, run_id, claim_id, spooled.body, patience_seconds=patience_seconds)
    except ClaimLost as lost:
        _log.warning("run %s: its result was superseded: %s", run_id, lost)
    except NotAuthorized:
        raise
    except NotFound:
        _log.warning("run %s: no such run for this token; its result stays in %s", run_id, spool.folder)
        return None
    except Refused as refused:
        return str(refused)
    except (TypeError, ValueError) as unsayable:  # no JSON can be made of it
        return f"it cannot be sent: {unsayable}"
    spool.remove(run_id, claim_id)
    return None


async def guarded(work: Callable[[], Awaitable[object]]) -> Ending:
    """Do the work and return how it ended. SystemExit must not pass: it would take the whole event loop with it."""
    try:
        return Returned(await work())
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - every ending is judged, and none is swallowed
        return Raised(error)
