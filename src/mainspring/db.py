"""The database: the pool, and the two scopes in which every statement of the server runs.

A scope is one transaction with its role, tenant and timeouts set locally, in one statement; nothing of it outlives the
transaction, so a pooler in transaction mode may sit in between. Scopes do not nest; those of a unit share its transaction.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from uuid import UUID

import asyncpg
import msgspec

from mainspring import telemetry
from mainspring.spine.errors import BadData, Misuse, OutcomeUnknown, Transient

log = logging.getLogger("mainspring.db")

if TYPE_CHECKING:
    Pool: TypeAlias = asyncpg.Pool[asyncpg.Record]
    Connection: TypeAlias = (
        asyncpg.Connection[asyncpg.Record] | asyncpg.pool.PoolConnectionProxy[asyncpg.Record]
    )
else:
    Pool = asyncpg.Pool
    Connection = asyncpg.Connection

APP_ROLE = "mainspring_app"
SYSTEM_ROLE = "mainspring_system"
CLIENT_DEADLINE_SECONDS = 35.0

# SQLSTATE classes: an outage or a lost race may pass; a refused value will not
_TRANSIENT_CLASSES = frozenset({"08", "40", "53", "55", "57", "58"})
# idle or open for too long: the server has ended the transaction; or it is a standby, in the middle of a failover
_TRANSIENT_STATES = frozenset({"25P03", "25P04", "25006"})
_BAD_DATA_CLASSES = frozenset({"22", "23", "54"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How long one transaction may sit idle, wait for a lock, and run a statement, in milliseconds.

    Args:
        by_key: look the rows that a statement names up by their keys, one by one, and walk along an index rather than sort.
            For batches: left to itself the planner prefers to read a small table from end to end, and the plan that is kept
            then reads a million rows so, until statistics are taken next.
        plan: `anew` for the tables as they are now, at some tenths of a millisecond a time, or `once` a connection, for statements
            that have but one way to go by key; None leaves it to the planner.
    """

    idle_ms: int = 5_000
    lock_ms: int = 5_000
    statement_ms: int = 30_000
    by_key: bool = False
    plan: Literal["anew", "once"] | None = None


FROZEN_SECONDS = 2.0  # whoever is at work is between what prepares a statement and what runs it for a moment
COMMAND = Budget()
BATCH = Budget(by_key=True, plan="anew")
CLAIM = Budget(by_key=True, plan="once")
LONG_READ = Budget(statement_ms=60_000)

# whether this task serves a request
_is_request: ContextVar[bool] = ContextVar("mainspring_is_request", default=False)
# what is open in this task: a scope, by its purpose, or a unit that scopes may join
_open_scope: ContextVar[str | Unit | None] = ContextVar("mainspring_open_scope", default=None)


@contextmanager
def mapped_errors() -> Iterator[None]:
    """Turn the driver's errors into ours, by SQLSTATE class; a defect of ours stays what it is."""
    try:
        yield
    except asyncpg.PostgresError as error:
        state = error.sqlstate or ""
        if (
            state[:2] in _TRANSIENT_CLASSES
            or state in _TRANSIENT_STATES
            or isinstance(error, asyncpg.InvalidCachedStatementError)
        ):
            raise Transient(f"{type(error).__name__}: {error}") from error
        if state[:2] in _BAD_DATA_CLASSES:
            raise BadData(f"{type(error).__name__}: {error}") from error
        raise
    # InternalClientError: a connection that the server has just ended is between states until its end arrives
    except (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError) as error:
        if isinstance(error, asyncpg.DataError):
            raise BadData(f"{type(error).__name__}: {error}") from error
        raise Transient(f"{type(error).__name__}: {error}") from error


class Scope:
    """An open transaction. Its statements are counted by purpose, and its errors are ours."""

    __slots__ = ("_failed", "_role", "conn", "purpose", "tenant")

    def __init__(self, conn: Connection, *, purpose: str, tenant: UUID | None, role: str | None) -> None:
        self.conn = conn
        self.purpose = purpose
        self.tenant = tenant
        self._role = role
        self._failed = False

    async def fetch(self, sql: str, *args: Any) -> list[asyncpg.Record]:
        """Run a statement and return its rows."""
        with self._statement():
            return await self.conn.fetch(sql, *args, timeout=CLIENT_DEADLINE_SECONDS)

    async def fetchrow(self, sql: str, *args: Any) -> asyncpg.Record | None:
        """Run a statement and return its first row, or None."""
        with self._statement():
            return await self.conn.fetchrow(sql, *args, timeout=CLIENT_DEADLINE_SECONDS)

    async def fetchval(self, sql: str, *args: Any) -> Any:
        """Run a statement and return the first value of its first row, or None."""
        with self._statement():
            return await self.conn.fetchval(sql, *args, timeout=CLIENT_DEADLINE_SECONDS)

    async def execute(self, sql: str, *args: Any) -> int:
        """Run a statement and return how many rows it touched."""
        with self._statement():
            status = await self.conn.execute(sql, *args, timeout=CLIENT_DEADLINE_SECONDS)
        last = status.rpartition(" ")[2]
        return int(last) if last.isdigit() else 0

    @contextmanager
    def _statement(self) -> Iterator[None]:
        telemetry.statements.labels(self.purpose).inc()
        try:
            with mapped_errors():
                yield
        except Exception:
            self._failed = True
            raise

    def append_only_for(self, tenant: UUID) -> None:
        """Refuse to append for a second tenant: two heads locked in two orders are a deadlock."""
        if self.tenant not in (None, tenant):
            raise Misuse(f"this transaction appends for tenant {self.tenant}, not for {tenant} as well")
        self.tenant = tenant

    def refuse_if_failed(self) -> None:
        """Raise Misuse when a statement's error was swallowed: PostgreSQL answers COMMIT with a rollback, and no error."""
        if self._failed:
            raise Misuse(
                f"a statement of this transaction ({self.purpose}) failed: nothing of it can be written"
            )

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """Undo only the block when it raises."""
        try:
            async with _transaction(self.conn):
                yield
                self.refuse_if_failed()
        except BaseException:
            self._failed = False
            raise

    @asynccontextmanager
    async def as_system(self, purpose: str) -> AsyncIterator[None]:
        """See all tenants inside the block, in this same transaction; what was set before is set again after it."""
        if self._role is None:
            yield
            return
        before = self.purpose
        self.purpose = purpose
        await self.fetchval("select set_config('role', $1, true)", SYSTEM_ROLE)
        try:
            yield
        finally:
            self.purpose = before
            # a transaction that has failed refuses this, and its role ends with it
            with suppress(asyncpg.InFailedSQLTransactionError):
                await self.fetchval("select set_config('role', $1, true)", self._role)


@contextmanager
def as_request() -> Iterator[None]:
    """Count what this task opens in the block among the requests: they leave some connections to the engine, or a rush of them
    would keep leases from being renewed."""
    token = _is_request.set(True)
    try:
        yield
    finally:
        _is_request.reset(token)


@dataclass(slots=True)
class Unit:
    """One transaction that several scopes of a tenant share, one after the other; `then` is what waits for its commit."""

    scope: Scope
    then: list[Callable[[], None]] = field(default_factory=list)
    inside: str | None = None
    over: bool = False


class Database:
    """A pool and how scopes are opened on it.

    With `roles=True` (the server) every scope takes on `mainspring_app` or `mainspring_system`, and row-level security holds.
    With `roles=False` (the library) scopes run as the pool's own role.
    """

    def __init__(self, pool: Pool, *, roles: bool, for_requests: int | None = None) -> None:
        """`for_requests` is how many connections all that runs `as_request` may have at once; None is all of them."""
        self.pool = pool
        self.roles = roles
        self._for_requests = None if for_requests is None else asyncio.Semaphore(for_requests)

    @asynccontextmanager
    async def tenant(
        self, tenant: UUID, *, purpose: str = "command", budget: Budget = COMMAND
    ) -> AsyncIterator[Scope]:
        """Open a transaction that sees one tenant; inside a unit, join that one."""
        unit = _open_scope.get()
        if isinstance(unit, Unit):
            async with _joined(unit, tenant, purpose) as scope:
                yield scope
            return
        async with self._open(purpose, tenant, APP_ROLE, budget) as scope:
            yield scope

    @asynccontextmanager
    async def unit(self, tenant: UUID, *, purpose: str = "command") -> AsyncIterator[Scope]:
        """Open a transaction that every scope of this tenant joins which this task opens inside the block.

        What they write commits together, at the end of the block, or not at all.
        """
        async with self._open(purpose, tenant, APP_ROLE, COMMAND) as scope:
            unit = Unit(scope)
            token = _open_scope.set(unit)
            try:
                yield scope
            finally:
                unit.over = True
                _open_scope.reset(token)
        for then in unit.then:
            then()

    @asynccontextmanager
    async def joined_unit(self, tenant: UUID) -> AsyncIterator[None]:
        """Open a unit, or stay in the one that is open around."""
        if isinstance(_open_scope.get(), Unit):
            yield
            return
        async with self.unit(tenant):
            yield

    @staticmethod
    def when_committed(then: Callable[[], None]) -> None:
        """Call `then` once what this task has written is committed: now, unless a unit is open around it."""
        unit = _open_scope.get()
        if isinstance(unit, Unit) and not unit.over:
            unit.then.append(then)
        else:
            then()

    @asynccontextmanager
    async def snapshot(
        self, tenant: UUID, *, purpose: str, budget: Budget = LONG_READ
    ) -> AsyncIterator[Scope]:
        """Open a transaction that only reads, and sees one tenant as it is at its first statement, however long it reads."""
        async with self._open(purpose, tenant, APP_ROLE, budget, snapshot=True) as scope:
            yield scope

    @asynccontextmanager
    async def system(self, purpose: str, *, budget: Budget = COMMAND) -> AsyncIterator[Scope]:
        """Open a transaction that sees all tenants."""
        async with self._open(purpose, None, SYSTEM_ROLE, budget) as scope:
            yield scope

    @asynccontextmanager
    async def _open(
        self, purpose: str, tenant: UUID | None, role: str, budget: Budget, *, snapshot: bool = False
    ) -> AsyncIterator[Scope]:
        with _entered(purpose):
            async with self._connection() as conn, _transaction(conn, snapshot=snapshot):
                scope = Scope(conn, purpose=purpose, tenant=tenant, role=role if self.roles else None)
                await scope.fetchval(
                    _SET_SCOPE,
                    role if self.roles else "none",
                    str(tenant) if tenant else "",
                    f"{budget.idle_ms}",
                    f"{budget.lock_ms}",
                    f"{budget.statement_ms}",
                    _PLANS[budget.plan],
                    "off" if budget.by_key else "on",
                )
                yield scope
                scope.refuse_if_failed()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        async with self._turn():
            with mapped_errors():
                conn = await self.pool.acquire(timeout=CLIENT_DEADLINE_SECONDS)
            try:
                yield conn
            finally:
                with mapped_errors():
                    await self.pool.release(conn)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Wait until requests have a connection to spare; whatever is no request has none to wait for."""
        if self._for_requests is None or not _is_request.get():
            yield
            return
        with mapped_errors():
            async with asyncio.timeout(CLIENT_DEADLINE_SECONDS):
                await self._for_requests.acquire()
        try:
            yield
        finally:
            self._for_requests.release()

    @asynccontextmanager
    async def adopt(self, conn: Connection, tenant: UUID) -> AsyncIterator[Scope]:
        """Open a transaction on the caller's own connection, or join the one that is open on it; his settings stay his."""
        if self.roles:
            raise Misuse("a connection of your own is for the library; the server opens its scopes itself")
        with _entered("adopted"):
            async with _transaction(conn):
                scope = Scope(conn, purpose="adopted", tenant=tenant, role=None)
                yield scope
                scope.refuse_if_failed()


@asynccontextmanager
async def _transaction(conn: Connection, *, snapshot: bool = False) -> AsyncIterator[None]:
    """A transaction, or a savepoint inside one. Only its own statements have their errors mapped: the block's are the block's."""
    transaction = conn.transaction(isolation="repeatable_read" if snapshot else None, readonly=snapshot)
    commits = not snapshot and not conn.is_in_transaction()
    with mapped_errors():
        await transaction.start()
    try:
        yield
    except BaseException:
        # where the link is gone there is nothing to roll back; saying so must not hide why we are here
        with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError):
            if not conn.is_closed():
                await transaction.rollback()
        raise
    try:
        with mapped_errors():
            await transaction.commit()
    except Transient as error:
        # a savepoint's end commits nothing, and that of a snapshot had nothing to
        if not commits or isinstance(error.__cause__, asyncpg.TransactionRollbackError):
            raise
        # the link broke while COMMIT was on its way: it may stand or not
        raise OutcomeUnknown(str(error)) from error


_PLANS: Mapping[str | None, str] = {"anew": "force_custom_plan", "once": "force_generic_plan", None: "auto"}
# Compiling a plan costs a second or two, and its statement a few milliseconds: to a planner that is told to avoid scans (by_key)
# each seems dear enough to be compiled, up to PostgreSQL 17.
_END_FROZEN = """
select pg_terminate_backend(pid)
  from pg_stat_activity
 where datname = current_database() and usename = session_user and xact_start is not null
   and state = 'active' and wait_event = 'ClientRead'
   and state_change < clock_timestamp() - make_interval(secs => $1::double precision)
"""
_SET_SCOPE = """
select set_config('role', $1, true), set_config('mainspring.tenant', $2, true),
       set_config('idle_in_transaction_session_timeout', $3, true),
       set_config('lock_timeout', $4, true), set_config('statement_timeout', $5, true),
       set_config('plan_cache_mode', $6, true), set_config('enable_seqscan', $7, true),
       set_config('enable_hashjoin', $7, true), set_config('enable_mergejoin', $7, true), set_config('enable_sort', $7, true),
       set_config('jit', 'off', true)
"""


@contextmanager
def _entered(purpose: str) -> Iterator[None]:
    inside = _open_scope.get()
    if inside is not None:
        name = (inside.inside or inside.scope.purpose) if isinstance(inside, Unit) else inside
        raise Misuse(f"a scope ({purpose}) inside a scope ({name}): use the one that is open")
    token = _open_scope.set(purpose)
    try:
        yield
    finally:
        _open_scope.reset(token)


@asynccontextmanager
async def _joined(unit: Unit, tenant: UUID, purpose: str) -> AsyncIterator[Scope]:
    """Give out a unit's scope for a block; what the block raises undoes the block alone."""
    if unit.over or unit.scope.tenant != tenant:
        raise Misuse(f"a scope ({purpose}) of another tenant, or after the end of the unit around it")
    if unit.inside is not None:
        raise Misuse(f"a scope ({purpose}) inside a scope ({unit.inside}): use the one that is open")
    unit.inside = purpose
    try:
        async with unit.scope.savepoint():
            yield unit.scope
    finally:
        unit.inside = None


async def create_pool(*, max_size: int, statement_cache_size: int = 100, **connect: Any) -> Pool:
    """Open the server's own pool: JSON through msgspec, and no costly reset, since all state is local to transactions."""
    pool = await asyncpg.create_pool(
        min_size=1,
        max_size=max_size,
        statement_cache_size=statement_cache_size,
        command_timeout=CLIENT_DEADLINE_SECONDS,
        init=_init,
        reset=_reset,
        **connect,
    )
    assert pool is not None
    return pool


async def _init(conn: Connection) -> None:
    await conn.set_type_codec(
        "jsonb",
        schema="pg_catalog",
        encoder=lambda value: msgspec.json.encode(value).decode(),
        decoder=msgspec.json.decode,
        format="text",
    )
    # the first array of a type costs milliseconds of introspection: pay it now
    await conn.fetchval("select $1::uuid[] is null and $2::text[] is null", [], [])


async def _reset(conn: Connection) -> None:
    # a rollback that was cancelled half-way leaves its transaction open; nothing else can outlive a scope
    if conn.is_in_transaction():
        await conn.reset()


async def end_frozen(pool: Pool, *, after_seconds: float = FROZEN_SECONDS) -> int:
    """End the transactions whose client has stopped in the middle of a statement; return how many. Raises Transient.

    Between what prepares a statement and what runs it the database counts the client as at work: none of its time-outs comes by, and
    what is locked stays locked for as long as the client is frozen. A client that is at work is there for a moment.
    """
    with mapped_errors():
        async with pool.acquire(timeout=CLIENT_DEADLINE_SECONDS) as conn:
            telemetry.statements.labels("frozen clients").inc()
            ended = await conn.fetch(_END_FROZEN, after_seconds, timeout=CLIENT_DEADLINE_SECONDS)
    if ended:
        telemetry.sweep_repaired.labels("frozen_client").inc(len(ended))
        log.warning(
            "database: %d connections were ended, whose clients had stopped in a transaction", len(ended)
        )
    return len(ended)


async def unscoped_read_is_refused(pool: Pool) -> bool:
    """Tell whether the login role alone can see no tenant's rows; the server is not ready while it can. Raises Transient."""
    with mapped_errors():
        async with pool.acquire(timeout=CLIENT_DEADLINE_SECONDS) as conn:
            login = await conn.fetchrow(
                "select rolsuper or rolbypassrls as above from pg_roles where rolname = current_user",
                timeout=CLIENT_DEADLINE_SECONDS,
            )
            if login is None or login["above"]:
                return False
            try:
                seen: bool = await conn.fetchval(
                    "select exists (select from mainspring.tenants)", timeout=CLIENT_DEADLINE_SECONDS
                )
            except asyncpg.InsufficientPrivilegeError:
                return True
            return not seen


def unique_violation(error: BaseException) -> str | None:
    """Return the name of the unique constraint that an error of ours comes from, or None."""
    cause = error.__cause__
    return cause.constraint_name if isinstance(cause, asyncpg.UniqueViolationError) else None


def ordered(ids: Sequence[UUID]) -> list[UUID]:
    """Return ids in the order in which rows of one table are locked."""
    return sorted(ids)


async def gather_closed(pool: Pool, *, timeout_seconds: float) -> None:
    """Close the pool; end its connections when that takes too long."""
    try:
        await asyncio.wait_for(pool.close(), timeout_seconds)
    except TimeoutError:
        pool.terminate()
