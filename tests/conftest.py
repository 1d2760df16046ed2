"""Real PostgreSQL for every test that wants one.

One embedded server for each pytest process (each xdist worker has its own), or the server that
MAINSPRING_TEST_DATABASE_URL names (a superuser's address). Each test that asks `fresh_database` gets databases of
its own, copied from a template that was migrated once, and dropped afterwards.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import asyncpg
import pytest

from mainspring import migrate, roles
from mainspring.embedded import EmbeddedPostgres

Mode = Literal["empty", "library", "server"]

OWNER = "library_owner"  # what a library user is: an ordinary login that owns its database
# Logins belong to the whole server: processes that share one have to agree on the password.
_SHARED_SERVER = os.environ.get("MAINSPRING_TEST_DATABASE_URL", "")
_PASSWORD = hashlib.sha256(_SHARED_SERVER.encode()).hexdigest() if _SHARED_SERVER else secrets.token_hex(12)


@dataclass(frozen=True, slots=True)
class Database:
    """One throw-away database and the ways into it."""

    name: str
    dsn: dict[str, Any]  # for asyncpg.connect / create_pool: the owner (library) or mainspring_login (server)
    admin: dict[str, Any]  # the same database as superuser

    @property
    def url(self) -> str:
        """`dsn` as an address, for MAINSPRING_DATABASE_URL of a server process."""
        return _url(self.dsn)

    @property
    def admin_url(self) -> str:
        """`admin` as an address."""
        return _url(self.admin)


def _url(dsn: dict[str, Any]) -> str:
    who = f"{quote(dsn['user'], safe='')}:{quote(dsn['password'], safe='')}"
    return f"postgresql://{who}@/{quote(dsn['database'], safe='')}?{urlencode({'host': dsn['host'], 'port': dsn['port']})}"


class Databases:
    """Makes databases on one server. Templates are made when first asked for."""

    def __init__(self, admin: dict[str, Any], prefix: str) -> None:
        self.admin = admin
        self.password = _PASSWORD  # of both logins
        self._prefix = prefix
        self._numbers = itertools.count(1)
        self._templates: dict[Mode, str] = {}
        self._made: set[str] = set()

    async def create(self, mode: Mode = "server") -> Database:
        """A new database: 'empty', 'library' (spine set, owned by an ordinary login) or 'server' (both sets, roles)."""
        template = await self._template(mode)
        name = f"{self._prefix}_{next(self._numbers)}"
        await self._run(f'create database "{name}" template "{template}" owner "{self._owner(mode)}"')
        self._made.add(name)
        login = roles.LOGIN if mode == "server" else OWNER
        dsn = self.admin | {"database": name, "user": login, "password": _PASSWORD}
        return Database(name=name, dsn=dsn, admin=self.admin | {"database": name})

    async def drop(self, database: Database) -> None:
        """Drop it, whoever is still connected."""
        await self._drop(database.name)

    async def close(self) -> None:
        """Drop everything that this process made, templates too."""
        for name in list(self._made):
            await self._drop(name)

    def _owner(self, mode: Mode) -> str:
        return self.admin["user"] if mode == "server" else OWNER

    async def _template(self, mode: Mode) -> str:
        if mode not in self._templates:
            name = f"{self._prefix}_{mode}"
            await self._make_template(mode, name)
            self._templates[mode] = name
        return self._templates[mode]

    async def _make_template(self, mode: Mode, name: str) -> None:
        conn = await asyncpg.connect(**self.admin)
        try:
            login = roles.LOGIN if mode == "server" else OWNER
            await conn.execute(
                "select pg_advisory_lock(7700)"
            )  # two workers must not alter one login at once
            await roles.ensure_login(conn, login, _PASSWORD)
            await conn.execute(f'create database "{name}" template template0 owner "{self._owner(mode)}"')
            self._made.add(name)
            if mode == "server":
                await roles.ensure(conn, login)
        finally:
            await conn.close()
        if mode == "empty":
            return
        migrator = {} if mode == "server" else {"user": OWNER, "password": _PASSWORD}
        conn = await asyncpg.connect(**self.admin | {"database": name} | migrator)
        try:
            await migrate.apply(conn, migrate.SERVER_SETS if mode == "server" else (migrate.SPINE,))
        finally:
            await conn.close()

    async def _drop(self, name: str) -> None:
        await self._run(f'drop database if exists "{name}" with (force)')
        self._made.discard(name)

    async def _run(self, statement: str) -> None:
        conn = await asyncpg.connect(**self.admin)
        try:
            await conn.execute(statement)
        finally:
            await conn.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    """This process's own server (fsync off). It cannot be had when MAINSPRING_TEST_DATABASE_URL names another one."""
    folder = Path(tempfile.mkdtemp(prefix="ms-test-"))
    folder.chmod(0o711)  # as root, PostgreSQL runs as nobody and has to pass
    server = EmbeddedPostgres(folder / "state", durable=False)
    try:
        with server:
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def admin_dsn(request: pytest.FixtureRequest) -> dict[str, Any]:
    """asyncpg arguments of a superuser on this process's server."""
    if not _SHARED_SERVER:
        server: EmbeddedPostgres = request.getfixturevalue("postgres")
        return dict(server.connect_arguments())
    return _arguments(_SHARED_SERVER)


def _arguments(address: str) -> dict[str, Any]:
    parts = urlsplit(address)
    query = dict(parse_qsl(parts.query))
    return {
        "host": query.get("host") or parts.hostname or "localhost",
        "port": int(query.get("port") or parts.port or 5432),
        "user": unquote(parts.username or "postgres"),
        "password": unquote(parts.password or ""),
        "database": unquote(parts.path.lstrip("/")) or "postgres",
    }


@pytest.fixture(scope="session")
async def databases(admin_dsn: dict[str, Any]) -> AsyncIterator[Databases]:
    """Makes databases for fixtures of a wider scope than one test; what it made is dropped at the end."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    made = Databases(admin_dsn, prefix=f"ms_test_{worker}_{os.getpid()}")
    yield made
    await made.close()


@pytest.fixture
async def fresh_database(databases: Databases) -> AsyncIterator[Callable[..., Awaitable[Database]]]:
    """`await fresh_database("library" | "server" | "empty")` → a Database, dropped when the test ends."""
    mine: list[Database] = []

    async def create(mode: Mode = "server") -> Database:
        mine.append(await databases.create(mode))
        return mine[-1]

    yield create
    for database in mine:
        await databases.drop(database)
