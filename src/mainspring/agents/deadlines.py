"""Which timestamps of this room are compared with the clock, so that tests can move time instead of waiting for it."""

from __future__ import annotations

from collections.abc import Mapping

DEADLINES: Mapping[str, tuple[str, ...]] = {
    "runs": ("not_before", "lease_until"),
    "runners": ("last_seen_at",),
    "tokens": ("expires_at",),
}
# only told to people, or compared with each other: shifting them would change no decision
RECORDS: Mapping[str, tuple[str, ...]] = {
    "accounts": ("created_at",),
    "agents": ("created_at",),
    "runners": ("created_at",),
    "runs": ("created_at", "started_at", "ended_at"),
    "run_attempts": ("started_at", "ended_at"),
    "run_log": ("at",),
    "tokens": ("created_at", "revoked_at"),
}
