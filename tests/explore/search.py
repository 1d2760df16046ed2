"""Breadth-first over a model: every state that can be reached, each step checked; what breaks a promise is told by the shortest way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

S = TypeVar("S", bound=Hashable)
STATES_MAX = 400_000


class Broken(AssertionError):
    """A promise does not hold; `way` is how one gets there."""

    def __init__(self, promise: str, way: list[str]) -> None:
        super().__init__(f"{promise}: " + " → ".join(way))
        self.promise = promise
        self.way = way


@dataclass(slots=True)
class Explored(Generic[S]):
    """What was seen: each state with the states behind it, and every step by its name."""

    behind: dict[S, list[tuple[str, S]]] = field(default_factory=dict)
    steps: set[str] = field(default_factory=set)

    def stuck(self, rests: Callable[[S], bool], by: Callable[[str], bool]) -> list[S]:
        """Return the states from which no way, by such steps alone, leads to one that rests."""
        before: dict[S, list[S]] = {state: [] for state in self.behind}
        for state, behind in self.behind.items():
            for step, after in behind:
                if by(step):
                    before[after].append(state)
        free = {state for state in self.behind if rests(state)}
        queue = deque(free)
        while queue:
            for state in before[queue.popleft()]:
                if state not in free:
                    free.add(state)
                    queue.append(state)
        return [state for state in self.behind if state not in free]


def explore(
    start: S,
    steps: Callable[[S], Iterable[tuple[str, S]]],
    broken: Callable[[S, str, S], str | None],
) -> Explored[S]:
    """Take every step from every state. Raises Broken where `broken` (before, step, after) names a promise."""
    seen: Explored[S] = Explored({start: []})
    came: dict[S, tuple[S, str] | None] = {start: None}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        for step, after in steps(state):
            seen.behind[state].append((step, after))
            seen.steps.add(step)
            if after not in came:
                assert len(came) < STATES_MAX, "the model has no bound"
                came[after] = (state, step)
                seen.behind[after] = []
                queue.append(after)
            promise = broken(state, step, after)
            if promise is not None:
                raise Broken(promise, [*_way(came, state), step])
    return seen


def _way(came: dict[S, tuple[S, str] | None], state: S) -> list[str]:
    way: list[str] = []
    while (before := came[state]) is not None:
        state, step = before
        way.append(step)
    return way[::-1]
