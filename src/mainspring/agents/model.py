"""Runs as values: their states, the one table of moves between them, and what a runner's word makes of a run.

Pure: no await, no I/O, no clock, no randomness of its own. Takes a run as it was read under its lock; leaves what shall be
written. An illegal move raises and changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, assert_never
from uuid import UUID

from mainspring.spine.errors import Misuse
from mainspring.spine.events import Cause, Trust, least_trusted
from mainspring.spine.retry import Backoff

if TYPE_CHECKING:
    from mainspring.rooms import Tx

TEXT_LENGTH_MAX: Final = (
    16_384  # of a result, a reason or an error; more is cut, since a result is never refused
)
LEASE_LOST: Final = "lease lost"
NO_HEARTBEAT: Final = "no heartbeat"
NO_RUNNER: Final = "no runner"
NEVER_BEGUN: Final = "its runners end before they begin"
HANDED_BACK: Final = "handed back"
RETURNS_AT_ONCE: Final = 3  # in a row; a run that is handed back more often waits longer each time
_CUT: Final = "… (cut)"


class RunState(StrEnum):
    """Where a run stands. `failed` and `lost` are dead letters: they wait for an operator."""

    QUEUED = "queued"
    CLAIMED = "claimed"
    RUNNING = "running"
    NEEDS_INPUT = "needs_input"
    DONE = "done"
    BLOCKED = "blocked"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"
    DISCARDED = "discarded"


class RunMove(StrEnum):
    """Everything that can happen to a run."""

    CLAIM = "claim"
    START = "start"
    FINISH = "finish"
    BLOCK = "block"
    FAIL = "fail"
    STOP = "stop"
    ASK = "ask"
    ANSWER = "answer"
    REQUEUE = "requeue"
    RESUME = "resume"
    LOSE = "lose"
    CANCEL = "cancel"
    REPLAY = "replay"
    DISCARD = "discard"


S, M = RunState, RunMove
TRANSITIONS: Mapping[tuple[RunState, RunMove], RunState] = {
    (S.QUEUED, M.CLAIM): S.CLAIMED,
    (S.QUEUED, M.CANCEL): S.CANCELLED,
    (S.QUEUED, M.LOSE): S.LOST,  # no runner came in time
    (S.CLAIMED, M.START): S.RUNNING,  # the first heartbeat: from here on an attempt counts
    (S.CLAIMED, M.REQUEUE): S.QUEUED,  # it never reached its runner: free of charge
    (S.CLAIMED, M.LOSE): S.LOST,  # ... but not for ever: it may be what ends them
    (S.CLAIMED, M.CANCEL): S.CLAIMED,  # cancel_requested: the runner is told, and decides
    (S.CLAIMED, M.STOP): S.CANCELLED,  # ... unless it is gone
    (S.RUNNING, M.FINISH): S.DONE,
    (S.RUNNING, M.BLOCK): S.BLOCKED,
    (S.RUNNING, M.FAIL): S.FAILED,
    (S.RUNNING, M.STOP): S.CANCELLED,
    (S.RUNNING, M.ASK): S.NEEDS_INPUT,
    (S.RUNNING, M.REQUEUE): S.QUEUED,
    (S.RUNNING, M.LOSE): S.LOST,
    (S.RUNNING, M.CANCEL): S.RUNNING,
    (S.NEEDS_INPUT, M.ANSWER): S.QUEUED,
    (S.NEEDS_INPUT, M.CANCEL): S.CANCELLED,
    # the last claim's result, later than its lease: it stands until another claims
    (S.QUEUED, M.FINISH): S.DONE,
    (S.QUEUED, M.BLOCK): S.BLOCKED,
    (S.QUEUED, M.FAIL): S.FAILED,
    (S.QUEUED, M.STOP): S.CANCELLED,
    (S.LOST, M.FINISH): S.DONE,
    (S.LOST, M.BLOCK): S.BLOCKED,
    (S.LOST, M.FAIL): S.FAILED,
    (S.LOST, M.STOP): S.CANCELLED,
    (S.QUEUED, M.ASK): S.NEEDS_INPUT,
    (S.LOST, M.ASK): S.NEEDS_INPUT,
    # ... or its heartbeat: the runner lives after all, and still works on it
    (S.QUEUED, M.RESUME): S.RUNNING,
    (S.LOST, M.RESUME): S.RUNNING,
    # ... or it gives back what was taken from it: that attempt is not spent after all
    (S.QUEUED, M.REQUEUE): S.QUEUED,
    (S.LOST, M.REQUEUE): S.QUEUED,
    (S.FAILED, M.REPLAY): S.QUEUED,
    (S.FAILED, M.DISCARD): S.DISCARDED,
    (S.LOST, M.REPLAY): S.QUEUED,
    (S.LOST, M.DISCARD): S.DISCARDED,
}
HELD: Final = frozenset({S.CLAIMED, S.RUNNING})
LIVE: Final = HELD | {S.QUEUED, S.NEEDS_INPUT}
DEAD: Final = frozenset({S.FAILED, S.LOST})
FINAL: Final = frozenset({S.DONE, S.BLOCKED, S.CANCELLED, S.DISCARDED})
EVENT_KINDS: Final[Mapping[RunState, str]] = {
    S.QUEUED: "run.queued",
    S.RUNNING: "run.started",
    S.NEEDS_INPUT: "run.needs_input",
    S.DONE: "run.done",
    S.BLOCKED: "run.blocked",
    S.FAILED: "run.failed",
    S.CANCELLED: "run.cancelled",
    S.LOST: "run.lost",
    S.DISCARDED: "run.discarded",
}
del S, M


def step(state: RunState, move: RunMove) -> RunState:
    """Return the state after a move; raise Misuse, changing nothing, when the table does not have it."""
    try:
        return TRANSITIONS[state, move]
    except KeyError:
        raise Misuse(f"a run that is {state} cannot {move}") from None


def can(state: RunState, move: RunMove) -> bool:
    """Tell whether the table has a move."""
    return (state, move) in TRANSITIONS


# Values -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPolicy:
    """What a run's claims and attempts cost: the settings that decide it.

    `unbegun_max` is how many claims in a row may end in silence before their first heartbeat: such a claim spends no attempt,
    so that nothing else would end a run that ends its runners.
    """

    lease_seconds: float = 60.0
    attempts_max: int = 3
    unbegun_max: int = 5
    backoff: Backoff = field(default_factory=lambda: Backoff(base_seconds=5.0, factor=3.0, cap_seconds=600.0))

    @property
    def heartbeat_seconds(self) -> float:
        """How often a runner says that it lives."""
        return self.lease_seconds / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """An agent: at most `slots` of its runs are held by runners at once, and none new while it is paused.

    `wake`: a run is queued for it when messages are owed to it and no session of it reads them.
    """

    id: UUID
    handle: str
    name: str
    slots: int
    paused: bool
    wake: bool
    version: int
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """A run about to be queued, and the launch that it is for. `trigger` says to people and runners why it runs.

    `exclusive`: no other exclusive run of this card and agent lives beside it. `queued_timeout_seconds`: how long it waits
    for a runner before it is lost; None is for ever. `runner_labels`: only a runner that has all of them takes it.
    """

    agent_id: UUID
    card_id: UUID | None
    effect_kind: str
    effect_key: str
    event_seq: int | None
    rule_id: UUID | None
    rule_version: int | None
    card_state_version: int | None
    prompt: str
    trigger: Mapping[str, Any] = field(default_factory=dict)
    via: tuple[UUID, ...] = ()
    depth: int = 0
    trust: Trust = Trust.MEMBER
    exclusive: bool = False
    queued_timeout_seconds: float | None = None
    runner_labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run as it is. `claim_id` is its last claim, which may be over.

    `unbegun` counts the claims, since its last heartbeat, that ended in silence before they had one.
    """

    id: UUID
    agent_id: UUID
    agent_handle: str
    card_id: UUID | None
    card_key: str | None
    effect_kind: str
    effect_key: str
    event_seq: int | None
    rule_id: UUID | None
    rule_version: int | None
    card_state_version: int | None
    state: RunState
    attempts: int
    unbegun: int
    claim_id: UUID | None
    runner: str | None
    slot: int | None
    lease_until: datetime | None
    not_before: datetime
    cancel_requested: bool
    prompt: str
    trigger: Mapping[str, Any]
    via: tuple[UUID, ...]
    depth: int
    trust: Trust
    runner_labels: tuple[str, ...]
    outcome: str | None
    error: str | None
    log_bytes: int
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None

    @property
    def cause(self) -> Cause:
        """What the run's events descend from, and whatever its agent does."""
        return Cause(seq=self.event_seq, via=self.via, depth=self.depth, trust=self.trust)

    @property
    def agents_cause(self) -> Cause:
        """The cause that its agent acts with: trusted no further than an agent is."""
        return Cause(
            seq=self.event_seq,
            via=self.via,
            depth=self.depth,
            trust=least_trusted(self.trust, Trust.AGENT),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNow:
    """A run's state now, as the reflection of it on its card needs it."""

    id: UUID
    state: RunState
    card_id: UUID | None
    card_state_version: int | None
    newest_of_card: bool
    agent_handle: str
    cause: Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAttempt:
    """One attempt of a run: who made it, and how it ended."""

    n: int
    claim_id: UUID
    runner: str
    started_at: datetime
    ended_at: datetime | None
    outcome: str | None
    error: str | None


def snapshot(run: Run) -> dict[str, Any]:
    """Return the run as its events carry it."""
    return {
        "id": str(run.id),
        "agent_id": str(run.agent_id),
        "agent": run.agent_handle,
        "card_id": str(run.card_id) if run.card_id else None,
        "state": str(run.state),
        "attempts": run.attempts,
        "outcome": run.outcome,
        "error": run.error,
        "rule_id": str(run.rule_id) if run.rule_id else None,
        "rule_version": run.rule_version,
        "event_seq": run.event_seq,
    }


class Cards(Protocol):
    """What this room asks of boards: a card as it is now, as events carry it; None when it is gone."""

    async def card_snapshot(self, tx: Tx, card_id: UUID) -> dict[str, Any] | None: ...
    async def card_snapshots(self, tx: Tx, ids: Collection[UUID]) -> dict[UUID, dict[str, Any]]: ...


# What a runner's word makes of a run --------------------------------------------------------------------------

Outcome: TypeAlias = Literal["done", "failed", "retry", "blocked", "needs_input", "cancelled"]
OUTCOMES: Final = frozenset({"done", "failed", "retry", "blocked", "needs_input", "cancelled"})
_MOVES: Final[Mapping[Outcome, RunMove]] = {
    "done": RunMove.FINISH,
    "failed": RunMove.FAIL,
    "blocked": RunMove.BLOCK,
    "needs_input": RunMove.ASK,
    "cancelled": RunMove.STOP,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """How a runner says that a claim ended. `text` is its result, its reason or its question, `error` what went wrong.

    `options`, of a question: the answers that it takes; none for any text.
    `handed_back`, of a retry: the runner goes away and gives the run back unfinished, which spends no attempt.
    """

    outcome: Outcome
    text: str | None = None
    error: str | None = None
    after_seconds: float | None = None
    handed_back: bool = False
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """What becomes of a run: the state it goes to, what is kept of why, and when it may be claimed again.

    `attempts` is how many it has spent then; None leaves them as they are.
    """

    state: RunState
    outcome: str | None = None
    error: str | None = None
    delay_seconds: float = 0.0
    attempts: int | None = None
    note: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Unchanged:
    """The run stays as it is: only the attempt's record is written."""


@dataclass(frozen=True, slots=True)
class ClaimLost:
    """The claim is not the run's last any more, or the run was ended by somebody else: nothing is written."""

    reason: str


def conclude(
    run: Run,
    claim_id: UUID,
    completion: Completion,
    policy: RunPolicy,
    *,
    random: float,
    begun: bool = True,
    returns: int = 0,
) -> Conclusion | Unchanged | ClaimLost:
    """Decide what a claim's completion makes of its run; `run.attempts` counts this attempt already, if it has `begun`.

    The last claim may complete after its lease, and after the run was queued again or given up for lost, until another
    claims: a finished result is never thrown away for a cut link. `returns` is how often in a row the run was handed back.
    """
    if run.claim_id != claim_id:
        return ClaimLost("another claim holds this run, or it has been queued anew")
    match run.state:
        case RunState.RUNNING:
            return _settle(run, completion, policy, random, returns)
        case RunState.CLAIMED if completion.outcome == "retry":
            return _give_back(run, completion, policy, random, returns)
        case RunState.QUEUED | RunState.LOST if completion.outcome == "retry":
            if completion.handed_back and begun:
                return _give_back(run, completion, policy, random, returns)
            return Unchanged()
        case RunState.QUEUED | RunState.LOST if completion.outcome == "needs_input":
            return _ask(run, completion, begun=begun, note={"late": True})
        case RunState.QUEUED | RunState.LOST:
            state = step(run.state, _MOVES[completion.outcome])
            return Conclusion(
                state=state, outcome=completion.text, error=completion.error, note={"late": True}
            )
        case RunState.CLAIMED:
            raise Misuse("a completion counts as a first heartbeat: start the run before concluding it")
        case RunState.NEEDS_INPUT | RunState.DONE | RunState.BLOCKED | RunState.FAILED:
            return ClaimLost(f"the run is {run.state}")
        case RunState.CANCELLED | RunState.DISCARDED:
            return ClaimLost(f"the run was {run.state} meanwhile")
        case _:
            assert_never(run.state)


def _settle(run: Run, completion: Completion, policy: RunPolicy, random: float, returns: int) -> Conclusion:
    if completion.outcome == "needs_input":
        return _ask(run, completion)
    if completion.outcome != "retry":
        state = step(run.state, _MOVES[completion.outcome])
        return Conclusion(state=state, outcome=completion.text, error=completion.error)
    if completion.handed_back:
        return _give_back(run, completion, policy, random, returns)
    return _try_again(run, completion, policy, random)


def _ask(
    run: Run, completion: Completion, *, begun: bool = True, note: Mapping[str, Any] | None = None
) -> Conclusion:
    """Let a run go until its question is answered. That it asks spends no attempt: the one that it began is given back."""
    if run.cancel_requested:
        return Conclusion(state=step(run.state, RunMove.STOP), error=completion.error)
    return Conclusion(
        state=step(run.state, RunMove.ASK),
        outcome=completion.text,
        attempts=max(run.attempts - 1, 0) if begun else run.attempts,
        note=note or {},
    )


def _try_again(run: Run, completion: Completion, policy: RunPolicy, random: float) -> Conclusion:
    error = completion.error
    if run.cancel_requested:
        return Conclusion(state=step(run.state, RunMove.STOP), error=error)
    if run.attempts >= policy.attempts_max:
        return Conclusion(state=step(run.state, RunMove.LOSE), outcome="attempts spent", error=error)
    delay = policy.backoff.delay_seconds(max(run.attempts - 1, 0), random=random)
    if completion.after_seconds is not None:
        delay = completion.after_seconds
    state = step(run.state, RunMove.REQUEUE)
    return Conclusion(state=state, error=error, delay_seconds=delay, note={"retry": error or ""})


def _give_back(
    run: Run, completion: Completion, policy: RunPolicy, random: float, returns: int
) -> Conclusion:
    """Queue a run again that its runner gives back, or has never begun: its attempt is not spent.

    Nothing else would end a circle of runners that take it and give it back, so each further return waits longer.
    """
    if run.cancel_requested:
        return Conclusion(state=step(run.state, RunMove.STOP), error=completion.error)
    asked = completion.after_seconds
    if asked is None:
        asked = 0.0 if completion.handed_back else policy.backoff.delay_seconds(0, random=random)
    further = returns - RETURNS_AT_ONCE
    rest = policy.backoff.delay_seconds(further, random=random) if further >= 0 else 0.0
    spent = 0 if run.state is RunState.CLAIMED else 1  # a claim that has not begun is not counted yet
    return Conclusion(
        state=step(run.state, RunMove.REQUEUE),
        error=completion.error,
        delay_seconds=max(asked, rest),
        attempts=max(run.attempts - spent, 0),
        note={"reason": HANDED_BACK},
    )


def after_silence(run: Run, policy: RunPolicy) -> Conclusion:
    """Decide what becomes of a held run whose lease has run out, or of a queued one that no runner has taken in its time."""
    if run.state is RunState.QUEUED:
        error = "no runner took it in the time that its rule gives"
        return Conclusion(state=step(run.state, RunMove.LOSE), outcome=NO_RUNNER, error=error)
    reason = LEASE_LOST if run.state is RunState.RUNNING else NO_HEARTBEAT
    if run.cancel_requested:
        return Conclusion(state=step(run.state, RunMove.STOP), outcome=f"cancelled; {reason}")
    if run.state is RunState.RUNNING and run.attempts >= policy.attempts_max:
        return Conclusion(state=step(run.state, RunMove.LOSE), outcome="attempts spent", error=reason)
    if run.state is RunState.CLAIMED and run.unbegun + 1 >= policy.unbegun_max:
        error = f"{reason} of {policy.unbegun_max} claims in a row"
        return Conclusion(state=step(run.state, RunMove.LOSE), outcome=NEVER_BEGUN, error=error)
    return Conclusion(state=step(run.state, RunMove.REQUEUE), error=reason, note={"reason": reason})


def having(labels: Iterable[str]) -> str:
    """Return the words for the labels that a runner must have, to be put behind it."""
    listed = ", ".join(sorted(labels))
    return f" with {listed}" if listed else ""


def clean(text: str | None, *, length_max: int = TEXT_LENGTH_MAX) -> str | None:
    """Return a program's text as the database can keep it: NUL and broken UTF-16 replaced, and cut at `length_max`."""
    if text is None:
        return None
    kept = text.replace("\0", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return kept if len(kept) <= length_max else kept[: length_max - len(_CUT)] + _CUT
