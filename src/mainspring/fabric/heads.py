"""What every instance is told of a tenant's log: that it has grown, by what kinds of events, and whether something is owed. Pure.

Nothing in it is believed but that it is time to look.
"""

from __future__ import annotations

from typing import Final, Self
from uuid import UUID

import msgspec

from mainspring.fabric.errors import NotARef
from mainspring.fabric.subjects import kind_tokens
from mainspring.spine.errors import Misuse

TOPIC: Final = "heads"
BYTES_MAX: Final = 16_384
KINDS_MAX: Final = 200


class Heads(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One broadcast; `by` is the instance that sends it, which has no need of it."""

    by: UUID
    seq: int = 0
    kinds: tuple[str, ...] = ()
    owed: bool = False

    def encode(self) -> bytes:
        """Return it as it travels. Of very many kinds the first are named: who waits for another finds it at the tick."""
        kinds = self.kinds[:KINDS_MAX]
        while (
            len(data := msgspec.json.encode(Heads(by=self.by, seq=self.seq, kinds=kinds, owed=self.owed)))
            > BYTES_MAX
        ):
            kinds = kinds[: len(kinds) // 2]
        return data

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what has travelled. Raises NotARef."""
        if len(data) > BYTES_MAX:
            raise NotARef(f"malformed: {len(data)} bytes are too many for a broadcast")
        try:
            found = msgspec.json.decode(data, type=cls)
            for kind in found.kinds[:KINDS_MAX]:
                kind_tokens(kind)
        except (msgspec.MsgspecError, Misuse, ValueError, RecursionError) as error:
            raise NotARef(f"malformed: {error}") from error
        return found
