"""What an account may be told of: takes events of the log, or deliveries, leaves which of them it sees. One question for all of them.

What names a channel is seen by who sees the channel: it is open, or they are a member now. Nobody else is told that it exists, whatever
their role. An event that should name one, and does not, is seen by nobody.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from uuid import UUID

from mainspring.chat.model import OFFERED
from mainspring.chat.rows import SQL
from mainspring.db import Scope
from mainspring.spine.events import Event

_SEEN_BY = SQL["seen_by"]

# Whatever they hold, they are their author's own words, and a card's.
_NEVER: Final = ("custom.", "card.")
_ALWAYS: Final = ("message.", "member.", "channel.", "topic.")
_NOWHERE: Final = UUID(int=0)  # no channel has it


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Who reads. Who operates has a row of every delivery to decide on; of what it was to carry it tells them nothing."""

    tenant_id: UUID
    account_id: UUID | None
    operates: bool = False


class Named(NamedTuple):
    """Where a thing was said: in which channel, or in the one of which message."""

    tenant_id: UUID
    channel_id: UUID | None = None
    message_id: UUID | None = None


def named_by(event: Event) -> Named | None:
    """Return what an event names of a channel; None for one that anybody may be told of. Pure."""
    if event.kind.startswith(_NEVER):
        return None
    if event.kind.startswith("effect."):
        effect = _part(event.data, "effect")
        return named_by_delivery(event.tenant_id, str(effect.get("kind")), str(effect.get("key")))
    told = _part(event.data, "message").get("channel_id") or _part(event.data, "channel").get("id")
    if told is None and not event.kind.startswith(_ALWAYS):
        return None
    return Named(event.tenant_id, channel_id=_uuid(told) or _NOWHERE)


def named_by_delivery(tenant_id: UUID, kind: str, key: str) -> Named | None:
    """Return what an effect names of a channel: a delivery its message, in its key. Pure."""
    if kind not in OFFERED:
        return None
    return Named(tenant_id, message_id=_uuid(key.partition(":")[0]) or _NOWHERE)


def _part(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = data.get(name)
    return part if isinstance(part, Mapping) else {}


def _uuid(text: object) -> UUID | None:
    try:
        return UUID(str(text))
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Seen:
    """Which of some named things which of some accounts see."""

    _by: Mapping[Named, frozenset[UUID] | None] = field(default_factory=dict)  # None: everybody

    def sees(self, account: UUID | None, named: Named | None) -> bool:
        """Tell whether an account, or somebody without one, sees what was asked about; what names no channel everybody does."""
        if named is None:
            return True
        accounts = self._by.get(named, frozenset())
        return accounts is None or account in accounts


async def seen_by(scope: Scope, named: Iterable[Named | None], accounts: Collection[UUID | None]) -> Seen:
    """Ask, of all these things at once, which of the accounts see them."""
    asked = sorted({one for one in named if one is not None}, key=str)
    if not asked:
        return Seen()
    rows = await scope.fetch(
        _SEEN_BY,
        [one.tenant_id for one in asked],
        [one.channel_id for one in asked],
        [one.message_id for one in asked],
        sorted({one for one in accounts if one is not None}),
    )
    return Seen({asked[row["n"] - 1]: None if row["open"] else frozenset(row["accounts"]) for row in rows})


async def told(scope: Scope, reader: Reader, events: Sequence[Event]) -> list[Event]:
    """Return those of the events that somebody may be told of."""
    names = [named_by(event) for event in events]
    seen = await seen_by(scope, names, [reader.account_id])
    return [event for event, name in zip(events, names, strict=True) if seen.sees(reader.account_id, name)]
