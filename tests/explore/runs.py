"""A run, its claims and two runners: what decides is the room's own (`step`, `conclude`, `after_silence`); the fences of its statements,
and what a runner says when, are modelled in as few lines as say it.

A runner that has lost its claim to another never gets it back; one whose run was taken back for silence may.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from itertools import product
from typing import NamedTuple, get_args
from uuid import UUID

from mainspring.agents.model import (
    DEAD,
    EVENT_KINDS,
    FINAL,
    HANDED_BACK,
    HELD,
    LEASE_LOST,
    OUTCOMES,
    TRANSITIONS,
    ClaimLost,
    Completion,
    Conclusion,
    Outcome,
    Run,
    RunMove,
    RunPolicy,
    RunState,
    Unchanged,
    after_silence,
    can,
    conclude,
    step,
)
from mainspring.spine.events import Trust

LAST, OTHER = UUID(int=1), UUID(int=2)
POLICY = RunPolicy(attempts_max=2, unbegun_max=2)
REPLAYS_MAX = 2
__all__ = ["DEAD", "FINAL"]
RECORDED = OUTCOMES | {HANDED_BACK}


class Hand(NamedTuple):
    """A claim that a runner believes in, and what is recorded of its attempt: "" before it began, "open", or how it ended."""

    last: bool
    attempt: str = ""


class World(NamedTuple):
    """The run's row, its last event, and who believes what."""

    state: RunState = RunState.QUEUED
    attempts: int = 0
    unbegun: int = 0
    expired: bool = False
    later: bool = False
    cancelled: bool = False
    told: str = EVENT_KINDS[RunState.QUEUED]
    hands: tuple[Hand | None, Hand | None] = (None, None)
    replays: int = 0


class Store:
    """The fence of a claim's words. A mutant overrides it."""

    def is_last(self, hand: Hand) -> bool:
        """Whether the run's claim is this one."""
        return hand.last


@cache
def run_of(state: RunState, attempts: int, cancelled: bool, unbegun: int) -> Run:
    moment = datetime(2026, 11, 2, tzinfo=UTC)
    return Run(
        id=LAST, agent_id=LAST, agent_handle="echo", card_id=None, card_key=None, effect_kind="launch", effect_key="1:2",
        event_seq=1, rule_id=None, rule_version=None, card_state_version=None, state=state, attempts=attempts, claim_id=LAST, unbegun=unbegun,
        runner="laptop", slot=0, lease_until=None, not_before=moment, cancel_requested=cancelled, prompt="", trigger={}, via=(),
        depth=0, trust=Trust.MEMBER, runner_labels=(), outcome=None, error=None, log_bytes=0, created_at=moment, started_at=None, ended_at=None,
    )  # fmt: skip


COMPLETIONS = tuple(
    Completion(outcome=outcome, handed_back=back)
    for outcome, back in product(sorted(get_args(Outcome)), (False, True))
    if outcome == "retry" or not back
)


@cache
def _concluded(
    run: tuple[RunState, int, bool, int], last: bool, completion: Completion, begun: bool
) -> Conclusion | Unchanged | ClaimLost:
    claim = LAST if last else OTHER
    return conclude(run_of(*run), claim, completion, POLICY, random=0.5, begun=begun)


class Model:
    """One run on one store."""

    def __init__(self, store: Store | None = None) -> None:
        self.store = store or Store()

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        """Everything that can happen next."""
        for step_, after in (*self._time(world), *self._people(world)):
            yield step_, _plain(after)
        for n, hand in enumerate(world.hands):
            if n and hand == world.hands[0]:
                continue
            moves = self._claim(world, n) if hand is None else self._words(world, n, hand)
            for step_, after in moves:
                yield step_, _plain(after)

    # time and people

    def _time(self, world: World) -> Iterator[tuple[str, World]]:
        if world.state in HELD and not world.expired:
            yield "the lease runs out", world._replace(expired=True)
        if world.later:
            yield "the wait is over", world._replace(later=False)
        if world.state in HELD and world.expired:
            verdict = _silent(world)
            silent = world
            if world.state is RunState.CLAIMED:
                silent = world._replace(unbegun=world.unbegun + 1)
            else:
                hands = tuple(h._replace(attempt=LEASE_LOST) if h and h.last else h for h in world.hands)
                silent = world._replace(hands=hands)
            yield "silence", _written(silent, verdict)
        if world.state is RunState.QUEUED:
            yield "no runner came", _written(world, _silent(world))

    @staticmethod
    def _people(world: World) -> Iterator[tuple[str, World]]:
        if can(world.state, RunMove.CANCEL) and not world.cancelled:
            state = step(world.state, RunMove.CANCEL)
            if state is world.state:
                yield "operator: cancel", world._replace(cancelled=True)
            else:
                yield "operator: cancel", _come(world, state)
        if can(world.state, RunMove.ANSWER):
            yield "a person answers", _come(world, step(world.state, RunMove.ANSWER))
        if can(world.state, RunMove.REPLAY) and world.replays < REPLAYS_MAX:
            again = _come(world, step(world.state, RunMove.REPLAY))
            yield (
                "operator: replay",
                again._replace(attempts=0, unbegun=0, cancelled=False, replays=world.replays + 1),
            )
        if can(world.state, RunMove.DISCARD):
            yield "operator: discard", _come(world, step(world.state, RunMove.DISCARD))

    # runners

    @staticmethod
    def _claim(world: World, n: int) -> Iterator[tuple[str, World]]:
        if world.state is RunState.QUEUED and not world.later:
            lost = world._replace(
                state=step(world.state, RunMove.CLAIM),
                expired=False,
                cancelled=False,
                hands=tuple(hand and hand._replace(last=False) for hand in world.hands),
            )
            yield "claim", _put(lost, n, Hand(last=True))

    def _words(self, world: World, n: int, hand: Hand) -> Iterator[tuple[str, World]]:
        by = "" if hand.last else ", by a claim that is over"
        yield "runner ends", _put(world, n, None)
        if self.store.is_last(hand):
            for step_, after in self._beat(world, n, hand):
                yield f"{step_}{by}", after
        for completion in COMPLETIONS:
            said = "hand back" if completion.handed_back else completion.outcome
            for after in self._complete(world, n, hand, completion):
                yield f"{said}{by}", after

    def _beat(self, world: World, n: int, hand: Hand) -> Iterator[tuple[str, World]]:
        match world.state:
            case RunState.CLAIMED:
                yield "first heartbeat", self._start(world, n, hand)
            case RunState.RUNNING:
                yield "heartbeat", world._replace(expired=False)
            case RunState.QUEUED | RunState.LOST if hand.attempt not in RECORDED:
                attempts = max(world.attempts, 1) if hand.attempt else world.attempts + 1
                resumed = _come(world, step(world.state, RunMove.RESUME))._replace(
                    attempts=attempts, unbegun=0
                )
                yield "late heartbeat", _put(resumed, n, hand._replace(attempt="open"))
            case _:
                pass

    @staticmethod
    def _start(world: World, n: int, hand: Hand) -> World:
        started = _come(world, step(world.state, RunMove.START))._replace(
            attempts=world.attempts + 1, unbegun=0
        )
        return _put(started, n, hand._replace(attempt="open"))

    def _complete(self, world: World, n: int, hand: Hand, completion: Completion) -> Iterator[World]:
        if hand.attempt in RECORDED or not self.store.is_last(hand):
            return  # what was recorded is answered again; what another claim holds is refused: nothing is written
        free = completion.outcome == "retry" and (completion.handed_back or world.state is RunState.CLAIMED)
        if completion.outcome != "retry" and world.state is RunState.CLAIMED:
            world = self._start(world, n, hand)
            hand = hand._replace(attempt="open")
        run = (world.state, world.attempts, world.cancelled, world.unbegun)
        verdict = _concluded(run, self.store.is_last(hand), completion, bool(hand.attempt))
        record = hand._replace(attempt=HANDED_BACK if free else completion.outcome)
        match verdict:
            case ClaimLost():
                return
            case Unchanged():
                yield _put(world, n, record)
            case Conclusion():
                yield _put(_written(world, verdict), n, record)

    # what must hold

    def broken(self, before: World, step_: str, after: World) -> str | None:
        """Name the promise that a step breaks."""
        moved = before.state is not after.state
        operators = step_ in ("operator: replay", "operator: discard")
        if "a claim that is over" in step_ and after._replace(hands=before.hands) != before:
            return "I-5: a word that is accepted is the last claim's"
        if moved and before.state in FINAL:
            return "I-5: a final state is left by nobody"
        if moved and before.state is RunState.FAILED and not operators:
            return "I-5: failed is left by a replay or a discard alone"
        if (
            moved
            and before.state is RunState.LOST
            and not operators
            and not any(h and h.last for h in before.hands)
        ):
            return "I-5: lost is left by a replay, a discard, or a word of the last claim"
        if moved and not _of_the_table(before.state, after.state):
            return "every move is one of the table"
        if not 0 <= after.attempts <= POLICY.attempts_max:
            return "I-7: attempts stay within their limit"
        if (
            after.attempts < before.attempts
            and not operators
            and not any(h and h.last and h.attempt for h in before.hands)
        ):
            return "I-7: an attempt is given back by the claim that has begun it"
        if after.state is RunState.QUEUED and after.unbegun >= POLICY.unbegun_max:
            return "I-7: what is queued may be claimed once more"
        if after.state is RunState.QUEUED and after.attempts >= POLICY.attempts_max:
            return "I-7: what is queued has an attempt left"
        said = RunState.QUEUED if after.state is RunState.CLAIMED else after.state
        if after.told != EVENT_KINDS[said]:
            return "I-5: a run is in the state that its last event says"
        if sum(hand is not None and hand.last for hand in after.hands) > 1:
            return "a run has one last claim"
        return None


def _silent(world: World) -> Conclusion:
    return after_silence(run_of(world.state, world.attempts, world.cancelled, world.unbegun), POLICY)


def _of_the_table(before: RunState, after: RunState) -> bool:
    """A completion may be a first heartbeat, too: two moves in one step."""
    behind = {to for (from_, _), to in TRANSITIONS.items() if from_ is before}
    if before is RunState.CLAIMED:
        behind |= {to for (from_, _), to in TRANSITIONS.items() if from_ is RunState.RUNNING}
    return after in behind


def _come(world: World, state: RunState) -> World:
    """The run comes to a state, and its event says so."""
    return world._replace(state=state, told=EVENT_KINDS[state], expired=False, later=False)


def _written(world: World, verdict: Conclusion) -> World:
    after = _come(world, verdict.state)
    attempts = world.attempts if verdict.attempts is None else verdict.attempts
    return after._replace(
        attempts=attempts,
        unbegun=world.unbegun if world.state is RunState.CLAIMED else 0,
        later=verdict.delay_seconds > 0 and verdict.state is RunState.QUEUED,
    )


def _put(world: World, n: int, hand: Hand | None) -> World:
    hands = (hand, world.hands[1]) if n == 0 else (world.hands[0], hand)
    return world._replace(hands=hands)


def _plain(world: World) -> World:
    one, other = sorted(world.hands, key=lambda hand: () if hand is None else (hand,))
    return world._replace(hands=(one, other))
