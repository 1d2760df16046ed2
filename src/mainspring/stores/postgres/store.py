"""The engine's ports on PostgreSQL: each verb is one statement of `sql/`; nothing is decided here."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from uuid import UUID

from mainspring import telemetry
from mainspring.db import BATCH, CLAIM, COMMAND, Connection, Database, Pool, Scope
from mainspring.ids import new_id
from mainspring.spine.effects import (
    CRASHES_ALONE,
    DEFER_LIMIT_SECONDS,
    FINAL,
    AlreadyOwed,
    Attempt,
    EffectRow,
    EffectState,
    NewEffect,
    Owed,
    Settlement,
)
from mainspring.spine.errors import LogBroken, Misuse, Transient
from mainspring.spine.events import Event, NewEvent
from mainspring.spine.ports import Claimed, ClaimRequest, Cursor, Due, Settled
from mainspring.sql import Queries
from mainspring.stores.postgres import rows
from mainspring.stores.postgres.breakers import PostgresBreakers

SQL = Queries("mainspring.stores.postgres.sql")

_LOWEST = UUID(int=0)
_NOW, _LATER = True, False  # when what is owed becomes due: at once, or by make_due


class PostgresStore(PostgresBreakers):
    """The store that the server runs on, and the library's beside your own tables.

    Args:
        pool: an asyncpg pool. The library works as the pool's own role, in schema `mainspring`.
        roles: take on the server's roles, so that row-level security holds in every transaction.
        for_requests: how many of the pool's connections a server's requests may have at once; None is all of them.
    """

    def __init__(self, pool: Pool, *, roles: bool = False, for_requests: int | None = None) -> None:
        self.db = Database(pool, roles=roles, for_requests=for_requests)

    def tenant(self, tenant: UUID) -> AbstractAsyncContextManager[Scope]:
        """Open a transaction that sees one tenant."""
        return self.db.tenant(tenant)

    def system(self, purpose: str) -> AbstractAsyncContextManager[Scope]:
        """Open a transaction that sees all tenants."""
        return self.db.system(purpose, budget=BATCH if purpose == "settle" else COMMAND)

    def adopt(self, connection: Connection, tenant: UUID) -> AbstractAsyncContextManager[Scope]:
        """Open a transaction on the caller's own connection, or join the one that is open on it."""
        return self.db.adopt(connection, tenant)

    @asynccontextmanager
    async def savepoint(self, tx: Scope) -> AsyncIterator[None]:
        """Undo only the block when it raises."""
        async with tx.savepoint():
            yield

    # the log ------------------------------------------------------------------------------------------------

    async def create_tenant(self, tx: Scope, tenant: UUID, name: str) -> bool:
        """Bring a tenant, its log and its cursor into being together; False when it exists already."""
        return await tx.execute(SQL["create_tenant"], tenant, name) == 1

    async def append(self, tx: Scope, tenant: UUID, events: Sequence[NewEvent]) -> tuple[int, ...]:
        """Write the events as the transaction's last statement; raise Misuse when the tenant has no log here."""
        tx.append_only_for(tenant)
        written = await tx.fetch(SQL["append"], tenant, *rows.event_columns(events))
        if len(written) != len(events):
            raise Misuse(
                f"tenant {tenant} has no log that this transaction can see: create_tenant comes first"
            )
        return tuple(sorted(row["seq"] for row in written))

    async def read(self, tx: Scope, tenant: UUID, *, after: int, limit: int) -> list[Event]:
        """Return a tenant's events behind `after`, in order."""
        return [rows.event_of(row) for row in await tx.fetch(SQL["read"], tenant, after, limit)]

    async def events_at(self, tx: Scope, tenant: UUID, seqs: Collection[int]) -> dict[int, Event]:
        """Return the events of exactly these seqs, by seq; those that are not kept any more are left out."""
        return {
            row["seq"]: rows.event_of(row) for row in await tx.fetch(SQL["events_at"], tenant, list(seqs))
        }

    async def head(self, tx: Scope, tenant: UUID) -> int:
        """Return the seq of a tenant's last event, 0 before the first."""
        return int(await tx.fetchval(SQL["head"], tenant) or 0)

    async def traceparents(
        self, tx: Scope, events: Sequence[tuple[UUID, int]]
    ) -> Mapping[tuple[UUID, int], str]:
        """Return where these events came from, those that say so."""
        found = await tx.fetch(SQL["traceparents"], [t for t, _ in events], [seq for _, seq in events])
        return {(row["tenant_id"], row["seq"]): row["traceparent"] for row in found}

    # cursors ------------------------------------------------------------------------------------------------

    async def lock_lagging(
        self, tx: Scope, *, after: UUID | None, limit: int, engine_version: int
    ) -> list[Cursor]:
        """Lock and return cursors behind their head, skipping those that another drain holds."""
        found = await tx.fetch(SQL["lock_lagging"], after or _LOWEST, limit, engine_version)
        return [_cursor_of(row) for row in found]

    async def lock_called(self, tx: Scope, tenants: Sequence[UUID], *, engine_version: int) -> list[Cursor]:
        """The same of these tenants alone, by tenant."""
        return [_cursor_of(row) for row in await tx.fetch(SQL["lock_called"], list(tenants), engine_version)]

    async def read_lagging(
        self, tx: Scope, cursors: Sequence[Cursor], *, per_tenant: int, limit: int
    ) -> list[Event]:
        """Return the next events of the locked cursors, whole prefixes by tenant."""
        found = await tx.fetch(
            SQL["read_lagging"],
            [cursor.tenant_id for cursor in cursors],
            [cursor.position for cursor in cursors],
            per_tenant,
            limit,
        )
        return [rows.event_of(row) for row in found]

    async def advance(self, tx: Scope, moves: Sequence[tuple[Cursor, int]], *, engine_version: int) -> None:
        """Move each locked cursor to its new position."""
        moved = await tx.execute(
            SQL["advance"],
            [cursor.tenant_id for cursor, _ in moves],
            [cursor.position for cursor, _ in moves],
            [position for _, position in moves],
            engine_version,
        )
        if moved != len(moves):
            if (asked_for := await self.required_engine_version(tx)) > engine_version:
                raise Transient(
                    f"the schema asks for engine version {asked_for} by now, and this is {engine_version}"
                )
            raise LogBroken(f"{len(moves) - moved} cursors moved while they were locked")

    async def position(self, tx: Scope, tenant: UUID) -> int | None:
        """Return up to which seq a tenant's log is drained."""
        found: int | None = await tx.fetchval(SQL["position"], tenant)
        return found

    async def required_engine_version(self, tx: Scope) -> int:
        """Return which engine version the schema asks for."""
        return int(await tx.fetchval(SQL["required_engine_version"]))

    async def skip_hole(self, tx: Scope, tenant: UUID) -> tuple[int, int] | None:
        """Move a cursor that stands before a hole in its log to behind it."""
        row = await tx.fetchrow(SQL["skip_hole"], tenant)
        return (row["first"], row["last"]) if row is not None else None

    # the outbox ---------------------------------------------------------------------------------------------

    async def owe(self, tx: Scope, effects: Sequence[tuple[UUID, NewEffect]]) -> list[Owed | AlreadyOwed]:
        """Insert the effects that no row stands for yet; raise Misuse for another payload under the same key."""
        ids = [new_id() for _ in effects]
        inserted = {row["id"] for row in await self._insert(tx, effects, ids, due=_LATER)}
        if len(inserted) == len(effects):
            return [Owed(id_) for id_ in ids]
        standing = await self._standing(tx, effects)
        answers: list[Owed | AlreadyOwed] = []
        for n, ((_, effect), id_) in enumerate(zip(effects, ids, strict=True)):
            if id_ in inserted:
                answers.append(Owed(id_))
                continue
            found, same = standing[n]
            if not same:
                raise Misuse(f"{effect.kind} {effect.key} is owed already, with another payload")
            answers.append(found)
        return answers

    async def _standing(
        self, tx: Scope, effects: Sequence[tuple[UUID, NewEffect]]
    ) -> dict[int, tuple[AlreadyOwed, bool]]:
        found = await tx.fetch(
            SQL["standing"],
            [tenant for tenant, _ in effects],
            [effect.kind for _, effect in effects],
            [effect.key for _, effect in effects],
            [rows.to_json(effect.payload) for _, effect in effects],
        )
        return {
            row["n"] - 1: (AlreadyOwed(row["id"], EffectState(row["state"])), row["same"]) for row in found
        }

    async def make_due(self, tx: Scope, owed: Sequence[tuple[UUID, UUID]]) -> None:
        """Let claims find what was owed; they look nowhere else."""
        await tx.execute(SQL["make_due"], [tenant for tenant, _ in owed], [effect for _, effect in owed])

    async def owe_absent(self, tx: Scope, effects: Sequence[tuple[UUID, NewEffect]]) -> list[UUID]:
        """Insert those that no row stands for yet; return their ids."""
        inserted = await self._insert(tx, effects, [new_id() for _ in effects], due=_LATER)
        return [row["id"] for row in inserted]

    async def owe_drained(self, tx: Scope, effects: Sequence[tuple[UUID, NewEffect]]) -> int:
        """Insert those that no row stands for yet; return how many."""
        return len(await self._insert(tx, effects, [new_id() for _ in effects], due=_NOW))

    @staticmethod
    async def _insert(
        tx: Scope, effects: Sequence[tuple[UUID, NewEffect]], ids: Sequence[UUID], *, due: bool
    ) -> Sequence[Any]:
        inserted = await tx.fetch(SQL["owe"], *rows.effect_columns(effects, ids), due)
        for kind, n in Counter(row["kind"] for row in inserted).items():
            telemetry.effects_owed_inserted.labels(kind).inc(n)
        return inserted

    async def claim(self, request: ClaimRequest) -> Claimed:
        """Claim due effects, fairly over tenants, and those whose lease has run out."""
        kinds, leases = list(request.lease_seconds), list(request.lease_seconds.values())
        after = request.after or _LOWEST
        async with self.db.system("claim", budget=BATCH if request.alone else CLAIM) as tx:
            if request.alone:
                found = await tx.fetch(
                    SQL["claim_alone"], request.worker, kinds, leases, CRASHES_ALONE, DEFER_LIMIT_SECONDS
                )
            else:
                found = await tx.fetch(
                    SQL["claim"],
                    request.worker,
                    kinds,
                    leases,
                    request.limit,
                    after,
                    CRASHES_ALONE,
                    DEFER_LIMIT_SECONDS,
                )
                after = await self._raise_due(tx, found, request)
        claimed = [rows.effect_of(row) for row in found if row["id"] is not None]
        telemetry.claims_reclaimed.inc(sum(effect.reclaimed for effect in claimed))
        return Claimed(effects=claimed, after=after)

    @staticmethod
    async def _raise_due(tx: Scope, found: Sequence[Any], request: ClaimRequest) -> UUID:
        """Look later at tenants that gave less than their share: they have nothing more due. Returns the last one asked."""
        bumps = {row["due_tenant"]: row["bumps"] for row in found if row["due_tenant"] is not None}
        given = Counter(row["tenant_id"] for row in found if row["id"] is not None and not row["reclaimed"])
        after = request.after or _LOWEST
        asked = sorted(bumps, key=lambda tenant: (tenant <= after, tenant))
        if sum(row["id"] is not None for row in found) >= request.limit:
            # no slot was left for those behind the last one that gave: nothing is known of them
            asked = asked[: max((n for n, tenant in enumerate(asked) if given[tenant]), default=-1) + 1]
        spent = [tenant for tenant in asked if given[tenant] < found[0]["share"]]
        if spent:
            await tx.execute(
                SQL["raise_due"], spent, [bumps[tenant] for tenant in spent], DEFER_LIMIT_SECONDS
            )
        return asked[-1] if asked else after

    async def renew(self, claims: Sequence[tuple[UUID, UUID, UUID, float]]) -> frozenset[UUID]:
        """Renew claims; return the ids whose claim is lost."""
        if not claims:
            return frozenset()
        async with self.db.system("renew", budget=BATCH) as tx:
            lost = await tx.fetch(SQL["renew"], *(list(column) for column in zip(*claims, strict=True)))
        return frozenset(row["id"] for row in lost)

    async def settle(self, tx: Scope, settlements: Sequence[Settlement]) -> Settled:
        """Write the finishing states, each only if its claim is still the row's last."""
        if any(settlement.claim_id is None for settlement in settlements):
            raise Misuse("a settlement carries the claim it settles")
        given = frozenset(settlement.id for settlement in settlements)
        written = await self._settle_done(tx, settlements)
        if len(written) < len(given):
            left = [settlement for settlement in settlements if settlement.id not in written]
            found = await tx.fetch(SQL["settle"], *rows.settlement_columns(left))
            written |= {row["id"] for row in found}
        refused = given - written
        telemetry.settles_refused.inc(len(refused))
        return Settled(accepted=given - refused, refused=refused)

    @staticmethod
    async def _settle_done(tx: Scope, settlements: Sequence[Settlement]) -> set[UUID]:
        """Write a batch that all simply succeeded the short way; return what was written, nothing of any other batch."""
        if not all(rows.simply_done(settlement) for settlement in settlements):
            return set()
        found = await tx.fetch(SQL["settle_done"], *rows.claim_columns(settlements))
        return {row["id"] for row in found}

    async def cancel(self, tx: Scope, tenant: UUID, effect: UUID) -> EffectState | None:
        """Drop a pending effect, or ask a claimed one's settle to."""
        state = await tx.fetchval(SQL["cancel"], tenant, effect) or await tx.fetchval(
            SQL["state"], tenant, effect
        )
        return EffectState(state) if state else None

    async def replay(self, tx: Scope, tenant: UUID, effects: Sequence[tuple[EffectRow, bool]]) -> list[UUID]:
        """Return dead effects to pending with fresh budgets."""
        replayed = await tx.fetch(
            SQL["replay"],
            tenant,
            [row.id for row, _ in effects],
            [new_key for _, new_key in effects],
            [row.settled_at for row, _ in effects],
        )
        return [row["id"] for row in replayed]

    async def discard(self, tx: Scope, tenant: UUID, effects: Sequence[UUID], *, reason: str) -> list[UUID]:
        """Give up dead effects, with the reason."""
        return [row["id"] for row in await tx.fetch(SQL["discard"], tenant, list(effects), reason)]

    async def effect(self, tx: Scope, tenant: UUID, effect: UUID) -> EffectRow | None:
        """Return one effect's row."""
        return next(iter(await self.effects_by_id(tx, tenant, [effect])), None)

    async def effects_by_id(self, tx: Scope, tenant: UUID, effects: Collection[UUID]) -> list[EffectRow]:
        """Return the rows of those of these effects that exist, by id."""
        found = await tx.fetch(SQL["effects_by_id"], tenant, list(effects))
        return [rows.effect_row_of(row) for row in found]

    async def effects(
        self,
        tx: Scope,
        tenant: UUID,
        *,
        state: EffectState | None = None,
        kind: str | None = None,
        event_seq: int | None = None,
        after: UUID | None = None,
        limit: int = 100,
    ) -> list[EffectRow]:
        """Return a tenant's effects that match, oldest first."""
        # one statement for each index that can drive it: a filter that may be null would keep a cached plan from using any
        if event_seq is not None:
            found = await tx.fetch(SQL["effects_of_event"], tenant, after, limit, kind, state, event_seq)
        elif state is not None and state not in FINAL:
            found = await tx.fetch(SQL[f"effects_{state}"], tenant, after, limit, kind)
        else:
            found = await tx.fetch(SQL["effects"], tenant, after or _LOWEST, limit, kind, state)
        return [rows.effect_row_of(row) for row in found]

    async def attempts(self, tx: Scope, tenant: UUID, effect: UUID) -> list[Attempt]:
        """Return the recorded attempts of an effect, in order."""
        return [rows.attempt_of(row) for row in await tx.fetch(SQL["attempts"], tenant, effect)]

    async def tried(self, tx: Scope, tenant: UUID, effects: Collection[UUID]) -> dict[UUID, int]:
        """Return how many attempts are recorded of each of these effects under its present epoch."""
        return {row["id"]: row["attempts"] for row in await tx.fetch(SQL["tried"], tenant, list(effects))}

    async def rebuild_due(self, tx: Scope) -> int:
        """Make the index of due tenants right again; return how many entries were late."""
        return await tx.execute(SQL["rebuild_due"])

    async def trim(self, tx: Scope, *, done_seconds: float, limit: int) -> int:
        """Remove final effects older than `done_seconds`, at most `limit`; return how many."""
        return await tx.execute(SQL["trim"], done_seconds, limit)

    async def due(self, lease_kinds: Sequence[str]) -> Due:
        """Answer what is due anywhere."""
        async with self.db.system("tick") as tx:
            row = await tx.fetchrow(SQL["due"], list(lease_kinds))
        assert row is not None
        return Due(lagging=row["lagging"], effects=row["effects"], alone=row["alone"])


def _cursor_of(row: Any) -> Cursor:
    return Cursor(tenant_id=row["tenant_id"], position=row["position"], head=row["head"])
