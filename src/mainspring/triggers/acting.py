"""What a launch and a promotion by a rule have in common: is it still to be, may it be now, and what was it about?

Takes a claimed row and its open transaction; leaves what the executor goes on with, or the outcome with which it ends here.
Everything is decided anew under locks, in the order rule, agent, card. A rule that trips its own limit is paused here, and the
row that tripped it is held, in one transaction: if it dies here, neither happened.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, assert_never
from uuid import UUID

from mainspring import telemetry
from mainspring.boards.model import Card
from mainspring.db import Scope
from mainspring.rooms import Newer, Tx, system_actor
from mainspring.spine.effects import Deferred, Dropped, Effect, Failed, Held, Outcome
from mainspring.spine.events import Cause, Event
from mainspring.spine.ports import EventLog
from mainspring.triggers import limits, verbs
from mainspring.triggers.limits import Pace, Pass, Resting, TooOften, TooOld
from mainspring.triggers.matcher import card_of, first_failed_now
from mainspring.triggers.model import Cards, Options, RuleVersion
from mainspring.triggers.verbs import Beyond, Gone, InForce, OnHold

log = logging.getLogger("mainspring.triggers")

_LEFT_SECONDS: Final = 5.0  # until a newer server may have taken what this one does not know


@dataclass(frozen=True, slots=True)
class Stop:
    """It ends here, with this outcome."""

    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """What a rule's effect is about: the version that matched, the event, and what its acts descend from.

    `waived_seq`: what the rule owes for events so far was told, at a resume, to run whatever its age and the rule's rate say.
    """

    rule: RuleVersion
    event: Event
    cause: Cause
    said: Mapping[str, Any] | None  # the event's card
    pace: Pace
    waived_seq: int

    @property
    def waived(self) -> bool:
        """Whether somebody has told it to run whatever its age and the rule's rate say."""
        return self.event.seq <= self.waived_seq

    @property
    def options(self) -> Options:
        """The options of the version that matched."""
        return self.rule.options

    @property
    def card_id(self) -> UUID | None:
        """The event's card."""
        return UUID(self.said["id"]) if self.said else None

    @property
    def card_key(self) -> str | None:
        """What people call the event's card."""
        return str(self.said["key"]) if self.said else None


CardNow: TypeAlias = Card | Stop | None


def _left(what: object) -> Stop:
    return Stop(Deferred(f"left to a newer server: {what}", after_seconds=_LEFT_SECONDS))


async def event_of(log_: EventLog[Scope], tx: Tx, effect: Effect) -> Event | Stop:
    """Return the event for which an effect is owed."""
    assert effect.event_seq is not None
    seq = effect.event_seq
    event = (await log_.events_at(tx.handle, tx.tenant, [seq])).get(seq)
    return event or Stop(Failed(f"event {seq} is not there: older than events are kept"))


async def begin(log_: EventLog[Scope], tx: Tx, effect: Effect) -> Begun | Stop:
    """Hold the rule and read what its effect is about, while the rule is in force, and its pace allows it."""
    assert effect.rule_id is not None
    assert effect.rule_version is not None
    assert effect.event_seq is not None
    rule = await verbs.rule_in_force(tx, effect.rule_id, effect.rule_version, event_seq=effect.event_seq)
    match rule:
        case Gone(reason):
            return Stop(Dropped(reason))
        case OnHold(because):
            return Stop(Held(f"the rule is paused: {because}"))
        case Beyond(what):
            return _left(what)
        case InForce():
            pass
        case _:
            assert_never(rule)
    event = await event_of(log_, tx, effect)
    if isinstance(event, Stop):
        return event
    said, options = card_of(event), rule.version.options
    pace = await limits.pace_of(
        tx.handle, tx.tenant, effect.rule_id, options,
        event_seq=effect.event_seq, card_id=UUID(said["id"]) if said else None, waived_seq=rule.waived_seq,
        effect_id=effect.id,
    )  # fmt: skip
    begun = Begun(
        rule=rule.version,
        event=event,
        cause=event.as_cause(via=(effect.rule_id,)),
        said=said,
        pace=pace,
        waived_seq=rule.waived_seq,
    )
    limit = limits.paced(options, pace, card=begun.card_key, waived=begun.waived)
    match limit:
        case TooOld(reason) | Resting(reason):
            if not await limits.was_replayed(tx, effect):
                return Stop(Dropped(reason))
        case Pass() | TooOften():
            pass
        case _:
            assert_never(limit)
    return begun


async def card_now(cards: Cards, tx: Tx, begun: Begun) -> CardNow:
    """Return the event's card, locked, None when there is none to lock; or why the rule has nothing to do with it any more."""
    options, said = begun.options, begun.said
    if said is None:
        return None
    if begun.event.kind == "card.deleted" and not (options.consume_label or options.recheck):
        return None  # its end is what the rule waited for
    card = await cards.lock_card(tx, UUID(said["id"]))
    if card is None:
        return Stop(Dropped("card deleted"))
    if options.recheck:
        term = first_failed_now(begun.rule.terms, card)
        if term is not None:
            return Stop(Dropped(f"no longer matches: {term}"))
    if options.consume_label and not begun.rule.terms.labels_all <= card.labels:
        return Stop(Dropped("label spent"))
    return card


async def spend(cards: Cards, tx: Tx, begun: Begun, card: Card | None) -> Card | None:
    """Take the matched labels off, where the rule says so; `card_now` has seen that they are there."""
    if not begun.options.consume_label or card is None:
        return card
    actor = system_actor(tx.tenant, begun.cause)
    taken = await cards.take_labels(tx, card, begun.rule.terms.labels_all, actor)
    assert taken is not None
    return taken


async def keep_rate(tx: Tx, effect: Effect, begun: Begun) -> Stop | None:
    """Pause the rule when it has fired too often within the hour; asked of what would fire now, before it writes anything."""
    limit = limits.rated(begun.options, begun.pace, waived=begun.waived)
    match limit:
        case TooOften(because):
            if await limits.was_replayed(tx, effect):
                return None
        case Pass() | TooOld() | Resting():
            return None
        case _:
            assert_never(limit)
    try:
        rule = await verbs.lock_rule(tx, begun.rule.rule_id)
    except Newer as newer:
        return _left(
            newer
        )  # we know the version that matched, and not the one that the pause would be told of
    assert rule is not None
    await verbs.pause_rule(tx, rule, because, system_actor(tx.tenant, begun.cause))
    telemetry.rules_paused.inc()
    log.warning("rule %s of tenant %s is paused: %s", rule.id, tx.tenant, because)
    return Stop(Held(f"the rule is paused: {because}"))
