"""An effect, its store and two workers: what decides is the engine's own (`step`, `resolve`, `put_off`, `bury_crashed`); the store's
fence, and what a worker does when, are modelled in as few lines as say it.

A worker that has lost its claim never gets it back: all such hands are alike. The two workers are alike, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import inf
from typing import NamedTuple
from uuid import UUID

from mainspring.spine.effects import (
    CRASHES_MAX,
    DEFER_LIMIT_SECONDS,
    FINAL,
    TRANSITIONS,
    Deferred,
    Done,
    Dropped,
    Effect,
    EffectKind,
    EffectState,
    Failed,
    Held,
    Move,
    Outcome,
    Retry,
    Settlement,
    Unknown,
    bury_crashed,
    put_off,
    resolve,
    step,
)

ID = UUID(int=1)
MAX_ATTEMPTS = 2
REPLAYS_MAX = 1
OVER = " with a claim that is over"
REASONS = {"exhausted", "failed", "unknown", "target_down", "worker_crashed"}
KINDS = {
    "external": EffectKind(name="mail", max_attempts=MAX_ATTEMPTS),
    "not idempotent": EffectKind(name="charge", max_attempts=MAX_ATTEMPTS, idempotent=False),
    "transactional": EffectKind(name="launch", max_attempts=MAX_ATTEMPTS, transactional=True),
}
OUTCOMES: dict[str, Outcome] = {
    "done": Done(),
    "dropped": Dropped("spent"),
    "retry": Retry("x"),
    "deferred": Deferred("busy", after_seconds=1.0),
    "held": Held("its rule is paused"),
    "failed": Failed("x"),
    "unknown": Unknown("x"),
}


class Write(NamedTuple):
    """What a settlement does to the row, as far as anything depends on it: why it is dead, and not why it is not."""

    state: EffectState
    attempts: int
    why: str
    wait: str

    @classmethod
    def of(cls, settlement: Settlement) -> Write:
        why = settlement.outcome if settlement.state is EffectState.DEAD else ""
        wait = "held" if settlement.delay_seconds == inf else "later" if settlement.delay_seconds else ""
        return cls(settlement.state, settlement.attempts, why, wait)


class Hand(NamedTuple):
    """What a worker holds: a claim, what it read with it, and how far it has come."""

    last: bool  # it is the row's last claim, unsettled
    attempts: int
    crashes: int
    reclaimed: bool
    began: bool = False
    said: str = ""  # the outcome
    settlement: Write | None = None
    waived: bool = False  # an operator has replayed the effect since: what this one does is his decision


class World(NamedTuple):
    """The row, the two hands, and what nobody stores: what may have happened outside, and what was written of the work."""

    state: EffectState = EffectState.PENDING
    attempts: int = 0
    crashes: int = 0
    wait: str = ""  # "", "later", "held"
    expired: bool = False
    cancelled: bool = False
    why: str = ""  # it is dead
    told: str = ""  # the last event of it
    hands: tuple[Hand | None, Hand | None] = (None, None)
    happened: bool = False
    commits: int = 0
    replays: int = 0


class Store:
    """The store's verbs on the row, as the statements say them. A mutant overrides one.

    `forgets`: what a hand without the claim would write is refused, whatever it is, and so need not be told apart. Without the
    fence it must be.
    """

    forgets = True

    def holds(self, world: World, hand: Hand) -> bool:
        """The fence of settle and renew."""
        return world.state is EffectState.CLAIMED and hand.last

    def may_reclaim(self, world: World) -> bool:
        """Repeated on the row that is taken."""
        return world.state is EffectState.CLAIMED and world.expired

    def may_replay(self, world: World) -> bool:
        """Only what is dead is replayed."""
        return world.state is EffectState.DEAD


@cache
def effect_of(attempts: int, crashes: int, reclaimed: bool, deferred_seconds: float) -> Effect:
    return Effect(
        tenant_id=ID, id=ID, kind="any", key="k", payload={}, event_seq=None, rule_id=None, rule_version=None, target="t",
        attempts=attempts, crashes=crashes, epoch=0, claim_id=ID, deferred_seconds=deferred_seconds, waited_seconds=0.0,
        reclaimed=reclaimed,
    )  # fmt: skip


@cache
def _settlements(
    kind: EffectKind, attempts: int, crashes: int, reclaimed: bool, said: str
) -> tuple[Write, ...]:
    """What an outcome may come to: deferred for long or not, its target to blame or not."""
    found: list[Write] = []
    for deferred_seconds in (0.0, DEFER_LIMIT_SECONDS + 1) if said in ("deferred", "retry") else (0.0,):
        effect = effect_of(attempts, crashes, reclaimed, deferred_seconds)
        found.append(Write.of(resolve(effect, OUTCOMES[said], kind, random=0.5)))
        blamed = put_off(effect, OUTCOMES[said], kind, random=0.5)
        if blamed is not None and not kind.transactional:
            found.append(Write.of(blamed))
    return tuple(dict.fromkeys(found))


def settlements(kind: EffectKind, hand: Hand, said: str) -> tuple[Write, ...]:
    return _settlements(kind, hand.attempts, hand.crashes, hand.reclaimed, said)


@cache
def _burial(kind: EffectKind, attempts: int, crashes: int, reclaimed: bool) -> Write | None:
    buried = bury_crashed(effect_of(attempts, crashes, reclaimed, 0.0), kind)
    return None if buried is None else Write.of(buried)


_REFUSED = Write(EffectState.DONE, 0, "", "")  # stands for any


class Model:
    """One kind of effect on one store."""

    def __init__(self, kind: EffectKind, store: Store | None = None) -> None:
        self.kind = kind
        self.store = store or Store()

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        """Everything that can happen next."""
        for step_, after in (*self._time(world), *self._operator(world)):
            yield step_, self._plain(after)
        for n, hand in enumerate(world.hands):
            if n and hand == world.hands[0]:
                continue
            moves = self._idle(world, n) if hand is None else self._busy(world, n, hand)
            for step_, after in moves:
                yield step_, self._plain(after)

    def _plain(self, world: World) -> World:
        """Return the state without what makes no difference: the order of the hands, and what nothing depends on any more."""
        one, other = sorted((self._what_counts(hand) for hand in world.hands), key=_rank)
        if world.state in FINAL and self.store.forgets:
            world = world._replace(attempts=0, crashes=0, cancelled=False)
        return world._replace(hands=(one, other))

    def _what_counts(self, hand: Hand | None) -> Hand | None:
        if hand is None:
            return None
        if self.kind.idempotent:
            hand = hand._replace(said="", waived=False)
        if not hand.last and self.store.forgets:
            settlement = hand.settlement and _REFUSED
            crashes = CRASHES_MAX if hand.crashes >= CRASHES_MAX else 0
            reclaimed = hand.reclaimed and not self.kind.idempotent
            hand = hand._replace(attempts=0, crashes=crashes, reclaimed=reclaimed, settlement=settlement)
        return hand

    # time and operators

    def _time(self, world: World) -> Iterator[tuple[str, World]]:
        if world.state is EffectState.CLAIMED and not world.expired:
            yield "the lease runs out", world._replace(expired=True)
        if world.wait == "later":
            yield "the wait is over", world._replace(wait="")

    def _operator(self, world: World) -> Iterator[tuple[str, World]]:
        if (world.state, Move.CANCEL) in TRANSITIONS and not world.cancelled:
            state = step(world.state, Move.CANCEL)
            yield (
                "operator: cancel",
                world._replace(state=state, cancelled=True, wait=_wait(state, world.wait)),
            )
        if world.wait == "held":
            yield "operator: resume", world._replace(wait="")
        if self.store.may_replay(world) and world.replays < REPLAYS_MAX:
            yield (
                "operator: replay",
                world._replace(
                    state=EffectState.PENDING, attempts=0, crashes=0, wait="", cancelled=False, why="", told="replayed",
                    happened=False, replays=world.replays + 1,
                    hands=tuple(hand and hand._replace(waived=True) for hand in world.hands),
                ),
            )  # fmt: skip
        if world.state is EffectState.DEAD:
            state = step(world.state, Move.DISCARD)
            yield "operator: discard", world._replace(state=state, why="", told="discarded")

    # workers

    def _idle(self, world: World, n: int) -> Iterator[tuple[str, World]]:
        if world.state is EffectState.PENDING and not world.wait:
            state = step(world.state, Move.CLAIM)
            yield "claim", self._taken(world._replace(state=state), n, reclaimed=False)
        if self.store.may_reclaim(world):
            state = step(world.state, Move.RECLAIM)
            yield (
                "reclaim",
                # who buries may crash, too: beyond the limit there is nothing more to count
                self._taken(
                    world._replace(state=state, crashes=min(world.crashes + 1, CRASHES_MAX)),
                    n,
                    reclaimed=True,
                ),
            )

    @staticmethod
    def _taken(world: World, n: int, *, reclaimed: bool) -> World:
        lost = tuple(hand and hand._replace(last=False) for hand in world.hands)
        hand = Hand(last=True, attempts=world.attempts, crashes=world.crashes, reclaimed=reclaimed)
        return _put(world._replace(hands=lost, expired=False), n, hand)

    def _busy(self, world: World, n: int, hand: Hand) -> Iterator[tuple[str, World]]:
        unsure = hand.began and hand.said in ("", "done", "unknown") and not hand.waived
        happened = world.happened or (unsure and not self.kind.transactional)
        yield "crash", _put(world._replace(happened=happened), n, None)
        if self.store.holds(world, hand) and world.expired:
            yield "renew", world._replace(expired=False)
        if hand.settlement is not None:
            yield from self._settle(world, n, hand, hand.settlement)
            return
        for settlement in self._handed_back(hand):
            yield (
                "shut down",
                _put(world._replace(happened=happened), n, hand._replace(settlement=settlement)),
            )
        if hand.began:
            for said in OUTCOMES:
                for settlement in settlements(self.kind, hand, said):
                    yield said, _put(world, n, hand._replace(said=said, settlement=settlement))
            return
        buried = _burial(self.kind, hand.attempts, hand.crashes, hand.reclaimed)
        if buried is not None:
            yield "bury", _put(world, n, hand._replace(settlement=buried))
        elif self.kind.transactional:
            yield from self._transaction(world, n, hand)
        else:
            behind = " behind a replay" if hand.waived else ""
            yield f"begin{behind}", _put(world, n, hand._replace(began=True))

    def _handed_back(self, hand: Hand) -> tuple[Write, ...]:
        """What a worker that shuts down writes of what it holds: before its first step, or in the middle of it."""
        buried = _burial(self.kind, hand.attempts, hand.crashes, hand.reclaimed)
        if buried is not None:
            return (buried,)
        said = "unknown" if hand.began and not self.kind.idempotent else "deferred"
        return settlements(self.kind, hand, said)[:1]

    def _transaction(self, world: World, n: int, hand: Hand) -> Iterator[tuple[str, World]]:
        """The executor's writes and the settle commit together; an outcome that undoes them is settled by itself."""
        for said in OUTCOMES:
            for settlement in settlements(self.kind, hand, said):
                if said not in ("done", "dropped", "held"):
                    yield said, _put(world, n, hand._replace(said=said, settlement=settlement))
                elif self.store.holds(world, hand):
                    commits = world.commits + (said == "done")
                    yield (
                        f"{said} and committed{'' if hand.last else OVER}",
                        _put(self._settled(world._replace(commits=commits), settlement), n, None),
                    )
                else:
                    yield "undone, the claim is lost", _put(world, n, None)

    def _settle(self, world: World, n: int, hand: Hand, settlement: Write) -> Iterator[tuple[str, World]]:
        happened = world.happened or (hand.began and hand.said in ("done", "unknown") and not hand.waived)
        if not self.store.holds(world, hand):
            yield "settle, refused", _put(world._replace(happened=happened), n, None)
            return
        after = self._settled(world._replace(happened=happened), settlement)
        by = "" if hand.last else OVER
        yield f"settle{by}", _put(after, n, None)
        # the answer was cut off: it is written again
        written = tuple(one and one._replace(last=False) for one in after.hands)
        again = _put(after._replace(hands=written), n, hand._replace(last=False))
        yield f"settle{by}, answer lost", again

    @staticmethod
    def _settled(world: World, settlement: Write) -> World:
        state = settlement.state
        if state is EffectState.PENDING and world.cancelled:
            state = step(EffectState.CLAIMED, Move.DROP)
        return world._replace(
            state=state,
            attempts=settlement.attempts,
            why=settlement.why,
            cancelled=False,
            wait=_wait(state, settlement.wait),
            expired=False,
            told="dead" if state is EffectState.DEAD else world.told,
            hands=tuple(hand and hand._replace(last=False) for hand in world.hands),
        )

    # what must hold

    def broken(self, before: World, step_: str, after: World) -> str | None:
        """Name the promise that a step breaks."""
        moved = before.state is not after.state
        if OVER in step_:
            return "I-5: an accepted settle carries the last claim"
        if moved and before.state in FINAL:
            return "I-5: a final state is left by nobody"
        if (
            moved
            and before.state is EffectState.DEAD
            and step_ not in ("operator: replay", "operator: discard")
        ):
            return "I-5: dead is left by a replay or a discard alone"
        if moved and after.state not in {
            to for (from_, _), to in TRANSITIONS.items() if from_ is before.state
        }:
            return "every move is one of the table"
        if after.attempts > MAX_ATTEMPTS or (
            after.state is EffectState.PENDING and after.attempts >= MAX_ATTEMPTS
        ):
            return "I-7: attempts stay within their limit"
        if after.attempts < before.attempts and step_ != "operator: replay" and after.state not in FINAL:
            return "I-7: an attempt that was spent stays spent"
        if step_ == "begin" and any(
            hand and hand.began and hand.crashes >= CRASHES_MAX for hand in after.hands
        ):
            return "I-7: what has ended its workers too often is not begun again"
        if (after.state is EffectState.DEAD) != (after.told == "dead") or (
            after.state is EffectState.DEAD and after.why not in REASONS
        ):
            return "I-7: dead for one of five reasons, and said so"
        if after.commits > 1:
            return "I-6: what a transactional executor does is done once"
        if step_ == "begin" and self._twice(before):
            return "I-6: what must not happen twice is not begun again"
        return None

    def _twice(self, world: World) -> bool:
        others = [hand for hand in world.hands if hand is not None and hand.began and not hand.waived]
        at_it = any(hand.said in ("", "done", "unknown") for hand in others)
        return not self.kind.idempotent and (world.happened or at_it)


def _wait(state: EffectState, wait: str) -> str:
    return wait if state is EffectState.PENDING else ""


def _put(world: World, n: int, hand: Hand | None) -> World:
    hands = (hand, world.hands[1]) if n == 0 else (world.hands[0], hand)
    return world._replace(hands=hands)


@cache
def _rank(hand: Hand | None) -> tuple[object, ...]:
    if hand is None:
        return ()
    return (
        hand.last,
        hand.attempts,
        hand.crashes,
        hand.reclaimed,
        hand.began,
        hand.said,
        hand.waived,
        *(hand.settlement or ()),
    )
