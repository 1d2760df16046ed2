"""What a claim reads, and whom it serves, beside crowds: of rows that wait for something, and of tenants with a backlog."""

from __future__ import annotations

from uuid import UUID

import pytest

from mainspring.ids import new_id
from mainspring.spine.effects import Done, EffectKind, NewEffect, resolve
from tests.races.conftest import Ground
from tests.races.test_breaker_races import DEFER_LIMIT_SECONDS, rows_read

pytestmark = pytest.mark.slow

CROWD = 500_000


async def crowd(ground: Ground, rows: int = CROWD) -> None:
    """As many rows that nobody may take now: held by a pause, waiting for their time, for a session, done, dead."""
    await ground.pool.execute(
        """
        insert into mainspring.effects (tenant_id, id, kind, family, key, payload, state, not_before, settled_at)
        select $1, gen_random_uuid(), 'work', case n % 5 when 0 then 'offered' else 'executed' end, 'w' || n, '{}',
               case n % 5 when 3 then 'done' when 4 then 'dead' else 'pending' end,
               case n % 5 when 1 then 'infinity'::timestamptz
                          when 2 then clock_timestamp() + (n + 3600) * interval '1 second' else clock_timestamp() end,
               case when n % 5 in (3, 4) then clock_timestamp() end
        from generate_series(1, $2::integer) n
        """,
        ground.tenant,
        rows,
    )


@pytest.mark.parametrize("analyzed", [True, False], ids=["with statistics", "with those of an empty table"])
async def test_a_claim_reads_none_of_the_rows_that_are_parked(ground: Ground, analyzed: bool) -> None:
    if not analyzed:
        await ground.pool.execute("analyze mainspring.effects")
    await crowd(ground)
    await ground.owe("a", "b")
    if analyzed:
        await ground.pool.execute("analyze mainspring.effects")
    conn = await ground.connect()
    claim = ("w", ["work"], [60.0], 50, UUID(int=0), 2, DEFER_LIMIT_SECONDS)
    assert await rows_read(conn, "claim", *claim) < 50
    assert await rows_read(conn, "claim_alone", "w", ["work"], [60.0], 2, DEFER_LIMIT_SECONDS) < 50
    assert sorted(effect.key for effect in await ground.claim()) == ["a", "b"]
    if analyzed:  # before that it may read them once a claim, until statistics are taken
        bumps = await ground.pool.fetchval("select bumps from mainspring.due_tenants")
        assert await rows_read(conn, "raise_due", [ground.tenant], [bumps], DEFER_LIMIT_SECONDS) < 50


async def test_fifty_quiet_tenants_beside_150_loud_ones_are_served_within_two_claims(ground: Ground) -> None:
    """The quiet ones come last in every order, and each has one row that is the last to become due."""
    tenants = sorted(new_id() for _ in range(200))
    loud, quiet = tenants[:150], set(tenants[150:])
    async with ground.store.system("test") as tx:
        for tenant in tenants:
            await ground.store.create_tenant(tx, tenant, "t")
        rows = [(tenant, NewEffect("work", key=f"{n}")) for tenant in loud for n in range(40)]
        await ground.store.owe_drained(tx, rows)
        await ground.store.owe_drained(tx, [(tenant, NewEffect("work", key="0")) for tenant in sorted(quiet)])
    await ground.pool.execute("analyze mainspring.effects")
    kind = EffectKind(name="work")
    after = None
    served: set[UUID] = set()
    for _ in range(2):  # two claims of 200 slots
        claimed = (await ground.store.claim(ground.request(limit=200, after=after))).effects
        assert len(claimed) <= 200
        served |= {effect.tenant_id for effect in claimed}
        after = claimed[-1].tenant_id
        async with ground.store.system("settle") as tx:
            done = [resolve(effect, Done(), kind, random=0.5) for effect in claimed]
            await ground.store.settle(tx, sorted(done, key=lambda row: row.id))
    assert quiet <= served


async def test_tenants_whose_time_has_not_come_are_not_walked_over(ground: Ground) -> None:
    """Each has something that is due tomorrow: twenty thousand of them are not what a claim looks through."""
    await ground.pool.execute(
        """
        with born as (
            insert into mainspring.tenants (id, name) select gen_random_uuid(), 't' from generate_series(1, 20000) returning id
        )
        insert into mainspring.due_tenants (tenant_id, family, next_due)
        select id, 'executed', clock_timestamp() + interval '1 day' from born
        """
    )
    await ground.pool.execute("analyze mainspring.due_tenants")
    await ground.owe("a")
    conn = await ground.connect()
    claim = ("w", ["work"], [60.0], 50, UUID(int=0), 2, DEFER_LIMIT_SECONDS)
    assert await rows_read(conn, "claim", *claim, table="due_tenants") < 50
    assert [effect.key for effect in await ground.claim()] == ["a"]
