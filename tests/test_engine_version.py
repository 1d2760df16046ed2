"""What a drain of each engine version knows. A log that an older one would judge otherwise has a version of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from mainspring import migrate, roles
from mainspring.migrate import SERVER_SETS, MigrationSet
from mainspring.spine.drain import ENGINE_VERSION
from mainspring.triggers.model import ACTION_FIELDS, OPTIONS
from mainspring.triggers.terms import CHANGES, RULE_KINDS, TERMS

# What an older drain would pass over or misjudge. Add to the newest version what is added before it is released; what is added
# afterwards is the next version, with a migration that raises the schema's.
KNOWN: dict[str, Any] = {
    "kinds": {
        "card.created", "card.moved", "card.updated", "card.labeled", "card.unlabeled", "card.assigned", "card.promoted",
        "card.deleted", "run.queued", "run.started", "run.needs_input", "run.done", "run.failed", "run.blocked", "run.cancelled",
        "run.lost", "message.posted", "message.updated", "message.settled", "member.joined", "member.left", "ask.opened", "ask.answered",
        "effect.dead", "effect.replayed", "effect.discarded", "rule.changed",
    },
    "terms": {
        "kinds", "boards", "channels", "from_states", "to_states", "states", "labels_all", "labels_any", "labels_none", "labels_added",
        "fields", "changes", "actors", "agents", "min_trust",
    },
    "changes": {"created", "edited", "enabled", "disabled", "deleted", "paused", "resumed"},
    "do": {"launch": {"agent", "prompt", "runner_labels"}, "promote": {"agent"}, "webhook": {"url"}},
    "options": {
        "consume_label", "recheck", "self_trigger", "max_event_age_seconds", "cooldown_seconds", "max_per_hour",
        "while_running", "queued_timeout_seconds",
    },
    "effects": {"launch", "promote", "webhook", "reflect", "event", "operation", "wake", "note"},
    "obligations": {"rules", "dispatch", "reflect", "deliveries", "notes"},
}  # fmt: skip
LAST = 3
RAISED = 17  # the product's migration that asks for it


def test_what_a_drain_knows_is_its_versions():
    assert ENGINE_VERSION == LAST
    assert set(RULE_KINDS) == KNOWN["kinds"]
    assert set(TERMS) == KNOWN["terms"]
    assert set(CHANGES) == KNOWN["changes"]
    assert KNOWN["do"] == ACTION_FIELDS
    assert set(OPTIONS) == KNOWN["options"]


async def test_what_a_server_carries_out_is_its_versions(joined):
    assert set(joined.spine.kinds) | {"event"} == KNOWN["effects"]
    assert {one.name for one in joined.spine.obligations} == KNOWN["obligations"]


@pytest.fixture
async def joined(fresh_database):
    from mainspring import wiring
    from mainspring.config import Settings

    database = await fresh_database("server")
    services = await wiring.build(Settings(database_url=database.url))
    yield services
    await services.stop()


async def version_of(conn: asyncpg.Connection) -> int:
    """The engine version that a schema asks for."""
    found: int = await conn.fetchval("select engine_version from mainspring.engine")
    return found


async def test_a_migrated_schema_asks_for_the_drain_of_this_release(fresh_database):
    database = await fresh_database("server")
    conn = await asyncpg.connect(**database.admin)
    assert await version_of(conn) == ENGINE_VERSION
    await conn.close()


async def test_an_upgrade_raises_what_it_asks_for_and_never_lowers_it(fresh_database):
    """The library's own tables know no rules: what a user's obligations make of a log is his to say."""
    await fresh_database("server")  # with it comes the login that serves
    database = await fresh_database("library")
    conn = await asyncpg.connect(**database.admin)
    assert await version_of(conn) == 1
    product = migrate.load("product")
    before = replace(product, migrations=tuple(one for one in product.migrations if one.version < RAISED))
    assert isinstance(before, MigrationSet)
    await conn.execute("drop schema mainspring cascade")
    await roles.ensure(conn, roles.LOGIN)
    await migrate.apply(conn, ["spine", before])
    assert await version_of(conn) < LAST
    await migrate.apply(conn, SERVER_SETS)
    assert await version_of(conn) == LAST
    await conn.execute("update mainspring.engine set engine_version = 9")
    await conn.execute(next(one.sql for one in product.migrations if one.version == RAISED))
    assert await version_of(conn) == 9
    await conn.close()
