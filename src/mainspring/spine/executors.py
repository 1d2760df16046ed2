"""How an owed effect is done: with the open transaction, or out in the world."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeAlias

from mainspring.spine.effects import Effect, EffectKind, Outcome
from mainspring.spine.errors import Misuse
from mainspring.spine.ports import H
from mainspring.spine.transaction import Transaction


@dataclass(frozen=True, slots=True)
class Transactional(Generic[H]):
    """Its writes and the settle commit together: exactly once.

    Answers other than Done, Dropped and Held undo its writes; the row is then settled alone.
    """

    kind: EffectKind
    run: Callable[[Effect, Transaction[H]], Awaitable[Outcome]]

    def __post_init__(self) -> None:
        if not self.kind.transactional:
            raise Misuse(f"kind {self.kind.name} is not declared transactional")


@dataclass(frozen=True, slots=True)
class External:
    """It acts outside the database: at least once, under one idempotency key."""

    kind: EffectKind
    run: Callable[[Effect], Awaitable[Outcome]]

    def __post_init__(self) -> None:
        if self.kind.transactional:
            raise Misuse(f"kind {self.kind.name} is declared transactional")


Executor: TypeAlias = Transactional[H] | External
