"""The webhook: takes a claimed `webhook` row, leaves the event sent to the rule's address and the row settled by the answer.

Whether the rule still is to be carried out is read in a short transaction, which is over before anything is sent. If it dies
after sending, the outcome is not known: another worker sends the same bytes again under the same `webhook-id`, by which the
receiver can tell. A host that does not answer is down for all rules that call it (see `spine/breaker.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Final

from mainspring.rooms import ServerSpine, Tx
from mainspring.spine.effects import Deferred, Effect, EffectKind, Failed, NewEffect, Outcome, Retry, Unknown
from mainspring.spine.errors import OutcomeUnknown, Transient
from mainspring.spine.events import Event
from mainspring.triggers import acting, limits
from mainspring.triggers.acting import Stop
from mainspring.triggers.model import Cards, RuleVersion, Webhook
from mainspring.triggers.webhooks import verbs
from mainspring.triggers.webhooks.model import Message, body_of, message_of, outcome_of, place_of
from mainspring.triggers.webhooks.outbound import TIMEOUT_SECONDS, Outbound

WEBHOOK: Final = EffectKind(name="webhook", lease_seconds=60)
_ASK_AGAIN_SECONDS: Final = 5.0

assert WEBHOOK.lease_seconds > TIMEOUT_SECONDS


def owed_by(event: Event, version: RuleVersion) -> NewEffect:
    """Return what a rule that calls a webhook owes for an event that it matches."""
    assert isinstance(version.action, Webhook)
    return NewEffect(
        WEBHOOK.name,
        key=f"{event.seq}:{version.rule_id}",
        payload={},
        target=_target_of(version.action.url),
        event_seq=event.seq,
        rule_id=version.rule_id,
        rule_version=version.version,
    )


@lru_cache(maxsize=10_000)
def _target_of(url: str) -> str:
    """Return what the breaker of a rule's url goes by. To read one costs as much as to judge several rules: not once an event."""
    place = place_of(url)
    return "" if isinstance(place, str) else place.target


@dataclass(frozen=True, slots=True)
class _Ready:
    """What is to be sent, and the moment at which it was signed."""

    message: Message
    now: datetime


def _said_by(target: str | None, outcome: Outcome) -> Outcome:
    """Return a failure with whom it is of: what one of two receivers refuses is another cause."""
    match outcome:
        case Failed() | Retry() | Unknown():
            return replace(outcome, error=f"{target}: {outcome.error}")
        case _:
            return outcome


class Caller:
    """Carries a `webhook` out."""

    def __init__(self, spine: ServerSpine, cards: Cards, outbound: Outbound) -> None:
        self._spine = spine
        self._cards = cards
        self._outbound = outbound

    async def __call__(self, effect: Effect) -> Outcome:
        """Send the event that this effect is about, if it is still to be sent."""
        try:
            async with self._spine.worker.transaction(effect.tenant_id) as tx:
                begun = await self._begin(tx, effect)
        except (Transient, OutcomeUnknown) as error:
            # our own database is away, which is nothing against the place that was to be called
            return Deferred(f"{type(error).__name__}: {error}", after_seconds=_ASK_AGAIN_SECONDS)
        if isinstance(begun, Stop):
            return begun.outcome
        return _said_by(effect.target, outcome_of(await self._outbound.post(begun.message, now=begun.now)))

    async def _begin(self, tx: Tx, effect: Effect) -> _Ready | Stop:
        begun = await acting.begin(self._spine.store, tx, effect)
        if isinstance(begun, Stop):
            return begun
        if begun.options.recheck:
            card = await acting.card_now(self._cards, tx, begun)
            if isinstance(card, Stop):
                return card
        assert isinstance(begun.rule.action, Webhook)
        place = place_of(begun.rule.action.url)
        if isinstance(place, str):
            return Stop(Failed(f"the rule's url {place}"))
        signing = await verbs.read_signing(tx, effect.rule_id)
        if signing is None:
            return Stop(Failed("the rule has no secret to sign with"))
        if (paused := await acting.keep_rate(tx, effect, begun)) is not None:
            return paused
        # committed before anything is sent: what may have been sent has counted, and its next attempt counts no more
        await limits.note_firing(tx, effect, agent_id=None, card_id=begun.card_id, options=begun.options)
        body = body_of(begun.event, begun.rule)
        message = message_of(place, body, id_=effect.idempotency_key, secret=signing.secret, now=signing.now)
        return _Ready(message, signing.now)
