"""The two roles the server works as, and the login that may become them.

Takes a connection of somebody who may make roles; leaves `mainspring_app` (one tenant at a time) and
`mainspring_system` (the engine's own sweeps), both unable to log in, granted to a login that gets their rights only
by an explicit SET ROLE: a query that forgot its scope is then refused, not answered. Repeatable; if it dies here,
run it again. When the connection may not make roles, the same statements are printed for somebody who may.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]

APP = "mainspring_app"
SYSTEM = "mainspring_system"
LOGIN = "mainspring_login"  # the embedded server's login
OLDEST_MAJOR = 15
_GRANT_OPTIONS_SINCE = 16

_MAKE_ROLES = f"""\
do $$ begin create role {APP} nologin; exception when duplicate_object or unique_violation then null; end $$;
do $$ begin create role {SYSTEM} nologin; exception when duplicate_object or unique_violation then null; end $$;
"""

# Rights that a login would inherit (or hold past row-level security) need no SET ROLE, and walls would not hold.
_READY_15 = """
select (select count(*) from pg_auth_members m where m.member = l.oid and m.roleid in (a.oid, s.oid)) = 2
       and not l.rolinherit
  from pg_roles l, pg_roles a, pg_roles s
 where l.rolname = $1 and a.rolname = $2 and s.rolname = $3
"""
_READY_16 = """
select count(distinct m.roleid) filter (where m.set_option) = 2 and not bool_or(m.inherit_option)
  from pg_auth_members m
  join pg_roles l on l.oid = m.member and l.rolname = $1
  join pg_roles r on r.oid = m.roleid and r.rolname in ($2, $3)
"""
# A role's name and password cannot be parameters of these statements: the server quotes them in (%I, %L).
_ORDINARY = "login nosuperuser nobypassrls nocreatedb nocreaterole password %L"
_CREATE_LOGIN = f"create role %I {_ORDINARY}"
_ALTER_LOGIN = f"alter role %I {_ORDINARY}"
_EXISTS = "select exists (select from pg_roles where rolname = $1)"
_UNFIT = "select rolsuper or rolbypassrls from pg_roles where rolname = $1"


class RolesError(Exception):
    """The database cannot be used as it is."""


class TooOld(RolesError):
    """The server is older than PostgreSQL 15."""


class Unfit(RolesError):
    """The login would see every tenant's rows whatever the scope: a superuser, or one with BYPASSRLS."""


class NotAllowed(RolesError):
    """The connection may not make or grant the roles; `script` is what somebody who may should run."""

    def __init__(self, script: str) -> None:
        """Keeps the statements to print."""
        super().__init__("this login may not make or grant Mainspring's roles (it lacks CREATEROLE)")
        self.script = script


def script(login: str, *, major: int = _GRANT_OPTIONS_SINCE) -> str:
    """The SQL that makes the roles and grants them to `login`, for a server of that major version."""
    name = quoted(login)
    if major >= _GRANT_OPTIONS_SINCE:
        grants = f"grant {APP}, {SYSTEM} to {name} with inherit false, set true;\n"
    else:
        grants = f"alter role {name} noinherit;\ngrant {APP}, {SYSTEM} to {name};\n"
    return _MAKE_ROLES + grants


def quoted(name: str) -> str:
    """An SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


async def refuse_too_old(conn: Connection) -> int:
    """The server's major version; raises TooOld, naming it, below 15."""
    major = conn.get_server_version().major
    if major < OLDEST_MAJOR:
        shown = await conn.fetchval("show server_version")
        raise TooOld(f"this is PostgreSQL {shown}; Mainspring needs PostgreSQL {OLDEST_MAJOR} or newer")
    return major


async def is_unfit(conn: Connection, login: str) -> bool:
    """Whether row-level security does not bind this login."""
    return bool(await conn.fetchval(_UNFIT, login))


async def is_ready(conn: Connection, login: str) -> bool:
    """Whether both roles exist and `login` holds them by SET ROLE alone."""
    major = await refuse_too_old(conn)
    question = _READY_16 if major >= _GRANT_OPTIONS_SINCE else _READY_15
    return bool(await conn.fetchval(question, login, APP, SYSTEM))


async def ensure(conn: Connection, login: str) -> None:
    """Make what is missing so that `login` can serve. Raises TooOld, Unfit or NotAllowed (with the SQL to run)."""
    if not await conn.fetchval(_EXISTS, login):
        raise RolesError(
            f"there is no login {login!r}; make it first: "
            f"create role {quoted(login)} login nosuperuser nobypassrls password '...'"
        )
    if await is_unfit(conn, login):
        raise Unfit(
            f"the login {login!r} is a superuser or has BYPASSRLS, so the walls between tenants would not hold: "
            "serve with an ordinary login"
        )
    if await is_ready(conn, login):
        return
    statements = script(login, major=await refuse_too_old(conn))
    try:
        async with conn.transaction():
            await conn.execute(statements)
    except asyncpg.InsufficientPrivilegeError as refused:
        raise NotAllowed(statements) from refused
    if not await is_ready(conn, login):
        raise RolesError(
            f"the login {login!r} inherits the rights of {APP} or {SYSTEM} through another grant: revoke it"
        )


async def ensure_login(conn: Connection, login: str, password: str) -> None:
    """Make an ordinary login with this password, or give an existing one this password."""
    exists = await conn.fetchval(_EXISTS, login)
    template = _ALTER_LOGIN if exists else _CREATE_LOGIN
    await conn.execute(
        await conn.fetchval("select format($1::text, $2::text, $3::text)", template, login, password)
    )
