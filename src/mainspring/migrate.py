"""Brings a database's schema `mainspring` to what this version needs: numbered SQL files, forward only.

Takes a raw asyncpg connection (direct, not through a transaction-mode pooler: it holds a session lock) and the names
of migration sets; leaves each file applied once and recorded with its checksum. One transaction a file: if we die
here, the file either counts as applied or never happened, and the next run goes on. A file that begins with
`-- mainspring: no transaction` holds one statement, may be run again after a crash, and must bear that.

Servers work on meanwhile. Whoever waits for a table has everybody wait who comes after, so a file waits for none of its locks
longer than they would bear, gives up what it holds, and is tried again.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING

import asyncpg

if TYPE_CHECKING:
    from typing import TypeAlias

    # the one that a pool lends is as good
    Connection: TypeAlias = (
        asyncpg.Connection[asyncpg.Record] | asyncpg.pool.PoolConnectionProxy[asyncpg.Record]
    )

SPINE = "spine"
PRODUCT = "product"
SERVER_SETS = (SPINE, PRODUCT)  # in this order: the product's tables point at the spine's
_PLACES = {SPINE: ("stores", "postgres", "migrations"), PRODUCT: ("migrations",)}  # inside this package

_LOCK = 0x6D61_696E_7370  # any constant of our own
_POLL_SECONDS = 0.1
LOCK_SECONDS = 2.0  # for each lock of a file; well below the 5 s that a server's statement waits behind it
PAUSE_SECONDS = 1.0  # in which those get through that have waited behind it
TRIES = 20
_SET_LOCK_TIMEOUT = "select set_config('lock_timeout', $1, true)"
_LOCK_TIMEOUT_TEXT = "set local lock_timeout = '{milliseconds}ms';\n"
# Asked after the fact: while it waited, this connection could not ask. Whoever kept it waiting was there before that, which tells it from
# those that come and go; since when a session of another login is there, PostgreSQL does not say.
_HOLDERS = """
select format('process %s (%s)', a.pid,
              concat_ws(', ', coalesce(nullif(a.application_name, ''), a.usename), a.state,
                        'for ' || date_trunc('second', clock_timestamp() - a.xact_start), left(a.query, 80)))
  from pg_stat_activity a
 where a.pid <> pg_backend_pid()
   and (a.xact_start is null or a.xact_start < clock_timestamp() - make_interval(secs => $1))
   and exists (select from pg_locks l
                 join pg_class c on c.oid = l.relation and c.relnamespace = 'mainspring'::regnamespace
                where l.pid = a.pid and l.granted and l.locktype = 'relation'
                  and l.database = (select d.oid from pg_database d where d.datname = current_database())
                  and (cardinality($2::text[]) = 0 or c.relname = any($2::text[])))
 order by a.xact_start nulls last
 limit 3
"""
_TABLES = re.compile(r"\bmainspring\.(\w+)")  # that a file names; one that names none may mean any
_NO_TRANSACTION = "-- mainspring: no transaction"
_FILE_NAME = re.compile(r"(?P<version>\d{4})_(?P<name>[a-z0-9_]+)\.sql")
_BOOKKEEPING = """\
create schema if not exists mainspring;
create table if not exists mainspring.schema_migrations (
  "set" text not null,
  version integer not null check (version > 0),
  name text not null,
  sha256 text not null,
  applied_at timestamptz not null default now(),
  primary key ("set", version)
);
"""
_HAS_BOOKKEEPING = "select to_regclass('mainspring.schema_migrations') is not null"
_APPLIED = (
    'select "set", version, name, sha256 from mainspring.schema_migrations where "set" = any($1::text[])'
)
_RECORD = 'insert into mainspring.schema_migrations ("set", version, name, sha256) values ($1, $2, $3, $4)'
_RECORD_TEXT = (
    'insert into mainspring.schema_migrations ("set", version, name, sha256) '
    "values ('{set}', {version}, '{name}', '{sha256}');"
)
# The bigint key of an advisory lock is kept as two halves.
_STILL_LOCKED = """
select exists (select from pg_locks where locktype = 'advisory' and pid = pg_backend_pid() and granted
                and classid::bigint = ($1::bigint >> 32) and objid::bigint = ($1::bigint & 4294967295) and objsubid = 1)
"""


class MigrationRefused(Exception):
    """The files and the database do not tell the same story; nothing was changed beyond files already reported."""


class MigrationBlocked(Exception):
    """Others held what a file changes for as long as it was tried; nothing was changed beyond files already applied."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One file: what it is called, what it says, and the checksum that is kept of it."""

    set: str
    version: int
    name: str
    sql: str
    sha256: str

    @property
    def in_transaction(self) -> bool:
        """False for the rare file that cannot run inside one (CREATE INDEX CONCURRENTLY)."""
        return not self.sql.startswith(_NO_TRANSACTION)

    def __str__(self) -> str:
        return f"{self.set}/{self.version:04d}_{self.name}"


@dataclass(frozen=True, slots=True)
class MigrationSet:
    """The numbered files of one owner, in order, without a gap."""

    name: str
    migrations: tuple[Migration, ...]

    @classmethod
    def from_folder(cls, name: str, folder: Traversable) -> MigrationSet:
        """Read `NNNN_what_it_does.sql` files; anything else that ends in .sql, or a hole in the numbers, is refused."""
        files = sorted((f for f in folder.iterdir() if f.name.endswith(".sql")), key=lambda f: f.name)
        migrations = tuple(_read(name, file) for file in files)
        if [m.version for m in migrations] != list(range(1, len(migrations) + 1)):
            listed = ", ".join(f.name for f in files)
            raise MigrationRefused(
                f"set {name!r}: files must be numbered 0001, 0002, ... without a gap, found {listed}"
            )
        return cls(name, migrations)


def _read(owner: str, file: Traversable) -> Migration:
    match = _FILE_NAME.fullmatch(file.name)
    if match is None:
        raise MigrationRefused(f"set {owner!r}: {file.name} is not named like 0001_what_it_does.sql")
    content = file.read_bytes()
    return Migration(
        set=owner,
        version=int(match["version"]),
        name=match["name"],
        sql=content.decode("utf-8"),
        sha256=hashlib.sha256(content).hexdigest(),
    )


def load(name: str) -> MigrationSet:
    """A set that ships with Mainspring: 'spine' (the library's tables) or 'product' (boards, agents, runs...)."""
    try:
        place = _PLACES[name]
    except KeyError:
        raise MigrationRefused(f"there is no migration set {name!r}, only {', '.join(_PLACES)}") from None
    return MigrationSet.from_folder(name, resources.files(__package__).joinpath(*place))


async def apply(conn: Connection, sets: Sequence[str | MigrationSet]) -> list[Migration]:
    """Apply what is missing, set after set; returns what was applied now. Several callers at once wait for each other.

    Raises MigrationRefused when files and database disagree, MigrationBlocked when others hold a table for too long.
    """
    if conn.is_in_transaction():
        raise MigrationRefused("migrations open their own transactions: give a connection outside of one")
    loaded = _loaded(sets)
    await _lock(conn)
    try:
        await conn.execute(_BOOKKEEPING)
        todo = _missing(loaded, await _applied(conn, loaded))
        for migration in todo:
            await _apply_one(conn, migration)
    finally:
        await conn.execute("select pg_advisory_unlock($1)", _LOCK)
    return todo


async def pending(conn: Connection, sets: Sequence[str | MigrationSet]) -> list[Migration]:
    """What `apply` would do now; changes nothing. Raises MigrationRefused as `apply` would."""
    loaded = _loaded(sets)
    known = await conn.fetchval(_HAS_BOOKKEEPING)
    return _missing(loaded, await _applied(conn, loaded) if known else {})


def script(sets: Sequence[str | MigrationSet], *, only: Sequence[Migration] | None = None) -> str:
    """The same as SQL text to read or to give to somebody who may run it: everything, or only what `pending` named."""
    chosen = [m for s in _loaded(sets) for m in s.migrations] if only is None else list(only)
    parts = [_BOOKKEEPING]
    for m in chosen:
        record = _RECORD_TEXT.format(
            set=m.set, version=m.version, name=m.name, sha256=m.sha256
        )  # checked when read
        body = f"-- {m}\n{m.sql.rstrip()}\n"
        begin = "begin;\n" + _LOCK_TIMEOUT_TEXT.format(milliseconds=round(LOCK_SECONDS * 1000))
        parts.append(f"{begin}{body}{record}\ncommit;\n" if m.in_transaction else f"{body}{record}\n")
    return "\n".join(parts)


def _loaded(sets: Sequence[str | MigrationSet]) -> list[MigrationSet]:
    return [load(s) if isinstance(s, str) else s for s in sets]


_Key = tuple[str, int]  # set, version


async def _applied(conn: Connection, sets: Sequence[MigrationSet]) -> dict[_Key, tuple[str, str]]:
    rows = await conn.fetch(_APPLIED, [s.name for s in sets])
    return {(row["set"], row["version"]): (row["name"], row["sha256"]) for row in rows}


def _missing(sets: Sequence[MigrationSet], applied: Mapping[_Key, tuple[str, str]]) -> list[Migration]:
    """The files still to run, after comparing what was run with what is here."""
    here = {(m.set, m.version): m for s in sets for m in s.migrations}
    for (owner, version), (name, digest) in sorted(applied.items()):
        migration = here.get((owner, version))
        if migration is None:
            raise MigrationRefused(
                f"the database has {owner}/{version:04d}_{name}, which this version of Mainspring does not know: "
                "it was migrated by a newer one"
            )
        if migration.sha256 != digest:
            raise MigrationRefused(
                f"{migration} was changed after it was applied; write a new migration instead"
            )
    todo = [m for key, m in here.items() if key not in applied]
    for m in todo:
        if any(owner == m.set and version > m.version for owner, version in applied):
            raise MigrationRefused(f"{m} was never applied, though later ones were")
    return todo


async def _lock(conn: Connection) -> None:
    # Polled: a blocking wait holds a snapshot, and CREATE INDEX CONCURRENTLY waits for snapshots to end. Deadlock.
    while not await conn.fetchval("select pg_try_advisory_lock($1)", _LOCK):  # noqa: ASYNC110
        await asyncio.sleep(_POLL_SECONDS)


async def _apply_one(conn: Connection, migration: Migration) -> None:
    if not await conn.fetchval(_STILL_LOCKED, _LOCK):
        raise MigrationRefused(
            "the session lock is not ours any more: connect directly, not through a connection pooler"
        )
    # once only where it may have left something behind; and nobody waits behind a concurrent index
    tries = TRIES if migration.in_transaction else 1
    for n in range(tries):
        if n:
            await asyncio.sleep(PAUSE_SECONDS)
        try:
            await (_run_in_transaction if migration.in_transaction else _run_alone)(conn, migration)
            return
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError) as error:
            blocked = error
    raise MigrationBlocked(await _told(conn, migration, tries, blocked)) from blocked


async def _run_in_transaction(conn: Connection, migration: Migration) -> None:
    async with conn.transaction():
        await conn.fetchval(_SET_LOCK_TIMEOUT, f"{round(LOCK_SECONDS * 1000)}ms")
        await conn.execute(migration.sql)
        await _record(conn, migration)


async def _run_alone(conn: Connection, migration: Migration) -> None:
    await conn.execute(migration.sql)
    await _record(conn, migration)


async def _record(conn: Connection, migration: Migration) -> None:
    await conn.execute(_RECORD, migration.set, migration.version, migration.name, migration.sha256)


async def _told(conn: Connection, migration: Migration, tries: int, error: Exception) -> str:
    """Return what to say of a file that others kept from being applied, and who they are."""
    holders = await conn.fetch(_HOLDERS, LOCK_SECONDS, sorted(set(_TABLES.findall(migration.sql))))
    held = "; ".join(row[0] for row in holders) or "no session that is there now"
    return (
        f"{migration} is not applied: its tables are in use, and it has tried for them {tries} times ({error}). "
        f"They are held by: {held}. Let that end, then migrate again: it goes on with this file"
    )
