"""The breakers' verbs on PostgreSQL, each one statement."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import UUID

from mainspring.db import Scope
from mainspring.spine.breaker import Breaker, BreakerRow
from mainspring.spine.ports import BreakerChange, Target
from mainspring.sql import Queries

SQL = Queries("mainspring.stores.postgres.sql")


class PostgresBreakers:
    """Which targets have failed of late."""

    async def lock_breakers(self, tx: Scope, targets: Collection[Target]) -> dict[Target, Breaker]:
        """Lock, in order, the breakers of these targets."""
        asked = sorted(set(targets))
        found = await tx.fetch(
            SQL["lock_breakers"], [tenant for tenant, _ in asked], [name for _, name in asked]
        )
        return {
            (row["tenant_id"], row["target"]): Breaker(failures=row["failures"], trips=row["trips"])
            for row in found
        }

    async def write_breakers(self, tx: Scope, changes: Sequence[BreakerChange]) -> None:
        """Write locked breakers, remove the clean ones, and make their tenants due."""
        await tx.execute(
            SQL["write_breakers"],
            [change.target[0] for change in changes],
            [change.target[1] for change in changes],
            [change.breaker.failures for change in changes],
            [change.breaker.trips for change in changes],
            [change.open_seconds for change in changes],
            [change.error for change in changes],
        )

    async def breakers(self, tx: Scope, tenant: UUID) -> list[BreakerRow]:
        """Return a tenant's breakers, by target."""
        return [BreakerRow(**dict(row)) for row in await tx.fetch(SQL["breakers"], tenant)]

    async def forget_breakers(self, tx: Scope, *, idle_seconds: float) -> int:
        """Remove the breakers that nothing has happened to for so long."""
        return await tx.execute(SQL["forget_breakers"], idle_seconds)
