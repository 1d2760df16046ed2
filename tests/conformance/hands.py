"""Short words for the port's verbs, so that a test reads as the story that it tells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from mainspring.ids import new_id
from mainspring.spine.effects import (
    AlreadyOwed,
    Attempt,
    Done,
    Effect,
    EffectKind,
    EffectRow,
    EffectState,
    Failed,
    NewEffect,
    Outcome,
    Owed,
    Retry,
    resolve,
)
from mainspring.spine.events import Event, NewEvent
from mainspring.spine.ports import ClaimRequest, Cursor, Settled
from tests.conformance.subjects import Subject

LEASE = 60.0
MAIL = EffectKind(name="mail", max_attempts=3)


class Hands:
    """Each word is one transaction."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.store = subject.store

    async def tenant(self, name: str = "acme") -> UUID:
        """A new tenant; later ones sort after earlier ones."""
        tenant = new_id()
        async with self.store.system("test") as tx:
            assert await self.store.create_tenant(tx, tenant, name)
        return tenant

    async def append(self, tenant: UUID, *events: NewEvent | str) -> tuple[int, ...]:
        given = [NewEvent(event) if isinstance(event, str) else event for event in events]
        async with self.store.tenant(tenant) as tx:
            return await self.store.append(tx, tenant, given)

    async def read(self, tenant: UUID, *, after: int = 0, limit: int = 100) -> list[Event]:
        async with self.store.tenant(tenant) as tx:
            return await self.store.read(tx, tenant, after=after, limit=limit)

    async def events_at(self, tenant: UUID, *seqs: int) -> dict[int, Event]:
        async with self.store.tenant(tenant) as tx:
            return await self.store.events_at(tx, tenant, seqs)

    async def head(self, tenant: UUID) -> int:
        async with self.store.tenant(tenant) as tx:
            return await self.store.head(tx, tenant)

    async def lagging(self, *, after: UUID | None = None, limit: int = 10, version: int = 1) -> list[Cursor]:
        async with self.store.system("test") as tx:
            return await self.store.lock_lagging(tx, after=after, limit=limit, engine_version=version)

    async def skip_hole(self, tenant: UUID) -> tuple[int, int] | None:
        async with self.store.tenant(tenant) as tx:
            return await self.store.skip_hole(tx, tenant)

    async def owe(self, tenant: UUID, *effects: NewEffect) -> list[Owed | AlreadyOwed]:
        async with self.store.tenant(tenant) as tx:
            answers = await self.store.owe(tx, [(tenant, effect) for effect in effects])
            await self.store.make_due(tx, [(tenant, owed.id) for owed in answers if isinstance(owed, Owed)])
            return answers

    async def owe_one(self, tenant: UUID, kind: str = "mail", key: str = "1", **more: Any) -> UUID:
        [owed] = await self.owe(tenant, NewEffect(kind, key=key, **more))
        assert isinstance(owed, Owed)
        return owed.id

    async def claim(
        self,
        *kinds: str,
        limit: int = 10,
        lease: float = LEASE,
        worker: str = "w1",
        after: UUID | None = None,
        alone: bool = False,
    ) -> list[Effect]:
        leases = dict.fromkeys(kinds or ("mail",), lease)
        claimed = await self.store.claim(
            ClaimRequest(worker=worker, lease_seconds=leases, limit=limit, after=after, alone=alone)
        )
        return claimed.effects

    async def claim_one(self, *kinds: str, **how: Any) -> Effect:
        [effect] = await self.claim(*kinds, **how)
        return effect

    async def settle(self, *settled: tuple[Effect, Outcome], kind: EffectKind = MAIL) -> Settled:
        settlements = [resolve(effect, outcome, kind, random=0.5) for effect, outcome in settled]
        async with self.store.system("test") as tx:
            return await self.store.settle(tx, sorted(settlements, key=lambda settlement: settlement.id))

    async def settles(
        self, effect: Effect, outcome: Outcome | None = None, *, kind: EffectKind = MAIL
    ) -> bool:
        """Settle one effect; tell whether it was accepted."""
        settled = await self.settle((effect, outcome or Done()), kind=kind)
        assert settled.accepted | settled.refused == {effect.id}
        assert not settled.accepted & settled.refused
        return effect.id in settled.accepted

    async def renew(self, *effects: Effect, lease: float = LEASE) -> frozenset[UUID]:
        return await self.store.renew([(e.tenant_id, e.id, e.claim_id, lease) for e in effects])

    async def row(self, effect: Effect | tuple[UUID, UUID]) -> EffectRow:
        tenant, id_ = effect if isinstance(effect, tuple) else (effect.tenant_id, effect.id)
        async with self.store.tenant(tenant) as tx:
            row = await self.store.effect(tx, tenant, id_)
        assert row is not None
        return row

    async def rows(self, tenant: UUID, **which: Any) -> list[EffectRow]:
        async with self.store.tenant(tenant) as tx:
            return await self.store.effects(tx, tenant, **which)

    async def attempts(self, effect: Effect) -> list[Attempt]:
        async with self.store.tenant(effect.tenant_id) as tx:
            return await self.store.attempts(tx, effect.tenant_id, effect.id)

    async def tried(self, tenant: UUID, effect: UUID) -> int | None:
        async with self.store.tenant(tenant) as tx:
            return (await self.store.tried(tx, tenant, [effect, new_id()])).get(effect)

    async def cancel(self, tenant: UUID, effect: UUID) -> EffectState | None:
        async with self.store.tenant(tenant) as tx:
            return await self.store.cancel(tx, tenant, effect)

    async def replay(self, tenant: UUID, effects: Sequence[UUID], *, new_key: bool = False) -> list[UUID]:
        async with self.store.tenant(tenant) as tx:
            rows = await self.store.effects_by_id(tx, tenant, set(effects))
            moved = await self.store.replay(tx, tenant, [(row, new_key) for row in rows])
            await self.store.make_due(tx, [(tenant, effect) for effect in moved])
            return moved

    async def discard(self, tenant: UUID, effects: Sequence[UUID], *, reason: str = "given up") -> list[UUID]:
        async with self.store.tenant(tenant) as tx:
            return await self.store.discard(tx, tenant, effects, reason=reason)

    async def trim(self, *, done_seconds: float, limit: int = 100) -> int:
        async with self.store.system("test") as tx:
            return await self.store.trim(tx, done_seconds=done_seconds, limit=limit)

    async def rebuild_due(self) -> int:
        async with self.store.system("test") as tx:
            return await self.store.rebuild_due(tx)

    async def age(self, seconds: float) -> None:
        await self.subject.age(seconds)

    # stories that begin many tests

    async def dead(self, tenant: UUID, key: str = "1", *, spent: int = 0) -> Effect:
        """An effect of kind mail that failed for good, after `spent` retries."""
        await self.owe_one(tenant, key=key)
        for _ in range(spent):
            assert await self.settles(await self.claim_one(), Retry("busy", after_seconds=0))
        effect = await self.claim_one()
        assert await self.settles(effect, Failed("no such address"))
        return effect

    async def stale(self, *kinds: str) -> tuple[Effect, Effect]:
        """The only due effect under two claims: one whose lease ran out, and the one that took it over."""
        old = await self.claim_one(*kinds, worker="w1")
        await self.age(LEASE + 1)
        new = await self.claim_one(*kinds, worker="w2")
        assert new.id == old.id
        return old, new


@pytest.fixture
def hands(subject: Subject) -> Hands:
    """Short words for the port's verbs, on each store in turn."""
    return Hands(subject)
