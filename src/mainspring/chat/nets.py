"""The nets under delivery: sessions that say nothing any more, messages that are held though their session is past them, agents that are
owed something and have nobody to read it.

Each takes one tenant at a time, in a transaction of its own, and counts what it repaired. If one dies here, the next round, here or
elsewhere, finds the same rows.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
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
from mainspring.rooms import ServerSpine, system_actor
from mainspring.spine.effects import NewEffect
from mainspring.spine.events import NO_CAUSE
from mainspring.spine.retry import Backoff
from mainspring.sweeps import Sweep

if TYPE_CHECKING:
    from asyncpg import Record

log = logging.getLogger("mainspring.chat")

_DUE_NETS = SQL["due_nets"]
_EXPIRED = SQL["expired_sessions"]
_LOCK_EXPIRED = SQL["lock_expired"]
_OF_ENDED_RUNS = SQL["sessions_of_ended_runs"]
_LOCK_OF_ENDED_RUNS = SQL["lock_of_ended_runs"]
_PAST_THEIR_SESSION = SQL["past_their_session"]
_RELEASE_SPOKEN = SQL["release_spoken"]
_TO_WAKE = SQL["to_wake"]
_OLDEST_OWED = SQL["oldest_owed"]

_BUT_FOR_LIVE_WAKES: Final = False
BATCH: Final = 100
LOOP: Final = "delivery nets"
_TENANTS: Final = 200
_SESSIONS: Final = Sweep(loop=LOOP, log=log, told="sessions: of tenant %s none was ended")
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
        async with self._db.system("delivery nets") as scope:
            due = await scope.fetchrow(_DUE_NETS, model.HOPS_MAX)
        assert due is not None
        more = (due["lost"] or due["over"]) and await self.reap_sessions()
        if due["held"]:
            await self.settle_left_behind()
        if due["spoken"]:
            await self.release_spoken_for()
        return (due["unread"] and await self.wake()) or more

    # sessions -------------------------------------------------------------------------------------------------

    async def reap_sessions(self) -> bool:
        """End the sessions whose lease has run out, and those whose run is over; True when more may be left."""
        lost = await self._end_all(_EXPIRED, _LOCK_EXPIRED, SessionState.LOST, NO_SIGN)
        over = await self._end_all(_OF_ENDED_RUNS, _LOCK_OF_ENDED_RUNS, SessionState.STOPPED, RUN_OVER)
        if lost:
            telemetry.sweep_repaired.labels("session_lease").inc(lost)
            log.warning("sessions: %d were lost", lost)
        return max(lost, over) >= BATCH

    async def _end_all(self, tenants: str, lock: str, state: SessionState, reason: str) -> int:
        """Go to every tenant that has some, once."""
        seen: list[UUID] = []

        async def find(failed: Sequence[UUID]) -> Sequence[Record]:
            async with self._db.system("delivery nets") as scope:
                found = await scope.fetch(tenants, _TENANTS, [*seen, *failed])
            seen.extend(row["tenant_id"] for row in found)
            return found

        async def repair(tenant: UUID, _found: Sequence[Record]) -> int:
            async with self._spine.open(tenant) as tx:
                locked = [row["id"] for row in await tx.handle.fetch(lock, tenant, BATCH)]
                for session in await verbs.read_sessions(tx.handle, tenant, locked):
                    await self._sessions.end(tx, session, state, reason, system_actor(tenant, NO_CAUSE))
            return len(locked)

        return await _SESSIONS.over_tenants(find, repair, batch=_TENANTS)

    # messages -------------------------------------------------------------------------------------------------

    async def settle_left_behind(self) -> None:
        """Settle messages that are held though their session is past them: an edge settles its own, so there are none."""
        async with self._db.system("delivery nets") as scope:
            rows = await scope.fetch(_PAST_THEIR_SESSION, BATCH)
        for row in rows:
            settled = await self._settle(row["tenant_id"], row["session_id"])
            if settled:
                telemetry.sweep_repaired.labels("unsettled").inc(settled)
                log.error("messages: %d of session %s were held past it", settled, row["session_id"])

    async def _settle(self, tenant: UUID, session_id: UUID) -> int:
        async with self._spine.open(tenant) as tx:
            session = await verbs.lock_session(tx, session_id)
            if session is None:
                return 0
            through = session.settled_turn if session.is_live else session.turn
            by = model.settles_by(SessionState.READY if session.is_live else session.state)
            return await verbs.settle_messages(tx, session, through, by, system_actor(tenant, NO_CAUSE))

    async def release_spoken_for(self) -> None:
        """Let go of deliveries that wait for a person who has spoken: before they were drained, so that the post found none."""
        async with self._db.system("delivery nets") as scope:
            released = await scope.execute(_RELEASE_SPOKEN, model.HOPS_MAX)
        if released:
            telemetry.sweep_repaired.labels("spoken").inc(released)

    # agents ---------------------------------------------------------------------------------------------------

    async def wake(self) -> bool:
        """Owe a wake to every agent that is owed something and has nobody who reads it."""
        async with self._db.system("delivery nets") as scope:
            rows = await scope.fetch(_TO_WAKE, None, None, _BUT_FOR_LIVE_WAKES, BATCH)
        by_tenant: defaultdict[UUID, list[tuple[UUID, int]]] = defaultdict(list)
        for row in rows:
            by_tenant[row["tenant_id"]].append((row["agent_id"], row["wakes"]))
        for tenant, agents in by_tenant.items():
            await self._owe_wakes(tenant, agents)
        return len(rows) >= BATCH

    async def _owe_wakes(self, tenant: UUID, agents: list[tuple[UUID, int]]) -> None:
        store = self._sessions.store
        async with self._spine.open(tenant) as tx:
            owed = []
            for agent, wakes in agents:
                oldest = await tx.handle.fetchrow(_OLDEST_OWED, tenant, agent)
                assert oldest is not None
                delay = WAKE_BACKOFF.delay_seconds(wakes - 1, random=0.5) if wakes else 0.0
                owed.append(
                    (
                        tenant,
                        NewEffect(
                            WAKE.name,
                            key=f"{agent}:{new_id()}",
                            payload={"agent_id": str(agent)},
                            event_seq=oldest["event_seq"],
                            recipient_id=agent,
                            delay_seconds=delay,
                        ),
                    )
                )
            # one that another process has owed meanwhile is in the way of ours, and is as good
            tx.owed_again(await store.owe_absent(tx.handle, owed))
