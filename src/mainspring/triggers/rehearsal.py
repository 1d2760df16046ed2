"""A rule tried out on what has happened: takes its definition and the last events, leaves a verdict for each. Changes nothing.

The verdicts are the drain's own. What limits would have made of the matches is played through in the order of the events,
beginning with a rule that has never fired; what cannot be known of the past, such as which runs lived, is left out.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, assert_never
from uuid import UUID

from mainspring.db import Scope
from mainspring.spine.events import Event
from mainspring.spine.ports import EventLog
from mainspring.triggers import limits, prompts
from mainspring.triggers.explain import RuleVerdict, verdict_of
from mainspring.triggers.limits import Pace, Pass, TooOften
from mainspring.triggers.matcher import card_of, facts_of
from mainspring.triggers.model import Launch, Outlook, Promote, Remark, RuleVersion, Webhook, Will, Wont
from mainspring.triggers.prompts import Missing, TooLong
from mainspring.triggers.terms import RULE_KINDS, is_custom

LAST_DEFAULT: Final = 200
LAST_MAX: Final = 1_000
_BATCH: Final = 100  # events carry their cards whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """What the rule would have made of one event; `then` says what would have come of a match."""

    seq: int
    kind: str
    occurred_at: datetime
    subject: str
    actor: str
    verdict: RuleVerdict
    happens: bool = False
    then: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the line as it is shown."""
        return {
            "seq": self.seq,
            "kind": self.kind,
            "occurred_at": self.occurred_at.isoformat(),
            "subject": self.subject,
            "actor": self.actor,
            "matched": self.verdict.matched,
            "failed_term": self.verdict.failed_term,
            "why": self.verdict.why_text,
            "happens": self.happens,
            "then": self.then,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """What the rule would have made of the last events, oldest first."""

    lines: tuple[Rehearsed, ...]
    remarks: tuple[Remark, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the answer to whoever tries a rule out."""
        missed = Counter(one.verdict.failed_term for one in self.lines if not one.verdict.matched)
        return {
            "events": len(self.lines),
            "matched": sum(one.verdict.matched for one in self.lines),
            "would_happen": sum(one.happens for one in self.lines),
            "missed_by": dict(missed.most_common()),
            "remarks": [remark.as_json() for remark in self.remarks],
            "data": [one.as_json() for one in self.lines],
        }


async def rehearse(
    log: EventLog[Scope],
    scope: Scope,
    tenant: UUID,
    version: RuleVersion,
    *,
    last: int,
    remarks: Sequence[Remark] = (),
) -> Rehearsal:
    """Try a version out on those of the tenant's last events that a rule may name."""
    head = await log.head(scope, tenant)
    after, play, lines = max(0, head - last), _Play(version), list[Rehearsed]()
    while after < head:
        events = await log.read(scope, tenant, after=after, limit=min(_BATCH, head - after))
        if not events:
            break
        lines += [play.next(event) for event in events if _may_be_named(event)]
        after = events[-1].seq
    return Rehearsal(lines=tuple(lines), remarks=tuple(remarks))


def _may_be_named(event: Event) -> bool:
    """Tell whether a rule may name an event of this kind, and look at it: what is said in a shared channel its members alone are told."""
    return (event.kind in RULE_KINDS or is_custom(event.kind)) and not facts_of(event).is_hidden


@dataclass(slots=True)
class _Play:
    """The rule's limits, played through event by event."""

    version: RuleVersion
    fired_on: dict[str | None, datetime] = field(default_factory=dict)
    fired: deque[datetime] = field(default_factory=deque)
    paused: str | None = None

    def next(self, event: Event) -> Rehearsed:
        """Judge the next event, and say what would have come of it."""
        verdict = verdict_of(self.version, facts_of(event))
        outlook = self._then(event) if verdict.matched else None
        actor = event.data.get("actor")
        card = card_of(event)
        return Rehearsed(
            seq=event.seq,
            kind=event.kind,
            occurred_at=event.occurred_at,
            subject=str(card["key"]) if card else event.subject,
            actor=str(actor.get("handle")) if isinstance(actor, dict) else "mainspring",
            verdict=verdict,
            happens=isinstance(outlook, Will),
            then=outlook.then if outlook else None,
        )

    def _then(self, event: Event) -> Outlook:
        card = card_of(event)
        on, key = (str(card["id"]), str(card["key"])) if card else (None, None)
        if self.paused is not None:
            return Wont(f"held: the rule would be paused: {self.paused}")
        pace = self._pace(event.occurred_at, on)
        resting = limits.paced(self.version.options, pace, card=key)
        if not isinstance(resting, Pass | TooOften):
            return Wont(f"dropped: {resting.reason}")
        action = self.version.action
        if isinstance(action, Launch):
            match prompts.render(action.prompt, prompts.values_of(event, None)):
                case Missing(name):
                    return Wont(f"dead, unless the card has it by then: the prompt names {{{{{name}}}}}")
                case TooLong(length):
                    return Wont(f"dead: the prompt would be {length} characters long")
                case _:
                    pass
        often = limits.rated(self.version.options, pace)
        if isinstance(often, TooOften):
            self.paused = often.because
            return Wont(f"held: the rule would be paused: {often.because}")
        self.fired_on[on] = event.occurred_at
        self.fired.append(event.occurred_at)
        match action:
            case Launch(agent=agent):
                return Will(f"launch {agent}")
            case Promote(agent=agent):
                return Will(f"pin to {agent}")
            case Webhook(url=url):
                return Will(f"send to {url}")
            case _:
                assert_never(action)

    def _pace(self, now: datetime, on: str | None) -> Pace:
        while self.fired and now - self.fired[0] >= timedelta(hours=1):
            self.fired.popleft()
        before = self.fired_on.get(on)
        return Pace(
            rested_seconds=None if before is None else (now - before).total_seconds(),
            fired=len(self.fired),
        )
