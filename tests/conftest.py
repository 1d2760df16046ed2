"""Real PostgreSQL for every test that wants one.

One embedded server for each pytest process (each xdist worker has its own), or the server that
MAINSPRING_TEST_DATABASE_URL names (a superuser's address). Each test that asks `fresh_database` gets databases of
its own.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mainspring.embedded import EmbeddedNats, EmbeddedPostgres
from tests.databases import SHARED_SERVER, Database, Databases, Mode, arguments_of


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    """This process's own server (fsync off). It cannot be had when MAINSPRING_TEST_DATABASE_URL names another one."""
    folder = Path(tempfile.mkdtemp(prefix="ms-test-"))
    folder.chmod(0o711)  # as root, PostgreSQL runs as nobody and has to pass
    # statistics that come by themselves would keep a database from being used again, and plans from being the same twice
    server = EmbeddedPostgres(folder / "state", durable=False, settings={"autovacuum": "off"})
    try:
        with server:
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def nats_server() -> Iterator[EmbeddedNats]:
    """This process's own NATS. Tests share it, each under a root of its own."""
    folder = Path(tempfile.mkdtemp(prefix="ms-nats-"))
    try:
        with EmbeddedNats(folder / "state") as server:
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def nats_environment(nats_server: EmbeddedNats) -> Callable[[str], dict[str, str]]:
    """What servers of one database need to be told of NATS: `nats_environment(database_url)`."""

    def environment(database_url: str) -> dict[str, str]:
        root = f"t{hashlib.sha256(database_url.encode()).hexdigest()[:16]}"
        return {"MAINSPRING_NATS_URL": nats_server.url(), "MAINSPRING_NATS_ROOT": root}

    return environment


@pytest.fixture(scope="session")
def admin_dsn(request: pytest.FixtureRequest) -> dict[str, Any]:
    """asyncpg arguments of a superuser on this process's server."""
    if not SHARED_SERVER:
        server: EmbeddedPostgres = request.getfixturevalue("postgres")
        return dict(server.connect_arguments())
    return arguments_of(SHARED_SERVER)


@pytest.fixture(scope="session")
async def databases(admin_dsn: dict[str, Any]) -> AsyncIterator[Databases]:
    """Makes databases for fixtures of a wider scope than one test; what it made is dropped at the end."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    made = Databases(admin_dsn, prefix=f"ms_test_{worker}_{os.getpid()}")
    yield made
    await made.close()


@pytest.fixture
async def fresh_database(databases: Databases) -> AsyncIterator[Callable[..., Awaitable[Database]]]:
    """`await fresh_database("library" | "server" | "empty")` → a Database, taken back when the test ends."""
    mine: list[Database] = []

    async def create(mode: Mode = "server") -> Database:
        mine.append(await databases.create(mode))
        return mine[-1]

    yield create
    for database in mine:
        await databases.drop(database)
