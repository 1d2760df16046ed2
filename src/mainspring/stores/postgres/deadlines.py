"""Which timestamps the engine compares with the clock, so that tests can move time instead of waiting for it."""

from __future__ import annotations

from collections.abc import Mapping

from mainspring.db import Connection

# shifted by age(): everything that a predicate compares with the clock
DEADLINES: Mapping[str, tuple[str, ...]] = {
    "effects": ("not_before", "lease_until", "deferred_since", "settled_at"),
    "due_tenants": ("next_due",),
    "breakers": ("open_until", "down_since", "changed_at"),
    "events": ("occurred_at",),  # a sweep does not trust its memory of old ones
}
# only told to people: shifting them would change no decision
RECORDS: Mapping[str, tuple[str, ...]] = {
    "effects": ("claimed_at", "created_at"),
    "effect_attempts": ("started_at", "ended_at"),
    "tenants": ("created_at",),
    "schema_migrations": ("applied_at",),
}


async def age(conn: Connection, seconds: float, deadlines: Mapping[str, tuple[str, ...]] = DEADLINES) -> None:
    """Shift every deadline back, as if `seconds` had passed. Needs a connection that sees all rows."""
    shifts = [
        f"{table}_ as (update mainspring.{table} set "
        + ", ".join(f"{column} = {column} - $1::float8 * interval '1 second'" for column in columns)
        + " returning 1)"
        for table, columns in deadlines.items()
    ]
    await conn.execute(f"with {', '.join(shifts)} select 1", seconds)
