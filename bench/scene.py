"""Where everything is measured: one durable PostgreSQL of the project's own, and a database in it for each contender.

Takes nothing, leaves nothing: the server lives in a temporary folder and goes with it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import asyncpg

from mainspring import db, migrate
from mainspring.embedded import EmbeddedPostgres
from mainspring.embedded.postgres import ConnectArguments


@contextmanager
def server() -> Iterator[EmbeddedPostgres]:
    """Run PostgreSQL with fsync and synchronous_commit on."""
    folder = Path(tempfile.mkdtemp(prefix="ms-bench-"))
    folder.chmod(0o711)  # as root, PostgreSQL runs as another user and has to pass
    try:
        with EmbeddedPostgres(folder / "state", durable=True) as postgres:
            yield postgres
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def database(postgres: EmbeddedPostgres, name: str) -> ConnectArguments:
    """Make an empty database; return how to connect to it."""
    admin = await asyncpg.connect(**postgres.connect_arguments())
    try:
        await admin.execute(f'create database "{name}"')
    finally:
        await admin.close()
    return postgres.connect_arguments(name)


@asynccontextmanager
async def pool(where: ConnectArguments, *, size: int) -> AsyncIterator[asyncpg.Pool]:
    """Open a pool as our server does."""
    opened = await db.create_pool(max_size=size, **where)
    async with opened:
        yield opened


async def make_tables(where: ConnectArguments) -> None:
    """Make the engine's tables."""
    conn = await asyncpg.connect(**where)
    try:
        await migrate.apply(conn, [migrate.SPINE])
    finally:
        await conn.close()


async def come_to_rest(where: ConnectArguments) -> None:
    """Bring what was just loaded to one starting point: statistics known, nothing left for vacuum and checkpointer."""
    conn = await asyncpg.connect(**where)
    try:
        await conn.execute("vacuum (analyze)")
        await conn.execute("checkpoint")
    finally:
        await conn.close()
