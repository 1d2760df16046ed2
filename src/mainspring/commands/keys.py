"""Keyed commands: takes a command, its key and who sent it; leaves it carried out once, and its answer kept beside what it wrote.

Everything that the command writes, and its answer, are one transaction. If we die in it nothing has happened, and the same key
may be sent again at once; if we die behind it the answer stands, and whoever sends the key again is given it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from mainspring.db import Database, Scope
from mainspring.rooms import Conflict, FieldError, Invalid
from mainspring.sql import Queries

SQL = Queries("mainspring.commands.sql")
KEY_LENGTH_MAX: Final = 200
KEPT_SECONDS: Final = 48 * 3_600.0
TRIMMED_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyed:
    """A command that was sent with a key. `request` is a digest of all that was asked: method, address and body."""

    tenant_id: UUID
    caller_id: UUID
    key: str
    request: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a command answered. `withheld`: its body is kept without the secret that it held."""

    status: int
    headers: Mapping[str, str]
    body: str
    withheld: bool = False


class KeyService:
    """Carries a keyed command out, or tells what it came to before."""

    def __init__(self, db: Database, *, kept_seconds: float = KEPT_SECONDS) -> None:
        self._db = db
        self._kept_seconds = kept_seconds

    async def once(self, asked: Keyed, work: Callable[[], Awaitable[Answer]]) -> tuple[Answer, bool]:
        """Return the command's answer, and whether it is one that was kept.

        Every transaction that `work` opens for this tenant joins the one that keeps the answer. What it raises is raised, and
        nothing is kept. Raises Conflict while the same key is being carried out, and Invalid when it stood for another request.
        """
        async with self._db.unit(asked.tenant_id, purpose="keyed command") as scope:
            named = (asked.tenant_id, asked.caller_id, asked.key)
            if not await scope.fetchval(SQL["lock_key"], *named):
                raise Conflict("the same key is being carried out", code="key_in_progress")
            kept = await _kept(scope, asked)
            if kept is not None:
                return kept, True
            answer = await work()
            written = await scope.execute(
                SQL["keep_answer"],
                *named,
                asked.request,
                answer.status,
                dict(answer.headers),
                answer.body,
                answer.withheld,
                self._kept_seconds,
            )
            assert written == 1
        return answer, False

    async def trim(self) -> bool:
        """Forget some answers that were kept long enough; tell whether there may be more. A round of a loop."""
        async with self._db.system("trim keys") as scope:
            return await scope.execute(SQL["trim_answers"], TRIMMED_MAX) == TRIMMED_MAX


async def _kept(scope: Scope, asked: Keyed) -> Answer | None:
    row = await scope.fetchrow(SQL["kept_answer"], asked.tenant_id, asked.caller_id, asked.key)
    if row is None:
        return None
    if row["request"] != asked.request:
        raise Invalid(
            FieldError("/Idempotency-Key", "this key stood for another request: take a new one"),
            code="key_reused",
        )
    return Answer(status=row["status"], headers=row["headers"], body=row["body"], withheld=row["withheld"])
