"""The shapes of the operators' answers, for the API's description. Checked on the way out: what is described is what is sent."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, Field


class EventOut(BaseModel):
    """An event: what happened, in the order of commits. `data` is a snapshot that never changes."""

    seq: int
    id: UUID
    kind: str
    subject: str
    actor_id: UUID | None
    data: dict[str, Any]
    cause_seq: int | None
    via: list[UUID]
    depth: int
    trust: str
    occurred_at: datetime


class EventPage(BaseModel):
    """A page of events; `next` is the seq to go on behind."""

    data: list[EventOut]
    next: str | None


class EffectOut(BaseModel):
    """An effect: something that is owed, and how far it is."""

    id: UUID
    kind: str
    key: str
    state: str
    event_seq: int | None
    rule_id: UUID | None
    rule_version: int | None
    target: str
    payload: dict[str, Any]
    attempts: int
    crashes: int
    deferrals: int
    epoch: int
    worker: str | None
    lease_until: datetime | None
    not_before: datetime | None
    cancel_requested: bool
    outcome: str | None
    error: str | None
    created_at: datetime
    settled_at: datetime | None


class EffectPage(BaseModel):
    """A page of effects, oldest first."""

    data: list[EffectOut]
    next: str | None


class AttemptOut(BaseModel):
    """One attempt of an effect."""

    n: int
    epoch: int
    worker: str
    started_at: datetime
    ended_at: datetime
    outcome: str
    error: str | None


class EffectWithAttempts(EffectOut):
    """An effect with every attempt that did not simply succeed the first time."""

    history: list[AttemptOut]


class DeliveryOut(BaseModel):
    """What a delivery was to carry, and to whom."""

    message_id: UUID
    revision: int
    channel: str
    topic: str
    author: str
    recipient: str


class LetterOut(BaseModel):
    """A dead letter: an effect that gave up, or a run (`kind` is `run`) that failed or was lost."""

    kind: str
    id: UUID
    subject: str
    state: str
    cause: str
    outcome: str | None
    error: str | None
    attempts: int
    since: datetime
    event_seq: int | None
    rule: str | None = Field(description="The name of the rule that owed it")
    agent: str | None = Field(description="The handle of the agent that it runs, launches or pins")
    delivery: DeliveryOut | None = Field(
        default=None, description="What a `deliver` or `steer` was to carry, for those who see its channel"
    )


class LetterAttempt(BaseModel):
    """One attempt of a dead letter; an effect's by a worker, a run's by a runner."""

    n: int
    epoch: int | None = None
    worker: str | None = None
    runner: str | None = None
    started_at: datetime
    ended_at: datetime | None
    outcome: str | None
    error: str | None


class WholeLetter(LetterOut):
    """A dead letter with every attempt and what it was to do: an effect's payload, or a run's prompt."""

    key: str | None = None
    payload: dict[str, Any] | None = None
    target: str | None = Field(default=None, description="What it depends on: a webhook's host and port")
    epoch: int | None = None
    crashes: int | None = None
    deferrals: int | None = None
    prompt: str | None = None
    trigger: dict[str, Any] | None = None
    effect_kind: str | None = None
    effect_key: str | None = None
    rule_id: UUID | None
    rule_version: int | None
    history: list[LetterAttempt]


class CauseOut(BaseModel):
    """Dead letters that died of the same, the most frequent first."""

    cause: str
    kinds: list[str]
    count: int
    oldest: datetime
    newest: datetime
    ids: list[UUID] = Field(description="Some of them, the oldest first")


class DeskPage(BaseModel):
    """A page of dead letters, the latest first; or, grouped, all causes on one page."""

    data: list[LetterOut] | list[CauseOut]
    next: str | None
    uncounted: int = Field(
        default=0, description="Letters that no group counts: they say too many different things"
    )


class SkippedOut(BaseModel):
    """One that was asked for and is left alone."""

    id: UUID
    because: str


class PlannedOut(BaseModel):
    """One that a replay would take, and what would become of it."""

    kind: str
    id: UUID
    subject: str
    cause: str
    event_seq: int | None
    new_key: bool | None = None
    then: str


class PlanOut(BaseModel):
    """What a replay would do, in this order. Nothing is changed by asking."""

    eligible: list[PlannedOut]
    skipped: list[SkippedOut]
    order: str
    waived: list[str]
    total: int | None = Field(
        description="How many there are, listed or not; null when they were not counted"
    )


class NamedOut(BaseModel):
    """One that was decided on."""

    kind: str
    id: UUID
    subject: str


class ReplayedOut(BaseModel):
    """What was owed or queued again, and what was left alone."""

    replayed: list[NamedOut]
    skipped: list[SkippedOut]


class DiscardedOut(BaseModel):
    """What was given up, and what was left alone."""

    discarded: list[NamedOut]
    skipped: list[SkippedOut]


class OperationOut(BaseModel):
    """A decision on all dead letters of a description, and how far it is. `stuck`: nothing carries it on, `error` says why."""

    id: UUID
    verb: Literal["replay", "discard"]
    kind: str | None
    cause: str | None
    rule: str | None
    agent: str | None
    new_key: bool | None
    reason: str | None
    rate_per_second: float | None
    state: Literal["running", "done", "stopped", "stuck"]
    total: int | None = Field(
        description="How many were meant when it began; null when they were not counted"
    )
    done: int = Field(
        description="Decided on by this operation alone; a letter that somebody else decided on before it was met counts nowhere"
    )
    skipped: int = Field(description="Met, and left alone: somebody else decided on it at that moment")
    by: str
    created_at: datetime
    ended_at: datetime | None
    ended_by: str | None = Field(description="Who stopped it")
    step: UUID | None = Field(description="The effect that carries it on")
    error: str | None


class OperationPage(BaseModel):
    """A page of operations, the newest first."""

    data: list[OperationOut]
    next: str | None


class DeedOut(BaseModel):
    """One command that asked for an operator, and who gave it."""

    id: UUID
    at: datetime
    by: str
    account_id: UUID | None
    token_id: UUID
    verb: str
    subject: str = Field(description="What it was done to; of many letters how many, and the first of them")
    asked: dict[str, Any] = Field(description="What was sent, without secrets")
    request_id: str


class AuditPage(BaseModel):
    """A page of what was done, the latest first."""

    data: list[DeedOut]
    next: str | None


class NodeOut(BaseModel):
    """A line of a story, and what follows from it."""

    text: str
    tone: Literal["plain", "good", "bad", "wait", "quiet"]
    children: list[NodeOut]


class StoryOut(BaseModel):
    """The story of a card, event, effect, run, rule or message; `tree` is the same for people."""

    noun: Literal["card", "event", "effect", "run", "rule", "message"]
    title: str
    summary: str
    now: dict[str, Any]
    events: list[dict[str, Any]]
    effects: list[dict[str, Any]]
    runs: list[dict[str, Any]]
    older_events_left_out: bool
    tree: NodeOut


class CheckOut(BaseModel):
    """What one invariant's check found; a `warning` breaks none, and does not count for the report's `ok`."""

    invariant: str
    what: str
    examined: int
    ok: bool
    count: int
    violations: list[str]
    note: str
    warning: bool


class ReportOut(BaseModel):
    """What `verify` found; `through_seq` is how far the log had been drained when it began."""

    ok: bool
    warnings: int
    through_seq: int
    checks: list[CheckOut]


class FindingOut(BaseModel):
    """One thing that was looked at, and what to do about it if it is not well."""

    check: str
    state: Literal["ok", "warning", "bad"]
    said: str
    way_out: str


class DiagnosisOut(BaseModel):
    """How this process, its database and the tenant do, the worst first. `ok`: nothing is bad."""

    ok: bool
    sentence: str
    findings: list[FindingOut]
