"""A log, its cursor, two drains and the effects that they owe: a drain locks, reads events, then rules, then inserts and moves in one commit.

Whoever appends commits whole or not at all, so the log of the model has no hole. An edit of a rule is an event, too: each event
has the version that as many edits before it have made.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

EVENTS_MAX = 3
Row = Literal["owed", "done", "trimmed"]


class Hand(NamedTuple):
    """A drain under way: where it read the cursor, how far it read the log, how many edits of the rule it knows."""

    position: int
    through: int | None = None
    edits: int | None = None


class World(NamedTuple):
    """The log ("e", an event; "r", an edit of the rule), the cursor, and of each seq: its row, who judged it, how often it was owed."""

    log: str = ""
    position: int = 0
    rows: tuple[tuple[int, Row, int, int], ...] = ()  # seq, state, version, times
    hands: tuple[Hand | None, Hand | None] = (None, None)


class Store:
    """What keeps two drains apart, and a row from being two. A mutant takes one of them away."""

    locks = True  # the cursor, for update skip locked
    compares = True  # the cursor is moved only from where it was read
    one_a_key = True  # on conflict do nothing
    events_first = True  # rules are read after the events


class Model:
    """One tenant's log on one store."""

    def __init__(self, store: type[Store] = Store) -> None:
        self.store = store

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        """Everything that can happen next."""
        for step_, after in (*self._others(world), *self._drains(world)):
            one, other = sorted(
                after.hands,
                key=lambda hand: () if hand is None else tuple(-1 if x is None else x for x in hand),
            )
            yield step_, after._replace(hands=(one, other))

    @staticmethod
    def _others(world: World) -> Iterator[tuple[str, World]]:
        for events in ("e", "r", "ee", "er", "re"):
            if len(world.log) + len(events) <= EVENTS_MAX:
                yield f"append {events}", world._replace(log=world.log + events)
        for seq, state, version, times in world.rows:
            others = tuple(row for row in world.rows if row[0] != seq)
            if state != "trimmed":
                then: Row = "done" if state == "owed" else "trimmed"
                yield then, world._replace(rows=tuple(sorted((*others, (seq, then, version, times)))))

    def _drains(self, world: World) -> Iterator[tuple[str, World]]:
        for n, hand in enumerate(world.hands):
            if n and hand == world.hands[0]:
                continue
            if hand is None:
                held = self.store.locks and any(world.hands)
                if world.position < len(world.log) and not held:
                    yield "lock", _put(world, n, Hand(world.position))
                continue
            yield "crash", _put(world, n, None)
            first, second = ("through", "edits") if self.store.events_first else ("edits", "through")
            read = {"through": len(world.log), "edits": world.log.count("r")}
            for part in (first, second):
                if getattr(hand, part) is None:
                    yield f"read {part}", _put(world, n, hand._replace(**{part: read[part]}))
                    break
            else:
                yield from self._commit(world, n, hand)

    def _commit(self, world: World, n: int, hand: Hand) -> Iterator[tuple[str, World]]:
        assert hand.through is not None
        assert hand.edits is not None
        if self.store.compares and world.position != hand.position:
            yield "commit, undone", _put(world, n, None)
            return
        rows = {row[0]: row for row in world.rows}
        for seq in range(hand.position + 1, hand.through + 1):
            if world.log[seq - 1] != "e":
                continue
            version = min(world.log[: seq - 1].count("r"), hand.edits)
            _, state, before, times = rows.get(seq, (seq, "trimmed", version, 0))
            if times == 0 or state == "trimmed":
                rows[seq] = (seq, "owed", version, min(times + 1, 2))
            elif not self.store.one_a_key:
                rows[seq] = (seq, state, before, 2)
        moved = world._replace(position=hand.through, rows=tuple(sorted(rows.values())))
        yield "commit", _put(moved, n, None)

    def broken(self, before: World, _step: str, after: World) -> str | None:
        """Name the promise that a step breaks."""
        if after.position < before.position or after.position > len(after.log):
            return "I-4: a cursor only grows, and never beyond its log"
        owed = {row[0]: row for row in after.rows}
        drained = {n for n, what in enumerate(after.log[: after.position], 1) if what == "e"}
        if owed.keys() != drained:
            return "I-1: what is below the cursor is owed, and nothing else"
        if any(row[3] > 1 for row in after.rows):
            return "I-3: an event's effect is one row, once"
        if any(row[2] != after.log[: row[0] - 1].count("r") for row in after.rows):
            return "I-1: each event is judged by the version in force at its seq"
        return None


def _put(world: World, n: int, hand: Hand | None) -> World:
    hands = (hand, world.hands[1]) if n == 0 else (world.hands[0], hand)
    return world._replace(hands=hands)
