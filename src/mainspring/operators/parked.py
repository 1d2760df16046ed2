"""References that nobody could take: takes what an operator decides on one, leaves it told again, or given up.

Nothing is owed by a reference: what it stood for, the floor tick has found. It lies where it is until somebody has looked at why. An
operator sees those of their own tenant; one whose subject names no tenant is nobody's, and is counted and logged when it is parked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from mainspring.fabric.errors import NotARef
from mainspring.fabric.port import EventFabric, Parked
from mainspring.fabric.refs import EPOCH_MAX, received
from mainspring.fabric.subjects import Names
from mainspring.rooms import Conflict, NotFound

_LOOKED_AT_MAX: Final = 1_000  # a fabric has one place for what is parked, whoever's it is


class ParkedService:
    """What is parked on this server's fabric, one method a command or query. All raise Transient while the fabric is down."""

    def __init__(self, fabric: EventFabric | None, names: Names) -> None:
        self._fabric = fabric
        self._names = names

    async def list(self, tenant: UUID, *, after: int = 0, limit: int = 50) -> Sequence[Parked]:
        """Return those of a tenant, the oldest first."""
        if self._fabric is None:
            return []
        found = await self._fabric.parked(after=after, limit=_LOOKED_AT_MAX)
        return [one for one in found if self._names.owner_of(one.subject) == tenant][:limit]

    async def replay(self, tenant: UUID, seq: int) -> Parked:
        """Have it told again, as one that was never told before. Raises NotFound, and Conflict for what is no reference.

        It is told before it is taken away: dying in between tells it twice, and that does no harm.
        """
        fabric, parked = await self._find(tenant, seq)
        try:
            ref = received(self._names, parked.subject, parked.data)
        except NotARef as error:
            raise Conflict(
                f"{error}: nobody could take it again; discard it", code="parked_malformed"
            ) from error
        # the place where it lies is its own, so that no second replay is taken for this one, nor for its first telling
        await fabric.publish(ref, epoch=min(seq, EPOCH_MAX))
        await fabric.unpark(seq)
        return parked

    async def discard(self, tenant: UUID, seq: int) -> Parked:
        """Take it away for good. Raises NotFound."""
        fabric, parked = await self._find(tenant, seq)
        await fabric.unpark(seq)
        return parked

    async def _find(self, tenant: UUID, seq: int) -> tuple[EventFabric, Parked]:
        if self._fabric is not None:
            for one in await self._fabric.parked(after=seq - 1, limit=1):
                if one.seq == seq and self._names.owner_of(one.subject) == tenant:
                    return self._fabric, one
        raise NotFound("parked reference", seq)
