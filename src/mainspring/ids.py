"""Ids are UUIDv7, made here and not by the database: `uuidv7()` exists only from PostgreSQL 18 on."""

from __future__ import annotations

from uuid import UUID

from uuid_utils.compat import uuid7


def new_id() -> UUID:
    """Return a fresh id; later ids sort after earlier ones, so index inserts stay at the right edge."""
    return uuid7()
