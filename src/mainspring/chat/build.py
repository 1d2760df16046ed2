"""This room put together, for the wiring: its services, and its loops on the engine's."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from mainspring.chat import effects, notes
from mainspring.chat.asks import MessageAskService
from mainspring.chat.live import Live
from mainspring.chat.model import Cards, Runs, SessionPolicy
from mainspring.chat.nets import LOOP, Nets
from mainspring.chat.service import ChatService
from mainspring.chat.sessions import SessionService, SessionVerbs
from mainspring.chat.waits import Waits
from mainspring.db import Database
from mainspring.rooms import ServerSpine


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRoom:
    """Everything that the chat room offers."""

    chat: ChatService
    asks: MessageAskService
    sessions: SessionService
    waits: Waits
    live: Live
    nets: Nets


def build(
    spine: ServerSpine,
    db: Database,
    cards: Cards,
    runs: Runs,
    policy: SessionPolicy,
    *,
    tick_seconds: float,
) -> ChatRoom:
    """Build the room and register its loops; they start and stop with the engine."""
    effects.register(spine, runs)
    notes.register(spine, cards)
    verbs = SessionVerbs(spine.store, cards, policy)
    live = Live()
    waits, nets = Waits(db), Nets(spine, db, verbs)
    polling = spine.register_loop("inboxes", waits.run_once, every_seconds=tick_seconds)
    waits.poke = polling.poke
    # more often than a gap in its watch is long, or no session would ever be missed
    netting = spine.register_loop(
        LOOP, nets.run_once, every_seconds=min(tick_seconds, policy.lease_seconds / 6)
    )

    def heard(_tenant: UUID, kinds: tuple[str, ...]) -> None:
        if any(kind.startswith("session.") for kind in kinds):
            netting.poke()
            polling.poke()

    def owed() -> None:
        polling.poke()
        netting.poke()

    spine.on_commit(heard)
    spine.on_owed(owed)
    return ChatRoom(
        chat=ChatService(spine, db, cards),
        asks=MessageAskService(spine, db),
        sessions=SessionService(spine, db, verbs, live),
        waits=waits,
        live=live,
        nets=nets,
    )
