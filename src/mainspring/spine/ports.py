"""What the engine asks of a store: one named verb per database act. Adapters decide nothing.

Every verb runs in the transaction whose handle it is given, except `claim` and `renew`, which are transactions of their own.
A store maps its driver's errors to `errors.py`: outages to Transient, refused values to BadData.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar
from uuid import UUID

from mainspring.spine.breaker import Breaker, BreakerRow
from mainspring.spine.effects import (
    AlreadyOwed,
    Attempt,
    Effect,
    EffectRow,
    EffectState,
    NewEffect,
    Owed,
    Settlement,
)
from mainspring.spine.events import Event, NewEvent

H = TypeVar("H")  # a store's open transaction
H_contra = TypeVar("H_contra", contravariant=True)


# Obligations: what an event owes ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Owes:
    """The event owes these effects."""

    effects: tuple[NewEffect, ...]

    def __init__(self, *effects: NewEffect) -> None:
        object.__setattr__(self, "effects", effects)


@dataclass(frozen=True, slots=True)
class NotOwed:
    """The event owes nothing; `term` names the first condition that failed."""

    term: str


Verdict: TypeAlias = Owes | NotOwed


class Obligation(Protocol[H_contra]):
    """A reason why events owe effects. `judge` is pure; what it needs to know, `load` reads once for a whole batch."""

    @property
    def name(self) -> str: ...

    @property
    def kinds(self) -> frozenset[str] | None:
        """The event kinds it looks at; None for all."""

    async def load(self, tx: H_contra, events: Sequence[Event]) -> Any: ...

    def judge(self, event: Event, context: Any) -> Verdict: ...


# Values that cross the port -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """How far a tenant's log has been drained, locked for this transaction."""

    tenant_id: UUID
    position: int
    head: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """What the floor tick found: is there anything to do anywhere?"""

    lagging: bool
    effects: bool
    alone: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """Ask for up to `limit` due effects of these kinds.

    Args:
        lease_seconds: by kind; also the kinds that are asked for.
        after: where the last claim ended; the search starts behind it and wraps.
        alone: ask for one effect that has crashed its workers, instead of ordinary ones.
    """

    worker: str
    lease_seconds: Mapping[str, float]
    limit: int
    after: UUID | None = None
    alone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """What a claim took, and the last tenant that it served or looked at: the next one starts behind it."""

    effects: list[Effect]
    after: UUID | None


Target: TypeAlias = tuple[UUID, str]  # a tenant, and what it calls the thing outside


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerChange:
    """A locked breaker as it is to be kept.

    Args:
        open_seconds: how long from now nobody tries; None leaves that as it stands.
        error: what failed last; None leaves that as it stands.
    """

    target: Target
    breaker: Breaker
    open_seconds: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What a batch of settlements came to: ids written, and ids refused because their claim was not the last."""

    accepted: frozenset[UUID]
    refused: frozenset[UUID]


# The ports ----------------------------------------------------------------------------------------------------


class EventLog(Protocol[H_contra]):
    """A gapless log per tenant whose order is the order of commits."""

    async def create_tenant(self, tx: H_contra, tenant: UUID, name: str) -> bool:
        """Bring a tenant, its log and its cursor into being together; False when it exists already."""

    async def append(self, tx: H_contra, tenant: UUID, events: Sequence[NewEvent]) -> tuple[int, ...]:
        """Write the events as the transaction's last statement and return their seqs; raise when not all were written."""

    async def read(self, tx: H_contra, tenant: UUID, *, after: int, limit: int) -> list[Event]:
        """Return a tenant's events behind `after`, in order."""

    async def events_at(self, tx: H_contra, tenant: UUID, seqs: Collection[int]) -> dict[int, Event]:
        """Return the events of exactly these seqs, by seq; those that are not kept any more are left out."""

    async def head(self, tx: H_contra, tenant: UUID) -> int:
        """Return the seq of a tenant's last event, 0 before the first."""

    async def traceparents(
        self, tx: H_contra, events: Sequence[tuple[UUID, int]]
    ) -> Mapping[tuple[UUID, int], str]:
        """Return where the events with these (tenant, seq) came from, those that say so."""


class Cursors(Protocol[H_contra]):
    """How far each tenant's log has been drained."""

    async def lock_lagging(
        self, tx: H_contra, *, after: UUID | None, limit: int, engine_version: int
    ) -> list[Cursor]:
        """Lock and return cursors behind their head, starting behind tenant `after` and wrapping.

        Skips those that another drain holds; returns none to an engine older than the schema.
        """

    async def lock_called(
        self, tx: H_contra, tenants: Sequence[UUID], *, engine_version: int
    ) -> list[Cursor]:
        """The same of these tenants alone, by tenant: what that costs does not grow with how many tenants there are."""

    async def read_lagging(
        self, tx: H_contra, cursors: Sequence[Cursor], *, per_tenant: int, limit: int
    ) -> list[Event]:
        """Return the next events of the locked cursors, whole prefixes by tenant, in (tenant, seq) order."""

    async def advance(
        self, tx: H_contra, moves: Sequence[tuple[Cursor, int]], *, engine_version: int
    ) -> None:
        """Move each locked cursor to its new position; raise when one has moved meanwhile.

        Raises Transient when the schema has come to ask for a newer engine since the cursors were locked.
        """

    async def position(self, tx: H_contra, tenant: UUID) -> int | None:
        """Return up to which seq a tenant's log is drained; None where this transaction sees no such tenant."""

    async def required_engine_version(self, tx: H_contra) -> int:
        """Return which engine version the schema asks for: an older one judges no event."""

    async def skip_hole(self, tx: H_contra, tenant: UUID) -> tuple[int, int] | None:
        """Move a cursor that stands before a hole in its log to behind it; return the first and last seq that are missing.

        None, and nothing moved, when the next event is there or there is none to come.
        """


class Breakers(Protocol[H_contra]):
    """Which targets have failed of late. None stands for a target that works; few stand at any time."""

    async def lock_breakers(self, tx: H_contra, targets: Collection[Target]) -> dict[Target, Breaker]:
        """Lock, in order, the breakers of these targets; one that did not stand stands clean."""

    async def write_breakers(self, tx: H_contra, changes: Sequence[BreakerChange]) -> None:
        """Write locked breakers, remove the clean ones, and have their tenants looked at when the target is tried next."""

    async def breakers(self, tx: H_contra, tenant: UUID) -> list[BreakerRow]:
        """Return a tenant's breakers, by target."""

    async def forget_breakers(self, tx: H_contra, *, idle_seconds: float) -> int:
        """Remove the breakers that nothing has happened to for so long; return how many."""


class Outbox(Protocol[H_contra]):
    """The effects that are owed, and who holds them."""

    async def owe(self, tx: H_contra, effects: Sequence[tuple[UUID, NewEffect]]) -> list[Owed | AlreadyOwed]:
        """Insert the effects that no row stands for yet, and answer for each in the order given.

        `make_due` comes before the commit. Raises Misuse when a row stands under the same key with another payload.
        """

    async def make_due(self, tx: H_contra, owed: Sequence[tuple[UUID, UUID]]) -> None:
        """Let claims find these (tenant, effect) rows; among a transaction's last statements, since drains wait for it."""

    async def owe_absent(self, tx: H_contra, effects: Sequence[tuple[UUID, NewEffect]]) -> list[UUID]:
        """Insert those that no row stands for yet, whatever that row says; return their ids. `make_due` comes before the commit."""

    async def owe_drained(self, tx: H_contra, effects: Sequence[tuple[UUID, NewEffect]]) -> int:
        """Insert, in (tenant, kind, key) order, those that no row stands for yet, and make them due; return how many."""

    async def claim(self, request: ClaimRequest) -> Claimed:
        """Claim due effects, fairly over tenants, and those whose lease has run out.

        Of a target whose breaker is open none, but those that have waited for it as long as anything may; of one that is
        half-open the earliest, as its probe, which opens it for the length of its lease. What is reclaimed comes whatever its target
        does, with `down_seconds`.
        """

    async def renew(self, claims: Sequence[tuple[UUID, UUID, UUID, float]]) -> frozenset[UUID]:
        """Renew (tenant, effect, claim, lease_seconds); return the ids whose claim is lost. A locked row is busy, not lost."""

    async def settle(self, tx: H_contra, settlements: Sequence[Settlement]) -> Settled:
        """Write the finishing states, each only if its claim is still the row's last."""

    async def cancel(self, tx: H_contra, tenant: UUID, effect: UUID) -> EffectState | None:
        """Drop a pending effect, or ask a claimed one's settle to; return the state then, None when there is no such row."""

    async def replay(
        self, tx: H_contra, tenant: UUID, effects: Sequence[tuple[EffectRow, bool]]
    ) -> list[UUID]:
        """Return dead effects to pending with fresh budgets; those that come with True get a new key. Returns the ids moved.

        Each is given as it was read when its key was decided: one that has died anew since stays dead. `make_due` comes before the
        commit.
        """

    async def discard(
        self, tx: H_contra, tenant: UUID, effects: Sequence[UUID], *, reason: str
    ) -> list[UUID]:
        """Give up dead effects, with the reason. Returns the ids moved."""

    async def effect(self, tx: H_contra, tenant: UUID, effect: UUID) -> EffectRow | None:
        """Return one effect's row."""

    async def effects_by_id(self, tx: H_contra, tenant: UUID, effects: Collection[UUID]) -> list[EffectRow]:
        """Return the rows of those of these effects that exist, by id."""

    async def effects(
        self,
        tx: H_contra,
        tenant: UUID,
        *,
        state: EffectState | None = None,
        kind: str | None = None,
        event_seq: int | None = None,
        after: UUID | None = None,
        limit: int = 100,
    ) -> list[EffectRow]:
        """Return a tenant's effects that match, oldest first, behind `after`."""

    async def attempts(self, tx: H_contra, tenant: UUID, effect: UUID) -> list[Attempt]:
        """Return the recorded attempts of an effect, in order."""

    async def tried(self, tx: H_contra, tenant: UUID, effects: Collection[UUID]) -> dict[UUID, int]:
        """Return how many attempts are recorded of each of these effects under its present epoch; those without are left out."""

    async def rebuild_due(self, tx: H_contra) -> int:
        """Make the index of due tenants right again; return how many entries were late, which is how many were repaired."""

    async def trim(self, tx: H_contra, *, done_seconds: float, limit: int) -> int:
        """Remove final effects older than `done_seconds`, at most `limit`; return how many."""


class Store(EventLog[H], Cursors[H], Breakers[H], Outbox[H], Protocol[H]):
    """A store: the four ports and the transactions that they run in."""

    def tenant(self, tenant: UUID) -> AbstractAsyncContextManager[H]:
        """Open a transaction that sees one tenant; it commits when the block ends without an error."""

    def system(self, purpose: str) -> AbstractAsyncContextManager[H]:
        """Open a transaction that sees all tenants, for a named purpose."""

    def adopt(self, connection: Any, tenant: UUID) -> AbstractAsyncContextManager[H]:
        """Open a transaction of a tenant on the caller's own connection, or join the one that is open on it."""

    def savepoint(self, tx: H) -> AbstractAsyncContextManager[None]:
        """Undo only the block when it raises."""

    async def due(self, lease_kinds: Sequence[str]) -> Due:
        """Answer, in one cheap statement, what is due anywhere."""
