"""Throw-away databases for the tests: copied from a template that is migrated once, emptied and handed out again.

A copy costs 20 to 60 ms, emptying one a few: a database that only had its rows changed is used again. One that a test
altered (its schema, its statistics, its size) is dropped; the catalog says so, not the test.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import asyncpg

from mainspring import migrate, roles

Mode = Literal["empty", "library", "server"]

OWNER = "library_owner"  # what a library user is: an ordinary login that owns its database
# Logins belong to the whole server: processes that share one have to agree on the password.
SHARED_SERVER = os.environ.get("MAINSPRING_TEST_DATABASE_URL", "")
PASSWORD = hashlib.sha256(SHARED_SERVER.encode()).hexdigest() if SHARED_SERVER else secrets.token_hex(12)

# Everything but rows that one test could leave to the next: if it differs from the template's, the database goes.
_FINGERPRINT = """
with ours as (select oid, nspname, nspacl from pg_namespace where nspname !~ '^pg_' and nspname <> 'information_schema')
select md5(concat_ws('|',
  (select string_agg(o::text, ',' order by o.nspname) from (select nspname, nspacl from ours) o),
  (select string_agg(concat_ws(' ', c.oid::regclass, c.relkind, c.relrowsecurity, c.relforcerowsecurity, c.relacl, c.reloptions), ',' order by c.oid::regclass::text)
     from pg_class c join ours on ours.oid = c.relnamespace),
  (select string_agg(concat_ws(' ', a.attrelid::regclass, a.attname, a.atttypid, a.attnotnull, a.atthasdef), ',' order by a.attrelid::regclass::text, a.attnum)
     from pg_attribute a join pg_class c on c.oid = a.attrelid join ours on ours.oid = c.relnamespace where a.attnum > 0),
  (select string_agg(concat_ws(' ', k.conname, k.convalidated), ',' order by k.conrelid::regclass::text, k.conname) from pg_constraint k join ours on ours.oid = k.connamespace),
  (select string_agg(concat_ws(' ', t.tgrelid::regclass, t.tgfoid::regproc, t.tgenabled), ',' order by t.tgrelid::regclass::text, t.tgfoid::regproc::text, t.tgtype, t.tgconstraint = 0, t.tgenabled) from pg_trigger t),
  (select string_agg(concat_ws(' ', p.polrelid::regclass, p.polname), ',' order by p.polrelid::regclass::text, p.polname) from pg_policy p),
  (select string_agg(concat_ws(' ', f.oid::regprocedure, md5(f.prosrc)), ',' order by f.oid::regprocedure::text) from pg_proc f join ours on ours.oid = f.pronamespace),
  (select count(*) from pg_statistic),
  (select count(*) from pg_db_role_setting where setdatabase = (select oid from pg_database where datname = current_database())),
  (select string_agg(e::text, ',') from mainspring.engine e),
  (select string_agg(m.set || m.sha256, ',' order by m.set, m.version) from mainspring.schema_migrations m)
))
"""
_WIPE = """
set session_replication_role = replica;
do $$
declare t regclass;
begin
  for t in select c.oid from pg_class c where c.relnamespace = 'mainspring'::regnamespace and c.relkind in ('r', 'p')
            and c.relname not in ('engine', 'schema_migrations') loop
    execute format('delete from %s', t);
  end loop;
  for t in select c.oid from pg_class c where c.relnamespace = 'mainspring'::regnamespace and c.relkind = 'S' loop
    execute format('alter sequence %s restart', t);
  end loop;
end $$;
reset session_replication_role;
"""
_SIZE = "select pg_database_size(current_database())"
_GROWTH_MAX_BYTES = 1 << 20  # deleted rows still take part in scans
_DISCONNECT = """
select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()
"""


@dataclass(frozen=True, slots=True)
class Database:
    """One throw-away database and the ways into it."""

    name: str
    dsn: dict[str, Any]  # for asyncpg.connect / create_pool: the owner (library) or mainspring_login (server)
    admin: dict[str, Any]  # the same database as superuser
    mode: Mode = "empty"

    @property
    def url(self) -> str:
        """`dsn` as an address, for MAINSPRING_DATABASE_URL of a server process."""
        return address_of(self.dsn)

    @property
    def admin_url(self) -> str:
        """`admin` as an address."""
        return address_of(self.admin)


@dataclass(frozen=True, slots=True)
class _Template:
    name: str
    fingerprint: str
    size: int


class Databases:
    """Makes databases on one server. Templates are made when first asked for."""

    def __init__(self, admin: dict[str, Any], prefix: str) -> None:
        self.admin = admin
        self.password = PASSWORD  # of both logins
        self._prefix = prefix
        self._numbers = itertools.count(1)
        self._templates: dict[Mode, _Template] = {}
        self._made: set[str] = set()
        self._idle: dict[Mode, list[Database]] = defaultdict(list)
        self._conn: asyncpg.Connection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turn = asyncio.Lock()
        self._cleaners: dict[str, asyncpg.Connection] = {}

    async def create(self, mode: Mode = "server") -> Database:
        """A database: 'empty', 'library' (spine set, owned by an ordinary login) or 'server' (both sets, roles)."""
        template = await self._template(mode)
        if self._idle[mode]:
            return self._idle[mode].pop()
        name = f"{self._prefix}_{next(self._numbers)}"
        # file_copy: two to five times as fast as wal_log where nothing is ever synced
        await self._run(
            f'create database "{name}" template "{template.name}" owner "{self._owner(mode)}" strategy file_copy'
        )
        self._made.add(name)
        login = roles.LOGIN if mode == "server" else OWNER
        dsn = self.admin | {"database": name, "user": login, "password": PASSWORD}
        return Database(name=name, dsn=dsn, admin=self.admin | {"database": name}, mode=mode)

    async def drop(self, database: Database) -> None:
        """Take it back, whoever is still connected: emptied for the next test if only rows were changed."""
        usable = database.mode != "empty" and asyncio.get_running_loop() is self._loop
        if usable and await self._is_clean_again(database):
            self._idle[database.mode].append(database)
        else:
            await self._drop(database.name)

    async def close(self) -> None:
        """Drop everything that this process made, templates too."""
        for name in list(self._made):
            await self._drop(name)
        if self._conn is not None:
            await self._conn.close()

    async def _is_clean_again(self, database: Database) -> bool:
        template = self._templates[database.mode]
        conn = self._cleaners.get(database.name)
        if conn is None or conn.is_closed():  # kept for the next time: opening one is half of the cost
            conn = self._cleaners[database.name] = await asyncpg.connect(**database.admin)
        await conn.execute(_DISCONNECT)
        if await conn.fetchval(_FINGERPRINT) != template.fingerprint:
            return False
        await conn.execute(_WIPE)
        return bool(await conn.fetchval(_SIZE) <= template.size + _GROWTH_MAX_BYTES)

    def _owner(self, mode: Mode) -> str:
        return self.admin["user"] if mode == "server" else OWNER

    async def _template(self, mode: Mode) -> _Template:
        if mode not in self._templates:
            self._templates[mode] = await self._make_template(mode, f"{self._prefix}_{mode}")
        return self._templates[mode]

    async def _make_template(self, mode: Mode, name: str) -> _Template:
        async with connected(self.admin) as conn:
            login = roles.LOGIN if mode == "server" else OWNER
            await conn.execute(
                "select pg_advisory_lock(7700)"
            )  # two workers must not alter one login at once
            await roles.ensure_login(conn, login, PASSWORD)
            await conn.execute(f'create database "{name}" template template0 owner "{self._owner(mode)}"')
            self._made.add(name)
            if mode == "server":
                await roles.ensure(conn, login)
        if mode == "empty":
            return _Template(name, fingerprint="", size=0)
        here = self.admin | {"database": name}
        async with connected(
            here if mode == "server" else here | {"user": OWNER, "password": PASSWORD}
        ) as conn:
            await migrate.apply(conn, migrate.SERVER_SETS if mode == "server" else (migrate.SPINE,))
        async with connected(here) as conn:
            return _Template(name, await conn.fetchval(_FINGERPRINT), await conn.fetchval(_SIZE))

    async def _drop(self, name: str) -> None:
        cleaner = self._cleaners.pop(name, None)
        if cleaner is not None:
            cleaner.terminate()
        await self._run(f'drop database if exists "{name}" with (force)')
        self._made.discard(name)

    async def _run(self, statement: str, *arguments: Any) -> None:
        """On one connection for all of a loop's: a new one costs as much as the copy."""
        if self._loop not in (None, asyncio.get_running_loop()):
            async with connected(self.admin) as conn:
                await conn.execute(statement, *arguments)
            return
        async with self._turn:
            if self._conn is None or self._conn.is_closed():
                self._conn, self._loop = await asyncpg.connect(**self.admin), asyncio.get_running_loop()
            await self._conn.execute(statement, *arguments)


@asynccontextmanager
async def connected(dsn: dict[str, Any]) -> AsyncIterator[asyncpg.Connection]:
    """A connection for as long as the block runs."""
    conn = await asyncpg.connect(**dsn)
    try:
        yield conn
    finally:
        await conn.close()


def address_of(dsn: dict[str, Any]) -> str:
    """A postgresql:// address that means the same as these arguments."""
    who = f"{quote(dsn['user'], safe='')}:{quote(dsn['password'], safe='')}"
    return f"postgresql://{who}@/{quote(dsn['database'], safe='')}?{urlencode({'host': dsn['host'], 'port': dsn['port']})}"


def arguments_of(address: str) -> dict[str, Any]:
    """asyncpg arguments that mean the same as a postgresql:// address."""
    parts = urlsplit(address)
    query = dict(parse_qsl(parts.query))
    return {
        "host": query.get("host") or parts.hostname or "localhost",
        "port": int(query.get("port") or parts.port or 5432),
        "user": unquote(parts.username or "postgres"),
        "password": unquote(parts.password or ""),
        "database": unquote(parts.path.lstrip("/")) or "postgres",
    }
