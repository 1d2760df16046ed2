"""However much one tenant's events owe, and however long they take to judge: verify says something to the database in between."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from mainspring.operators.audit import Audit
from mainspring.spine.drain import Drain
from mainspring.spine.errors import Transient
from mainspring.spine.judging import JUDGING_SECONDS_MAX, OWED_MAX, TURN_SECONDS
from tests.conformance.hands import Hands
from tests.conformance.subjects import server
from tests.spine.test_drain_limits import EVENTS, ROWS, Rules

__all__ = ["server"]
BEFORE_ALL = datetime(2000, 1, 1, tzinfo=UTC)


class Noting(Audit):
    """An audit that notes how many rows it compares at a time, and how many events it had asked about by then."""

    def __init__(self, rules: Rules) -> None:
        super().__init__([rules], kept_since=BEFORE_ALL, clock=lambda: rules.now)
        self.rules = rules
        self.compared: list[int] = []
        self.asked_by_then: list[int] = []

    async def _compare(self, scope: Any, tenant: UUID, wanted: Any, asked_again: set[str]) -> None:
        self.compared.append(len(wanted))
        self.asked_by_then.append(len(self.rules.asked))
        await super()._compare(scope, tenant, wanted, asked_again)


async def audited(hands: Hands, tenant: UUID, rules: Rules) -> Noting:
    audit = Noting(rules)
    events = await hands.read(tenant)
    async with hands.store.db.snapshot(tenant, purpose="verify") as scope:
        await audit.batch(scope, tenant, events)
    return audit


@pytest.fixture
async def hands(server: Any) -> Hands:
    return Hands(server)


@pytest.mark.slow
@pytest.mark.parametrize("breaks_at", [frozenset[int](), frozenset({3})], ids=["whole", "around poison"])
async def test_it_asks_about_no_more_than_a_round_may_owe_before_it_compares(
    hands: Hands, breaks_at: frozenset[int]
):
    tenant = await hands.tenant()
    await hands.append(tenant, *["loud"] * EVENTS)
    drain = Drain(hands.store, [Rules(rows=ROWS, breaks_at=breaks_at)])
    while (await drain.run_once()).events:
        drain.look_everywhere()
    audit = await audited(hands, tenant, Rules(rows=ROWS, breaks_at=breaks_at))
    broken = len(breaks_at)
    assert max(audit.compared) <= OWED_MAX
    assert sum(audit.compared) == (EVENTS - broken) * ROWS + broken
    assert len(audit.compared) == 3
    # one event more than are compared is asked about; what broke among others is asked about once more by itself
    assert max(audit.rules.asked.count(seq) for seq in range(1, EVENTS + 1)) == 2
    assert (audit.count, audit.examined) == (0, EVENTS)


async def test_it_compares_what_it_has_when_it_has_judged_for_long_enough(hands: Hands):
    tenant = await hands.tenant()
    await hands.append(tenant, *["loud"] * 5)
    audit = await audited(hands, tenant, Rules(seconds=JUDGING_SECONDS_MAX / 2 + 0.1))
    assert audit.asked_by_then == [2, 4, 5]


async def test_others_on_this_loop_have_their_turns_while_verify_judges(hands: Hands):
    tenant = await hands.tenant()
    await hands.append(tenant, *["loud"] * EVENTS)
    rules = Rules(seconds=2 * TURN_SECONDS)
    seen = set[int]()

    async def watch() -> None:
        while True:
            seen.add(len(rules.asked))
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    await audited(hands, tenant, rules)
    watching.cancel()
    assert seen >= set(range(EVENTS + 1))


@pytest.mark.parametrize("inside", [False, True], ids=["the snapshot", "a savepoint in it"])
async def test_a_snapshot_whose_link_breaks_has_written_nothing_and_may_be_asked_again(
    hands: Hands, inside: bool
):
    tenant = await hands.tenant()
    db = hands.store.db
    with pytest.raises(Transient):
        async with db.snapshot(tenant, purpose="verify") as scope:
            if inside:
                async with scope.savepoint():
                    await cut(db, scope)
            await cut(db, scope)


async def test_a_savepoint_whose_link_breaks_is_surely_not_committed(hands: Hands):
    tenant = await hands.tenant()
    db = hands.store.db
    with pytest.raises(Transient):
        async with db.tenant(tenant) as scope, scope.savepoint():
            await cut(db, scope)


async def cut(db: Any, scope: Any) -> None:
    """End the scope's connection, as the database does with one that was idle for too long."""
    ended = scope.conn.get_server_pid()
    async with db.pool.acquire() as other:
        await other.fetchval("select pg_terminate_backend($1, 5000)", ended)
