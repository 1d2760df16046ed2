"""Values to parameters and rows to values: JSON crosses as text, whatever codecs the pool's owner has set."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import MAXYEAR
from typing import Any, Protocol
from uuid import UUID

import msgspec

from mainspring.ids import new_id
from mainspring.spine.effects import Attempt, Effect, EffectRow, EffectState, Move, NewEffect, Settlement
from mainspring.spine.errors import BadData
from mainspring.spine.events import JSON_DEPTH_MAX, Event, NewEvent, Trust, too_deep


class Row(Protocol):
    """A record of the driver: columns by name."""

    def __getitem__(self, key: str, /) -> Any: ...


def to_json(value: Any) -> str:
    """Encode a JSON value; raise BadData for what JSON cannot carry, or what no reader could be sure to read again."""
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadData(f"not a JSON value: {error}") from error
    if too_deep(text):
        raise BadData(f"a JSON value nests at most {JSON_DEPTH_MAX} deep")
    return text


def from_json(text: str) -> Any:
    """Decode a JSON text that the database has accepted."""
    return msgspec.json.decode(text)


def event_columns(events: Sequence[NewEvent]) -> list[list[Any]]:
    """Return the append statement's columns, one list each, with a fresh id an event."""
    return [
        [new_id() for _ in events],
        [event.kind for event in events],
        [event.subject for event in events],
        [event.actor_id for event in events],
        [to_json(event.data) for event in events],
        [event.cause.seq for event in events],
        ["{" + ",".join(str(rule) for rule in event.cause.via) + "}" for event in events],
        [event.cause.depth for event in events],
        [event.cause.trust.value for event in events],
        [event.traceparent for event in events],
    ]


def event_of(row: Row) -> Event:
    """Return an event row as a value."""
    return Event(
        tenant_id=row["tenant_id"],
        seq=row["seq"],
        id=row["id"],
        kind=row["kind"],
        subject=row["subject"],
        actor_id=row["actor_id"],
        data=from_json(row["data"]),
        cause_seq=row["cause_seq"],
        via=tuple(row["via"]),
        depth=row["depth"],
        trust=Trust(row["trust"]),
        traceparent=row["traceparent"],
        occurred_at=row["occurred_at"],
    )


def effect_columns(effects: Sequence[tuple[UUID, NewEffect]], ids: Sequence[UUID]) -> list[list[Any]]:
    """Return the owe statement's columns, one list each."""
    only = [effect for _, effect in effects]
    return [
        [tenant for tenant, _ in effects],
        list(ids),
        [effect.kind for effect in only],
        [effect.family for effect in only],
        [effect.key for effect in only],
        [effect.event_seq for effect in only],
        [effect.rule_id for effect in only],
        [effect.rule_version for effect in only],
        [effect.recipient_id for effect in only],
        [effect.topic_id for effect in only],
        [effect.target for effect in only],
        [to_json(effect.payload) for effect in only],
        [effect.delay_seconds for effect in only],
    ]


def effect_of(row: Row) -> Effect:
    """Return a claimed row as its executor sees it."""
    return Effect(
        tenant_id=row["tenant_id"],
        id=row["id"],
        kind=row["kind"],
        key=row["key"],
        payload=from_json(row["payload"]),
        event_seq=row["event_seq"],
        rule_id=row["rule_id"],
        rule_version=row["rule_version"],
        target=row["target"],
        attempts=row["attempts"],
        crashes=row["crashes"],
        epoch=row["epoch"],
        claim_id=row["claim_id"],
        deferred_seconds=row["deferred_seconds"],
        waited_seconds=row["waited_seconds"],
        reclaimed=row["reclaimed"],
        deferrals=row["deferrals"],
        probe=row["probe"],
        down_seconds=row["down_seconds"],
        doubted=row["doubted"],
    )


def effect_row_of(row: Row) -> EffectRow:
    """Return a whole effect row as a value."""
    fields = {name: row[name] for name in EffectRow.__dataclass_fields__}
    # infinity reads as the last year there is: held until resumed
    held = fields["not_before"].year == MAXYEAR
    return EffectRow(
        **{
            **fields,
            "payload": from_json(fields["payload"]),
            "state": EffectState(fields["state"]),
            "not_before": None if held else fields["not_before"],
        }
    )


def attempt_of(row: Row) -> Attempt:
    """Return an attempt row as a value."""
    return Attempt(**{name: row[name] for name in Attempt.__dataclass_fields__})


def simply_done(settlement: Settlement) -> bool:
    """Tell whether there is nothing to write but that it succeeded."""
    return settlement.plain and settlement.move is Move.FINISH and settlement.outcome == "done"


def claim_columns(settlements: Sequence[Settlement]) -> list[list[Any]]:
    """Return what names the rows and their claims, one list each."""
    return [
        [settlement.tenant_id for settlement in settlements],
        [settlement.id for settlement in settlements],
        [settlement.claim_id for settlement in settlements],
    ]


def settlement_columns(settlements: Sequence[Settlement]) -> list[list[Any]]:
    """Return the settle statement's columns, one list each."""
    return [
        *claim_columns(settlements),
        [settlement.state.value for settlement in settlements],
        [settlement.attempts for settlement in settlements],
        [settlement.outcome for settlement in settlements],
        [settlement.error for settlement in settlements],
        [settlement.delay_seconds for settlement in settlements],
        [settlement.deferred for settlement in settlements],
        [settlement.plain for settlement in settlements],
    ]
