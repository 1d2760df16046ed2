"""The doctor: one plain sentence, and each thing that is amiss with the way out; readiness says the same to machines."""

from __future__ import annotations

import pytest

from mainspring import telemetry, wiring
from mainspring.config import Settings
from mainspring.operators import symptoms
from mainspring.operators.symptoms import Diagnosis, Log, Owed, bad, ok, warning
from mainspring.spine.service import Health, Service

PLAIN = {
    "Nothing has happened yet; nothing is owed.": (Log(head=0, position=0, lag_seconds=0), []),
    "The one event is drained; nothing is owed.": (Log(head=1, position=1, lag_seconds=0), []),
    "All 12,841 events are drained; 3 effects owed, oldest 2 s.": (
        Log(head=12_841, position=12_841, lag_seconds=0),
        [Owed(kind="launch", owed=2, oldest_seconds=2.2, overdue_seconds=0), Owed(kind="x", owed=1, oldest_seconds=1, overdue_seconds=0)],
    ),
    "2 of 9 events are not drained yet, the oldest for 3 min; 1 effect owed, oldest less than a second.": (
        Log(head=9, position=7, lag_seconds=180),
        [Owed(kind="launch", owed=1, oldest_seconds=0.4, overdue_seconds=0)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("sentence", PLAIN)
def test_the_sentence_is_plain(sentence):
    assert symptoms.sentence(*PLAIN[sentence]) == sentence


def health(failures: int) -> Health:
    return Health(
        name="drain",
        succeeded_seconds_ago=5.0,
        failures=failures,
        error="Transient: gone" if failures else None,
    )


AMISS = {
    "drain": [
        (symptoms.drained(Log(head=9, position=9, lag_seconds=0)), "ok"),
        (symptoms.drained(Log(head=9, position=8, lag_seconds=9)), "ok"),
        (symptoms.drained(Log(head=9, position=8, lag_seconds=11)), "warning"),
        (symptoms.drained(Log(head=9, position=8, lag_seconds=61)), "bad"),
        (symptoms.drained(Log(head=9, position=8, lag_seconds=0, is_broken=True)), "bad"),
    ],
    "effects": [
        (symptoms.overdue([]), "ok"),
        (symptoms.overdue([Owed(kind="x", owed=1, oldest_seconds=1e6, overdue_seconds=0)]), "ok"),
        (symptoms.overdue([Owed(kind="x", owed=1, oldest_seconds=99, overdue_seconds=61)]), "warning"),
        (symptoms.overdue([Owed(kind="steer", owed=1, oldest_seconds=99, overdue_seconds=61, offered=True)]), "ok"),
    ],
    "desk": [(symptoms.dead(effects=0, runs=0), "ok"), (symptoms.dead(effects=0, runs=1), "warning")],
    "database": [
        (symptoms.server(version=180_004, standby=False, seconds=0.01), "ok"),
        (symptoms.server(version=150_000, standby=True, seconds=0.01), "bad"),
        (symptoms.server(version=140_009, standby=False, seconds=0.01), "bad"),
    ],
    "clock": [(symptoms.clocks(0.1), "ok"), (symptoms.clocks(-3_600), "warning"), (symptoms.clocks(3_600), "warning")],
    "schema": [
        (symptoms.schema([], ours=1, theirs=1), "ok"),
        (symptoms.schema([], ours=1, theirs=2), "warning"),
        (symptoms.schema(["product/0009_x"], ours=1, theirs=1), "bad"),
    ],
    "walls": [
        (symptoms.walls([], refused=True), "ok"),
        (symptoms.walls(["cards"], refused=True), "bad"),
        (symptoms.walls([], refused=False), "bad"),
    ],
    "pool": [(symptoms.pool(size=1, idle=0, most=8), "ok"), (symptoms.pool(size=8, idle=0, most=8), "warning")],
    "transactions": [(symptoms.transactions(1, 1.0), "ok"), (symptoms.transactions(1, 31.0), "warning")],
    "runners": [
        (symptoms.runners([], []), "ok"),
        (symptoms.runners([{"name": "laptop", "silent_seconds": 99, "held": 0}], []), "ok"),
        (symptoms.runners([{"name": "laptop", "silent_seconds": 99, "held": 1}], []), "warning"),
        (symptoms.runners([], [{"handle": "echo", "paused": False, "labels": [], "queued": 2, "oldest_seconds": 5}]), "warning"),
    ],
    "targets": [
        (symptoms.targets([]), "ok"),
        (symptoms.targets([{"target": "smtp", "down_seconds": 90, "error": None}]), "warning"),
    ],
    "rules": [(symptoms.rules([]), "ok"), (symptoms.rules([{"name": "r", "paused_because": "too many"}]), "warning")],
}  # fmt: skip


@pytest.mark.parametrize("check", AMISS)
def test_each_finding_is_judged_and_what_is_not_well_has_a_way_out(check):
    for finding, state in AMISS[check]:
        assert (finding.check, finding.state) == (check, state), finding
        assert bool(finding.way_out) == (state != "ok")


def test_a_loop_that_fails_is_named():
    [fine] = symptoms.loops([health(0)])
    [once] = symptoms.loops([health(0), health(1)])
    [often] = symptoms.loops([health(3)])
    assert [one.state for one in (fine, once, often)] == ["ok", "warning", "bad"]
    assert "Transient: gone" in often.said


def test_warnings_are_for_reading_and_only_what_is_bad_is_not_ok():
    assert Diagnosis(sentence="", findings=(ok("a", ""), warning("b", "", "x"))).ok
    assert not Diagnosis(sentence="", findings=(ok("a", ""), bad("b", "", "x"))).ok


# On a real database -------------------------------------------------------------------------------------------------


async def states(world):
    report = await world.get("doctor")
    return report, {one["check"]: one["state"] for one in report["findings"]}


async def test_all_is_well_with_what_is_drained(board):
    await board.settle()
    report, found = await states(board)
    assert report["ok"]
    assert report["sentence"] == "The one event is drained; nothing is owed."
    assert set(found) == {
        "drain", "effects", "messages", "desk", "database", "clock", "schema", "walls", "transactions", "runners", "rules", "targets", "pool", "loops",
    }  # fmt: skip
    assert set(found.values()) == {"ok"}


async def test_what_is_owed_and_waits_and_is_dead_is_said(board, admin):
    card = await board.post("cards", {"board": "OPS", "title": "x", "state": "todo"})
    await board.post(f"cards/{card['key']}/move", {"state": "doing"})
    report, _ = await states(board)
    assert report["sentence"].startswith("3 of 3 events are not drained yet")
    await board.services.spine.drain.run_once()
    report, _ = await states(board)
    assert "1 effect owed" in report["sentence"]
    await board.settle()
    report, found = await states(board)
    assert found["runners"] == "warning"
    runner = await board.runner("echo")
    await runner.work("failed", error="no luck")
    report, found = await states(board)
    assert (found["runners"], found["desk"]) == ("ok", "warning")
    assert report["ok"]


async def test_a_transaction_that_stays_open_is_found(board, admin):
    await board.settle()
    async with board.services.pool.acquire() as held, held.transaction():
        await held.fetchval("select 1")
        await admin.execute("select pg_stat_clear_snapshot()")
        [found] = [one for one in (await board.get("doctor"))["findings"] if one["check"] == "transactions"]
    assert found["said"] == "1 open, none for long"


async def test_a_missing_event_is_bad(board, admin):
    await board.post("cards", {"board": "OPS", "title": "x"})
    await admin.execute("delete from mainspring.events where tenant_id = $1 and seq = 1", board.tenant)
    report, found = await states(board)
    assert (report["ok"], found["drain"]) == (False, "bad")


async def test_only_an_operator_is_told(board):
    assert (await board.call("GET", "doctor", "member")).status_code == 403


async def test_a_database_that_is_away_is_a_finding_and_no_error(world, database):
    services = await wiring.build(Settings(database_url=database.url, pool_size=3))
    await services.pool.close()
    diagnosis = await services.doctor.examine(world.tenant)
    assert not diagnosis.ok
    assert "does not answer" in diagnosis.sentence
    assert {one.check for one in diagnosis.findings if one.state == "bad"} == {
        "log", "database", "schema", "walls", "transactions", "runners", "rules", "targets",
    }  # fmt: skip


# Readiness and loops ------------------------------------------------------------------------------------------------


async def test_readiness_says_all_that_it_looked_at(board):
    await board.settle()
    answer = (await board.client.get("/readyz?verbose")).json()
    checks = answer["checks"]
    assert answer["ready"]
    assert checks["schema"] == {"missing": []}
    assert set(checks["lag"]) == {"events", "seconds"}
    assert {"drain", "worker", "tick", "event tails", "keys"} <= set(checks["loops"])
    assert set(checks["loops"]["drain"]) == {"succeeded_seconds_ago", "failures", "error"}
    assert "checks" not in (await board.client.get("/readyz")).json()


async def test_a_loop_tells_how_it_does():
    fail = True

    async def once() -> bool:
        if fail:
            raise OSError("no luck")
        return False

    loop = Service("x", once, every_seconds=None)
    assert loop.health == Health(name="x", succeeded_seconds_ago=None, failures=0, error=None)
    await loop._round()
    assert loop.health == Health(name="x", succeeded_seconds_ago=None, failures=1, error="OSError: no luck")
    fail = False
    await loop._round()
    assert (loop.health.failures, loop.health.error) == (0, None)
    assert loop.health.succeeded_seconds_ago >= 0


async def test_requests_are_counted_by_verb_and_status(board):
    counted = {status: telemetry.requests.labels("card.show", status)._value for status in ("200", "404")}
    before = {status: value.get() for status, value in counted.items()}
    card = await board.post("cards", {"board": "OPS", "title": "x"})
    await board.get(f"cards/{card['key']}")
    await board.call("GET", "cards/OPS-99")
    assert {status: value.get() - before[status] for status, value in counted.items()} == {"200": 1, "404": 1}
    scraped = (await board.client.get("/metrics")).text
    for name in ("mainspring_requests_in_hand", "mainspring_db_connections", "mainspring_request_seconds"):
        assert name in scraped


async def test_where_a_request_came_from_is_on_its_events(board):
    given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    for headers, kept in (({"traceparent": given}, given), ({"traceparent": "nonsense"}, None), ({}, None)):
        answer = await board.call("POST", "cards", json={"board": "OPS", "title": "x"}, headers=headers)
        assert answer.status_code == 201
        async with board.services.db.tenant(board.tenant) as scope:
            head = await scope.fetchval("select traceparent from mainspring.events order by seq desc limit 1")
        assert head == kept
