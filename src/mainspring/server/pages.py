"""Pages: `?limit&after` in, `{"data": [...], "next": ...}` out. A cursor is opaque: the last row's sort key, sealed in base64."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar
from uuid import UUID

from fastapi import Depends, Query

from mainspring.rooms import FieldError, Invalid

T = TypeVar("T")
LIMIT_DEFAULT = 50
LIMIT_MAX = 200
SEQ_END = 2**63


def seal(*parts: str | int | UUID) -> str:
    """Return a cursor that holds these values."""
    plain = json.dumps(
        [part if isinstance(part, int) else str(part) for part in parts], separators=(",", ":")
    )
    return base64.urlsafe_b64encode(plain.encode()).decode().rstrip("=")


def unseal(cursor: str, *types: Callable[[Any], T]) -> tuple[T, ...]:
    """Return the values that a cursor holds, each through its type; raise Invalid when it is not one of ours."""
    try:  # a cursor is anybody's to make up: nothing of it may reach the database that this does not take
        parts = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        if not isinstance(parts, list) or len(parts) != len(types):
            raise ValueError("not a cursor of this list")
        return tuple(_storable(kind(part)) for kind, part in zip(types, parts, strict=True))
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, binascii.Error) as error:
        raise Invalid(
            FieldError("/after", "not a cursor: pass the `next` of an earlier page of this list")
        ) from error


def _storable(value: T) -> T:
    """Return a value that the database has a place for. Raises ValueError, OverflowError."""
    if isinstance(value, int) and not -SEQ_END <= value < SEQ_END:
        raise ValueError("no seq is as large")
    if isinstance(value, datetime):
        value.astimezone(UTC)  # of some at either end of time there is none
    return value


@dataclass(frozen=True, slots=True)
class PageQuery:
    """What a list was asked for. Fetch `limit + 1` rows: the extra one tells whether there is a next page."""

    limit: int
    after: str | None

    def after_id(self) -> UUID | None:
        """Return the id behind which to go on, for lists that are ordered by id."""
        return None if self.after is None else unseal(self.after, UUID)[0]

    def cut(
        self, rows: Sequence[T], *, key: Callable[[T], tuple[str | int | UUID, ...]]
    ) -> tuple[list[T], str | None]:
        """Return the page and the cursor of the next one, from up to `limit + 1` rows."""
        page = list(rows[: self.limit])
        return page, seal(*key(page[-1])) if len(rows) > self.limit else None

    def page(
        self,
        rows: Sequence[T],
        shown: Callable[[T], dict[str, Any]],
        *,
        key: Callable[[T], tuple[str | int | UUID, ...]],
    ) -> dict[str, Any]:
        """Return the answer to a list from up to `limit + 1` rows."""
        kept, following = self.cut(rows, key=key)
        return {"data": [shown(row) for row in kept], "next": following}


def _page_query(
    limit: Annotated[int, Query(ge=1, le=LIMIT_MAX)] = LIMIT_DEFAULT,
    after: Annotated[str | None, Query(max_length=500)] = None,
) -> PageQuery:
    return PageQuery(limit, after)


Paging = Annotated[PageQuery, Depends(_page_query)]
