"""The rows in memory, and the one transaction over them that can be undone to any point.

Rows are frozen values, replaced and never changed, so that undoing means putting the old ones back.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar
from uuid import UUID

from mainspring.ids import new_id
from mainspring.spine.breaker import BreakerRow
from mainspring.spine.effects import Attempt, EffectRow
from mainspring.spine.errors import BadData, Misuse
from mainspring.spine.events import Event

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_START = datetime(2030, 1, 1, tzinfo=UTC)
_TICK = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectRecord(EffectRow):
    """An effect row with the columns that only the store itself reads."""

    recipient_id: UUID | None
    topic_id: UUID | None
    deferred_since: datetime | None
    claimed_at: datetime | None

    @property
    def shown(self) -> EffectRow:
        """The row as the port shows it."""
        return EffectRow(**{name: getattr(self, name) for name in EffectRow.__dataclass_fields__})


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerRecord(BreakerRow):
    """A breaker's row with the column that only the store itself reads."""

    changed_at: datetime

    @property
    def shown(self) -> BreakerRow:
        """The row as the port shows it."""
        return BreakerRow(**{name: getattr(self, name) for name in BreakerRow.__dataclass_fields__})


class Journal:
    """How to undo what was written since the transaction began, newest last."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], Any]] = []

    def note(self, undo: Callable[[], Any]) -> None:
        """Remember how to undo one write."""
        self._undo.append(undo)

    def mark(self) -> int:
        """Return a point to roll back to."""
        return len(self._undo)

    def roll_back(self, mark: int) -> None:
        """Undo, newest first, everything written behind a mark."""
        while len(self._undo) > mark:
            self._undo.pop()()

    def forget(self) -> None:
        """Keep what was written: there is nothing to undo any more."""
        self._undo.clear()


class Table(Generic[K, V]):
    """Rows by key; every write can be undone."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._rows: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        """Return a row, None when there is none."""
        return self._rows.get(key)

    def items(self) -> list[tuple[K, V]]:
        """Return all rows with their keys, as they are now."""
        return list(self._rows.items())

    def values(self) -> list[V]:
        """Return all rows, as they are now."""
        return list(self._rows.values())

    def put(self, key: K, row: V) -> None:
        """Insert or replace a row."""
        if key in self._rows:
            before = self._rows[key]
            self._journal.note(lambda: self._rows.__setitem__(key, before))
        else:
            self._journal.note(lambda: self._rows.pop(key))
        self._rows[key] = row

    def remove(self, key: K) -> None:
        """Remove a row if it is there."""
        if key in self._rows:
            before = self._rows.pop(key)
            self._journal.note(lambda: self._rows.__setitem__(key, before))


class Clock:
    """A clock of its own: it stands still but for a microsecond at every reading, and for what it is moved by."""

    def __init__(self, elapsed: Callable[[], float] | None) -> None:
        self._elapsed = elapsed
        self._moved = timedelta()

    def read(self) -> datetime:
        """Return the present moment; no two readings are the same."""
        self._moved += _TICK
        running = timedelta(seconds=self._elapsed()) if self._elapsed else timedelta()
        return _START + self._moved + running

    def move(self, seconds: float) -> None:
        """Let time pass."""
        self._moved += timedelta(seconds=seconds)


@dataclass(slots=True)
class Tables:
    """All that a store holds."""

    clock: Clock
    new_id: Callable[[], UUID] = new_id
    journal: Journal = field(default_factory=Journal)
    tenants: Table[UUID, str] = field(init=False)
    heads: Table[UUID, int] = field(init=False)
    cursors: Table[UUID, int] = field(init=False)
    events: Table[tuple[UUID, int], Event] = field(init=False)
    effects: Table[tuple[UUID, UUID], EffectRecord] = field(init=False)
    keys: Table[tuple[UUID, str, str], UUID] = field(init=False)
    attempts: Table[tuple[UUID, UUID], tuple[Attempt, ...]] = field(init=False)
    breakers: Table[tuple[UUID, str], BreakerRecord] = field(init=False)

    def __post_init__(self) -> None:
        self.tenants = Table(self.journal)
        self.heads = Table(self.journal)
        self.cursors = Table(self.journal)
        self.events = Table(self.journal)
        self.effects = Table(self.journal)
        self.keys = Table(self.journal)
        self.attempts = Table(self.journal)
        self.breakers = Table(self.journal)


class MemoryTransaction:
    """An open transaction. As in PostgreSQL, a refused value fails it: only a savepoint around it leaves it usable."""

    __slots__ = ("_failed", "_open", "purpose", "tables", "tenant")

    def __init__(self, tables: Tables, *, purpose: str, tenant: UUID | None) -> None:
        self.tables = tables
        self.purpose = purpose
        self.tenant = tenant
        self._open = True
        self._failed = False

    @contextmanager
    def statement(self) -> Iterator[datetime]:
        """Run one verb: all of it or nothing. Gives the moment at which it began."""
        if not self._open:
            raise Misuse(f"this transaction ({self.purpose}) is over")
        if self._failed:
            raise Misuse(f"this transaction ({self.purpose}) has failed: it can only be rolled back")
        mark = self.tables.journal.mark()
        try:
            yield self.tables.clock.read()
        except BaseException as error:
            self.tables.journal.roll_back(mark)
            self._failed = isinstance(error, BadData)
            raise

    def append_only_for(self, tenant: UUID) -> None:
        """Refuse to append for a second tenant: two heads locked in two orders would be a deadlock in PostgreSQL."""
        if self.tenant not in (None, tenant):
            raise Misuse(f"this transaction appends for tenant {self.tenant}, not for {tenant} as well")
        self.tenant = tenant

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo only the block when it raises."""
        mark = self.tables.journal.mark()
        try:
            yield
            self.refuse_if_failed()
        except BaseException:
            self.tables.journal.roll_back(mark)
            self._failed = False
            raise

    @contextmanager
    def run(self) -> Iterator[None]:
        """Commit when the block ends without an error, else leave nothing."""
        try:
            yield
            self.refuse_if_failed()
        except BaseException:
            self.tables.journal.roll_back(0)
            raise
        finally:
            self._open = False
            self.tables.journal.forget()

    def refuse_if_failed(self) -> None:
        """Raise Misuse when a refused value was swallowed: what came before it is gone, and must not seem written."""
        if self._failed:
            raise Misuse(
                f"this transaction ({self.purpose}) has failed and cannot commit: nothing of it is written"
            )
