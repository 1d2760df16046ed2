"""What `dev` and `server migrate` do to a database before a server may use it.

Takes the address of a login that may change the schema; leaves both migration sets applied and a login that serves
with no rights of its own. Each step is repeatable; if we die here, the next start carries on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mainspring.cli.exits import CliError, ExitCode

if TYPE_CHECKING:
    import asyncpg

    Connection = asyncpg.Connection[asyncpg.Record]

_CONNECT_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """What was found and done."""

    version: str
    login: str
    applied: tuple[str, ...]


class SqlToRun(CliError):
    """We may not do it, but here is what somebody who may should run. Goes to stdout, so that it can be piped on."""

    def __init__(self, message: str, sql: str) -> None:
        """Keeps the statements."""
        super().__init__(message, problem={"title": message, "code": "sql_to_run", "sql": sql})
        self.sql = sql


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Connection]:
    """A direct connection; failures in words."""
    import asyncpg

    from mainspring.config import blotted

    try:
        conn = await asyncpg.connect(url, timeout=_CONNECT_SECONDS, statement_cache_size=0)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, ValueError) as error:
        raise CliError(f"cannot connect to {blotted(url)}: {type(error).__name__}: {error}") from error
    try:
        yield conn
    finally:
        await conn.close()


async def prepare(url: str, *, login: str | None = None) -> Prepared:
    """Roles, then both migration sets. `login` is who will serve; the connection's own login by default."""
    import asyncpg

    from mainspring import migrate, roles

    async with connected(url) as conn:
        serving = login or await conn.fetchval("select current_user")
        try:
            await roles.ensure(conn, serving)
            applied = await migrate.apply(conn, migrate.SERVER_SETS)
        except roles.NotAllowed as refused:
            message = f"{refused}; run this as a superuser, then try again:"
            raise SqlToRun(message, refused.script) from refused
        except asyncpg.InsufficientPrivilegeError as refused:
            database = await conn.fetchval("select current_database()")
            sql = f"grant create on database {roles.quoted(database)} to {roles.quoted(serving)};\n"
            raise SqlToRun(
                f"this login may not make the schema ({refused}); run this as a superuser:", sql
            ) from refused
        except (roles.RolesError, migrate.MigrationRefused) as refused:
            raise CliError(str(refused)) from refused
        except migrate.MigrationBlocked as blocked:
            raise CliError(str(blocked), code=ExitCode.TRY_AGAIN) from blocked
        version = await conn.fetchval("show server_version")
        return Prepared(version=version.split()[0], login=serving, applied=tuple(str(m) for m in applied))


async def is_privileged(url: str) -> bool:
    """Whether this login sees past row-level security, so that another one has to serve."""
    from mainspring import roles

    async with connected(url) as conn:
        try:
            await roles.refuse_too_old(conn)
        except roles.TooOld as old:
            raise CliError(str(old)) from old
        return await roles.is_unfit(conn, await conn.fetchval("select current_user"))


async def make_login(url: str, password: str) -> None:
    """Make the ordinary login that serves, or give it this password."""
    from mainspring import roles

    async with connected(url) as conn:
        await roles.ensure_login(conn, roles.LOGIN, password)


async def make_database(url: str, name: str) -> None:
    """Make a database unless it is there."""
    from mainspring import roles

    async with connected(url) as conn:
        if not await conn.fetchval("select exists (select from pg_database where datname = $1)", name):
            await conn.execute(f"create database {roles.quoted(name)}")


async def pending(url: str) -> list[Any]:
    """The migrations that a server of this version still needs."""
    from mainspring import migrate

    async with connected(url) as conn:
        try:
            return await migrate.pending(conn, migrate.SERVER_SETS)
        except migrate.MigrationRefused as refused:
            raise CliError(str(refused)) from refused


def with_login(url: str, user: str, password: str) -> str:
    """The same database for another login."""
    from urllib.parse import quote, urlsplit, urlunsplit

    parts = urlsplit(url)
    where = parts.netloc.rpartition("@")[2]
    query = "&".join(p for p in parts.query.split("&") if p and p.split("=")[0] not in {"user", "password"})
    netloc = f"{quote(user, safe='')}:{quote(password, safe='')}@{where}"
    return urlunsplit((parts.scheme, netloc, parts.path or "/", query, ""))
