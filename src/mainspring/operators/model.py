"""The operators' values: references, dead letters, plans and checks. Pure: no await, no I/O, no clock."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias
from uuid import UUID

from mainspring.spine.desk import cause_of

if TYPE_CHECKING:
    from mainspring.db import Scope
    from mainspring.rooms import Actor, Tx
    from mainspring.spine.events import Event

RUN: Final = "run"  # the kind under which failed and lost runs lie beside dead effects
DEAD_RUN_STATES: Final = frozenset({"failed", "lost"})
VIOLATIONS_SHOWN_MAX: Final = 20


# References ---------------------------------------------------------------------------------------------------

Noun: TypeAlias = Literal["card", "event", "effect", "run", "rule", "message"]
_CARD_KEY: Final = re.compile(r"([A-Za-z][A-Za-z0-9]{0,9})-([1-9][0-9]{0,8})")
_SEQ: Final = re.compile(r"[1-9][0-9]{0,17}")
_PREFIXED: Final = re.compile(r"(card|event|effect|run|rule|message|delivery):(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class CardKey:
    """`OPS-12`: a board's key and the card's number."""

    board: str
    number: int


@dataclass(frozen=True, slots=True)
class Seq:
    """`12` or `event:12`: an event's place in the log."""

    seq: int


@dataclass(frozen=True, slots=True)
class Id:
    """An id, of one noun or of any."""

    id: UUID
    noun: Noun | None = None


@dataclass(frozen=True, slots=True)
class RuleName:
    """A rule by its name."""

    name: str


Ref: TypeAlias = CardKey | Seq | Id | RuleName


def parse_ref(text: str) -> Ref | None:
    """Return what a reference names, by its form alone; None when it has none of the forms."""
    text = text.strip()
    noun: Noun | None = None
    if (prefixed := _PREFIXED.fullmatch(text)) is not None:
        named = "effect" if prefixed[1] == "delivery" else prefixed[1]  # a delivery is one
        noun, text = named, prefixed[2].strip()  # type: ignore[assignment]
    if noun in (None, "event") and _SEQ.fullmatch(text):
        return Seq(int(text))
    if noun in (None, "card") and (key := _CARD_KEY.fullmatch(text)):
        return CardKey(key[1].upper(), int(key[2]))
    if (found := as_id(text)) is not None:
        return Id(found, noun)
    return RuleName(text) if text and noun in (None, "rule") else None


def as_id(text: str) -> UUID | None:
    """Return the id that a text is, or None."""
    try:
        return UUID(text)
    except ValueError:
        return None


# Dead letters -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What a delivery was to carry, by the names that people know; only for those who see its channel."""

    message_id: UUID
    revision: int
    channel: str
    topic: str
    author: str
    recipient: str

    @property
    def subject(self) -> str:
        """What a person knows it by."""
        return f"#{self.channel}/{self.topic}: {self.author} to {self.recipient}"

    def as_json(self) -> dict[str, Any]:
        """Return it as it is shown."""
        return {
            "message_id": str(self.message_id),
            "revision": self.revision,
            "channel": self.channel,
            "topic": self.topic,
            "author": self.author,
            "recipient": self.recipient,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A dead letter: an effect that gave up, or a run that failed or was lost (`kind` is "run" then).

    `subject` is what a person knows it by: the card's key, else what its event was about, else its own key. `rule` is the name of
    the rule that owed it, `agent` the handle of whom it runs, launches or pins.
    """

    kind: str
    id: UUID
    state: str
    outcome: str | None
    error: str | None
    since: datetime
    attempts: int
    event_seq: int | None
    subject: str
    rule: str | None = None
    agent: str | None = None
    paused: bool = False
    delivery: Delivery | None = None

    @property
    def cause(self) -> str:
        """What it has in common with others that died of the same."""
        return cause_of(self.outcome, self.error)

    @property
    def dead(self) -> bool:
        """Whether it still lies on the desk."""
        return self.state in (DEAD_RUN_STATES if self.kind == RUN else {"dead"})

    def as_json(self) -> dict[str, Any]:
        """Return the letter as it is shown."""
        return {
            "kind": self.kind,
            "id": str(self.id),
            "subject": self.subject,
            "state": self.state,
            "cause": self.cause,
            "outcome": self.outcome,
            "error": self.error,
            "attempts": self.attempts,
            "since": self.since.isoformat(),
            "event_seq": self.event_seq,
            "rule": self.rule,
            "agent": self.agent,
            "delivery": None if self.delivery is None else self.delivery.as_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Heap:
    """Dead letters that say the very same: one row of an aggregate."""

    kind: str
    outcome: str | None
    error: str | None
    count: int
    oldest: datetime
    newest: datetime
    ids: Sequence[UUID]


def grouped(heaps: Sequence[Heap], *, sample: int = 5) -> list[dict[str, Any]]:
    """Return dead letters by cause, the most frequent first."""
    groups: dict[str, list[Heap]] = {}
    for heap in heaps:
        groups.setdefault(cause_of(heap.outcome, heap.error), []).append(heap)
    shown = [
        {
            "cause": cause,
            "kinds": sorted({heap.kind for heap in members}),
            "count": sum(heap.count for heap in members),
            "oldest": min(heap.oldest for heap in members).isoformat(),
            "newest": max(heap.newest for heap in members).isoformat(),
            "ids": [str(one) for heap in members for one in heap.ids][:sample],
        }
        for cause, members in groups.items()
    ]
    return sorted(shown, key=lambda group: (-group["count"], group["cause"]))


@dataclass(frozen=True, slots=True)
class Named:
    """Dead letters by their ids."""

    ids: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class Whose:
    """A rule or an agent, and what people call it."""

    id: UUID
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """All dead letters of a kind, a cause, a rule and an agent, as far as each is said. A letter's own error names its cause, too.

    A letter of an agent is a run of it, or an effect that launches or pins it.
    """

    kind: str | None = None
    cause: str | None = None
    rule: Whose | None = None
    agent: Whose | None = None

    @property
    def narrowed(self) -> bool:
        """Whether a rule or an agent is said."""
        return self.rule is not None or self.agent is not None

    def takes(self, outcome: str | None, error: str | None) -> bool:
        """Tell whether a letter of the kind is meant, by what it died of."""
        if self.cause is None:
            return True
        own = cause_of(outcome, error)
        # as the desk lists it, or an error of that cause
        return own in (self.cause, cause_of(None, self.cause))


Asked: TypeAlias = Named | Described


@dataclass(frozen=True, slots=True)
class Replay:
    """Owe or queue them again. Without `new_key` only definite failures get a new idempotency key."""

    new_key: bool | None = None


@dataclass(frozen=True, slots=True)
class Discard:
    """Give them up, for a reason that is kept."""

    reason: str


Decision: TypeAlias = Replay | Discard


# Operations ---------------------------------------------------------------------------------------------------

OPERATION: Final = "operation"  # the kind of the effects that carry one on, a step each
LIVE_STEP: Final = frozenset({"pending", "claimed"})
STEP_LETTERS_MAX: Final = 100
RATE_MAX: Final = 500.0
RATE_MIN: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A decision on all dead letters of a description, carried out step by step. `step_...` is the step that it waits for."""

    id: UUID
    decision: Decision
    asked: Described
    actor: Mapping[str, Any]
    account_id: UUID | None
    rate_per_second: float | None
    state: Literal["running", "done", "stopped"]
    total: int | None
    done: int
    skipped: int
    step: int
    after_age: int
    after_id: UUID
    created_at: datetime
    ended_at: datetime | None
    ended_by: str | None
    step_id: UUID | None
    step_state: str | None
    step_error: str | None

    @property
    def verb(self) -> Literal["replay", "discard"]:
        """What is done."""
        return "replay" if isinstance(self.decision, Replay) else "discard"

    @property
    def stuck(self) -> bool:
        """Whether nothing carries it on: its step is dead, or was given up."""
        return self.state == "running" and self.step_state not in LIVE_STEP

    @property
    def batch(self) -> int:
        """How many letters a step decides on."""
        rate = self.rate_per_second
        return STEP_LETTERS_MAX if rate is None else max(1, math.ceil(rate))

    def pause_seconds(self, decided: int) -> float:
        """Return how long the next step waits after one that has decided on so many."""
        return 0.0 if self.rate_per_second is None else decided / self.rate_per_second

    def as_json(self) -> dict[str, Any]:
        """Return the operation as it is shown."""
        decision = self.decision
        return {
            "id": str(self.id),
            "verb": self.verb,
            "kind": self.asked.kind,
            "cause": self.asked.cause,
            "rule": self.asked.rule.name if self.asked.rule else None,
            "agent": self.asked.agent.name if self.asked.agent else None,
            "new_key": decision.new_key if isinstance(decision, Replay) else None,
            "reason": decision.reason if isinstance(decision, Discard) else None,
            "rate_per_second": self.rate_per_second,
            "state": "stuck" if self.stuck else self.state,
            "total": self.total,
            "done": self.done,
            "skipped": self.skipped,
            "by": self.actor.get("handle"),
            "created_at": self.created_at.isoformat(),
            "ended_at": self.ended_at.isoformat() if self.ended_at else None,
            "ended_by": self.ended_by,
            "step": str(self.step_id) if self.step_id and self.state == "running" else None,
            "error": (self.step_error or f"its step is {self.step_state or 'gone'}") if self.stuck else None,
        }


# Verdicts and checks ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What one invariant's check found. `examined` counts rows; `violations` are sentences, the first of them.

    `warning`: what it finds was neither lost nor doubled, but somebody should look at it.
    """

    invariant: str
    what: str
    examined: int
    violations: tuple[str, ...] = ()
    count: int = 0
    note: str = ""
    warning: bool = False

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return self.count == 0

    def as_json(self) -> dict[str, Any]:
        """Return the check as it is shown."""
        return {
            "invariant": self.invariant,
            "what": self.what,
            "examined": self.examined,
            "ok": self.ok,
            "count": self.count,
            "violations": list(self.violations),
            "note": self.note,
            "warning": self.warning,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """All checks of a tenant."""

    checks: tuple[Check, ...]
    through_seq: int

    @property
    def ok(self) -> bool:
        """Whether nothing was found anywhere that breaks an invariant."""
        return all(check.ok or check.warning for check in self.checks)

    @property
    def warnings(self) -> int:
        """How much was found that somebody should look at."""
        return sum(check.count for check in self.checks if check.warning)

    def as_json(self) -> dict[str, Any]:
        """Return the report as it is shown."""
        return {
            "ok": self.ok,
            "warnings": self.warnings,
            "through_seq": self.through_seq,
            "checks": [check.as_json() for check in self.checks],
        }


# What the operators' tools ask of the rooms: wiring hands it in --------------------------------------------------


class RunDesk(Protocol):
    """Failed and lost runs, replayed and discarded like dead effects. In the caller's transaction."""

    async def replay_runs(
        self, tx: Tx, ids: Sequence[UUID], actor: Actor, /, *, note: Mapping[str, Any] | None = None
    ) -> Sequence[UUID]:
        """Queue the failed or lost ones of these runs again; return their ids."""

    async def discard_runs(
        self,
        tx: Tx,
        ids: Sequence[UUID],
        reason: str,
        actor: Actor,
        /,
        *,
        note: Mapping[str, Any] | None = None,
    ) -> Sequence[UUID]:
        """Give the failed or lost ones of these runs up; return their ids."""


class RuleVerdict(Protocol):
    """What one rule made of one event: it matched, or the first term that did not hold, and why in a sentence."""

    @property
    def rule_id(self) -> UUID: ...
    @property
    def name(self) -> str: ...
    @property
    def version(self) -> int | None: ...
    @property
    def matched(self) -> bool: ...
    @property
    def failed_term(self) -> str | None: ...
    @property
    def why_text(self) -> str: ...
    @property
    def missed_term(self) -> str | None: ...  # what fails, or would fail were the rule in force
    @property
    def near(self) -> tuple[int, ...]: ...  # the least is the nearest to a match
    def as_json(self) -> dict[str, Any]: ...


class RulesTold(Protocol):
    """What rules made of one event: all that matched, those that missed by least, and how many more did not match."""

    @property
    def verdicts(self) -> Sequence[RuleVerdict]: ...
    @property
    def left_out(self) -> int: ...


class Judges(Protocol):
    """The rules that were in force at some events."""

    async def judge(self, event: Event, /) -> RulesTold:
        """Return what they made of one of the events. Reads nothing."""


class ReadRules(Protocol):
    """What the triggers room answers: the rules that were in force at any of these events, or one alone."""

    async def __call__(
        self, scope: Scope, tenant: UUID, events: Sequence[Event], /, *, rule_id: UUID | None = None
    ) -> Judges: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KindLimits:
    """What the engine promises about attempts, by kind of effect; `run` is the limit of a run."""

    attempts_max: Mapping[str, int] = field(default_factory=dict)
    run_attempts_max: int = 3
    kept_days: float = 7.0
