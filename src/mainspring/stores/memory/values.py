"""Which values PostgreSQL would refuse, so that a test in memory meets the same BadData; and JSON as it keeps it. Pure."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from mainspring.spine.effects import NewEffect, Settlement
from mainspring.spine.errors import BadData
from mainspring.spine.events import JSON_DEPTH_MAX, NewEvent, too_deep

EVENT_KIND_LENGTH_MAX = 100
TENANT_NAME_LENGTH_MAX = 200
INTEGER_BITS, BIGINT_BITS = 31, 63


def text(value: str) -> str:
    """Return a text as it is; raise BadData when it holds a NUL or half a surrogate pair."""
    if "\x00" in value:
        raise BadData("a text does not hold NUL")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise BadData(f"not a text: {error}") from error
    return value


def bounded(value: str, most: int) -> str:
    """Return a text that has at most `most` characters; raise BadData otherwise."""
    if len(value) > most:
        raise BadData(f"a text has at most {most} characters here")
    return text(value)


def whole(value: int | None, bits: int) -> int | None:
    """Return a number that fits; raise BadData otherwise."""
    if value is not None and not -(1 << bits) <= value < 1 << bits:
        raise BadData(f"{value} does not fit in {bits + 1} bits")
    return value


def json(value: Any) -> Any:
    """Return a snapshot of a JSON value, sharing nothing with it; raise BadData for what is none."""
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadData(f"not a JSON value: {error}") from error
    if too_deep(text):
        raise BadData(f"a JSON value nests at most {JSON_DEPTH_MAX} deep")
    kept = msgspec.json.decode(text)
    _refuse_nul(kept)
    return kept


def _refuse_nul(value: Any) -> None:
    match value:
        case str():
            if "\x00" in value:
                raise BadData("a JSON text does not hold NUL")
        case dict():
            for key, inner in value.items():
                _refuse_nul(key)
                _refuse_nul(inner)
        case list():
            for inner in value:
                _refuse_nul(inner)


def same_json(one: Any, other: Any) -> bool:
    """Tell whether two JSON values are equal: true is not 1, though Python says so."""
    match one, other:
        case dict(), dict():
            return one.keys() == other.keys() and all(same_json(one[key], other[key]) for key in one)
        case list(), list():
            return len(one) == len(other) and all(map(same_json, one, other))
        case (bool(), _) | (_, bool()):
            return one is other
        case _:
            return bool(one == other)


def later(now: datetime, seconds: float) -> datetime:
    """Return the moment `seconds` from now; raise BadData when there is none."""
    if not math.isfinite(seconds):
        raise BadData(f"no moment is {seconds} seconds from now")
    try:
        return now + timedelta(seconds=seconds)
    except OverflowError as error:
        raise BadData(f"no moment is {seconds} seconds from now") from error


def check_event(event: NewEvent) -> None:
    """Raise BadData when the events table would refuse this one; its data is checked by `json`."""
    bounded(event.kind, EVENT_KIND_LENGTH_MAX)
    text(event.subject)
    text(event.traceparent or "")
    whole(event.cause.seq, BIGINT_BITS)
    whole(event.cause.depth, INTEGER_BITS)
    if event.cause.depth < 0:
        raise BadData("an event's depth is not negative")


def check_effect(effect: NewEffect) -> None:
    """Raise BadData when the effects table would refuse this one; its payload is checked by `json`."""
    for value in (effect.kind, effect.key, effect.target):
        text(value)
    whole(effect.event_seq, BIGINT_BITS)
    whole(effect.rule_version, INTEGER_BITS)


def check_settlement(settlement: Settlement) -> None:
    """Raise BadData when a settle with these values would be refused."""
    text(settlement.outcome)
    text(settlement.error or "")
    whole(settlement.attempts, INTEGER_BITS)
    if settlement.attempts < 0:
        raise BadData("an effect's attempts are not negative")


def check_tenant(name: str, tenant: UUID) -> None:
    """Raise BadData when the tenants table would refuse this name."""
    if not name:
        raise BadData(f"tenant {tenant} needs a name")
    bounded(name, TENANT_NAME_LENGTH_MAX)
