"""What a run asks is said in its card's topic, and so is the answer.

Takes `ask.opened` and `ask.answered` of runs with a card; owes a `note` each. The executor posts it as whoever spoke, where they may, in
one transaction with the row's settle: if it dies here, nothing was posted. It makes nobody a member of anything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from mainspring.chat import verbs
from mainspring.chat.model import ENGINES_REQUESTS, Cards, NewMessage
from mainspring.db import Scope
from mainspring.rooms import Actor, Conflict, Forbidden, NotFound, Refusal, ServerSpine, Tx
from mainspring.spine.effects import Done, Dropped, Effect, EffectKind, NewEffect, Outcome
from mainspring.spine.events import Cause, Event
from mainspring.spine.executors import Transactional
from mainspring.spine.ports import EventLog, NotOwed, Owes, Verdict

NOTE: Final = EffectKind(name="note", transactional=True, lease_seconds=10)
# whoever reads of the effect may not see the channel: its name is not told
_WHY: Final[Mapping[type[Refusal], str]] = {
    NotFound: "not seen by who spoke",
    Conflict: "channel archived",
    Forbidden: "owner posts alone",
}


class Notes:
    """What a run's question owes its card's topic."""

    name: Final = "notes"
    kinds: Final = frozenset({"ask.opened", "ask.answered"})

    async def load(self, _scope: Scope, _events: Sequence[Event]) -> None:
        """Nothing: the event says it all."""

    def judge(self, event: Event, _context: None) -> Verdict:
        """Owe one note where there is a card."""
        card = event.data.get("card")
        if card is None:
            return NotOwed("card")
        return Owes(
            NewEffect(
                NOTE.name, key=f"{event.seq}#note", payload={"card_id": card["id"]}, event_seq=event.seq
            )
        )


class Noter:
    """Carries a `note` out."""

    def __init__(self, cards: Cards, log: EventLog[Scope]) -> None:
        self._cards = cards
        self._log = log

    async def __call__(self, effect: Effect, tx: Tx) -> Outcome:
        """Post what was asked, or answered, to the card's topic."""
        assert effect.event_seq is not None
        event = (await self._log.events_at(tx.handle, tx.tenant, [effect.event_seq])).get(effect.event_seq)
        card = await self._cards.find_card(tx, str(effect.payload["card_id"]))
        if event is None or card is None:
            return Dropped("event gone" if event is None else "card deleted")
        topic = await verbs.topic_of_card(tx, card)
        channel = await verbs.channel_of_board(tx, card.board)
        new = NewMessage(
            topic=topic.name,
            blocks=[{"type": "text", "text": _said(event)}],
            request_id=f"{ENGINES_REQUESTS}note:{event.seq}",
            sent=hashlib.sha256(effect.key.encode()).digest(),
        )
        try:
            message, _ = await verbs.post(tx, channel, new, _speaker(event), topic=topic, joins=False)
        except (NotFound, Conflict, Forbidden) as refused:
            return Dropped(_WHY[type(refused)])
        return Done(f"message {message.id}")


def _said(event: Event) -> str:
    ask: dict[str, Any] = event.data["ask"]
    if event.kind == "ask.answered":
        return f"{ask['question']}\n→ {ask['answer']}"
    options = f" ({' / '.join(ask['options'])})" if ask["options"] else ""
    return f"{ask['question']}{options}"


def _speaker(event: Event) -> Actor:
    actor = event.data["actor"]
    cause = Cause(seq=event.seq, via=event.via, depth=event.depth + 1, trust=event.trust)
    return Actor(
        tenant_id=event.tenant_id,
        account_id=UUID(actor["id"]),
        kind=actor["kind"],
        handle=actor["handle"],
        cause=cause,
    )


def register(spine: ServerSpine, cards: Cards) -> None:
    """Tell the engine what runs' questions owe and how it is done."""
    spine.register_obligation(Notes())
    spine.register_executor(Transactional(kind=NOTE, run=Noter(cards, spine.store)))
