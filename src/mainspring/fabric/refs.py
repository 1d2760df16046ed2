"""References: which tenant's log has grown, and how far at least. Pure.

A reference has no authority. Whoever gets one looks at that tenant's own log, and finds there what is owed; a forged one makes us look
for nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final, Self
from uuid import UUID

import msgspec

from mainspring.fabric.errors import NotARef
from mainspring.fabric.subjects import Names, kind_tokens
from mainspring.spine.errors import Misuse
from mainspring.spine.events import SUBJECT_LENGTH_MAX

SEQ_MAX: Final = 2**63 - 1
BYTES_MAX: Final = (
    4096  # far above any reference of ours: the longest row id, all of it escaped, is below 1,500
)
EPOCH_MAX: Final = 2**31 - 1


class _Wire(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tenant: UUID
    kind: str
    row_id: str
    seq: int


_DECODER = msgspec.json.Decoder(_Wire)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRef:
    """An event that has committed: its tenant, its kind, the row it is about, and its place in the tenant's log."""

    tenant: UUID
    kind: str
    row_id: str
    seq: int

    def __post_init__(self) -> None:
        if not isinstance(self.tenant, UUID):
            raise Misuse(f"a tenant is an id, not {self.tenant!r}")
        kind_tokens(self.kind)
        if len(self.row_id) > SUBJECT_LENGTH_MAX:
            raise Misuse(f"a row id has at most {SUBJECT_LENGTH_MAX} characters")
        if not 1 <= self.seq <= SEQ_MAX:
            raise Misuse(f"a seq is 1 to {SEQ_MAX}, not {self.seq}")

    def encode(self) -> bytes:
        """Return the reference as it travels."""
        return msgspec.json.encode(_Wire(self.tenant, self.kind, self.row_id, self.seq))

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what has travelled. Raises NotARef."""
        if len(data) > BYTES_MAX:
            raise NotARef(f"malformed: {len(data)} bytes are too many for a reference")
        try:
            wire = _DECODER.decode(data)
            return cls(tenant=wire.tenant, kind=wire.kind, row_id=wire.row_id, seq=wire.seq)
        except (msgspec.MsgspecError, Misuse, ValueError, RecursionError) as error:
            raise NotARef(f"malformed: {error}") from error

    def message_id(self, epoch: int = 0) -> str:
        """Return what a second copy is known by. Each part comes behind its length, so that no two references share one."""
        if not 0 <= epoch <= EPOCH_MAX:
            raise Misuse(f"an epoch is 0 to {EPOCH_MAX}")
        digest = hashlib.sha256()
        for part in (str(self.tenant), self.kind, self.row_id, str(self.seq), str(epoch)):
            data = part.encode()
            digest.update(len(data).to_bytes(8, "big"))
            digest.update(data)
        return digest.hexdigest()


def received(names: Names, subject: str, data: bytes) -> EventRef:
    """Read a reference that has come on a subject. Raises NotARef when it is none, or is for another subject."""
    ref = EventRef.decode(data)
    if subject != names.events(ref.tenant, ref.kind):
        raise NotARef("mismatch: the subject is another tenant's or another kind's than the reference")
    return ref
