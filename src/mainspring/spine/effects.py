"""Effects: what is owed, its states, and the one table of moves between them. Pure: no await, no clock.

An illegal move raises and changes nothing. The store writes what `resolve` decided, and nothing else decides. What an executor
answers has a module of its own, and its names are found here, too.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, TypeAlias, assert_never
from uuid import UUID

from mainspring.spine.errors import Misuse
from mainspring.spine.outcomes import (
    DELAY_MAX_SECONDS as DELAY_MAX_SECONDS,
)
from mainspring.spine.outcomes import (
    TEXT_LENGTH_MAX as TEXT_LENGTH_MAX,
)
from mainspring.spine.outcomes import (
    Deferred as Deferred,
)
from mainspring.spine.outcomes import (
    Done as Done,
)
from mainspring.spine.outcomes import (
    Dropped as Dropped,
)
from mainspring.spine.outcomes import (
    Failed as Failed,
)
from mainspring.spine.outcomes import (
    Held as Held,
)
from mainspring.spine.outcomes import (
    Outcome as Outcome,
)
from mainspring.spine.outcomes import (
    Retry as Retry,
)
from mainspring.spine.outcomes import (
    Unknown as Unknown,
)
from mainspring.spine.outcomes import (
    check_delay as check_delay,
)
from mainspring.spine.outcomes import (
    checked as checked,
)
from mainspring.spine.outcomes import (
    clean as clean,
)
from mainspring.spine.outcomes import (
    outcome_of as outcome_of,
)
from mainspring.spine.retry import DEFAULT_BACKOFF, Backoff

KIND_LENGTH_MAX = 64
KEY_LENGTH_MAX = 300
TARGET_LENGTH_MAX = 300
CRASHES_ALONE = 2  # from this many crashes on, a row runs with nothing else in flight
CRASHES_MAX = 5
DEFER_LIMIT_SECONDS = 7 * 86_400.0


class EffectState(StrEnum):
    """Where an effect stands. `done`, `dropped` and `discarded` are final; `dead` waits for an operator."""

    PENDING = "pending"
    CLAIMED = "claimed"
    DONE = "done"
    DROPPED = "dropped"
    DEAD = "dead"
    DISCARDED = "discarded"


class Move(StrEnum):
    """Everything that can happen to an effect."""

    CLAIM = "claim"
    RECLAIM = "reclaim"
    FINISH = "finish"
    DROP = "drop"
    WAIT = "wait"
    BURY = "bury"
    CANCEL = "cancel"
    REPLAY = "replay"
    DISCARD = "discard"


S, M = EffectState, Move
TRANSITIONS: Mapping[tuple[EffectState, Move], EffectState] = {
    (S.PENDING, M.CLAIM): S.CLAIMED,
    (S.PENDING, M.CANCEL): S.DROPPED,
    (S.CLAIMED, M.RECLAIM): S.CLAIMED,
    (S.CLAIMED, M.FINISH): S.DONE,
    (S.CLAIMED, M.DROP): S.DROPPED,
    (S.CLAIMED, M.WAIT): S.PENDING,
    (S.CLAIMED, M.BURY): S.DEAD,
    (S.CLAIMED, M.CANCEL): S.CLAIMED,  # cancel_requested: the settle decides
    (S.DEAD, M.REPLAY): S.PENDING,
    (S.DEAD, M.DISCARD): S.DISCARDED,
}
LIVE = frozenset({S.PENDING, S.CLAIMED})
FINAL = frozenset({S.DONE, S.DROPPED, S.DISCARDED})
del S, M


def step(state: EffectState, move: Move) -> EffectState:
    """Return the state after a move; raise Misuse, changing nothing, when the table does not have it."""
    try:
        return TRANSITIONS[state, move]
    except KeyError:
        raise Misuse(f"an effect that is {state} cannot {move}") from None


# What is owed -------------------------------------------------------------------------------------------------

Family: TypeAlias = Literal["executed", "offered"]


@dataclass(frozen=True, slots=True)
class NewEffect:
    """An effect about to be owed. (tenant, kind, key) names it: owing it again is one row, not two.

    Args:
        kind: who executes it.
        key: what makes it this one; unique with tenant and kind for as long as the row is kept.
        payload: JSON values; fixed at owing.
        event_seq: the event that owes it; whoever judges an event need not say it.
        target: the thing outside that it depends on, when it is another than its kind's. A host or a service, of which there are
            few, and not a customer: what is owed to one that is down waits, and the rest is looked for target by target.
        delay_seconds: earliest start, from the moment of owing; infinite for an offered one: it is held until somebody sets it free.
        family: `executed` by a worker, or `offered` to its recipient, who comes for it.
    """

    kind: str
    key: str = field(kw_only=True)
    payload: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    event_seq: int | None = field(default=None, kw_only=True)
    rule_id: UUID | None = field(default=None, kw_only=True)
    rule_version: int | None = field(default=None, kw_only=True)
    recipient_id: UUID | None = field(default=None, kw_only=True)
    topic_id: UUID | None = field(default=None, kw_only=True)
    target: str = field(default="", kw_only=True)
    delay_seconds: float = field(default=0.0, kw_only=True)
    family: Family = field(default="executed", kw_only=True)

    def __post_init__(self) -> None:
        if not 0 < len(self.kind) <= KIND_LENGTH_MAX:
            raise Misuse(f"an effect's kind has 1 to {KIND_LENGTH_MAX} characters")
        if not 0 < len(self.key) <= KEY_LENGTH_MAX:
            raise Misuse(f"an effect's key has 1 to {KEY_LENGTH_MAX} characters")
        check_target(self.target)
        if self.family == "executed" or self.delay_seconds != math.inf:
            check_delay(self.delay_seconds)


def check_target(target: str) -> None:
    """Raise Misuse for a target's name that is too long to be kept in an index."""
    if len(target) > TARGET_LENGTH_MAX:
        raise Misuse(f"a target's name has at most {TARGET_LENGTH_MAX} characters")


def check_family(effect: NewEffect) -> None:
    """Raise Misuse for an effect that nobody would come for: it would be owed for ever."""
    if effect.family == "offered" and (effect.recipient_id is None or effect.topic_id is None):
        raise Misuse("an effect that is offered names its recipient, and the topic that it stands in line in")


@dataclass(frozen=True, slots=True)
class Owed:
    """A new row now stands for this effect."""

    id: UUID


@dataclass(frozen=True, slots=True)
class AlreadyOwed:
    """A row stood already; it is in this state, and nothing was written."""

    id: UUID
    state: EffectState


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """An effect as its executor sees it, under one claim. `attempts` counts the earlier ones that failed.

    Args:
        deferred_seconds: how long it has been deferred, or has waited for its target, without a break; 0 when it does not.
        waited_seconds: from due to claimed, by the database's clock.
        probe: its target is taken to be down, and it is the one that tries.
        down_seconds: its target is down for so long still, and it is not to be tried; None when it is.
        doubted: something has failed at its target since that last worked.
    """

    tenant_id: UUID
    id: UUID
    kind: str
    key: str
    payload: Mapping[str, Any]
    event_seq: int | None
    rule_id: UUID | None
    rule_version: int | None
    target: str
    attempts: int
    crashes: int
    epoch: int
    claim_id: UUID
    deferred_seconds: float
    waited_seconds: float
    reclaimed: bool
    deferrals: int = 0
    probe: bool = False
    down_seconds: float | None = None
    doubted: bool = False

    @property
    def idempotency_key(self) -> str:
        """A digest of tenant, kind, key and epoch: the same for every attempt until an operator replays with a new key."""
        digest = hashlib.sha256()
        for part in (str(self.tenant_id), self.kind, self.key, str(self.epoch)):
            raw = part.encode()
            digest.update(len(raw).to_bytes(4, "big") + raw)
        return digest.hexdigest()[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectRow:
    """A whole effect row, for the desk and for explain."""

    tenant_id: UUID
    id: UUID
    kind: str
    family: Family
    key: str
    event_seq: int | None
    rule_id: UUID | None
    rule_version: int | None
    target: str
    payload: Mapping[str, Any]
    state: EffectState
    attempts: int
    crashes: int
    deferrals: int
    epoch: int
    claim_id: UUID | None
    worker: str | None
    lease_until: datetime | None
    not_before: datetime | None  # None: held until resumed
    cancel_requested: bool
    outcome: str | None
    error: str | None
    created_at: datetime
    settled_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt that did not simply succeed the first time."""

    n: int
    epoch: int
    claim_id: UUID
    worker: str
    started_at: datetime
    ended_at: datetime
    outcome: str
    error: str | None


# What becomes of the row --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectKind:
    """What is the same for every effect of a kind.

    Args:
        transactional: the executor gets the open transaction and its writes commit with the settle.
        idempotent: running it twice is as good as once (external executors pass on `idempotency_key`).
        lease_seconds: how long a claim lasts unless renewed.
        target: the thing outside that it depends on, unless an effect names its own.
    """

    name: str
    transactional: bool = False
    idempotent: bool = True
    max_attempts: int = 12
    lease_seconds: float = 60.0
    timeout_seconds: float | None = None
    target: str = ""
    backoff: Backoff = DEFAULT_BACKOFF

    def __post_init__(self) -> None:
        if self.max_attempts < 1 or self.lease_seconds <= 0:
            raise Misuse(f"kind {self.name}: max_attempts and lease_seconds are positive")
        check_target(self.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """One finishing write, fenced by `claim_id`; the store applies it as it stands.

    An infinite `delay_seconds` holds the row until somebody sets it free.
    """

    tenant_id: UUID
    id: UUID
    claim_id: UUID
    move: Move
    attempts: int
    outcome: str
    error: str | None = None
    delay_seconds: float = 0.0
    deferred: bool = False
    plain: bool = False  # no attempt row is written: the first one simply succeeded, or none was made

    @property
    def state(self) -> EffectState:
        """The state that the row goes to."""
        return step(EffectState.CLAIMED, self.move)


def resolve(effect: Effect, outcome: Outcome, kind: EffectKind, *, random: float) -> Settlement:
    """Decide what an outcome makes of its row. `random` in [0, 1) spreads the backoff."""

    match outcome:
        case Done(note):
            plain = effect.attempts == 0 and effect.crashes == 0
            return _settlement(effect, Move.FINISH, note or "done", plain=plain)
        case Dropped(reason):
            return _settlement(effect, Move.DROP, f"dropped({reason})")
        case Failed(error):
            return _settlement(effect, Move.BURY, "failed", error, spent=1)
        case Unknown(error) if not kind.idempotent and not kind.transactional:
            return _settlement(effect, Move.BURY, "unknown", error, spent=1)
        case Unknown(error):
            return _try_again(effect, kind, "unknown", error, None, random)
        case Retry(error, after_seconds=after_seconds):
            return _try_again(effect, kind, "retry", error, after_seconds, random)
        case Deferred(reason) if effect.deferred_seconds > DEFER_LIMIT_SECONDS:
            return _settlement(effect, Move.BURY, *_waited_out(effect, reason))
        case Deferred(reason, after_seconds=after_seconds, tried=tried):
            # who says "in a second" for a week would be asked, and noted, hundreds of thousands of times
            least = kind.backoff.delay_seconds(effect.deferrals, random=random) if tried else 0.0
            return _settlement(
                effect,
                Move.WAIT,
                "deferred",
                reason or None,
                delay_seconds=max(after_seconds, least),
                deferred=True,
                plain=not tried,
            )
        case Held(reason):
            return _settlement(effect, Move.WAIT, "held", reason, delay_seconds=math.inf, plain=True)
        case _:
            assert_never(outcome)


def _waited_out(effect: Effect, reason: str) -> tuple[str, str]:
    """Return why what was deferred for too long is dead. It has not failed: an earlier attempt of it may have happened."""
    if effect.target:
        return "target_down", reason or "deferred for too long"
    return "exhausted", f"deferred for too long: {reason}" if reason else "deferred for too long"


def _settlement(
    effect: Effect,
    move: Move,
    label: str,
    error: str | None = None,
    *,
    spent: int = 0,
    delay_seconds: float = 0.0,
    deferred: bool = False,
    plain: bool = False,
) -> Settlement:
    return Settlement(
        tenant_id=effect.tenant_id,
        id=effect.id,
        claim_id=effect.claim_id,
        move=move,
        attempts=effect.attempts + spent,
        outcome=clean(label),
        error=None if error is None else clean(error),
        delay_seconds=delay_seconds,
        deferred=deferred,
        plain=plain,
    )


def put_off(effect: Effect, outcome: Outcome, kind: EffectKind, *, random: float) -> Settlement | None:
    """Decide what a failure makes of its row when the target is to blame: it waits, longer every time, and spends no attempt.

    None for outcomes that are no failure, and for a failure that must not be tried again whoever is to blame.
    """
    match outcome:
        case Retry(error, after_seconds=after_seconds):
            least = after_seconds or 0.0
        case Unknown(error) if kind.idempotent:
            least = 0.0
        case _:
            return None
    return resolve(effect, Deferred(error, after_seconds=least, tried=True), kind, random=random)


def _try_again(
    effect: Effect,
    kind: EffectKind,
    label: str,
    error: str,
    after_seconds: float | None,
    random: float,
) -> Settlement:
    if effect.attempts + 1 >= kind.max_attempts:
        return _settlement(effect, Move.BURY, "exhausted", error, spent=1)
    delay = (
        kind.backoff.delay_seconds(effect.attempts, random=random) if after_seconds is None else after_seconds
    )
    return _settlement(effect, Move.WAIT, label, error, spent=1, delay_seconds=delay)


def bury_crashed(effect: Effect, kind: EffectKind) -> Settlement | None:
    """Decide whether a claimed row must not run again, because its workers ended too often or once too often."""
    if effect.crashes >= CRASHES_MAX:
        label, error = "worker_crashed", f"{effect.crashes} workers ended while they ran it"
    elif effect.reclaimed and not kind.idempotent and not kind.transactional:
        label, error = "unknown", "a worker ended while it ran it: it may or may not have happened"
    else:
        return None
    return _settlement(effect, Move.BURY, label, error)
