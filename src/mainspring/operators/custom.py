"""Events from outside: takes what somebody says has happened, leaves it in the log like any other event, for rules to match.

The event and its key are one transaction: the same key is one event, for as long as the log is kept. If we die here there is
neither, and it may be sent again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from uuid import UUID

from mainspring.operators.log import LogService
from mainspring.operators.model import CardKey, Id, parse_ref
from mainspring.rooms import Actor, FieldError, Invalid, ServerSpine, Tx
from mainspring.spine.events import SUBJECT_LENGTH_MAX, Event, NewEvent
from mainspring.sql import Queries

SQL = Queries("mainspring.operators.sql")
KIND: Final = re.compile(r"custom\.[a-z0-9_-]{1,93}")
KEY_LENGTH_MAX: Final = 200
DATA_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCustom:
    """What somebody says has happened. With a card it is about that card, and carries it as it is."""

    kind: str
    subject: str = ""
    card: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    key: str | None = None

    def digest(self) -> bytes:
        """Return what tells it from another under the same key."""
        said = [self.kind, self.subject, self.card, self.data]
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).digest()


class LockedCards(Protocol):
    """What is asked of the boards room, in the caller's transaction."""

    async def lock_card(self, tx: Tx, card_id: UUID, /) -> object | None: ...

    async def card_snapshot(self, tx: Tx, card_id: UUID, /) -> dict[str, Any] | None: ...


class CustomEvents:
    """The log's door for others."""

    def __init__(self, spine: ServerSpine, log: LogService, cards: LockedCards) -> None:
        """`cards` are the boards room's verbs."""
        self._spine = spine
        self._log = log
        self._cards = cards

    async def post(self, actor: Actor, new: NewCustom) -> tuple[Event, bool]:
        """Append an event, and tell whether it is new; under a known key it is the one that was posted before. Raises Invalid."""
        _check(new)
        tenant = actor.tenant_id
        async with self._spine.open(tenant) as tx:
            seq = None if new.key is None else await _posted_before(tx, new.key, new.digest())
            if seq is None:
                await self._append(tx, actor, new)
        known = seq is not None
        return await self._log.appended(tenant, seq if seq is not None else tx.appended[-1]), not known

    async def _append(self, tx: Tx, actor: Actor, new: NewCustom) -> None:
        subject = new.subject
        said: dict[str, Any] = {"data": dict(new.data), "actor": actor.snapshot()}
        if new.card is not None:
            subject, said["card"] = await self._card(tx, new.card)

        async def stamp(seq: int) -> None:
            if new.key is not None:
                await tx.handle.execute(SQL["stamp_event_key"], tx.tenant, new.key, seq)

        tx.append(
            NewEvent(new.kind, subject=subject, data=said, actor_id=actor.account_id, cause=actor.cause),
            stamp=stamp,
        )

    async def _card(self, tx: Tx, ref: str) -> tuple[str, dict[str, Any]]:
        """Return a card's id and how it is, and hold it: nobody changes it before this is in the log."""
        match parse_ref(ref):
            case CardKey(board, number):
                card_id = await tx.handle.fetchval(SQL["card_by_key"], tx.tenant, board, number)
            case Id(card_id):
                pass
            case _:
                card_id = None
        if card_id is not None and await self._cards.lock_card(tx, card_id) is not None:
            snapshot = await self._cards.card_snapshot(tx, card_id)
            if snapshot is not None:
                return str(card_id), snapshot
        raise Invalid(FieldError("/card", f"no card {ref[:100]!r}"))


async def _posted_before(tx: Tx, key: str, request: bytes) -> int | None:
    """Return the seq that a key stands for; None when it is new, and this transaction's now."""
    if await tx.handle.execute(SQL["take_event_key"], tx.tenant, key, request):
        return None
    row = await tx.handle.fetchrow(SQL["event_of_key"], tx.tenant, key)
    assert row is not None
    if row["request"] != request:
        raise Invalid(
            FieldError("/key", "this key stands for another event: take a new one"), code="key_reused"
        )
    seq: int = row["seq"]
    return seq


def _check(new: NewCustom) -> None:
    faults = []
    if KIND.fullmatch(new.kind) is None:
        faults.append(
            FieldError("/kind", "custom.<name>, the name of 1 to 93 lower-case letters, digits, - and _")
        )
    if new.card is not None and new.subject:
        faults.append(FieldError("/subject", "an event about a card has the card as its subject"))
    if len(new.subject) > SUBJECT_LENGTH_MAX:
        faults.append(FieldError("/subject", f"at most {SUBJECT_LENGTH_MAX} characters"))
    if new.key is not None and not 1 <= len(new.key) <= KEY_LENGTH_MAX:
        faults.append(FieldError("/key", f"1 to {KEY_LENGTH_MAX} characters"))
    if len(json.dumps(new.data, ensure_ascii=False).encode()) > DATA_BYTES_MAX:
        faults.append(FieldError("/data", f"at most {DATA_BYTES_MAX // 1024} KiB of JSON"))
    if faults:
        raise Invalid(*faults)
