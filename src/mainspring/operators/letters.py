"""Dead letters out of the database: takes an open scope of one tenant, leaves values. Writes and locks nothing.

Whatever number lies on the desk, each statement reads a page of it. A delivery lies there for those who see its channel, and for those
who operate: they have its row to decide on, without a name or a word of what was said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from asyncpg import Record

from mainspring.chat import sight
from mainspring.chat.model import OFFERED
from mainspring.chat.sight import Reader
from mainspring.db import Scope
from mainspring.operators.model import RUN, Delivery, Described, Heap, Letter, Whose, as_id
from mainspring.rooms import NotFound
from mainspring.sql import Queries

SQL = Queries("mainspring.operators.sql")
HEAPS_MAX: Final = 5_000
LOOKED_MAX: Final = 1_000  # letters that one statement goes through for those of a cause
_LATEST: Final = datetime(9999, 12, 31, tzinfo=UTC)
_LOWEST: Final = UUID(int=0)
_HIGHEST: Final = UUID(int=2**128 - 1)


@dataclass(frozen=True, slots=True)
class Place:
    """How far somebody has looked, in the order of the letters' events."""

    age: int = -1
    id: UUID = _LOWEST


@dataclass(frozen=True, slots=True)
class Looked:
    """What one look found: ids by kind, where to look next, and whether there was nothing behind."""

    runs: tuple[UUID, ...]
    effects: tuple[UUID, ...]
    place: Place
    over: bool

    @property
    def ids(self) -> tuple[UUID, ...]:
        """All of them."""
        return self.runs + self.effects


async def by_id(scope: Scope, reader: Reader, ids: Sequence[UUID]) -> list[Letter]:
    """Return those of these effects and runs that there are for a reader, dead or not, in the order asked."""
    rows = {row["id"]: row for row in await scope.fetch(SQL["letters_by_id"], reader.tenant_id, list(ids))}
    asked = [rows[one] for one in dict.fromkeys(ids) if one in rows]
    names = {row["id"]: sight.named_by_delivery(reader.tenant_id, row["kind"], row["key"]) for row in asked}
    seen = await sight.seen_by(scope, names.values(), [reader.account_id])
    whole = {one for one, name in names.items() if seen.sees(reader.account_id, name)}
    told = await deliveries_of(
        scope, reader.tenant_id, [row["id"] for row in asked if row["kind"] in OFFERED and row["id"] in whole]
    )
    return [_letter_of(row, told.get(row["id"])) for row in asked if row["id"] in whole or reader.operates]


async def deliveries_of(scope: Scope, tenant: UUID, ids: Sequence[UUID]) -> dict[UUID, Delivery]:
    """Return what these deliveries were to carry, by name."""
    if not ids:
        return {}
    rows = await scope.fetch(SQL["deliveries_by_id"], tenant, ids)
    return {
        row["id"]: Delivery(**{name: value for name, value in row.items() if name != "id"}) for row in rows
    }


def _letter_of(row: Record, delivery: Delivery | None) -> Letter:
    said = {name: value for name, value in row.items() if name != "key"}
    if delivery is not None:
        said["subject"] = delivery.subject
    return Letter(**said, delivery=delivery)


async def latest(
    scope: Scope, reader: Reader, asked: Described, *, after: tuple[datetime, UUID] | None, limit: int
) -> tuple[list[Letter], tuple[datetime, UUID] | None]:
    """Return those that are meant, whatever their cause, behind `after` (since, id), the latest first, and behind which there may be more.

    There may be fewer than asked for, or none, and more behind.
    """
    terms = (reader.tenant_id, *(after or (_LATEST, _HIGHEST)), limit + 1)
    if asked.kind is None:
        rows = await scope.fetch(SQL["letters"], *terms, *_whose(asked))
    elif asked.kind == RUN:
        rows = await scope.fetch(SQL["letters_of_runs"], *terms, *_whose_runs(asked))
    else:
        rows = await scope.fetch(SQL["letters_of_effects"], *terms, *_whose(asked), asked.kind)
    page = rows[:limit]
    found = await by_id(scope, reader, [row["id"] for row in page])
    return found, (page[-1]["since"], page[-1]["id"]) if len(rows) > limit else None


async def look(
    scope: Scope, tenant: UUID, asked: Described, place: Place, *, limit: int, until: datetime | None = None
) -> Looked:
    """Return up to `limit` letters that are meant, oldest event first, of those that lay there at `until`.

    Goes through at most LOOKED_MAX: it may return fewer, or none, and not be over.
    """
    looked_at = limit if asked.cause is None else LOOKED_MAX
    terms = (tenant, place.age, place.id, looked_at, until or _LATEST)
    if asked.kind is None:
        rows = await scope.fetch(SQL["letters_by_age"], *terms, *_whose(asked))
    elif asked.kind == RUN:
        rows = await scope.fetch(SQL["runs_by_age"], *terms, *_whose_runs(asked))
    else:
        rows = await scope.fetch(SQL["effects_by_age"], *terms, *_whose(asked), asked.kind)
    meant = [row for row in rows if asked.takes(row["outcome"], row["error"])]
    full = len(meant) >= limit
    last = meant[limit - 1] if full else rows[-1] if rows else None
    meant = meant[:limit]
    return Looked(
        runs=tuple(row["id"] for row in meant if row["kind"] == RUN),
        effects=tuple(row["id"] for row in meant if row["kind"] != RUN),
        place=Place(last["age"], last["id"]) if last is not None else place,
        over=not full and len(rows) < looked_at,
    )


async def heaps(scope: Scope, reader: Reader, asked: Described) -> tuple[list[Heap], int]:
    """Return the letters that are meant, whatever their cause: those that say the same, counted, and how many are in no heap."""
    terms = (reader.tenant_id, asked.kind, *_whose(asked), reader.operates, reader.account_id)
    rows = await scope.fetch(SQL["heaps"], *terms, HEAPS_MAX)
    found = [Heap(**dict(row)) for row in rows]
    if len(found) < HEAPS_MAX:
        return found, 0
    everything: int = await scope.fetchval(SQL["count_letters"], *terms)
    return found, max(0, everything - sum(heap.count for heap in found))


async def count(scope: Scope, reader: Reader, asked: Described) -> int | None:
    """Return how many letters are meant; None when too many say different things to count those of a cause."""
    if asked.cause is None:
        everything: int = await scope.fetchval(
            SQL["count_letters"],
            reader.tenant_id,
            asked.kind,
            *_whose(asked),
            reader.operates,
            reader.account_id,
        )
        return everything
    found, uncounted = await heaps(scope, reader, asked)
    if uncounted:
        return None
    return sum(heap.count for heap in found if asked.takes(heap.outcome, heap.error))


def refuse_unknown(asked: Described, total: int | None) -> None:
    """Raise NotFound for a cause that no letter has: a misspelt one is not the same as an empty desk."""
    if asked.cause is not None and total == 0:
        raise NotFound("dead letter of the cause", f"{asked.cause!r}")


async def whose_rule(scope: Scope, tenant: UUID, ref: str) -> Whose:
    """Return the rule of that name or id, deleted or not: its letters still lie there. Raises NotFound."""
    rule_id = as_id(ref) or await scope.fetchval(SQL["rule_by_name"], tenant, ref.strip())
    row = await scope.fetchrow(SQL["rule_names"], tenant, [rule_id])
    if row is None:
        raise NotFound("rule", ref)
    return Whose(row["id"], row["name"])


async def whose_agent(scope: Scope, tenant: UUID, ref: str) -> Whose:
    """Return the agent of that handle or id. Raises NotFound."""
    agent_id = as_id(ref)
    if agent_id is not None:
        row = await scope.fetchrow(SQL["agent_by_id"], tenant, agent_id)
    else:
        row = await scope.fetchrow(SQL["agent_by_handle"], tenant, ref.strip().lower())
    if row is None:
        raise NotFound("agent", ref)
    return Whose(row["id"], row["name"])


def _whose(asked: Described) -> tuple[UUID | None, UUID | None, str | None]:
    """Return the rule, and the agent by id and handle, as statements about effects take them."""
    return *_whose_runs(asked), asked.agent.name if asked.agent else None


def _whose_runs(asked: Described) -> tuple[UUID | None, UUID | None]:
    return asked.rule.id if asked.rule else None, asked.agent.id if asked.agent else None


async def whole(scope: Scope, tenant: UUID, letters: Sequence[Letter]) -> list[dict[str, Any]]:
    """Return letters with what they were to do and every attempt; what attempts at a delivery said, for those who see it."""
    silent = {letter.id for letter in letters if letter.kind in OFFERED and letter.delivery is None}
    runs = [letter.id for letter in letters if letter.kind == RUN]
    effects = [letter.id for letter in letters if letter.kind != RUN]
    bodies: dict[UUID, dict[str, Any]] = {}
    history: dict[UUID, list[dict[str, Any]]] = {letter.id: [] for letter in letters}
    for body, attempts, ids in (
        ("run_bodies", "run_attempts", runs),
        ("effect_bodies", "effect_attempts", effects),
    ):
        if not ids:
            continue
        for row in await scope.fetch(SQL[body], tenant, ids):
            bodies[row["id"]] = {name: value for name, value in row.items() if name != "id"}
        for row in await scope.fetch(SQL[attempts], tenant, ids):
            told = {name: value for name, value in row.items() if name != "of"}
            history[row["of"]].append(told if row["of"] not in silent else {**told, "error": None})
    return [
        {**letter.as_json(), **bodies.get(letter.id, {}), "history": history[letter.id]} for letter in letters
    ]
