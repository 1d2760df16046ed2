"""One tenant with a backlog beside many with one due row each: when the last of the many has been served.

Counted in claims, which is what fairness is about; in seconds only as a share of what all rows took.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import figures
import scene
from engine import KIND
from sizes import Sizes

from mainspring import Done, Effect, NewEffect, Outcome, Spine
from mainspring.db import Scope
from mainspring.embedded import EmbeddedPostgres
from mainspring.ids import new_id
from mainspring.spine.ports import Claimed, ClaimRequest
from mainspring.stores.postgres import PostgresStore

TITLE = "A backlog beside many small tenants"
POOL_SIZE = 10
_LOAD_BATCH = 2_000
_CHECK = """
select count(*) filter (where tenant_id = $1) as backlog, count(*) filter (where tenant_id <> $1) as others
from mainspring.effects where state = 'done' and attempts = 0 and crashes = 0
"""


class Counting(PostgresStore):
    """The store, and how many claims gave something."""

    claims = 0

    async def claim(self, request: ClaimRequest) -> Claimed:
        """Claim, and count."""
        claimed = await super().claim(request)
        self.claims += bool(claimed.effects)
        return claimed


async def measure(postgres: EmbeddedPostgres, sizes: Sizes) -> dict[str, Any]:
    """Let an engine carry out all of it; the tenant with the backlog comes first and was due first."""
    where = await scene.database(postgres, "fairness")
    await scene.make_tables(where)
    async with scene.pool(where, size=POOL_SIZE) as pool:
        store = Counting(pool)
        big = UUID(int=1)
        small = [new_id() for _ in range(sizes.neighbours)]
        await _owe(store, [(big, f"{n:08}") for n in range(sizes.backlog)])
        await _owe(store, sorted((tenant, "1") for tenant in small))
        await scene.come_to_rest(where)
        measured = await _carried_out(store, big, small, sizes)
        row = await pool.fetchrow(_CHECK, big)
    if (row["backlog"], row["others"]) != (sizes.backlog, sizes.neighbours):
        raise figures.Lost(f"{row['backlog']} of {sizes.backlog}, {row['others']} of {sizes.neighbours} done")
    return measured


async def _owe(store: PostgresStore, rows: Sequence[tuple[UUID, str]]) -> None:
    for first in range(0, len(rows), _LOAD_BATCH):
        part = rows[first : first + _LOAD_BATCH]
        async with store.system("bench") as tx:
            await store.owe_drained(tx, [(tenant, NewEffect(KIND, key=key)) for tenant, key in part])


async def _carried_out(store: Counting, big: UUID, small: Sequence[UUID], sizes: Sizes) -> dict[str, Any]:
    spine: Spine[Scope] = Spine(store)
    waiting, left = set(small), sizes.backlog + len(small)
    served: dict[str, Any] = {}
    over = figures.Countdown(left)

    @spine.effect(KIND)
    async def noop(effect: Effect) -> Outcome:
        if effect.tenant_id != big:
            waiting.discard(effect.tenant_id)
            if not waiting and not served:
                served.update(claims=store.claims, seconds=time.perf_counter() - begun, backlog=over.done)
        over.one()
        return Done()

    async with spine.running():
        begun = time.perf_counter()
        await over.reached.wait()
        seconds = time.perf_counter() - begun
    return {
        "backlog": sizes.backlog,
        "tenants with one row": len(small),
        "last of them served after claims": served["claims"],
        "claims in all": store.claims,
        "least claims that could serve them": -(-len(small) // spine.settings.slots),
        "last of them served after, share of the whole": served["seconds"] / seconds,
        "rows of the backlog served by then": served["backlog"] - len(small) + 1,
        "seconds": seconds,
    }


def judge(measured: dict[str, Any]) -> list[figures.Goal]:
    """A row each, not more: the many are served in little more than as few claims as their rows fill."""
    return [
        figures.at_most(
            "claims until the last small tenant is served / least that could",
            measured["last of them served after claims"] / measured["least claims that could serve them"],
            2.0,
        )
    ]


def show(measured: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row for the many, one for all."""
    return [
        (
            f"{measured['backlog']:,} rows of one tenant, {measured['tenants with one row']:,} of others",
            "claims",
            "time",
        ),
        (
            "the last of the others served",
            f"{measured['last of them served after claims']}",
            f"{100 * measured['last of them served after, share of the whole']:.1f} %",
        ),
        ("all served", f"{measured['claims in all']}", f"{measured['seconds']:.1f} s"),
    ]
