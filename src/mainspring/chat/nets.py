"""The nets under delivery: sessions that say nothing any more, messages that are held though their session is past them, agents that are
owed something and have nobody to read it.

Each takes one tenant at a time, in a transaction of its own, and counts what it repaired. If one dies here, the next round, here or
elsewhere, finds the same rows.

A session is silent only if it could have been heard: after an outage of ours each has one lease to speak up, as runs have.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

from mainspring import telemetry
from mainspring.chat import model, verbs
from mainspring.chat.effects import WAKE
from mainspring.chat.model import SessionState
from mainspring.chat.rows import SQL
from mainspring.chat.sessions import SessionVerbs
from mainspring.db import Database
from mainspring.ids import new_id
from mainspring.rooms import ServerSpine, Tx, system_actor
from mainspring.spine.effects import NewEffect
from mainspring.spine.events import NO_CAUSE
from mainspring.spine.retry import Backoff
from mainspring.sweeps import Sweep, Watch

if TYPE_CHECKING:
    from asyncpg import Record

log = logging.getLogger("mainspring.chat")

_DUE_NETS = SQL["due_nets"]
_EXPIRED = SQL["expired_sessions"]
_LOCK_EXPIRED = SQL["lock_expired"]
_OF_ENDED_RUNS = SQL["sessions_of_ended_runs"]
_LOCK_OF_ENDED_RUNS = SQL["lock_of_ended_runs"]
_PAST_THEIR_SESSION = SQL["past_their_session"]
_LOCK_PAST = SQL["lock_past"]
_RELEASE_SPOKEN = SQL["release_spoken"]
_TO_WAKE = SQL["to_wake"]
_OLDEST_OWED = SQL["oldest_owed"]

_BUT_FOR_LIVE_WAKES: Final = False
BATCH: Final = 100
LOOP: Final = "delivery nets"
_TENANTS: Final = 200
_SESSIONS: Final = Sweep(loop=LOOP, log=log, told="sessions: of tenant %s none was ended")
_MESSAGES: Final = Sweep(loop=LOOP, log=log, told="messages: of tenant %s none was settled")
_AGENTS: Final = Sweep(loop=LOOP, log=log, told="agents: of tenant %s none was woken")
NO_SIGN: Final = "no sign of life for a lease"
RUN_OVER: Final = "its run is over"
WAKE_BACKOFF: Final = Backoff(jitter=0.0)


class Nets:
    """The sweeps of this room."""

    def __init__(self, spine: ServerSpine, db: Database, sessions: SessionVerbs) -> None:
        self._spine = spine
        self._db = db
        self._sessions = sessions

    async def run_once(self) -> bool:
        """Ask once whether there is anything to repair, and repair it; True when more may be left."""
        # the watch begins anew if the database cannot be asked
        before, self._sessions.watch = self._sessions.watch, None
        async with self._db.system("delivery nets") as scope:
            due = await scope.fetchrow(_DUE_NETS, model.HOPS_MAX)
        assert due is not None
        policy = self._sessions.policy
        watch = Watch.from_before(before, due["moment"], gap_seconds=policy.gap_seconds)
        self._sessions.watch = watch
        more = due["lost"] and watch.has_lasted(policy.lease_seconds) and await self.end_lost()
        more = (due["over"] and await self.end_of_ended_runs()) or more
        if due["held"]:
            more = await self.settle_left_behind() or more
        if due["spoken"]:
            await self.release_spoken_for()
        if due["unread"]:
            await self.wake()
        return more

    # sessions -------------------------------------------------------------------------------------------------

    async def end_lost(self) -> bool:
        """End the sessions whose lease has run out, whoever could be heard; True when more may be left."""
        lost = await self._end_all(_EXPIRED, _LOCK_EXPIRED, SessionState.LOST, NO_SIGN)
        if lost:
            telemetry.sweep_repaired.labels("session_lease").inc(lost)
            log.warning("sessions: %d were lost", lost)
        return lost >= BATCH

    async def end_of_ended_runs(self) -> bool:
        """End the sessions whose run is over; True when more may be left."""
        over = await self._end_all(_OF_ENDED_RUNS, _LOCK_OF_ENDED_RUNS, SessionState.STOPPED, RUN_OVER)
        return over >= BATCH

    async def _end_all(self, tenants: str, lock: str, state: SessionState, reason: str) -> int:
        async def end_some(tx: Tx) -> int:
            locked = [row["id"] for row in await tx.handle.fetch(lock, tx.tenant, BATCH)]
            for session in await verbs.read_sessions(tx.handle, tx.tenant, locked):
                await self._sessions.end(tx, session, state, reason, system_actor(tx.tenant, NO_CAUSE))
            return len(locked)

        return await self._each_once(_SESSIONS, tenants, end_some)

    async def _each_once(
        self, sweep: Sweep, tenants: str, repair_some: Callable[[Tx], Awaitable[int]]
    ) -> int:
        """Go to every tenant that has something to repair, once; return how much was repaired."""
        seen: list[UUID] = []

        async def find(failed: Sequence[UUID]) -> Sequence[Record]:
            async with self._db.system("delivery nets") as scope:
                found = await scope.fetch(tenants, _TENANTS, [*seen, *failed])
            seen.extend(row["tenant_id"] for row in found)
            return found

        async def repair(tenant: UUID, _found: Sequence[Record]) -> int:
            async with self._spine.open(tenant) as tx:
                return await repair_some(tx)

        return await sweep.over_tenants(find, repair, batch=_TENANTS)

    # messages -------------------------------------------------------------------------------------------------

    async def settle_left_behind(self) -> bool:
        """Settle messages that are held though their session is past them: an edge settles its own, so there are none.

        True when more may be left.
        """
        sessions = await self._each_once(_MESSAGES, _PAST_THEIR_SESSION, self._settle_some)
        return sessions >= BATCH

    async def _settle_some(self, tx: Tx) -> int:
        locked = [row["id"] for row in await tx.handle.fetch(_LOCK_PAST, tx.tenant, BATCH)]
        for session in await verbs.read_sessions(tx.handle, tx.tenant, locked):
            through, state = (
                (session.settled_turn, SessionState.READY) if session.is_live else (None, session.state)
            )
            settled = await verbs.settle_messages(
                tx, session, through, model.settles_by(state), system_actor(tx.tenant, NO_CAUSE)
            )
            telemetry.sweep_repaired.labels("unsettled").inc(settled)
            log.error("messages: %d of session %s were held past it", settled, session.id)
        return len(locked)

    async def release_spoken_for(self) -> None:
        """Let go of deliveries that wait for a person who has spoken: before they were drained, so that the post found none."""
        async with self._db.system("delivery nets") as scope:
            released = await scope.execute(_RELEASE_SPOKEN, model.HOPS_MAX)
        if released:
            telemetry.sweep_repaired.labels("spoken").inc(released)

    # agents ---------------------------------------------------------------------------------------------------

    async def wake(self) -> None:
        """Owe a wake to every agent that is owed something and has nobody who reads it."""

        async def find(failed: Sequence[UUID]) -> Sequence[Record]:
            async with self._db.system("delivery nets") as scope:
                return await scope.fetch(_TO_WAKE, None, None, _BUT_FOR_LIVE_WAKES, BATCH, failed)

        await _AGENTS.over_tenants(find, self._owe_wakes, batch=BATCH)

    async def _owe_wakes(self, tenant: UUID, found: Sequence[Record]) -> int:
        async with self._spine.open(tenant) as tx:
            owed = [(tenant, wake) for row in found if (wake := await _wake_of(tx, row)) is not None]
            # one that another process has owed meanwhile is in the way of ours, and is as good
            tx.owed_again(await self._sessions.store.owe_absent(tx.handle, owed))
        return len(owed)


async def _wake_of(tx: Tx, row: Record) -> NewEffect | None:
    """Return the wake of an agent, None when it has read all that it was owed meanwhile."""
    agent, wakes = row["agent_id"], row["wakes"]
    oldest = await tx.handle.fetchrow(_OLDEST_OWED, tx.tenant, agent)
    if oldest is None or oldest["event_seq"] is None:
        return None
    return NewEffect(
        WAKE.name,
        key=f"{agent}:{new_id()}",
        payload={"agent_id": str(agent)},
        event_seq=oldest["event_seq"],
        recipient_id=agent,
        delay_seconds=WAKE_BACKOFF.delay_seconds(wakes - 1, random=0.5) if wakes else 0.0,
    )
