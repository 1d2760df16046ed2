"""Every command and every loop locks rows in the one order: looked at after each statement, on a real database.

A command that is added and not carried out here fails, so its order is known before it meets another's.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
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
from mainspring.ids import new_id
from mainspring.migrations.deadlines import DEADLINES as PRODUCT_DEADLINES
from mainspring.rooms import Actor
from mainspring.server.app import create_app
from mainspring.spine.effects import NewEffect
from mainspring.spine.events import Event
from mainspring.spine.ports import Owes, Verdict
from mainspring.stores.postgres.deadlines import DEADLINES, age
from mainspring.wiring import Services
from tests.locks.watch import Seen, Step, Watch, watch_of, watching
from tests.server.conftest import people

pytestmark = pytest.mark.slow

# They arm a fault in the process, or ask the fabric, and touch no database.
NO_COMMANDS = {
    ("POST", "/api/v1/dev/faults"),
    ("DELETE", "/api/v1/dev/faults"),
    ("POST", "/api/v1/desk/parked/{seq}/replay"),
    ("DELETE", "/api/v1/desk/parked/{seq}"),
}
# Statements that lock rows of several tables: in which order they do so inside is for whoever writes one to see to.
TOGETHER = {
    "settle": {"effects", "due_tenants"},
    "free_held": {"effects", "due_tenants"},
}
BOARD = {
    "key": "OPS",
    "name": "Operations",
    "states": [
        {"name": "todo"},
        {"name": "ready", "eligible": True},
        {"name": "doing"},
        {"name": "hook"},
        {"name": "review"},
        {"name": "done", "terminal": True},
    ],
    "reflect": {"running": "doing", "done": "review", "failed": "todo"},
}


def rule(name: str, do: dict[str, Any], *, to: str | None = None, **options: Any) -> dict[str, Any]:
    when: dict[str, Any] = {"kinds": ["card.moved"], "to_states": [to]}
    if to is None:
        when = {"kinds": ["card.labeled"], "labels_all": [name]}
    return {"name": name, "when": when, "do": do, "options": options}


LAUNCH = {"launch": {"agent": "echo", "prompt": "{{card.title}}"}}
NAMELESS = {"launch": {"agent": "echo", "prompt": "{{card.fields.who}}"}}


@dataclass(slots=True)
class Tour:
    """One tenant, through everything that can be done to it."""

    services: Services
    client: httpx.AsyncClient
    tokens: dict[str, str]
    actors: dict[str, Actor]
    admin: asyncpg.Connection
    watch: Watch
    templates: dict[tuple[str, str], re.Pattern[str]]
    done: set[tuple[str, str]] = field(default_factory=set)
    kept: dict[str, Any] = field(default_factory=dict)

    async def send(self, method: str, path: str, body: Any = None, who: str = "operator") -> Any:
        """Send a command, with a key where it takes one; it must succeed."""
        self.watch.label = f"{method} {path}"
        headers = {"Authorization": f"Bearer {self.tokens[who]}", "Idempotency-Key": str(new_id())}
        answer = await self.client.request(method, f"/api/v1/{path}", headers=headers, json=body)
        assert answer.is_success, f"{method} {path}: {answer.text}"
        bare = f"/api/v1/{path}".partition("?")[0]
        matching = [
            known
            for known, pattern in self.templates.items()
            if known[0] == method and pattern.fullmatch(bare)
        ]
        self.done.add(min(matching, key=lambda known: known[1].count("{")))
        return answer.json() if answer.content else None

    async def settle(self) -> None:
        self.watch.label = "run_once"
        await self.services.spine.run_once()

    async def later(self, seconds: float) -> None:
        await age(self.admin, seconds, {**DEADLINES, **PRODUCT_DEADLINES})

    async def card(self, to: str | None = None, **more: Any) -> str:
        key: str = (await self.send("POST", "cards", {"board": "OPS", "title": "a card", **more}))["key"]
        if to is not None:
            await self.send("POST", f"cards/{key}/move", {"state": to})
            await self.settle()
        return key

    async def claim(self) -> dict[str, Any]:
        asked = {"runner": "laptop", "incarnation": self.kept["incarnation"], "slots": [0, 1, 2, 3]}
        run = (await self.send("POST", "runner/claim?wait=0", asked, "runner"))["run"]
        assert run is not None
        return run

    async def begun(self) -> tuple[dict[str, Any], dict[str, Any]]:
        run = await self.claim()
        claim = {"claim_id": run["claim_id"]}
        await self.send("POST", f"runs/{run['id']}/heartbeat", claim, "runner")
        return run, claim

    async def complete(self, outcome: str, **more: Any) -> dict[str, Any]:
        run, claim = await self.begun()
        await self.send("POST", f"runs/{run['id']}/complete", {**claim, "outcome": outcome, **more}, "runner")
        await self.settle()
        return run


@pytest.fixture
async def tour(fresh_database, monkeypatch) -> AsyncIterator[Tour]:
    database = await fresh_database("server")
    admin = await asyncpg.connect(**database.admin)
    # foreign keys take a share of their parents' keys alone, which is in nobody's way: no lock of ours is stronger there
    await admin.execute(
        f"alter role {database.dsn['user']} in database {database.name} set session_replication_role = replica"
    )
    services = await wiring.build(
        Settings(
            database_url=database.url,
            pool_size=6,
            dev_mode=True,
            webhook_allow_private=True,
            run_attempts_max=1,
        )
    )
    _, actors, tokens = await people(services)
    app = create_app(services)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=("127.0.0.1", 5))
    templates = {
        (method.upper(), path): re.compile(re.sub(r"\{\w+\}", "[^/]+", path))
        for path, operations in app.openapi()["paths"].items()
        for method in operations
    }
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        with watching(await watch_of(admin), monkeypatch) as watch:
            yield Tour(services, client, tokens, actors, admin, watch, templates)
    await services.stop()
    await admin.execute(
        f"alter role {database.dsn['user']} in database {database.name} reset session_replication_role"
    )
    await admin.close()


async def boards_and_cards(tour: Tour) -> None:
    await tour.send("POST", "boards", BOARD)
    await tour.send("POST", "agents", {"handle": "echo", "slots": 4})
    await tour.send("POST", "agents", {"handle": "other"})
    key = await tour.card(labels=["a"])
    await tour.send("PATCH", f"cards/{key}", {"title": "another", "fields": {"n": 1}})
    await tour.send("POST", f"cards/{key}/labels", {"add": ["b"], "remove": ["a"]})
    await tour.send("POST", f"cards/{key}/assign", {"agent": "echo"})
    await tour.send("DELETE", f"cards/{key}")
    await tour.send("POST", "events", {"kind": "custom.said", "card": await tour.card(), "key": "once"})
    await tour.settle()


async def agents_and_tokens(tour: Tour) -> None:
    await tour.send("PATCH", "agents/echo", {"name": "Echo"})
    await tour.send("POST", "agents/echo/pause")
    await tour.send("POST", "agents/echo/resume")
    made = await tour.send("POST", "tokens", {"kind": "runner", "agents": ["echo"]})
    tour.tokens["runner"] = made["secret"]
    tour.kept["incarnation"] = str(new_id())
    made = await tour.send("POST", "tokens", {"kind": "user", "account": "ben", "role": "member"})
    await tour.send("POST", f"tokens/{made['token']['id']}/revoke")


async def rules(tour: Tour) -> None:
    await tour.send(
        "POST",
        "rules",
        rule("work", LAUNCH, to="doing", max_per_hour=100, cooldown_seconds=1, while_running="queue_one"),
    )
    await tour.send("POST", "rules", rule("go", LAUNCH, consume_label=True))
    await tour.send("POST", "rules", rule("pin", {"promote": {"agent": "other"}}))
    await tour.send("POST", "rules", rule("bad", NAMELESS))
    hook = {"webhook": {"url": "http://127.0.0.1:9/nobody"}}
    await tour.send("POST", "rules", rule("hook", hook, to="hook"))
    await tour.send("POST", "rules/test", rule("tested", LAUNCH, to="ready"))
    await tour.send("POST", "rules/work/test")
    await tour.send("PATCH", "rules/work", rule("work", LAUNCH, to="doing", max_per_hour=50))
    await tour.send("POST", "rules/work/disable")
    await tour.send("POST", "rules/work/enable")
    await tour.send("POST", "rules", rule("gone", LAUNCH, to="ready"))
    await tour.send("DELETE", "rules/gone")


async def effects_of_all_kinds(tour: Tour) -> None:
    await tour.card("doing")
    key = await tour.card(labels=["x"])
    for label in ("go", "pin", "bad"):
        await tour.send("POST", f"cards/{key}/labels", {"add": [label]})
    await tour.settle()
    await tour.card("hook")
    await tour.send("POST", f"cards/{await tour.card()}/assign", {"agent": "echo"})
    dispatched = await tour.card()
    await tour.send("POST", f"cards/{dispatched}/assign", {"agent": "echo"})
    await tour.send("POST", f"cards/{dispatched}/move", {"state": "ready"})
    await tour.settle()
    # of two rules, so that sweeps have several to go through
    for name in ("work", "go"):
        await tour.send("POST", f"rules/{name}/pause")
    await tour.card("doing")
    await tour.send("POST", f"cards/{await tour.card()}/labels", {"add": ["go"]})
    await tour.settle()
    await tour.send("POST", "rules/work/resume", {"owed": "run"})
    await tour.send("POST", "rules/go/resume", {"owed": "discard"})
    await tour.settle()


async def runs(tour: Tour) -> None:
    run, claim = await tour.begun()
    where = f"runs/{run['id']}"
    await tour.send("POST", f"{where}/heartbeat", claim, "runner")
    await tour.send("POST", f"{where}/log", {**claim, "lines": ["a", "b"]}, "runner")
    asked = {**claim, "request_id": str(new_id()), "question": "Go on?"}
    ask = await tour.send("POST", f"{where}/ask", asked, "runner")
    await tour.send("POST", f"asks/{ask['id']}/answer", {"answer": "yes"})
    await tour.send("POST", f"{where}/complete", {**claim, "outcome": "done"}, "runner")
    await tour.settle()
    run = await tour.complete("needs_input", question="Which?")
    await tour.send("POST", f"runs/{run['id']}/answer", {"answer": "that one"})
    failed = await tour.complete("failed", error="no")
    await tour.send("POST", f"runs/{failed['id']}/retry")
    await tour.send("POST", f"runs/{failed['id']}/cancel")
    await tour.complete("retry", handed_back=True)
    # lost in silence, and heard of after all
    run, claim = await tour.begun()
    await tour.later(100)
    tour.watch.label = "silence"
    silence = Silence(tour.services.spine, tour.services.db, RunVerbs(board_verbs), tour.services.policy)
    assert await silence.expire_runs() > 0
    await tour.send("POST", f"runs/{run['id']}/heartbeat", claim, "runner")
    await tour.send("POST", f"runs/{run['id']}/cancel")
    await tour.send("POST", f"runs/{run['id']}/complete", {**claim, "outcome": "cancelled"}, "runner")
    await tour.settle()


async def desk(tour: Tour) -> None:
    for _ in range(3):
        key = await tour.card(labels=[])
        await tour.send("POST", f"cards/{key}/labels", {"add": ["bad"]})
        await tour.settle()
    await tour.card("doing")
    await tour.complete("failed", error="no")
    letters = (await tour.send("GET", "desk"))["data"]
    assert {one["kind"] for one in letters} == {"run", "launch"}
    await tour.send("POST", "desk/plan", {"all": True})
    await tour.send("POST", "desk/replay", {"ids": [one["id"] for one in letters]})
    await tour.settle()
    await tour.send("POST", "desk/replay", {"kind": "launch"})
    await tour.settle()
    await tour.complete("failed", error="no")
    operation = await tour.send("POST", "desk/discard", {"all": True, "reason": "gone", "rate_per_second": 1})
    await tour.send("POST", f"operations/{operation['id']}/stop")
    letters = (await tour.send("GET", "desk"))["data"]
    await tour.send("POST", "desk/discard", {"ids": [one["id"] for one in letters], "reason": "gone"})
    await tour.settle()
    pending = (await tour.send("GET", "effects?state=pending"))["data"]
    await tour.send("POST", f"effects/{pending[0]['id']}/cancel")
    runner = (await tour.send("GET", "runners"))["data"][0]
    await tour.send("POST", f"runners/{runner['id']}/drain")
    leaving = {"runner": "laptop", "incarnation": tour.kept["incarnation"]}
    await tour.send("POST", "runner/leave", leaving, "runner")


class Hiccup:
    """An obligation that raises about an event, and owes when it is asked again."""

    name, kinds = "hiccup", frozenset({"custom.hiccup"})

    def __init__(self) -> None:
        self.broken = True

    async def load(self, _scope: Any, _events: Any) -> None:
        return None

    def judge(self, event: Event, _context: Any) -> Verdict:
        if self.broken:
            raise ZeroDivisionError
        return Owes(NewEffect("nobody's", key=f"{event.seq}#hiccup"))


async def chat(tour: Tour) -> None:
    """Two agents and a person in a channel: held, settled, read, refused, taken over, ended, lost, woken."""
    made = await tour.send("POST", "tokens", {"kind": "runner", "agents": ["echo", "other"]})
    tour.tokens["reader"] = made["secret"]
    await tour.admin.execute("update mainspring.agents set wake = true")
    await tour.send("POST", "channels", {"name": "talk"})
    for who in ("echo", "other", "member"):
        await tour.send("POST", "channels/talk/members", {"account": who})
    reader = await tour.send("POST", "sessions", {"agent": "echo"}, "reader")
    writer = await tour.send("POST", "sessions", {"agent": "other"}, "reader")
    claim = {"claim_id": writer["claim_id"]}
    await tour.send("POST", f"sessions/{writer['id']}/heartbeat", {**claim, "turn": 1}, "reader")
    session = {"id": writer["id"], **claim}
    held = await tour.send("POST", "channels/talk/messages", {"text": "hel", "session": session}, "reader")
    edit = {"text": "hello", "session": session}
    await tour.send("PATCH", f"messages/{held['id']}", edit, "reader")
    await tour.send("POST", f"sessions/{writer['id']}/settle", {**claim, "turn": 1}, "reader")
    pinning = {"messages": [held["id"]]}
    await tour.send("PUT", "channels/talk/pins", pinning)
    await tour.send("PATCH", "channels/talk", {"purpose": "talking"})
    topic = held["topic_id"]
    await tour.send("PATCH", f"channels/talk/topics/{topic}", {"name": "another", "archived": True})
    for text in ("one", "@member and @echo, two", "@agents three"):
        await tour.send("POST", "channels/talk/messages", {"text": text, "topic": text})
    await tour.settle()
    where = f"sessions/{reader['id']}"
    found = await tour.send("GET", f"{where}/inbox?wait=0&claim_id={reader['claim_id']}", None, "reader")
    ids = [one["id"] for one in found["deliveries"]]
    assert len(ids) == 4
    refused = [{"id": ids[-1], "error": "too long"}]
    acking = {"claim_id": reader["claim_id"], "deliveries": ids[:1], "refused": refused, "turn": 1}
    await tour.send("POST", f"{where}/ack", acking, "reader")
    writing = {"claim_id": reader["claim_id"], "channel": "talk", "text": "hm"}
    await tour.send("POST", f"{where}/live", writing, "reader")
    inbox = await tour.send("GET", "inbox", None, "member")
    await tour.send("POST", "inbox/ack", {"items": [one["id"] for one in inbox["data"]]}, "member")
    await tour.send("POST", f"cards/{await tour.card()}/comments", {"text": "@echo a comment"})
    ending = {"claim_id": reader["claim_id"], "state": "errored"}
    await tour.send("POST", f"{where}/settle", ending, "reader")
    await tour.send("POST", "sessions", {"agent": "other", "takeover": True}, "reader")
    await tour.later(100)
    tour.watch.label = "the nets"
    await tour.services.talk.nets.end_lost()  # a round of them would first give everybody a lease to speak up
    await tour.services.talk.nets.run_once()
    await tour.settle()
    await tour.send("DELETE", "channels/talk/members/member")
    assert await tour.admin.fetchval("select count(*) from mainspring.runs where effect_kind = 'wake'") == 2


async def poison(tour: Tour) -> None:
    hiccup = Hiccup()
    tour.services.spine.register_obligation(hiccup)
    await tour.send("POST", "events", {"kind": "custom.hiccup"})
    tour.watch.label = "the drain"
    await tour.services.spine.drain.run_once()
    hiccup.broken = False
    await tour.settle()
    asked = await tour.admin.fetch("select kind, state from mainspring.effects where key like '%#hiccup'")
    assert {row["kind"]: row["state"] for row in asked} == {"event": "done", "nobody's": "pending"}


async def holes(tour: Tour) -> None:
    await tour.settle()
    await tour.send("POST", "events", {"kind": "custom.lost"})
    await tour.admin.execute(
        "delete from mainspring.events where seq = (select max(seq) from mainspring.events)"
    )
    await tour.send("POST", "events", {"kind": "custom.said"})
    await tour.send("POST", "events/skip", {"reason": "it was lost"})
    await tour.settle()


async def loops(tour: Tour) -> None:
    key = await tour.card()
    await tour.send("POST", f"cards/{key}/move", {"state": "doing"})
    await tour.send("POST", f"cards/{key}/labels", {"add": ["go"]})
    while (await tour.services.spine.drain.run_once()).events:
        pass
    # as settles leave them that a resume has passed by
    held = "update mainspring.effects set not_before = 'infinity' where state = 'pending' and rule_id is not null"
    assert await tour.admin.execute(held) == "UPDATE 2"
    await tour.later(8 * 86_400)
    assert tour.services.spine._loops
    for loop in tour.services.spine._loops:
        tour.watch.label = f"the loop {loop.name}"
        await loop.run_once()
    await tour.settle()


async def test_every_command_and_every_loop_locks_rows_in_one_order(tour: Tour) -> None:
    for part in (
        boards_and_cards,
        agents_and_tokens,
        rules,
        effects_of_all_kinds,
        runs,
        desk,
        chat,
        poison,
        holes,
    ):
        await part(tour)
    executed = await tour.admin.fetch(
        "select distinct kind from mainspring.effects where family = 'executed' and (settled_at is not null or attempts > 0)"
    )
    await loops(tour)

    assert {known for known in tour.templates if known[0] != "GET"} - tour.done == NO_COMMANDS
    assert set(tour.services.spine.kinds) | {"event"} == {row["kind"] for row in executed}
    assert tour.watch.wrong() == []
    assert tour.watch.together() == TOGETHER


def test_what_is_locked_out_of_order_is_said() -> None:
    def seen(*steps: tuple[str, str]) -> str | None:
        return Seen("a test", [Step(f"lock {table}", {table: [row]}) for table, row in steps]).wrong()

    assert seen(("rules", "1"), ("cards", "2"), ("cards", "3"), ("log_heads", "4")) is None
    assert seen(("cards", "1"), ("rules", "2")) == "rules after cards, by lock rules"
    assert seen(("runs", "2"), ("runs", "1")) == "runs not by id, by lock runs"
    # what belongs to a row is written under that row's lock, whenever
    assert seen(("rules", "1"), ("log_heads", "2"), ("rule_versions", "1 1")) is None
    assert (
        seen(("log_heads", "2"), ("rule_versions", "1 1")) == "rules after log_heads, by lock rule_versions"
    )
