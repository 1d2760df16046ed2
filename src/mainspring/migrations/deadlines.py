"""Which of the product's timestamps are compared with the clock, beside `stores.postgres.deadlines`."""

from __future__ import annotations

from collections.abc import Mapping

# shifted by age(): everything that a predicate compares with the clock
DEADLINES: Mapping[str, tuple[str, ...]] = {
    # ended_at: what lay on the desk when an operation began
    "runs": ("lease_until", "not_before", "queued_until", "ended_at"),
    "runners": ("last_seen_at",),
    "tokens": ("expires_at", "revoked_at"),
    "idempotency": ("expires_at",),
    "firings": ("fired_at", "kept_until"),
    "asks": ("expires_at",),
    "operations": ("created_at",),
    "sessions": ("lease_until", "seen_at"),
}
# only told to people: shifting them would change no decision
RECORDS: Mapping[str, tuple[str, ...]] = {
    "accounts": ("created_at",),
    "agents": ("created_at",),
    "runners": ("created_at", "left_at"),
    "boards": ("created_at",),
    "cards": ("created_at", "updated_at", "deleted_at"),
    "rules": ("created_at", "deleted_at", "paused_at"),
    "rule_versions": ("created_at",),
    "runs": ("created_at", "started_at"),
    "run_attempts": ("started_at", "ended_at"),
    "run_log": ("at",),
    "tokens": ("created_at",),
    "idempotency": ("created_at",),
    "asks": ("asked_at", "ended_at"),
    "operations": ("ended_at",),
    "audit": ("at",),
    "webhook_secrets": ("created_at",),
    "channels": ("created_at", "archived_at"),
    "members": ("joined_at",),
    "topics": ("created_at", "archived_at"),
    "messages": ("settled_at", "posted_at", "edited_at"),
    "sessions": ("started_at", "ended_at", "acked_at"),
    "pins": ("pinned_at",),
    "inbox_items": ("created_at", "read_at"),
}
