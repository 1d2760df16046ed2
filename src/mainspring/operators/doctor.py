"""The doctor: takes a tenant, leaves one plain sentence about what is owed, and a finding for everything that could be amiss.

Reads only. A check that cannot be made is a finding itself: whoever asks because something is broken is not answered by an error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final
from uuid import UUID

import asyncpg

from mainspring import migrate
from mainspring.db import CLIENT_DEADLINE_SECONDS, Database, Scope, mapped_errors, unscoped_read_is_refused
from mainspring.operators import symptoms
from mainspring.operators.symptoms import Diagnosis, Finding, bad
from mainspring.spine.drain import ENGINE_VERSION
from mainspring.spine.errors import SpineError
from mainspring.spine.service import Health, wall_clock
from mainspring.sql import Queries

SQL = Queries("mainspring.operators.sql")
_UNANSWERED: Final = (SpineError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError)

Check = Callable[[UUID], Awaitable[Sequence[Finding]]]


class DoctorService:
    """Examines this process, its database and one tenant."""

    def __init__(
        self, db: Database, health: Callable[[], Sequence[Health]], *, runner_silence_seconds: float
    ) -> None:
        """`health` tells how the loops of this process do."""
        self._db = db
        self._health = health
        self._silence = runner_silence_seconds

    async def examine(self, tenant: UUID) -> Diagnosis:
        """Return the sentence and all findings."""
        found: list[Finding] = []
        sentence = "What is owed cannot be told: the database does not answer."
        checks: Sequence[tuple[str, Check]] = (
            ("database", self._database),
            ("schema", self._schema),
            ("walls", self._walls),
            ("transactions", self._transactions),
            ("runners", self._runners),
            ("rules", self._rules),
            ("targets", self._targets),
        )
        try:
            sentence, about = await self._owed(tenant)
            found += about
        except _UNANSWERED as error:
            found.append(_unanswered("log", error))
        for name, check in checks:
            try:
                found += await check(tenant)
            except _UNANSWERED as error:
                found.append(_unanswered(name, error))
        found += [self._pool(), *symptoms.loops(self._health())]
        return Diagnosis(sentence=sentence, findings=tuple(sorted(found, key=lambda one: one.rank)))

    async def _owed(self, tenant: UUID) -> tuple[str, Sequence[Finding]]:
        async with self._db.tenant(tenant, purpose="doctor") as scope:
            log = await scope.fetchrow(SQL["log_state"], tenant)
            owed = [symptoms.Owed(**dict(row)) for row in await scope.fetch(SQL["owed_state"], tenant)]
            dead = await scope.fetchrow(SQL["dead_state"], tenant)
            unread = await _rows(scope, "unread_agents", tenant, symptoms.OVERDUE_WARNING_SECONDS)
        assert log is not None
        assert dead is not None
        state = symptoms.Log(**dict(log))
        return symptoms.sentence(state, owed), (
            symptoms.drained(state),
            symptoms.overdue(owed),
            symptoms.unread(unread),
            symptoms.dead(effects=dead["effects"], runs=dead["runs"]),
        )

    async def _database(self, _tenant: UUID) -> Sequence[Finding]:
        before = wall_clock()
        async with self._db.system("doctor") as scope:
            asked = wall_clock()
            row = await scope.fetchrow(SQL["server_now"])
            answered = wall_clock()
        assert row is not None
        skew = (row["now"] - asked).total_seconds() - (answered - asked).total_seconds() / 2
        return (
            symptoms.server(version=row["version"], standby=row["standby"], seconds=(answered - before).total_seconds()),
            symptoms.clocks(skew),
        )  # fmt: skip

    async def _schema(self, _tenant: UUID) -> Sequence[Finding]:
        async with self._db.system("doctor") as scope:
            version = await scope.fetchval("select engine_version from mainspring.engine")
            try:
                missing = [str(one) for one in await migrate.pending(scope.conn, migrate.SERVER_SETS)]
            except migrate.MigrationRefused as refused:
                return (bad("schema", str(refused), "run a server that knows this schema"),)
        return (symptoms.schema(missing, ours=ENGINE_VERSION, theirs=version),)

    async def _walls(self, _tenant: UUID) -> Sequence[Finding]:
        async with self._db.system("doctor") as scope:
            without = [row["relname"] for row in await scope.fetch(SQL["tables_without_walls"])]
        return (symptoms.walls(without, refused=await unscoped_read_is_refused(self._db.pool)),)

    async def _transactions(self, _tenant: UUID) -> Sequence[Finding]:
        # as the login, and not as a role of its: roles are shown nobody's connections
        with mapped_errors():
            async with self._db.pool.acquire(timeout=CLIENT_DEADLINE_SECONDS) as conn:
                row = await conn.fetchrow(SQL["long_transactions"], timeout=CLIENT_DEADLINE_SECONDS)
        assert row is not None
        return (symptoms.transactions(row["open"], row["oldest_seconds"]),)

    async def _runners(self, tenant: UUID) -> Sequence[Finding]:
        async with self._db.tenant(tenant, purpose="doctor") as scope:
            silent = await _rows(scope, "silent_runners", tenant, self._silence)
            unserved = await _rows(scope, "unserved_agents", tenant, self._silence)
        return (symptoms.runners(silent, unserved),)

    async def _rules(self, tenant: UUID) -> Sequence[Finding]:
        async with self._db.tenant(tenant, purpose="doctor") as scope:
            return (symptoms.rules(await _rows(scope, "paused_rules", tenant)),)

    async def _targets(self, tenant: UUID) -> Sequence[Finding]:
        async with self._db.tenant(tenant, purpose="doctor") as scope:
            return (symptoms.targets(await _rows(scope, "targets_down", tenant)),)

    def _pool(self) -> Finding:
        pool = self._db.pool
        return symptoms.pool(size=pool.get_size(), idle=pool.get_idle_size(), most=pool.get_max_size())


async def _rows(scope: Scope, name: str, *args: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in await scope.fetch(SQL[name], *args)]


def _unanswered(name: str, error: BaseException) -> Finding:
    return bad(name, f"cannot be told: {type(error).__name__}: {error}", "look at the database")
