"""What the lock on a tenant's log costs: as many appenders on one tenant as on a tenant each, one event a commit.

The lock is held from the append to the end of its COMMIT, so a tenant's commits are flushed one after the other, while those of
many tenants share a flush. Nothing drains meanwhile. The two take turns.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import figures
import scene
from engine import EVENT
from sizes import Sizes

from mainspring import NewEvent, Spine
from mainspring.db import Scope
from mainspring.embedded import EmbeddedPostgres
from mainspring.ids import new_id
from mainspring.stores.postgres import PostgresStore

TITLE = "Appenders on one log"
APPENDERS = 64
ROUNDS = 3
_CHECK = """
select h.head, count(e.seq) as events, coalesce(max(e.seq), 0) as last
from mainspring.log_heads h left join mainspring.events e on e.tenant_id = h.tenant_id
where h.tenant_id = any($1::uuid[]) group by h.tenant_id, h.head
"""


async def measure(postgres: EmbeddedPostgres, sizes: Sizes) -> dict[str, Any]:
    """Let 64 append to one log, and to 64, in turns; one alone for comparison."""
    where = await scene.database(postgres, "appenders")
    await scene.make_tables(where)
    rates: dict[str, list[float]] = {"one tenant": [], "a tenant each": [], "one appender alone": []}
    async with scene.pool(where, size=APPENDERS) as pool:
        spine: Spine[Scope] = Spine(PostgresStore(pool))
        for _ in range(ROUNDS):
            for name, appenders, tenants in (
                ("one tenant", APPENDERS, 1),
                ("a tenant each", APPENDERS, APPENDERS),
                ("one appender alone", 1, 1),
            ):
                made = [new_id() for _ in range(tenants)]
                for tenant in made:
                    await spine.create_tenant(tenant, "bench")
                each = sizes.appends if appenders > 1 else 4 * sizes.appends
                of = [made[n % tenants] for n in range(appenders)]
                rates[name].append(await _appended(spine, of, each))
                rows = await pool.fetch(_CHECK, made)
                if (
                    any(row["head"] != row["events"] or row["head"] != row["last"] for row in rows)
                    or sum(row["events"] for row in rows) != appenders * each
                ):
                    raise figures.Lost(
                        f"{name}: {sum(row['events'] for row in rows)} of {appenders * each} events"
                    )
    return {
        "appenders": APPENDERS,
        "events a second": {name: statistics.median(rounds) for name, rounds in rates.items()},
        "events a second, each round": rates,
    }


async def _appended(spine: Spine[Scope], tenants: Sequence[UUID], each: int) -> float:
    """Append from one appender for each of the tenants; return events a second."""

    async def append(tenant: UUID) -> None:
        for _ in range(each):
            async with spine.open(tenant) as tx:
                tx.append(NewEvent(EVENT, subject="s"))

    # every connection of the pool is open before the clock starts
    await asyncio.gather(*(spine.create_tenant(tenant, "bench") for tenant in tenants))
    begun = time.perf_counter()
    await asyncio.gather(*(append(tenant) for tenant in tenants))
    return len(tenants) * each / (time.perf_counter() - begun)


def judge(measured: dict[str, Any]) -> list[figures.Goal]:
    """No goal but this: those who queue for one log are not much slower together than one who has it for himself."""
    rounds = measured["events a second, each round"]
    return [
        figures.at_least(
            f"{APPENDERS} appenders on one tenant / one appender alone",
            figures.ratio(rounds["one tenant"], rounds["one appender alone"]),
            0.8,
        )
    ]


def show(measured: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row each."""
    rounds = measured["events a second, each round"]
    return [
        (f"{measured['appenders']} appenders, one event a commit", "events/s", "of one tenant's"),
        *(
            (name, f"{rate:,.0f}", f"{figures.ratio(rounds[name], rounds['one tenant']):.2f} x")
            for name, rate in measured["events a second"].items()
        ),
    ]
