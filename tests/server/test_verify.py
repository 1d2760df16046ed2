"""Verify on a database with a real little history, which is broken by hand in one place: each finding names its invariant.

The history holds work of every kind, some of it under way: uncorrupted it is clean, and so it is under load.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import httpx
import pytest

from mainspring import wiring
from mainspring.agents.silence import Silence
from mainspring.agents.verbs import RunVerbs
from mainspring.boards import verbs as board_verbs
from mainspring.config import Settings
from mainspring.operators.model import KindLimits
from mainspring.operators.verify import VerifyService
from mainspring.server.app import create_app
from mainspring.spine.drain import ENGINE_VERSION
from mainspring.spine.ports import ClaimRequest, NotOwed
from mainspring.wiring import Services
from tests.server.conftest import RULE, World, people

BOARD = {
    "key": "OPS",
    "name": "Operations",
    "states": [
        {"name": "todo"},
        {"name": "ready", "eligible": True},
        {"name": "doing"},
        {"name": "audit"},
        {"name": "review"},
        {"name": "stuck"},
        {"name": "done", "terminal": True},
    ],
    "reflect": {"done": "review", "failed": "stuck"},
}
NAMELESS = {
    "name": "letters",
    "when": {"kinds": ["card.moved"], "to_states": ["audit"]},
    "do": {"launch": {"agent": "echo", "prompt": "write to {{card.fields.who}}"}},
}
ONCE = {
    **RULE,
    "name": "once",
    "when": {"kinds": ["card.labeled"], "labels_all": ["go"]},
    "options": {"consume_label": True},
}


@pytest.fixture(scope="module")
async def database(databases) -> AsyncIterator[Any]:
    """A database of its own: here the engine's own rows are broken, too."""
    made = await databases.create("server")
    yield made
    await databases.drop(made)


@pytest.fixture(scope="module")
async def services(database) -> AsyncIterator[Services]:
    """A run that is silent once is lost."""
    settings = Settings(database_url=database.url, dev_mode=True, pool_size=12, run_attempts_max=1)
    built = await wiring.build(settings)
    yield built
    await built.stop()


@pytest.fixture(scope="module")
async def superuser(database) -> AsyncIterator[asyncpg.Connection]:
    """Bound by no wall, no foreign key and no trigger."""
    conn = await asyncpg.connect(**database.admin)
    await conn.execute("set session_replication_role = replica")
    yield conn
    await conn.close()


@asynccontextmanager
async def a_tenant(services: Services) -> AsyncIterator[World]:
    tenant, actors, tokens = await people(services)
    app = create_app(services)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=("127.0.0.1", 5))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield World(tenant=tenant, services=services, app=app, actors=actors, tokens=tokens, client=client)


async def moved(world, to="doing", *, settle=True, **more):
    card = await world.post("cards", {"board": "OPS", "title": "mend it", **more})
    await world.post(f"cards/{card['key']}/move", {"state": to})
    if settle:
        await world.settle()
    return card


async def begun(world, question=None):
    """A run that its runner has begun, and that asks something."""
    runner = await world.runner("echo")
    run = await runner.claim()
    claim = {"claim_id": run["claim_id"]}
    await runner.post(f"runs/{run['id']}/heartbeat", claim)
    if question is not None:
        await runner.post(f"runs/{run['id']}/ask", {**claim, "request_id": run["id"], "question": question})
    return run


async def drained(world):
    while (await world.services.spine.drain.run_once()).events:
        pass


async def taken(world):
    """Claim what is due, as a worker does that is then busy for long."""
    kinds = {"launch": 10.0, "reflect": 10.0}
    claimed = await world.services.spine.store.claim(
        ClaimRequest(worker="busy", lease_seconds=kinds, limit=10)
    )
    return claimed.effects


async def limits_and_pins(world):
    """A rule that is paused by its limit, one that was paused and resumed, and one that promotes."""
    updated = {**RULE, "when": {"kinds": ["card.updated"]}}
    await world.post("rules", {**updated, "name": "limited", "options": {"max_per_hour": 1}})
    await world.post("rules", {**updated, "name": "resumed"})
    promoting = {"kinds": ["card.labeled"], "labels_added": ["scribe"]}
    await world.post("rules", {"name": "pins", "when": promoting, "do": {"promote": {"agent": "scribe"}}})
    waiting = {
        "options": {"queued_timeout_seconds": 86_400},
        "when": {"kinds": ["card.labeled"], "labels_added": ["wait"]},
    }
    await world.post("rules", {**RULE, "name": "waits", **waiting})
    calling = {"kinds": ["custom.calls"]}
    await world.post(
        "rules", {"name": "calls", "when": calling, "do": {"webhook": {"url": "https://example.com/"}}}
    )
    await world.post("rules/resumed/pause", {"because": "to see what waits"})
    await world.post("cards", {"board": "OPS", "title": "limits"})
    for n in range(2):
        await world.call("PATCH", "cards/OPS-1", json={"priority": n + 1})
    await world.settle()
    await world.post("rules/resumed/resume", {"owed": "run"})
    await world.call("POST", "cards/OPS-1/labels", json={"add": ["scribe"]})
    await world.settle()
    for run in (await world.get("runs"))["data"]:
        await world.post(f"runs/{run['id']}/cancel")
    await world.call("POST", "cards/OPS-1/labels", json={"add": ["wait"]})
    await world.post("events", {"kind": "custom.nothing", "key": "once"})
    await world.settle()


async def agents_program(world: World, agent: str, *, takeover: bool = False) -> tuple[Any, Any]:
    """Begin a session of an agent; return it, and a way to send its words."""
    runner = await world.runner(agent)
    headers = {"Authorization": f"Bearer {runner.secret}"}

    async def send(method: str, path: str, body: Any = None) -> Any:
        answer = await world.client.request(method, f"/api/v1/{path}", headers=headers, json=body)
        assert answer.status_code in (200, 201), answer.text
        return answer.json()

    return await send("POST", "sessions", {"agent": agent, "takeover": takeover}), send


async def talked(world: World, superuser: asyncpg.Connection) -> None:
    """Messages of every fate: read, offered, waiting, held by a turn, held for a person, dropped, dead."""
    await world.post("channels", {"name": "general", "visibility": "open"})
    for agent in ("echo", "scribe"):
        await world.post("channels/general/members", {"account": agent})
    talk, said = "channels/general/messages", {"topic": "first"}
    await world.post(talk, {**said, "text": "@operator @member read this"}, who="member")
    await world.post(
        talk, {**said, "blocks": [{"type": "ask", "id": "q", "question": "well?", "options": []}]}
    )
    await world.settle()
    session, send = await agents_program(world, "echo")
    claim = {"claim_id": session["claim_id"]}
    one = f"sessions/{session['id']}"
    found = (await send("GET", f"{one}/inbox?claim_id={session['claim_id']}&wait=0"))["deliveries"]
    await send("POST", f"{one}/ack", {**claim, "deliveries": [found[0]["id"]]})
    await send("POST", f"{one}/heartbeat", {**claim, "turn": 1})
    speaking = {"id": session["id"], "claim_id": session["claim_id"], "turn": 1}
    await send("POST", talk, {**said, "text": "still at it", "session": speaking})
    dying, ends = await agents_program(world, "scribe")
    await ends("GET", f"sessions/{dying['id']}/inbox?claim_id={dying['claim_id']}&wait=0")
    await superuser.execute(
        "update mainspring.effects set crashes = 4 where tenant_id = $1 and worker = $2",
        world.tenant,
        dying["id"],
    )
    await ends("POST", f"sessions/{dying['id']}/settle", {"claim_id": dying["claim_id"], "state": "errored"})
    await superuser.execute(
        "update mainspring.sessions set lease_until = clock_timestamp() + interval '1 day' where lease_until is not null"
    )
    for n in range(22):
        await send(
            "POST",
            talk,
            {"topic": "second", "text": f"and {n}", "session": {**claim, "id": session["id"]}, "final": True},
        )
    await world.settle()


async def happened(world: World, superuser: asyncpg.Connection) -> None:
    """Let a little of everything happen; leave some of it under way."""
    operator = world.actors["operator"]
    await world.post("boards", BOARD)
    await world.services.agents.create(operator, handle="echo", slots=10)
    await world.services.agents.create(operator, handle="scribe")
    for rule in (RULE, NAMELESS, ONCE):
        await world.post("rules", rule)
    for name in ("edited", "deleted"):
        await world.post("rules", {**RULE, "name": name, "when": {"kinds": ["card.deleted"]}})
    await world.call("PATCH", "rules/edited", json={"when": {"kinds": ["card.promoted"]}})
    await world.post("rules/edited/disable")
    await world.call("DELETE", "rules/deleted")
    await limits_and_pins(world)
    for outcome in ("done", "failed", "blocked", "cancelled"):
        await moved(world)
        await (await world.runner("echo")).work(outcome, error="x" if outcome == "failed" else None)
        await world.settle()
    await moved(world)
    await begun(world)
    await superuser.execute(
        "update mainspring.runs set lease_until = clock_timestamp() - interval '1 s' where state = 'running'"
    )
    services = world.services
    silence = Silence(services.spine, services.db, RunVerbs(board_verbs), services.policy)
    assert await silence.expire_runs() == 1  # lost
    await moved(world)
    queued = (await world.get("runs", state="queued"))["data"][0]
    await world.post(f"runs/{queued['id']}/cancel")
    for _ in range(3):
        await moved(world, "audit")
    letters = [one["id"] for one in (await world.get("desk", kind="launch"))["data"]]
    await world.post("desk/replay", {"ids": letters[:1]})
    await world.post("desk/discard", {"ids": letters[1:2], "reason": "nobody to write to"})
    await talked(world, superuser)
    await moved(world, "ready", agent="echo")  # dispatched, and queued
    await world.post("cards", {"board": "OPS", "title": "gone", "labels": ["old"]})
    await world.call("DELETE", "cards/OPS-12")
    await world.post("cards", {"board": "OPS", "title": "one-shot"})
    await world.call("POST", "cards/OPS-13/labels", json={"add": ["go", "later"]})
    await world.settle()
    await begun(world, "Go on?")  # under way
    await moved(world, settle=False)
    await drained(world)
    assert len(await taken(world)) == 1  # being done
    await moved(world, settle=False)
    await drained(world)  # owed, and pending
    await moved(world, settle=False)  # not drained


@pytest.fixture(scope="module")
async def history(services, superuser) -> AsyncIterator[World]:
    """That tenant; a copy of all rows is kept, to mend with."""
    tenant, actors, tokens = await people(services)
    app = create_app(services)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=("127.0.0.1", 5))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        world = World(tenant=tenant, services=services, app=app, actors=actors, tokens=tokens, client=client)
        await happened(world, superuser)
        await superuser.execute("create schema kept")
        for table, columns in (await tables(superuser)).items():
            await superuser.execute(f"create table kept.{table} as select {columns} from mainspring.{table}")
        yield world


async def tables(superuser: asyncpg.Connection) -> dict[str, str]:
    """Return each table with those of its columns that somebody writes."""
    found = await superuser.fetch(
        """select table_name, string_agg(column_name, ', ') from information_schema.columns
            where table_schema = 'mainspring' and table_name <> 'schema_migrations' and is_generated = 'NEVER'
            group by table_name"""
    )
    return {row[0]: row[1] for row in found}


Corrupt = Callable[..., Awaitable[None]]


@pytest.fixture
async def corrupt(history, superuser) -> AsyncIterator[Corrupt]:
    """Run statements by hand, `$1` being the tenant; afterwards every row is as it was."""

    async def run(*statements: str) -> None:
        for statement in statements:
            await superuser.execute(statement, *([history.tenant] if "$1" in statement else []))

    yield run
    async with superuser.transaction():
        for table, columns in (await tables(superuser)).items():
            await superuser.execute(f"delete from mainspring.{table}")
            await superuser.execute(
                f"insert into mainspring.{table} ({columns}) select {columns} from kept.{table}"
            )


async def found_in(world: World, **query: Any) -> dict[str, list[str]]:
    """What verify finds, by invariant; warnings too."""
    report = await world.get("verify", **query)
    assert report["ok"] == all(one["ok"] or one["warning"] for one in report["checks"])
    assert report["warnings"] == sum(one["count"] for one in report["checks"] if one["warning"])
    found: dict[str, list[str]] = {}
    for one in report["checks"]:
        if not one["ok"]:
            found.setdefault(one["invariant"], []).extend(one["violations"])
    return found


# nothing is wrong ---------------------------------------------------------------------------------------------


async def test_a_history_of_every_kind_with_work_under_way_is_clean(history):
    report = await history.get("verify")
    assert (report["ok"], report["warnings"]) == (True, 0), [one for one in report["checks"] if not one["ok"]]
    assert report["checks"][0]["examined"] == report["through_seq"] > 50
    nothing = [one["what"] for one in report["checks"] if one["examined"] == 0]
    assert nothing == []
    runs = {one["state"] for one in (await history.get("runs", limit=50))["data"]}
    assert runs >= {"done", "failed", "blocked", "cancelled", "lost", "queued", "running"}
    effects = {one["state"] for one in (await history.get("effects", limit=50))["data"]}
    assert effects == {"done", "dead", "discarded", "claimed", "pending"}


async def test_what_is_drained_settled_and_trimmed_while_verify_reads_is_no_finding(history, corrupt):
    """Everything that is under way ends, and what has ended is trimmed, between the audit and the other checks."""
    await corrupt("select 1")  # puts back what is moved here
    services = history.services

    async def meanwhile() -> None:
        await services.spine.run_once()
        await (await history.runner("echo")).work("done")
        await services.spine.run_once()
        async with services.spine.store.system("retention") as tx:
            assert await services.spine.store.trim(tx, done_seconds=0, limit=1_000) > 5

    class Meanwhile:
        name, kinds = "meanwhile", None

        def __init__(self) -> None:
            self.came = 0

        async def load(self, _scope: Any, _events: Any) -> None:
            self.came += 1
            if self.came == 1:
                await asyncio.create_task(meanwhile(), context=contextvars.Context())

        def judge(self, _event: Any, _context: Any) -> NotOwed:
            return NotOwed("nothing")

    hook = Meanwhile()
    limits = KindLimits(
        attempts_max={name: kind.max_attempts for name, kind in services.spine.kinds.items()},
        run_attempts_max=services.policy.attempts_max,
    )
    before = (await history.get("verify"))["through_seq"]
    report = await VerifyService(services.db, [hook, *services.spine.obligations], limits).verify(
        history.tenant
    )
    assert hook.came > 0
    assert report.ok, [check for check in report.checks if not check.ok]
    assert (report.through_seq, report.warnings) == (before, 0)
    assert (await history.get("verify"))["through_seq"] > before


@dataclass(slots=True)
class Busy:
    """Everybody at work at once, until people have had enough."""

    world: World
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def people(self) -> None:
        for _ in range(8):
            said = {"board": "OPS", "title": "x", "agent": "echo", "labels": ["go"]}
            card = await self.world.post("cards", said)
            for state in ("doing", "ready", "audit"):
                await self.world.post(f"cards/{card['key']}/move", {"state": state})

    async def operators(self) -> None:
        for n in range(8):
            await self.world.post(f"rules/once/{'enable' if n % 2 else 'disable'}")
            if letters := (await self.world.get("desk", kind="launch"))["data"]:
                await self.world.post("desk/replay", {"ids": [letters[0]["id"]]})

    async def engine(self) -> None:
        while not self.over.is_set():
            await self.world.services.spine.drain.run_once()
            await self.world.services.spine.worker.run_once()

    async def runners(self) -> None:
        runner = await self.world.runner("echo")
        while not self.over.is_set():
            if (run := await runner.claim()) is not None:
                said = {"claim_id": run["claim_id"]}
                await runner.post(f"runs/{run['id']}/heartbeat", said)
                await runner.post(f"runs/{run['id']}/complete", {**said, "outcome": "done"})

    async def auditors(self) -> int:
        n = 0
        while not self.over.is_set():
            assert await found_in(self.world) == {}
            n += 1
        return n


@pytest.mark.slow
async def test_verify_is_clean_under_load(services):
    async with a_tenant(services) as world:
        await world.post("boards", BOARD)
        await services.agents.create(world.actors["operator"], handle="echo", slots=10)
        for rule in (RULE, NAMELESS, ONCE):
            await world.post("rules", rule)
        busy = Busy(world)
        async with asyncio.TaskGroup() as group:
            audits = group.create_task(busy.auditors())
            group.create_task(busy.engine())
            group.create_task(busy.runners())
            await asyncio.gather(busy.people(), busy.people(), busy.operators())
            busy.over.set()
        assert audits.result() > 3
        await world.settle()
        assert await found_in(world) == {}


async def test_what_a_paused_rule_holds_is_no_finding(history, corrupt):
    await corrupt(
        "update mainspring.effects set not_before = 'infinity' where tenant_id = $1 and state = 'pending'"
        " and rule_id is not null",
    )
    await history.post("rules/doing to echo/pause", {"because": "too many"})
    assert await found_in(history) == {}


# what was owed, and what stands (I-1, I-2, I-3) ---------------------------------------------------------------


async def test_a_lost_effect_is_found_by_the_event_that_owes_it(history, corrupt):
    await corrupt("delete from mainspring.effects where tenant_id = $1 and state = 'pending'")
    found = await found_in(history)
    assert list(found) == ["I-1"]
    assert any("card.moved owes launch" in one and "nothing stands for it" in one for one in found["I-1"])
    assert await found_in(history, since=10_000) == {}


async def test_what_was_trimmed_by_age_is_older_than_kept_and_not_lost(history, corrupt):
    await corrupt(
        "update mainspring.events set occurred_at = occurred_at - interval '8 days' where tenant_id = $1",
        "update mainspring.runs set created_at = created_at - interval '8 days' where tenant_id = $1",
        "delete from mainspring.effects where tenant_id = $1 and state in ('done', 'pending')",
    )
    report = await history.get("verify")
    assert report["ok"], [one for one in report["checks"] if not one["ok"]]
    assert "effects are older than kept" in report["checks"][0]["note"]


async def test_an_effect_that_nobody_owes_is_found(history, corrupt):
    await corrupt(
        "update mainspring.effects set key = 'somebody' where tenant_id = $1 and key like 'dispatch:%'"
    )
    found = await found_in(history)
    assert any("no verdict owes it" in one for one in found["I-1"])
    assert any("has 0 runs" in one for one in found["I-8"])


async def test_two_effects_of_one_name_are_found_behind_a_broken_index(history, corrupt):
    twice = """insert into mainspring.effects
        select (jsonb_populate_record(e, jsonb_build_object('id', gen_random_uuid()))).*
          from mainspring.effects e where e.tenant_id = $1 and e.state = 'dead'"""
    await corrupt("alter table mainspring.effects drop constraint effects_key", twice)
    try:
        found = await found_in(history)
    finally:
        await corrupt(
            "delete from mainspring.effects",
            "alter table mainspring.effects add constraint effects_key unique (tenant_id, kind, key)",
        )
    assert any("2 effects are named launch" in one for one in found["I-3"])


async def test_an_event_that_no_judge_can_read_any_more_is_found(history, corrupt):
    await corrupt(
        "update mainspring.events set data = '{}' where tenant_id = $1 and kind = 'card.created' and seq > 10"
    )
    found = await found_in(history)
    assert any("cannot be judged by dispatch (KeyError" in one for one in found["I-1"])


class Breaks:
    """An obligation with a defect: it can judge no event, and not the news of its own break either."""

    name, kinds = "breaks", None

    async def load(self, _scope: Any, _events: Any) -> None:
        return None

    def judge(self, _event: Any, _context: Any) -> NotOwed:
        raise ZeroDivisionError


@pytest.mark.slow
async def test_what_breaks_on_the_news_of_its_own_break_is_no_finding(fresh_database):
    database = await fresh_database("server")
    services = await wiring.build(Settings(database_url=database.url, dev_mode=True))
    services.spine.register_obligation(Breaks())
    async with a_tenant(services) as world:
        await world.post("boards", BOARD)
        await world.settle()
        await moved(world)
        letters = (await world.get("effects?kind=event", limit=200))["data"]
        assert {one["state"] for one in letters} == {"dead"}
        assert any(one["payload"].get("untold") for one in letters)
        assert await found_in(world) == {}
    await services.stop()


# each corruption, by hand, in one place -----------------------------------------------------------------------

A_LAUNCH = "tenant_id = $1 and kind = 'launch' and rule_id is not null and state = 'done'"
A_CHANGE = "tenant_id = $1 and until_seq is not null and enabled"

CORRUPTIONS = {
    # the log and who reads it
    "last event deleted": (
        "delete from mainspring.events where tenant_id = $1 and seq = (select head from mainspring.log_heads where tenant_id = $1)",
        "I-4", "and its head says",
    ),
    "last events deleted": (
        "delete from mainspring.events where tenant_id = $1 and seq > (select head - 5 from mainspring.log_heads where tenant_id = $1)",
        "I-4", "and its head says",
    ),
    "head before the log": ("update mainspring.log_heads set head = 1 where tenant_id = $1", "I-4", "its head says 1"),
    "no head": ("delete from mainspring.log_heads where tenant_id = $1", "I-4", "the log has no head"),
    "no cursor": ("delete from mainspring.cursors where tenant_id = $1", "I-4", "no cursor named effects"),
    "cursor ahead": ("update mainspring.cursors set position = 999 where tenant_id = $1", "I-4", "stands at 999"),
    "cursor gone back": ("update mainspring.cursors set position = 9 where tenant_id = $1", "I-4", "gone back to 9"),
    "hole": ("delete from mainspring.events where tenant_id = $1 and seq = 2", "I-4", "no event between 1 and 3"),
    "first event deleted": ("delete from mainspring.events where tenant_id = $1 and seq = 1", "I-4", "no event between 0 and 2"),
    "effect of its own child": (
        "update mainspring.events set cause_seq = seq + 1 where tenant_id = $1 and cause_seq is not null", "I-4", "no earlier one",
    ),
    "no engine": ("delete from mainspring.engine", "I-4", "does not say its engine version"),
    "newer engine": ("update mainspring.engine set engine_version = 99", "I-4", f"engine version 99, and this server drains up to {ENGINE_VERSION}"),
    "rules unseen": ("update mainspring.log_heads set rules_seq = 0 where tenant_id = $1", "I-4", "would not see it"),
    # rules
    "rule ends without successor": (
        "update mainspring.rule_versions set until_seq = 30 where tenant_id = $1 and until_seq is null",
        "shape", "has no version that judges what comes after event 30",
    ),
    "gap between versions": (
        "update mainspring.rule_versions set until_seq = from_seq where tenant_id = $1 and until_seq > from_seq",
        "shape", "has no version that judges events",
    ),
    "versions overlap": (
        f"update mainspring.rule_versions set until_seq = until_seq + 5 where {A_CHANGE}", "shape", "two versions that judge the same",
    ),
    "deleted rule judges on": (
        """update mainspring.rule_versions v set until_seq = null from mainspring.rules r
            where r.tenant_id = $1 and v.rule_id = r.id and r.deleted_at is not null""",
        "shape", "is deleted, and its version 1 judges on",
    ),
    "version lost": (
        """delete from mainspring.rule_versions v using mainspring.rules r
            where r.tenant_id = $1 and v.rule_id = r.id and v.version = r.version""",
        "shape", "which is not there",
    ),
    "version without its beginning": ("update mainspring.rule_versions set from_seq = null where tenant_id = $1", "shape", "judges from no seq"),
    "rule says something else": (
        "update mainspring.rule_versions set terms = '{\"kinds\": [\"card.created\"]}' where tenant_id = $1", "shape", "does not say so",
    ),
    "rule switched off": (
        "update mainspring.rules set enabled = false, paused_at = null, paused_because = null where tenant_id = $1", "shape", "and its last version is",
    ),
    # effects
    "paused behind its log's back": (
        "update mainspring.rules set paused_at = clock_timestamp(), paused_because = 'x' where tenant_id = $1 and name = 'once'",
        "shape", "is paused: x, and its last event",
    ),
    "pause forgotten": (
        "update mainspring.rules set paused_at = null, paused_because = null where tenant_id = $1 and name = 'limited'",
        "shape", "says that it is paused: max_per_hour",
    ),
    "given up in advance": ("update mainspring.rules set given_up_seq = 9999 where tenant_id = $1", "shape", "gives up what it owes up to event 9999"),
    "resume forgotten": ("update mainspring.rules set waived_seq = 0 where tenant_id = $1", "shape", "up to event 0 and gives up"),
    "secret lost": ("delete from mainspring.webhook_secrets where tenant_id = $1", "shape", "has no secret to sign with"),
    "launches uncounted": ("delete from mainspring.firings where tenant_id = $1", "shape", "is done, and no limit counts it"),
    "launch counted for another event": (
        "update mainspring.firings set event_seq = event_seq + 1 where tenant_id = $1", "shape", "and is counted for rule",
    ),
    "target down for ever": (
        """insert into mainspring.breakers (tenant_id, target, failures, trips, open_until, down_since)
           values ($1, 'smtp', 5, 1, 'infinity', clock_timestamp())""",
        "shape", "nothing is sent to smtp before infinity",
    ),
    "key of no event": ("update mainspring.event_keys set seq = 9999 where tenant_id = $1", "shape", "stands for event 9999, which is not there"),
    "number given twice": ("update mainspring.boards set next_number = 1 where tenant_id = $1", "shape", "would call its next card OPS-1"),
    "card never created": (
        "update mainspring.events set kind = 'custom.nothing' where tenant_id = $1 and kind = 'card.created'", "shape", "was never created",
    ),
    "question never asked": (
        "update mainspring.events set kind = 'custom.nothing' where tenant_id = $1 and kind = 'ask.opened'", "I-5", "and its events are none",
    ),
    "question answered by nobody": (
        "update mainspring.asks set state = 'answered', answer = 'yes', answered_by = gen_random_uuid(), ended_at = clock_timestamp() where tenant_id = $1",
        "I-5", "is answered, and its events are ask.opened",
    ),
    "run trusted further than its cause": (
        "update mainspring.runs set trust = 'stranger' where tenant_id = $1", "I-5", "is trusted as stranger, at depth",
    ),
    "run nearer than its cause": ("update mainspring.runs set depth = 0 where tenant_id = $1", "I-5", "at depth 0, and event"),
    "time to wait forgotten": (
        "update mainspring.runs set queued_timeout_seconds = 5 where tenant_id = $1 and state = 'queued'", "shape", "its time to wait for a runner never ends",
    ),
    "time to wait from nowhere": (
        "update mainspring.runs set queued_until = clock_timestamp() where tenant_id = $1 and state = 'queued'", "shape", "may wait for ever",
    ),
    "time to wait of another rule": (
        "update mainspring.runs set queued_timeout_seconds = 5 where tenant_id = $1", "shape", "waits for 5 s on a runner with the labels {}",
    ),
    "labels of another rule": (
        "update mainspring.runs set runner_labels = '{gpu}' where tenant_id = $1", "shape", "on a runner with the labels {gpu}",
    ),
    "option of a newer release": (
        """update mainspring.rule_versions set options = options || '{"moon": "full"}' where tenant_id = $1""", "shape", "which does not say so",
    ),
    "term of a newer release": (
        """update mainspring.rule_versions set terms = terms || '{"moon": ["full"]}' where tenant_id = $1""", "shape", "which does not say so",
    ),
    "event of a launch forgotten": (f"update mainspring.effects set event_seq = null where {A_LAUNCH}", "I-2", "names no event"),
    "... and seen by its verdict": (f"update mainspring.effects set event_seq = null where {A_LAUNCH}", "I-1", "it stands for event none"),
    "event of a launch unknown": (f"update mainspring.effects set event_seq = 999 where {A_LAUNCH}", "I-2", "names event 999"),
    "event of a launch swapped": (f"update mainspring.effects set event_seq = 1 where {A_LAUNCH}", "I-1", "it stands for event 1"),
    "version of a launch unknown": (f"update mainspring.effects set rule_version = 7 where {A_LAUNCH}", "I-2", "names version 7"),
    "rule of a launch forgotten": (f"update mainspring.effects set rule_id = null where {A_LAUNCH}", "I-1", "of rule none"),
    "launch of another agent": (
        f"""update mainspring.effects set payload = payload || '{{"agent": "scribe"}}' where {A_LAUNCH}""", "I-1", '"agent": "scribe"',
    ),
    "... than its run's": (
        f"""update mainspring.effects set payload = payload || '{{"agent": "scribe"}}' where {A_LAUNCH}""", "I-8", "is of agent echo",
    ),
    "launch of another card": (
        f"update mainspring.effects set payload = payload || jsonb_build_object('card_id', gen_random_uuid()) where {A_LAUNCH}",
        "I-1", "it says",
    ),
    "pending launch of another card": (
        """update mainspring.effects set payload = payload || '{"card": "OPS-1"}' where tenant_id = $1 and state = 'pending'""",
        "I-1", "it says",
    ),
    "dispatch of another agent": (
        """update mainspring.effects set payload = payload || jsonb_build_object('agent_id', gen_random_uuid())
            where tenant_id = $1 and key like 'dispatch:%'""",
        "I-1", "it says",
    ),
    "effect depends on a target": (f"update mainspring.effects set target = 'smtp' where {A_LAUNCH}", "I-1", "it depends on smtp"),
    "attempts beyond": ("update mainspring.effects set attempts = 99 where tenant_id = $1", "I-7", "has spent 99 attempts of 12"),
    "dead of no reason": (
        "update mainspring.effects set outcome = 'tired' where tenant_id = $1 and state = 'dead'", "I-7", "no reason of the five",
    ),
    "exhausted before its time": (
        "update mainspring.effects set outcome = 'exhausted' where tenant_id = $1 and state = 'dead'", "I-7", "is exhausted after 1 attempts of 12",
    ),
    "death not told": (
        "update mainspring.events set kind = 'custom.nothing' where tenant_id = $1 and kind = 'effect.dead'",
        "I-5", "is dead, and its last event is",
    ),
    "death said to be none of the log's": (
        """with gone as (delete from mainspring.events where tenant_id = $1 and kind = 'effect.dead')
           update mainspring.effects set payload = payload || '{"untold": true}' where tenant_id = $1 and state = 'dead'""",
        "I-5", "and its last event is",
    ),
    "dead without dying": (
        """update mainspring.effects set state = 'dead', outcome = 'failed', settled_at = clock_timestamp()
            where tenant_id = $1 and state = 'pending'""",
        "I-5", "is dead, and its last event is none",
    ),
    "dead come to life": (
        "update mainspring.effects set state = 'done' where tenant_id = $1 and state = 'dead'", "I-5", "neither replayed nor discarded",
    ),
    "dead letter lost": ("delete from mainspring.effects where tenant_id = $1 and state = 'dead'", "I-5", "and is gone"),
    "discard not told": (
        "update mainspring.events set kind = 'custom.nothing' where tenant_id = $1 and kind = 'effect.discarded'",
        "I-5", "is discarded, and its last event is effect.dead",
    ),
    "claim on what has ended": (
        "update mainspring.effects set claim_id = gen_random_uuid() where tenant_id = $1 and state = 'done'", "shape", "is done, and has a claim",
    ),
    "held without a pause": (
        "update mainspring.effects set not_before = 'infinity' where tenant_id = $1 and state = 'pending'",
        "shape", "held until infinity, and its rule is not paused",
    ),
    "due in a thousand years": (
        "update mainspring.effects set not_before = '3026-01-01' where tenant_id = $1 and state = 'pending'", "shape", "held until 3026",
    ),
    "hidden from claims": ("delete from mainspring.due_tenants where tenant_id = $1", "shape", "due_tenants says nothing"),
    # runs
    "run of no event": ("update mainspring.runs set event_seq = null where tenant_id = $1", "I-2", "names no event"),
    "run of an unknown event": ("update mainspring.runs set event_seq = 999 where tenant_id = $1", "I-2", "names event 999"),
    "run of another event": (
        "update mainspring.runs set event_seq = 1 where tenant_id = $1 and state = 'done'", "I-2", "has another event_seq than its event",
    ),
    "run of another agent": (
        "update mainspring.runs set agent_id = (select id from mainspring.accounts where tenant_id = $1 and handle = 'scribe') where tenant_id = $1",
        "I-8", "is of agent scribe",
    ),
    "run without its launch": ("update mainspring.runs set effect_key = effect_key || 'x' where tenant_id = $1", "I-8", "is done, and has 0 runs"),
    "launch of a run dropped": (f"update mainspring.effects set state = 'dropped' where {A_LAUNCH}", "I-8", "is dropped, and has a run"),
    "attempts of a run beyond": ("update mainspring.runs set attempts = 99 where tenant_id = $1", "I-7", "has spent 99 attempts of 1"),
    "run never queued": (
        "update mainspring.events set kind = 'custom.nothing' where tenant_id = $1 and kind = 'run.queued'", "I-2", "never said to be queued",
    ),
    **{
        f"run {state} not told": (
            f"update mainspring.events set kind = 'custom.nothing' where tenant_id = $1 and kind = 'run.{state}'",
            "I-5", f"is {state}, and its last event is run.",
        )
        for state in ("done", "failed", "lost", "blocked", "cancelled")
    },
    "run done by hand": (
        "update mainspring.runs set state = 'done', ended_at = clock_timestamp() where tenant_id = $1 and state = 'queued'",
        "I-5", "is done, and its last event is run.queued",
    ),
    "attempt of a run lost": ("delete from mainspring.run_attempts where tenant_id = $1", "I-5", "no attempt of its claim is open"),
    "attempt that never ended": (
        "update mainspring.run_attempts set ended_at = null where tenant_id = $1", "I-5", "never ended",
    ),
    "run queued for ever": (
        "update mainspring.runs set not_before = 'infinity' where tenant_id = $1 and state = 'queued'",
        "shape", "may not be claimed before infinity",
    ),
    # what is said, and delivered
    "message never posted": (
        "update mainspring.events set kind = 'custom.nothing' where tenant_id = $1 and kind = 'message.posted'", "I-10", "was never posted",
    ),
    "message owed to nobody knows whom": (
        "update mainspring.events set kind = 'custom.nothing' where tenant_id = $1 and kind = 'message.settled'",
        "I-10", "has settled, and no event says to whom it is owed",
    ),
    "message settled ahead of itself": (
        """update mainspring.events set data = jsonb_set(data, '{message,revision}', '9') where tenant_id = $1 and kind = 'message.settled'""",
        "I-10", "is at revision 1, and settled at revision 9",
    ),
    "inbox emptied": ("delete from mainspring.inbox_items where tenant_id = $1", "I-10", "whose inbox it is not in"),
    "delivery lost": (
        "delete from mainspring.effects where tenant_id = $1 and family = 'offered' and state = 'claimed'", "I-1", "and nothing stands for it",
    ),
    "delivery of another message": (
        "update mainspring.effects set payload = payload || jsonb_build_object('message_id', gen_random_uuid()) where tenant_id = $1 and family = 'offered'",
        "I-1", "it says",
    ),
    "... which is not there": (
        "update mainspring.effects set payload = payload || jsonb_build_object('message_id', gen_random_uuid()) where tenant_id = $1 and family = 'offered'",
        "shape", "which is not there",
    ),
    "delivery nobody owes": (
        """update mainspring.effects set key = key || '0' where tenant_id = $1 and family = 'offered' and state = 'claimed'""", "I-1", "and no verdict owes it",
    ),
    "delivery in another topic": (
        "update mainspring.effects set topic_id = gen_random_uuid() where tenant_id = $1 and family = 'offered'", "shape", "in topic",
    ),
    "delivery to somebody else": (
        "update mainspring.effects set recipient_id = gen_random_uuid() where tenant_id = $1 and family = 'offered'", "shape", ") is to ",
    ),
    "delivery held by nobody": (
        "update mainspring.effects set worker = 'somebody' where tenant_id = $1 and family = 'offered' and state = 'claimed'",
        "shape", "is offered to somebody, which is no live session",
    ),
    "delivery held by what has ended": (
        "update mainspring.sessions set lease_until = null, state = 'lost', ended_at = clock_timestamp() where tenant_id = $1 and lease_until is not null",
        "shape", "which is no live session of its recipient",
    ),
    "delivery that is taken back by a clock": (
        "update mainspring.effects set lease_until = clock_timestamp() + interval '1 h' where tenant_id = $1 and family = 'offered' and state = 'claimed'",
        "shape", "not for as long as its session lives",
    ),
    "delivery that ended more than it may": (
        "update mainspring.effects set crashes = 5 where tenant_id = $1 and family = 'offered' and state = 'pending'", "shape", "has ended 5 sessions of 5, and is pending",
    ),
    "delivery dead before its time": (
        "update mainspring.effects set crashes = 1 where tenant_id = $1 and family = 'offered' and state = 'dead'", "shape", "has ended 1 sessions of 5, and is dead",
    ),
    "delivery held though a person spoke": (
        """with spoke as (update mainspring.topics set hops = 0 where tenant_id = $1)
           update mainspring.effects set created_at = created_at - interval '2 min' where tenant_id = $1 and family = 'offered'""",
        "shape", "held until infinity, and a person has spoken",
    ),
    "held past its session": (
        "update mainspring.sessions set settled_turn = turn where tenant_id = $1 and lease_until is not null", "I-13", "is past its turn 1",
    ),
    "held by nobody": ("update mainspring.messages set session_id = gen_random_uuid() where tenant_id = $1 and settled_at is null", "I-13", "by one that is not there"),
    "held and settled": (
        "update mainspring.messages set settled_at = null, settled_by = null, turn = 7, session_id = gen_random_uuid() where tenant_id = $1 and settled_by = 'final'",
        "I-13", "says that it has settled",
    ),
    "held and owed": (
        "update mainspring.messages set settled_at = null, settled_by = null, turn = 7, session_id = gen_random_uuid() where tenant_id = $1 and settled_by = 'final'",
        "I-13", "and delivery",
    ),
    "hole in a channel": (
        "delete from mainspring.messages where tenant_id = $1 and channel_seq = 2", "shape", "its last is",
    ),
    "channel that forgot its last": ("update mainspring.channels set last_seq = 99 where tenant_id = $1", "shape", "and it says 99"),
    "topic of another channel": ("update mainspring.topics set channel_id = gen_random_uuid() where tenant_id = $1", "shape", "and its topic"),
    "topic that forgot its last": ("update mainspring.topics set last_seq = 99 where tenant_id = $1", "shape", "was last spoken in at"),
    "session ended and not told": (
        "update mainspring.events set kind = 'custom.nothing' where tenant_id = $1 and kind = 'session.ended'", "shape", "is errored, and its last event is session.started",
    ),
    "session ready in a turn": ("update mainspring.sessions set state = 'ready' where tenant_id = $1 and state = 'working'", "shape", "and its turn 1 has not ended"),
    "session of another agent": ("update mainspring.sessions set agent_id = gen_random_uuid() where tenant_id = $1", "shape", "which is of another agent"),
    # cards
    "card in no state of its board": ("update mainspring.cards set state = 'limbo' where tenant_id = $1", "shape", "board OPS has no such state"),
    "card changed and not told": (
        "update mainspring.cards set title = 'another', version = version + 1 where tenant_id = $1", "I-2", "another title, version than its last event",
    ),
    "label lost": ("delete from mainspring.card_labels where tenant_id = $1", "I-2", "another labels than its last event"),
    "card deleted and not told": (
        "update mainspring.cards set deleted_at = clock_timestamp() where tenant_id = $1", "I-2", "is deleted, and its last event is",
    ),
    "eligible and not to be dispatched": (
        "update mainspring.cards set eligible_version = null, dispatched_version = null where tenant_id = $1",
        "shape", "is pinned, in ready, and is not to be dispatched",
    ),
    "eligible by no event": (
        "update mainspring.cards set eligible_seq = 1 where tenant_id = $1 and eligible_version is not null", "shape", "event 1 does not say so",
    ),
    "dispatched without a run": (
        "update mainspring.cards set eligible_version = 1, dispatched_version = 1 where tenant_id = $1", "I-17", "0 runs were made for it",
    ),
    "board answers with no state": (
        """update mainspring.boards set reflect = '{"done": "nowhere"}' where tenant_id = $1""", "shape", "a state that it has not",
    ),
    "label spent twice": (
        "update mainspring.events set kind = 'card.updated' where tenant_id = $1 and kind = 'card.unlabeled'", "I-8", "taken off 0 times",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("statement", "invariant", "sentence"), CORRUPTIONS.values(), ids=CORRUPTIONS)
async def test_each_corruption_is_named_by_its_invariant(history, corrupt, statement, invariant, sentence):
    await corrupt(statement)
    found = await found_in(history)
    assert any(sentence in one for one in found.get(invariant, [])), found


async def test_what_was_deferred_for_too_long_is_exhausted_before_its_attempts_are(history, corrupt):
    await corrupt(
        "update mainspring.effects set outcome = 'exhausted', deferrals = 9 where tenant_id = $1 and state = 'dead'"
    )
    assert "I-7" not in await found_in(history)


# what is owed, and nobody does --------------------------------------------------------------------------------

OVERDUE = {
    "an effect whose worker is gone": (
        "update mainspring.effects set lease_until = clock_timestamp() - interval '2 min' where tenant_id = $1 and state = 'claimed' and family = 'executed'",
        "is held by busy, whose lease ran out 00:02:00 ago",
    ),
    "an effect that nobody takes": (
        """with due as (update mainspring.due_tenants set next_due = '-infinity' where tenant_id = $1)
           update mainspring.effects set not_before = clock_timestamp() - interval '3 h'
            where tenant_id = $1 and state = 'pending' and not_before < 'infinity'""",
        "1 pending effects of kind launch are due, and nobody takes them, the oldest for 03:00:00",
    ),
    "events that nobody drains": (
        """update mainspring.events e set occurred_at = clock_timestamp() - interval '5 min'
             from mainspring.cursors c where e.tenant_id = $1 and c.tenant_id = $1 and e.seq > c.position""",
        "are not drained, the oldest for 00:05:00",
    ),
    "a session that says nothing": (
        "update mainspring.sessions set lease_until = clock_timestamp() - interval '2 min' where tenant_id = $1 and lease_until is not null",
        "and its lease ran out 00:02:00 ago",
    ),
    "a run whose runner is gone": (
        "update mainspring.runs set lease_until = clock_timestamp() - interval '10 min' where tenant_id = $1 and state = 'running'",
        "the lease of its runner ran out 00:10:00 ago",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("statement", "sentence"), OVERDUE.values(), ids=OVERDUE)
async def test_what_is_overdue_is_told_with_its_age_and_breaks_nothing(history, corrupt, statement, sentence):
    await corrupt(statement)
    report = await history.get("verify")
    [check] = [one for one in report["checks"] if one["warning"]]
    assert any(sentence in one for one in check["violations"]), check
    assert (report["ok"], report["warnings"]) == (True, check["count"])
    assert check["count"] > 0


async def test_what_is_a_little_late_is_no_warning(history, corrupt):
    await corrupt(
        "update mainspring.due_tenants set next_due = '-infinity' where tenant_id = $1",
        "update mainspring.effects set lease_until = clock_timestamp() - interval '50 s' where tenant_id = $1 and state = 'claimed' and family = 'executed'",
        "update mainspring.effects set not_before = clock_timestamp() - interval '50 s' where tenant_id = $1 and state = 'pending'",
    )
    assert await found_in(history) == {}


async def test_deliveries_that_nobody_reads_are_told_and_no_finding(history, corrupt):
    await corrupt(
        "update mainspring.effects set not_before = clock_timestamp() - interval '2 days'"
        " where tenant_id = $1 and family = 'offered' and state = 'pending' and not_before < 'infinity'"
    )
    report = await history.get("verify")
    [check] = [one for one in report["checks"] if one["warning"]]
    assert check["ok"]
    assert "deliveries wait to be read, the oldest for 2 days" in check["note"]


async def test_runs_without_a_runner_are_told_and_no_finding(history, corrupt):
    await corrupt(
        "update mainspring.runs set not_before = clock_timestamp() - interval '2 days' where tenant_id = $1 and state = 'queued'"
    )
    report = await history.get("verify")
    [check] = [one for one in report["checks"] if one["warning"]]
    assert check["ok"]
    assert "runs wait for a runner, the oldest for 2 days" in check["note"]
