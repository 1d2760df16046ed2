"""Who did what: takes each command that asks for an operator and has been carried out; leaves a row beside what it wrote.

The row commits with the command, or neither does. A command that was refused has done nothing, and leaves none.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from mainspring.db import Database
from mainspring.ids import new_id
from mainspring.sql import Queries

SQL = Queries("mainspring.operators.sql")
SUBJECT_LENGTH_MAX: Final = 300
_HIGHEST: Final = UUID(int=2**128 - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """One command, and who gave it. `subject` is what it was done to; `asked` is what was sent, without secrets."""

    account_id: UUID | None
    handle: str
    token_id: UUID
    verb: str
    subject: str
    asked: Mapping[str, Any]
    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted(Deed):
    """A deed as it was noted."""

    id: UUID
    at: datetime

    def as_json(self) -> dict[str, Any]:
        """Return it as it is shown."""
        return {
            "id": str(self.id),
            "at": self.at.isoformat(),
            "by": self.handle,
            "account_id": str(self.account_id) if self.account_id else None,
            "token_id": str(self.token_id),
            "verb": self.verb,
            "subject": self.subject,
            "asked": dict(self.asked),
            "request_id": self.request_id,
        }


class DeedService:
    """Notes deeds and lists them."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def beside(self, tenant: UUID) -> AbstractAsyncContextManager[None]:
        """Make everything that is written for a tenant in this block one transaction, and the note with it."""
        return self._db.joined_unit(tenant)

    async def note(self, tenant: UUID, deed: Deed) -> None:
        """Note a deed; inside a unit, in its transaction."""
        async with self._db.tenant(tenant, purpose="audit") as scope:
            await scope.execute(
                SQL["note_deed"],
                tenant,
                new_id(),
                deed.account_id,
                deed.handle,
                deed.token_id,
                deed.verb,
                deed.subject[:SUBJECT_LENGTH_MAX],
                dict(deed.asked),
                deed.request_id,
            )

    async def list_deeds(
        self, tenant: UUID, *, verb: str | None, by: str | None, after: UUID | None, limit: int
    ) -> list[Noted]:
        """Return what was done, the latest first; `verb` may be `rule.*`, all of a noun."""
        noun = verb[:-2] if verb is not None and verb.endswith(".*") else None
        exact = verb if noun is None else None
        async with self._db.tenant(tenant, purpose="audit") as scope:
            rows = await scope.fetch(SQL["deeds"], tenant, after or _HIGHEST, limit, exact, noun, by)
        return [Noted(**dict(row)) for row in rows]
