"""Effects that do nothing, from due to settled by one process: the engine, its own SQL without it, and its peers.

Each contender starts from n due rows in otherwise empty tables, and is timed until its last outcome is committed.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from typing import Any, Protocol
from uuid import UUID

import asyncpg
import figures
import peers
import scene
from engine import KIND, Bench
from figures import Lost
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode
from sizes import Sizes

from mainspring.db import BATCH as SETTLE
from mainspring.db import CLAIM, Database
from mainspring.embedded import EmbeddedPostgres
from mainspring.embedded.postgres import ConnectArguments
from mainspring.spine.effects import CRASHES_ALONE, DEFER_LIMIT_SECONDS
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.store import SQL

TITLE = "No-op effects"
POOL_SIZE = 10
BATCH = 200  # the engine's slots, and so the most that it claims at once
PEER_BATCH = 100
HELD_BACK = "mainspring, an old snapshot held"
_LOWEST = UUID(int=0)


async def measure(postgres: EmbeddedPostgres, sizes: Sizes) -> dict[str, Any]:
    """Let all contenders carry out the same, in turns."""
    ours = await scene.database(postgres, "ours")
    theirs = await scene.database(postgres, "theirs")
    await scene.make_tables(ours)
    pgqueuer = [Peer(theirs, consumers=1), Peer(theirs, consumers=2)]
    await pgqueuer[0].install()
    others = [
        peers.Procrastinate(await scene.database(postgres, "procrastinate"), workers=1),
        peers.Procrastinate(await scene.database(postgres, "procrastinate_4"), workers=4),
        peers.Faststream(await scene.database(postgres, "faststream")),
    ]
    async with scene.pool(ours, size=POOL_SIZE) as pool:
        bench = Bench(pool, PostgresStore(pool))
        await bench.create_tenant()
        for other in others:
            await other.install()
        rates = await rounds(
            [Engine(bench, ours), HeldBack(bench, ours), BareLoop(bench, ours), *pgqueuer, *others],
            sizes.items,
            least=3,
            most=sizes.rounds,
            until_seconds=sizes.seconds,
        )
        for other in others:
            await other.close()
    return {
        "items": sizes.items,
        "noop effects a second": {name: statistics.median(rounds) for name, rounds in rates.items()},
        "noop effects a second, each round": rates,
    }


def judge(measured: dict[str, Any]) -> list[figures.Goal]:
    """Twice the nearest peer; half of what the same statements come to without an engine, and half with an old snapshot held."""
    rates = measured["noop effects a second, each round"]
    ours = rates["mainspring"]
    return [
        figures.at_least("mainspring / pgqueuer", figures.ratio(ours, rates["pgqueuer"]), 2.0),
        figures.at_least("mainspring / bare loop", figures.ratio(ours, rates["bare loop"]), 0.5),
        figures.at_least(f"{HELD_BACK} / mainspring", figures.ratio(rates[HELD_BACK], ours), 0.5),
    ]


def show(measured: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row a contender."""
    rates = measured["noop effects a second, each round"]
    rows = [(f"{measured['items']:,} of them, one process", "a second", "mainspring is")]
    for name, rounds in rates.items():
        share = "" if name == "mainspring" else f"{figures.ratio(rates['mainspring'], rounds):.2f} x"
        rows.append((name, f"{statistics.median(rounds):,.0f}", share))
    return rows


class Contender(Protocol):
    """Something that carries out what is due. One that is slow is given only a `part` of them."""

    name: str
    part: float
    where: ConnectArguments

    async def load(self, n: int) -> None:
        """Leave exactly n due rows."""

    async def run(self) -> None:
        """Carry out all of them; this is timed."""

    async def check(self, n: int) -> None:
        """Raise Lost unless each was carried out once."""


async def rounds(
    contenders: Sequence[Contender], n: int, *, least: int, most: int, until_seconds: float
) -> dict[str, list[float]]:
    """Let all run in turn, `most` times, or at least `least` times when time is short; return rows a second by name."""
    rates: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for contender in contenders:
        await _timed(contender, max(1, round(n * contender.part / 10)))
    begun = time.monotonic()
    for number in range(most):
        if number >= least and time.monotonic() - begun > until_seconds:
            break
        turn = number % len(contenders)
        for contender in (*contenders[turn:], *contenders[:turn]):
            given = max(1, round(n * contender.part))
            rates[contender.name].append(given / await _timed(contender, given))
    return rates


async def _timed(contender: Contender, n: int) -> float:
    await contender.load(n)
    await scene.come_to_rest(contender.where)
    begun = time.perf_counter()
    await contender.run()
    seconds = time.perf_counter() - begun
    await contender.check(n)
    return seconds


class Engine:
    """Ours, as a user runs it: `async with spine.running()`."""

    part = 1.0

    def __init__(self, bench: Bench, where: ConnectArguments) -> None:
        self.name = "mainspring"
        self.where = where
        self._bench = bench

    async def load(self, n: int) -> None:
        await self._bench.empty()
        await self._bench.owe(n)
        self._bench.expect(n)

    async def run(self) -> None:
        spine = self._bench.spine()
        async with spine.running():
            await self._bench.finished(spine)

    async def check(self, n: int) -> None:
        await self._bench.check(n)


class HeldBack(Engine):
    """The same, while somebody else keeps a transaction open that has seen all rows as they were: nothing dead may be removed."""

    def __init__(self, bench: Bench, where: ConnectArguments) -> None:
        super().__init__(bench, where)
        self.name = HELD_BACK

    async def run(self) -> None:
        conn = await asyncpg.connect(**self.where)
        try:
            async with conn.transaction(isolation="repeatable_read", readonly=True):
                await conn.fetchval("select count(*) from mainspring.effects")
                await super().run()
        finally:
            await conn.close()


class BareLoop:
    """The engine's statements, in the transactions that the engine gives them, one after the other, and nothing else."""

    part = 1.0

    def __init__(self, bench: Bench, where: ConnectArguments) -> None:
        self.name = "bare loop"
        self.where = where
        self._bench = bench
        self._database = Database(bench.pool, roles=False)

    async def load(self, n: int) -> None:
        await self._bench.empty()
        await self._bench.owe(n)
        self._bench.expect(n)

    async def run(self) -> None:
        while claimed := await self._claim():
            self._bench.executed += len(claimed)
            await self._settle(claimed)

    async def _claim(self) -> list[asyncpg.Record]:
        async with self._database.system("claim", budget=CLAIM) as tx:
            found = await tx.fetch(
                SQL["claim"], "bare", [KIND], [60.0], BATCH, _LOWEST, CRASHES_ALONE, DEFER_LIMIT_SECONDS
            )
        return [row for row in found if row["id"] is not None]

    async def _settle(self, claimed: Sequence[asyncpg.Record]) -> None:
        async with self._database.system("settle", budget=SETTLE) as tx:
            written = await tx.fetch(
                SQL["settle_done"],
                [row["tenant_id"] for row in claimed],
                [row["id"] for row in claimed],
                [row["claim_id"] for row in claimed],
            )
        if len(written) != len(claimed):
            raise Lost(f"{len(claimed) - len(written)} settles were refused")

    async def check(self, n: int) -> None:
        await self._bench.check(n)


class Peer:
    """pgqueuer as its guide sets it up: durable tables, its autovacuum settings, a plain connection for each consumer."""

    part = 1.0

    def __init__(self, where: ConnectArguments, *, consumers: int) -> None:
        self.name = "pgqueuer" if consumers == 1 else f"pgqueuer, {consumers} consumers"
        self.where = where
        self._consumers = consumers
        self._executed = 0

    async def install(self) -> None:
        """Make its tables."""
        conn = await asyncpg.connect(**self.where)
        queries = Queries(AsyncpgDriver(conn))
        await queries.install()
        await queries.optimize_autovacuum()
        await conn.close()

    async def load(self, n: int) -> None:
        self._executed = 0
        conn = await asyncpg.connect(**self.where)
        queries = Queries(AsyncpgDriver(conn))
        await queries.clear_queue()
        await queries.clear_queue_log()
        await queries.clear_statistics_log()
        await queries.enqueue([KIND] * n, [None] * n, [0] * n)
        await conn.close()

    async def run(self) -> None:
        await asyncio.gather(*(self._consume() for _ in range(self._consumers)))

    async def _consume(self) -> None:
        conn = await asyncpg.connect(**self.where)
        queue = PgQueuer(AsyncpgDriver(conn))

        @queue.entrypoint(KIND)
        async def noop(_job: Job) -> None:
            self._executed += 1

        await queue.qm.run(batch_size=PEER_BATCH, mode=QueueExecutionMode.drain)
        await conn.close()

    async def check(self, n: int) -> None:
        conn = await asyncpg.connect(**self.where)
        left = await conn.fetchval("select count(*) from pgqueuer")
        logged = await conn.fetchval("select count(*) from pgqueuer_log where status = 'successful'")
        await conn.close()
        if (left, logged, self._executed) != (0, n, n):
            raise Lost(f"pgqueuer, of {n}: {left} left, {logged} successful, {self._executed} executed")
