"""What a rule's messages are signed with, on an open transaction: a secret that is made, and told, once."""

from __future__ import annotations

import base64
import secrets
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from uuid import UUID

from mainspring.rooms import Tx
from mainspring.sql import Queries
from mainspring.triggers.webhooks.model import SECRET_BYTES

SQL: Final = Queries("mainspring.triggers.webhooks.sql")

_KEEP_SECRET = SQL["keep_secret"]
_SIGNING = SQL["signing"]


@dataclass(frozen=True, slots=True)
class Signing:
    """What a message is signed with, and the moment at which it is."""

    secret: str = field(repr=False)
    now: datetime


async def keep_secret(tx: Tx, rule_id: UUID) -> str | None:
    """Give a rule its secret, and return it this once; None when it has one already."""
    made = "whsec_" + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()
    kept: str | None = await tx.handle.fetchval(_KEEP_SECRET, tx.tenant, rule_id, made)
    return kept


async def read_signing(tx: Tx, rule_id: UUID | None) -> Signing | None:
    """Return how a rule's message is signed now; None when the rule has no secret."""
    row = await tx.handle.fetchrow(_SIGNING, tx.tenant, rule_id)
    return None if row is None else Signing(row["secret"], row["now"])
