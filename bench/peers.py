"""procrastinate and faststream-outbox, as their own guides set them up for many short jobs.

Each has tables of its own in a database of its own, is loaded by its own bulk call, and is asked afterwards what became of it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
from engine import KIND
from faststream_outbox import OutboxBroker, make_outbox_table, outbox_autovacuum_ddl
from figures import Lost
from procrastinate import App, PsycopgConnector
from sqlalchemy import MetaData, text
from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import create_async_engine

from mainspring.embedded.postgres import ConnectArguments

_LOAD_BATCH = 2_000


class Procrastinate:
    """Workers of procrastinate, whose pool has a connection for each job at once, and one more: its guide's advice for short jobs.

    A worker fetches its jobs one after the other, each in a transaction of its own.
    """

    def __init__(self, where: ConnectArguments, *, workers: int, concurrency: int = 10) -> None:
        self.name = "procrastinate" if workers == 1 else f"procrastinate, {workers} workers"
        self.part = 0.03 * min(workers, 2)
        self.where = where
        self._workers, self._concurrency = workers, concurrency
        self._executed = 0
        connector = PsycopgConnector(
            kwargs={
                "host": where["host"], "port": where["port"], "user": where["user"], "password": where["password"],
                "dbname": where["database"],
            },
            min_size=workers * concurrency + 1,
            max_size=workers * concurrency + 1,
        )  # fmt: skip
        self._app = App(connector=connector)

        @self._app.task(name=KIND)
        async def noop() -> None:
            self._executed += 1

        self._task = noop

    async def install(self) -> None:
        """Make its tables, and open it."""
        await self._app.open_async()
        await self._app.schema_manager.apply_schema_async()

    async def close(self) -> None:
        """Close its connections."""
        await self._app.close_async()

    async def load(self, n: int) -> None:
        """Leave n due jobs in otherwise empty tables."""
        self._executed = 0
        conn = await asyncpg.connect(**self.where)
        await conn.execute(
            "truncate procrastinate_jobs, procrastinate_events, procrastinate_periodic_defers cascade"
        )
        await conn.close()
        for first in range(0, n, _LOAD_BATCH):
            await self._task.batch_defer_async(*({} for _ in range(first, min(first + _LOAD_BATCH, n))))

    async def run(self) -> None:
        """Work until nothing is left."""
        await asyncio.gather(*(self._work() for _ in range(self._workers)))

    async def _work(self) -> None:
        await self._app.run_worker_async(
            concurrency=self._concurrency, wait=False, listen_notify=False, install_signal_handlers=False
        )

    async def check(self, n: int) -> None:
        """Each job succeeded at its first attempt."""
        conn = await asyncpg.connect(**self.where)
        rows, done = await conn.fetchrow(
            "select count(*), count(*) filter (where status = 'succeeded' and attempts = 1) from procrastinate_jobs"
        )
        await conn.close()
        if (rows, done, self._executed) != (n, n, n):
            raise Lost(f"procrastinate, of {n}: {rows} rows, {done} succeeded, {self._executed} executed")


class Faststream:
    """A subscriber of faststream-outbox with its guide's levers for idempotent handlers: batched deletes, autovacuum tuned."""

    part = 1.0

    def __init__(self, where: ConnectArguments, *, workers: int = 4, batch: int = 200) -> None:
        self.name = f"faststream-outbox, {workers} workers"
        self.where = where
        self._workers, self._batch = workers, batch
        self._executed = 0
        url = URL.create(
            "postgresql+asyncpg", username=where["user"], password=where["password"], database=where["database"],
            query={"host": where["host"], "port": str(where["port"])},
        )  # fmt: skip
        self._engine = create_async_engine(url, pool_size=workers + 4)
        self._metadata = MetaData()
        self._table = make_outbox_table(self._metadata, table_name="outbox")

    async def install(self) -> None:
        """Make its table, with the settings that it recommends."""
        async with self._engine.begin() as conn:
            await conn.run_sync(self._metadata.create_all)
            await conn.execute(text(outbox_autovacuum_ddl("outbox")))

    async def close(self) -> None:
        """Close its connections."""
        await self._engine.dispose()

    def _broker(self) -> tuple[OutboxBroker, asyncio.Event]:
        broker = OutboxBroker(self._engine, outbox_table=self._table, logger=None)
        finished = asyncio.Event()

        @broker.subscriber(
            KIND,
            max_workers=self._workers,
            fetch_batch_size=self._batch,
            terminal_flush_batch_size=self._batch,
            min_fetch_interval=0.05,
            max_fetch_interval=1.0,
        )
        async def noop(_body: Any) -> None:
            self._executed += 1
            if self._executed == self._goal:
                finished.set()

        return broker, finished

    async def load(self, n: int) -> None:
        """Leave n due rows in an otherwise empty table."""
        self._executed, self._goal = 0, n
        broker, _ = self._broker()
        async with self._engine.begin() as conn:
            await conn.execute(text("truncate outbox"))
        for first in range(0, n, _LOAD_BATCH):
            async with self._engine.begin() as conn:
                await broker.publish_batch(
                    *range(first, min(first + _LOAD_BATCH, n)), queue=KIND, session=conn
                )

    async def run(self) -> None:
        """Work until all were handled and deleted."""
        broker, finished = self._broker()
        await broker.start()
        await finished.wait()
        await broker.stop()  # its last deletes are flushed

    async def check(self, n: int) -> None:
        """Nothing is left, and each was handled once."""
        conn = await asyncpg.connect(**self.where)
        left = await conn.fetchval("select count(*) from outbox")
        await conn.close()
        if (left, self._executed) != (0, n):
            raise Lost(f"faststream-outbox, of {n}: {left} left, {self._executed} executed")
