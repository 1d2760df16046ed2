"""Gauges of what is owed, of what is dead, and of who reads, asked of the database at a scrape. Takes nothing; leaves `telemetry`'s gauges set."""

from __future__ import annotations

from mainspring import telemetry
from mainspring.chat.model import LIVE
from mainspring.db import Database
from mainspring.sql import Queries

SQL = Queries("mainspring.operators.sql")

_BY_KIND = (
    telemetry.effects_owed,
    telemetry.effects_oldest_owed,
    telemetry.effects_dead,
    telemetry.dead_letters,
)


async def lag(db: Database) -> dict[str, float]:
    """Return how many events no drain has looked at, over all tenants, and how old the first of them is."""
    async with db.system("metrics") as scope:
        row = await scope.fetchrow(SQL["log_gauges"])
    assert row is not None
    return {"events": row["head"] - row["position"], "seconds": row["lag_seconds"]}


async def measure(db: Database) -> None:
    """Set the gauges of the log, its cursors, the effects and sessions, over all tenants. Kinds that have nothing are left out."""
    async with db.system("metrics") as scope:
        log = await scope.fetchrow(SQL["log_gauges"])
        kinds = await scope.fetch(SQL["effect_gauges"])
        dead_runs = await scope.fetchval(SQL["dead_runs"])
        breakers = await scope.fetchval(SQL["open_breakers"])
        sessions = {row["state"]: row["n"] for row in await scope.fetch(SQL["live_sessions"])}
    assert log is not None
    telemetry.event_head.set(log["head"])
    telemetry.drained_position.set(log["position"])
    telemetry.drain_lag.set(log["lag_seconds"])
    for gauge in _BY_KIND:
        gauge.clear()
    for row in kinds:
        telemetry.effects_owed.labels(row["kind"]).set(row["owed"])
        telemetry.effects_oldest_owed.labels(row["kind"]).set(row["oldest_seconds"])
        telemetry.effects_dead.labels(row["kind"]).set(row["dead"])
        telemetry.dead_letters.labels(row["kind"]).set(row["dead"])
    telemetry.dead_letters.labels("run").set(dead_runs)
    telemetry.breaker_open.set(breakers)
    for state in LIVE:
        telemetry.sessions.labels(state).set(sessions.get(state, 0))
