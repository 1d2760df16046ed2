"""Sessions: an agent's live connection, its turns, and what it reads. Takes what an agent's program says of itself; leaves the session
as that makes it, and at every edge the messages settled that were held for it.

One that says nothing for a lease is lost, and so are its offers, to the next one. If it dies here nothing happened, and the program
says it again: all of this can be said twice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

from mainspring.chat import model, offers, reads, verbs
from mainspring.chat.live import Live, Passing, presence
from mainspring.chat.model import Cards, Delivery, Message, Session, SessionPolicy, SessionState, Speaking
from mainspring.chat.rows import SQL
from mainspring.db import Database, Scope
from mainspring.faultpoints import FaultPoint, reach
from mainspring.ids import new_id
from mainspring.rooms import Actor, Conflict, FieldError, Invalid, NotFound, ServerSpine, Tx
from mainspring.spine.events import NewEvent
from mainspring.spine.ports import Store
from mainspring.sweeps import Watch

if TYPE_CHECKING:
    from asyncpg import Record

    from mainspring.boards.model import Card

_LOCK_AGENT = SQL["lock_agent"]
_LIVE_SESSION = SQL["live_session"]
_ADD_SESSION = SQL["add_session"]
_RENEW_SESSION = SQL["renew_session"]
_SETTLE_SESSION = SQL["settle_session"]
_END_SESSION = SQL["end_session"]
_LIST_SESSIONS = SQL["list_sessions"]
_OWED_COUNT = SQL["owed_count"]
_PINNED_FOR = SQL["pinned_for"]
_PRESENT = SQL["present"]
_CHANNELS_OF = SQL["channels_of"]
_AGENTS_NAMED = SQL["agents_named"]
_AGENT_OF_SESSION = SQL["agent_of_session"]
_CARD_OF_RUN = SQL["card_of_run"]

STARTED: Final = "session.started"
ENDED: Final = "session.ended"
DISPLACED_BY: Final = "displaced by another session"
SILENT: Final = "it was silent when another session began"


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A session that has just begun, and what its agent's context begins with."""

    session: Session
    pins: Sequence[Message]
    owed: int


class SessionVerbs:
    """What can be done to sessions inside an open transaction; the locks are the caller's."""

    def __init__(self, store: Store[Scope], cards: Cards, policy: SessionPolicy) -> None:
        self.store = store
        self.policy = policy
        self.watch: Watch | None = None  # since when sessions could be heard here: the nets keep it
        self._cards = cards

    async def begin(
        self, tx: Tx, agent_id: UUID, actor: Actor, *, run_id: UUID | None, takeover: bool
    ) -> Session:
        """Begin a session of an agent, in the place of the one that lives, if that may be displaced.

        The session of a card's run takes what is owed in the card's topic, as long as there is the card; any other takes all else.
        One that is silent, though it could have been heard, is lost: a program that ends and begins again within its lease has ended.
        Raises NotFound, and Conflict when the other one has been heard of a moment ago and no takeover is asked for.
        """
        if await tx.handle.fetchval(_LOCK_AGENT, tx.tenant, agent_id) is None:
            raise NotFound("agent", agent_id)
        card = None if run_id is None else await self._card_of(tx, run_id)
        found = await tx.handle.fetch(
            _LIVE_SESSION, tx.tenant, agent_id, run_id, card is not None, self.policy.fresh_seconds
        )
        if not takeover and (fresh := [row["id"] for row in found if row["fresh"]]):
            raise Conflict(
                f"session {fresh[0]} of this agent was heard of a moment ago: end it, wait, or take over with takeover: true",
                code="session_live",
            )
        topic_id = None if card is None else (await verbs.topic_of_card(tx, card)).id
        silent = {row["id"] for row in found if not row["fresh"] and self._could_be_heard(row["moment"])}
        for other in await verbs.read_sessions(tx.handle, tx.tenant, [row["id"] for row in found]):
            state, why = (
                (SessionState.LOST, SILENT) if other.id in silent else (SessionState.DISPLACED, DISPLACED_BY)
            )
            await self.end(tx, other, state, why, actor)
        session_id, lease = new_id(), self.policy.lease_seconds
        await tx.handle.execute(
            _ADD_SESSION, tx.tenant, session_id, agent_id, run_id, topic_id, new_id(), lease
        )
        [session] = await verbs.read_sessions(tx.handle, tx.tenant, [session_id])
        _append(tx, STARTED, session, actor)
        return session

    def _could_be_heard(self, now: float) -> bool:
        """Tell whether a session that is not fresh has kept silent, and not we have kept from listening."""
        watch = None if self.watch is None else self.watch.at(now, gap_seconds=self.policy.gap_seconds)
        return watch is not None and watch.has_lasted(self.policy.fresh_seconds)

    async def _card_of(self, tx: Tx, run_id: UUID) -> Card | None:
        card_id = await tx.handle.fetchval(_CARD_OF_RUN, tx.tenant, run_id)
        return None if card_id is None else await self._cards.find_card(tx, str(card_id))

    async def renew(self, tx: Tx, session: Session, turn: int | None) -> Session:
        """Renew a locked session's lease; a turn that is new begins."""
        await tx.handle.execute(_RENEW_SESSION, tx.tenant, session.id, self.policy.lease_seconds, turn)
        [renewed] = await verbs.read_sessions(tx.handle, tx.tenant, [session.id])
        return renewed

    async def settle(self, tx: Tx, session: Session, turn: int, actor: Actor) -> Session:
        """End a locked session's turns through this one: first the session, then what was held for it."""
        await tx.handle.execute(_SETTLE_SESSION, tx.tenant, session.id, turn, self.policy.lease_seconds)
        await verbs.settle_messages(tx, session, turn, model.settles_by(SessionState.READY), actor)
        [settled] = await verbs.read_sessions(tx.handle, tx.tenant, [session.id])
        return settled

    async def end(self, tx: Tx, session: Session, state: SessionState, reason: str, actor: Actor) -> None:
        """End a locked session: settle all that it held back, let go of what it was offered."""
        if not await tx.handle.execute(_END_SESSION, tx.tenant, session.id, str(state), reason):
            return
        await verbs.settle_messages(tx, session, None, model.settles_by(state), actor)
        await offers.release(tx, self.store, session, state, reason)
        [ended] = await verbs.read_sessions(tx.handle, tx.tenant, [session.id])
        _append(tx, ENDED, ended, actor)


class SessionService:
    """Sessions as agents' programs hold them, one method a word of theirs."""

    def __init__(self, spine: ServerSpine, db: Database, verbs_: SessionVerbs, live: Live) -> None:
        self._spine = spine
        self._db = db
        self._live = live
        self._verbs = verbs_
        self.policy = verbs_.policy

    # whose ----------------------------------------------------------------------------------------------------

    async def agent_named(
        self, tenant: UUID, actor: Actor, agents: Collection[UUID], handle: str | None
    ) -> Actor:
        """Return the agent that a program speaks for: itself, or the one that a runner's token names. Raises NotFound, Invalid."""
        if actor.kind == "agent":
            if handle is not None and handle.strip().lower() != actor.handle:
                raise NotFound("agent", handle)
            return actor
        async with self._db.tenant(tenant) as scope:
            rows = await scope.fetch(_AGENTS_NAMED, tenant, sorted(agents))
        named = [row for row in rows if handle is None or row["handle"] == handle.strip().lower()]
        if len(named) != 1:
            if handle is None:
                raise Invalid(FieldError("/agent", f"this token names {len(rows)} agents: say which"))
            raise NotFound("agent", handle)
        return _agent(tenant, named[0])

    async def agent_of(self, tenant: UUID, agents: Collection[UUID], speaking: Speaking | None) -> Actor:
        """Return the agent whose session a runner speaks from. Raises Invalid without one, NotFound."""
        if speaking is None:
            raise Invalid(
                FieldError("/session", "a runner writes for an agent whose session it holds: say which")
            )
        return await self.holder(tenant, None, agents, speaking.session_id)

    async def holder(
        self, tenant: UUID, actor: Actor | None, agents: Collection[UUID], session_id: UUID
    ) -> Actor:
        """Return the agent of a session that a program may hold. Raises NotFound for one that is none of its own."""
        if actor is not None and actor.kind == "agent":
            return actor
        async with self._db.tenant(tenant) as scope:
            row = await scope.fetchrow(_AGENT_OF_SESSION, tenant, session_id)
        if row is None or row["id"] not in agents:
            raise NotFound("session", session_id)
        return _agent(tenant, row)

    # its life -------------------------------------------------------------------------------------------------

    async def start(self, actor: Actor, *, run_id: UUID | None = None, takeover: bool = False) -> Started:
        """Begin a session of the agent that acts; a run's takes what is owed in its card's topic. Raises NotFound, Conflict."""
        agent_id = actor.account_id
        assert agent_id is not None
        async with self._spine.open(actor.tenant_id) as tx:
            session = await self._verbs.begin(tx, agent_id, actor, run_id=run_id, takeover=takeover)
            rows = await tx.handle.fetch(_PINNED_FOR, tx.tenant, agent_id)
            pins = await reads.messages_in_order(tx.handle, tx.tenant, [row["message_id"] for row in rows])
            owed: int = await tx.handle.fetchval(_OWED_COUNT, tx.tenant, agent_id, session.topic_id)
            watched = await self._watched(tx, agent_id)
        self._show(actor.tenant_id, session, watched)
        reach(FaultPoint.SESSION_AFTER_START)
        return Started(session=session, pins=pins, owed=owed)

    async def heartbeat(self, actor: Actor, session_id: UUID, claim_id: UUID, *, turn: int | None) -> Session:
        """Renew the lease; with a new turn, begin it. Raises NotFound, and Conflict when the session is over."""
        async with self._spine.open(actor.tenant_id) as tx:
            before = await _alive(tx, actor, session_id, claim_id)
            session = await self._verbs.renew(tx, before, turn)
            watched = [] if session.state is before.state else await self._watched(tx, session.agent_id)
        self._show(actor.tenant_id, session, watched)
        return session

    async def settle(self, actor: Actor, session_id: UUID, claim_id: UUID, *, turn: int) -> Session:
        """End the turns through this one. Raises NotFound, and Conflict when the session is over."""
        async with self._spine.open(actor.tenant_id) as tx:
            session = await self._verbs.settle(tx, await _alive(tx, actor, session_id, claim_id), turn, actor)
            watched = await self._watched(tx, session.agent_id)
            reach(FaultPoint.MESSAGE_SETTLE_BEFORE_COMMIT)
        self._show(actor.tenant_id, session, watched)
        reach(FaultPoint.MESSAGE_SETTLE_AFTER_COMMIT)
        return session

    async def end(
        self, actor: Actor, session_id: UUID, claim_id: UUID, *, errored: bool, reason: str
    ) -> Session:
        """End the session. Ending one that is over changes nothing. Raises NotFound."""
        state = SessionState.ERRORED if errored else SessionState.STOPPED
        async with self._spine.open(actor.tenant_id) as tx:
            session = await _mine(tx, actor, session_id, claim_id)
            if session.is_live:
                await self._verbs.end(tx, session, state, reason, actor)
                reach(FaultPoint.MESSAGE_SETTLE_BEFORE_COMMIT)
            [ended] = await verbs.read_sessions(tx.handle, tx.tenant, [session.id])
            watched = await self._watched(tx, ended.agent_id)
        self._show(actor.tenant_id, ended, watched)
        reach(FaultPoint.MESSAGE_SETTLE_AFTER_COMMIT)
        return ended

    async def inbox(
        self, actor: Actor, session_id: UUID, claim_id: UUID
    ) -> tuple[Session, Sequence[Delivery]]:
        """Return all that the session holds unacked, what it is offered now among it, and renew its lease.

        Raises NotFound, and Conflict when the session is over.
        """
        async with self._spine.open(actor.tenant_id) as tx:
            session = await self._verbs.renew(tx, await _alive(tx, actor, session_id, claim_id), None)
            found = await offers.offer(tx, session)
        reach(FaultPoint.INBOX_AFTER_OFFER)
        return session, found

    async def ack(
        self,
        actor: Actor,
        session_id: UUID,
        claim_id: UUID,
        *,
        ids: Collection[UUID],
        refused: Mapping[UUID, str],
        turn: int | None,
    ) -> int:
        """Note what is in the agent's context now, in which turn, and what could not be put there; return how many rows that settled.

        Raises NotFound, and Conflict when the session is over, or when what is acked is not the beginning of a line.
        """
        reach(FaultPoint.INBOX_BEFORE_ACK)
        async with self._spine.open(actor.tenant_id) as tx:
            session = await self._verbs.renew(tx, await _alive(tx, actor, session_id, claim_id), turn)
            if ids and refused:
                await offers.lock(tx, session, [*ids, *refused])
            settled = await offers.ack(tx, self._verbs.store, session, ids)
            settled += await offers.nack(tx, self._verbs.store, session, refused)
        reach(FaultPoint.INBOX_AFTER_ACK)
        return settled

    # what passes ----------------------------------------------------------------------------------------------

    async def say_live(
        self, actor: Actor, session_id: UUID, claim_id: UUID, *, channel: str, topic: str, text: str
    ) -> None:
        """Show whoever watches a channel here what an agent is writing. Nothing of it is kept.

        Raises NotFound, and Conflict when the session is over.
        """
        async with self._db.tenant(actor.tenant_id) as scope:
            sessions = await verbs.read_sessions(scope, actor.tenant_id, [session_id])
            found = await reads.find_channel(scope, actor.tenant_id, actor.account_id, channel)
        _not_over(_own(sessions[0] if sessions else None, actor, session_id, claim_id))
        if found is None:
            raise NotFound("channel", channel)
        said = Passing("text", {"agent": actor.handle, "topic": topic, "text": text})
        self._live.pass_by(actor.tenant_id, [found.id], said)

    async def present(self, tenant: UUID, channel: UUID) -> Sequence[Passing]:
        """Return how the agents of a channel are now."""
        async with self._db.tenant(tenant) as scope:
            rows = await scope.fetch(_PRESENT, tenant, channel)
        return [presence(row["handle"], row["state"]) for row in rows]

    async def _watched(self, tx: Tx, agent_id: UUID) -> list[UUID]:
        """Return the channels of an agent, if anybody here watches any."""
        if not self._live.is_watched:
            return []
        return [row["channel_id"] for row in await tx.handle.fetch(_CHANNELS_OF, tx.tenant, agent_id)]

    def _show(self, tenant: UUID, session: Session, channels: list[UUID]) -> None:
        if session.topic_id is None and channels:
            self._live.pass_by(tenant, channels, presence(session.agent_handle, session.state))

    async def list_sessions(
        self,
        tenant: UUID,
        *,
        agent_id: UUID | None = None,
        live: bool = False,
        after: UUID | None = None,
        limit: int = 50,
    ) -> list[Session]:
        """Return sessions, the newest first."""
        async with self._db.tenant(tenant) as scope:
            rows = await scope.fetch(_LIST_SESSIONS, tenant, agent_id, live, after, limit)
            found = await verbs.read_sessions(scope, tenant, [row["id"] for row in rows])
        return sorted(found, key=lambda one: one.id, reverse=True)


def _agent(tenant: UUID, row: Record) -> Actor:
    return Actor(tenant_id=tenant, account_id=row["id"], kind="agent", handle=row["handle"])


async def _mine(tx: Tx, actor: Actor, session_id: UUID, claim_id: UUID) -> Session:
    return _own(await verbs.lock_session(tx, session_id), actor, session_id, claim_id)


async def _alive(tx: Tx, actor: Actor, session_id: UUID, claim_id: UUID) -> Session:
    """Return the locked session; raise what its program has to know when it is over."""
    return _not_over(await _mine(tx, actor, session_id, claim_id))


def _own(session: Session | None, actor: Actor, session_id: UUID, claim_id: UUID) -> Session:
    if session is None or session.claim_id != claim_id:
        raise NotFound("session", session_id)
    if actor.kind == "agent" and actor.account_id != session.agent_id:
        raise NotFound("session", session_id)
    return session


def _not_over(session: Session) -> Session:
    if not session.is_live:
        code = "session_displaced" if session.state is SessionState.DISPLACED else "session_lost"
        raise Conflict(
            f"this session is over: {session.state}, {session.reason or 'without a word'}", code=code
        )
    return session


def snapshot(session: Session) -> dict[str, object]:
    """Return a session as its events carry it."""
    return {
        "id": str(session.id),
        "agent_id": str(session.agent_id),
        "agent": session.agent_handle,
        "run_id": None if session.run_id is None else str(session.run_id),
        "state": str(session.state),
        "turn": session.turn,
        "reason": session.reason,
    }


def _append(tx: Tx, kind: str, session: Session, actor: Actor) -> None:
    tx.append(
        NewEvent(
            kind,
            subject=str(session.id),
            data={"session": snapshot(session), "actor": actor.snapshot()},
            actor_id=actor.account_id,
            cause=actor.cause,
        )
    )
