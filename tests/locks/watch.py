"""Watches which rows each transaction locks, statement by statement, while the product runs: nothing of it is replaced.

After every statement of a scope, a superuser's connection looks for rows whose `xmax` is one of that transaction's ids: those
are the rows, committed before, that it has locked, changed or deleted so far. New ones were locked by that statement.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import asyncpg
import pytest

from mainspring.agents.rows import SQL as AGENTS
from mainspring.boards.verbs import SQL as BOARDS
from mainspring.chat.rows import SQL as CHAT
from mainspring.commands.keys import SQL as COMMANDS
from mainspring.db import Scope
from mainspring.sql import Queries
from mainspring.triggers.verbs import SQL as TRIGGERS
from mainspring.triggers.webhooks.verbs import SQL as WEBHOOKS

# In which order rows are locked. What stands in one line with its parent is written under the parent's lock.
ORDER: Final = (
    ("cursors",),
    ("operations",),
    ("rules", "rule_versions", "webhook_secrets"),
    ("runners",),
    ("agents", "accounts"),
    ("sessions",),
    ("boards",),
    ("cards", "card_labels"),
    ("channels", "members", "pins"),
    ("topics",),
    ("messages", "message_words", "inbox_items"),
    ("runs", "run_attempts", "run_log", "asks", "tokens"),
    ("effects", "effect_attempts"),
    ("breakers",),
    ("due_tenants",),
    ("log_heads", "events"),
)
RANK: Final = {table: n for n, tables in enumerate(ORDER) for table in tables}
_LOCKING: Final = re.compile(r"\b(insert|update|delete|merge|share)\b", re.IGNORECASE)
PARENTS: Final = frozenset(tables[0] for tables in ORDER)
# Inserted only, or written where nobody waits for them: an answer that is kept stands under its key's advisory lock, which is
# taken first and never waited for.
ALONE: Final = frozenset(
    {"engine", "schema_migrations", "tenants", "event_keys", "firings", "audit", "idempotency"}
)


@dataclass(frozen=True, slots=True)
class Step:
    """A statement, and the rows that it has locked."""

    statement: str
    locked: dict[str, list[str]]


@dataclass(slots=True)
class Seen:
    """A transaction, as far as it locked anything."""

    purpose: str
    steps: list[Step] = field(default_factory=list)
    held: set[tuple[str, str]] = field(default_factory=set)

    def __str__(self) -> str:
        return f"{self.purpose}: " + " → ".join(
            f"{step.statement}({', '.join(f'{table} {len(ids)}' for table, ids in step.locked.items())})"
            for step in self.steps
        )

    def wrong(self) -> str | None:
        """Return what was locked out of order, or None."""
        before: dict[int, list[str]] = {}
        for step in self.steps:
            # what belongs to a row that is held already is in nobody's way
            rows = {
                table: ids
                for table, ids in step.locked.items()
                if table not in ALONE and (table in PARENTS or RANK[table] not in before)
            }
            ranks = {RANK[table] for table in rows}
            if ranks and before and min(ranks) < max(before):
                return f"{ORDER[min(ranks)][0]} after {ORDER[max(before)][0]}, by {step.statement}"
            for table, ids in rows.items():
                if table in PARENTS and min(ids) < max(before.get(RANK[table], ids[:0]), default=""):
                    return f"{table} not by id, by {step.statement}"
            for table, ids in rows.items():
                before.setdefault(RANK[table], []).extend(ids if table in PARENTS else ())
        return None


class Watch:
    """What was seen so far, a transaction after the other."""

    def __init__(self, admin: asyncpg.Connection, query: str, names: dict[str, str]) -> None:
        self._admin = admin
        self._query = query
        self._names = names
        self._of: dict[Scope, Seen] = {}
        self._turn = asyncio.Lock()
        self.label = ""

    @property
    def seen(self) -> list[Seen]:
        return [seen for seen in self._of.values() if seen.steps]

    def wrong(self) -> list[str]:
        """Return every transaction that locked out of order, with what."""
        return [f"{wrong}\n    in {seen}" for seen in self.seen if (wrong := seen.wrong())]

    def together(self) -> dict[str, set[str]]:
        """Return the statements that lock rows of several tables, with those tables."""
        found: dict[str, set[str]] = {}
        for step in (step for seen in self.seen for step in seen.steps):
            if len(step.locked) > 1:
                found.setdefault(step.statement, set()).update(step.locked)
        return found

    async def look(self, scope: Scope, statement: str) -> None:
        """Note what this statement has locked; one that only reads is not asked about."""
        if _LOCKING.search(statement) is None:
            return
        seen = self._of.setdefault(scope, Seen(f"{self.label} {scope.purpose}".strip()))
        async with self._turn:
            found = await self._admin.fetch(self._query, scope.conn.get_server_pid())
        new: dict[str, list[str]] = {}
        for row in found:
            if (row["in_table"], row["id"]) not in seen.held:
                seen.held.add((row["in_table"], row["id"]))
                new.setdefault(row["in_table"], []).append(row["id"])
        if new:
            name = self._names.get(statement.strip().rstrip(";"), " ".join(statement.split())[:60])
            seen.steps.append(Step(name, new))


@contextmanager
def watching(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """Have every statement of every scope looked at, while the block runs."""
    for verb in ("fetch", "fetchrow", "fetchval", "execute"):
        monkeypatch.setattr(Scope, verb, _looked_at(getattr(Scope, verb), watch))
    try:
        yield watch
    finally:
        monkeypatch.undo()


def _looked_at(plain: Any, watch: Watch) -> Any:
    @functools.wraps(plain)
    async def looked_at(self: Scope, sql: str, *args: Any) -> Any:
        answer = await plain(self, sql, *args)
        await watch.look(self, sql)
        return answer

    return looked_at


async def watch_of(admin: asyncpg.Connection) -> Watch:
    """A watch over every table of the schema; one that is neither ordered nor said to stand alone is refused."""
    tables = await admin.fetch(
        """
        select c.relname as name, array_agg(a.attname::text order by k.n) as key
        from pg_class c
        join pg_index i on i.indrelid = c.oid and i.indisprimary
        cross join lateral unnest(i.indkey) with ordinality as k (attnum, n)
        join pg_attribute a on a.attrelid = c.oid and a.attnum = k.attnum
        where c.relnamespace = 'mainspring'::regnamespace and c.relkind = 'r'
        group by c.relname
        """
    )
    unknown = {row["name"] for row in tables} - set(RANK) - ALONE
    assert not unknown, f"where in the order of locks do these stand? {sorted(unknown)}"
    parts = []
    for row in tables:
        key = [one for one in row["key"] if one != "tenant_id"] or ["tenant_id"]
        shown = " || ' ' || ".join(f"{one}::text" for one in key)
        parts.append(
            f"select '{row['name']}' as in_table, {shown} as id from mainspring.{row['name']} where xmax = any(mine.ids)"
        )
    query = f"""
        with mine as materialized (
            select array(select transactionid from pg_locks
                         where pid = $1 and locktype = 'transactionid' and mode = 'ExclusiveLock') as ids
        )
        select found.* from mine cross join lateral ({" union all ".join(parts)}) found where cardinality(mine.ids) > 0
    """
    return Watch(admin, query, _names())


def _names() -> dict[str, str]:
    store = Queries("mainspring.stores.postgres.sql")
    operators = Queries("mainspring.operators.sql")
    return {
        text: name
        for queries in (store, operators, AGENTS, BOARDS, CHAT, COMMANDS, TRIGGERS, WEBHOOKS)
        for name, text in queries.items()
    }
