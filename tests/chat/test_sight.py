"""What a shared channel's members say, and that there is such a channel, is told to nobody else: at no route, whatever their role."""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from mainspring.agents.tokens import NewToken, mint
from mainspring.chat.sight import Reader
from mainspring.ids import new_id
from mainspring.operators import tails as tails_module
from mainspring.operators.tails import Batch, Filter, Stream
from mainspring.rooms import Actor
from mainspring.server.app import create_app
from mainspring.spine.effects import EffectState
from tests.chat.conftest import Place, make_place
from tests.server.test_auth import routes_of
from tests.server.test_streams import Reader as Listener
from tests.server.test_streams import live

CHANNEL, TOPIC, WORD = "zebravault", "okapicorner", "xylophonic"
SECRETS = (CHANNEL, TOPIC, WORD)
UNKNOWN = {CHANNEL: "zebrapasture", TOPIC: "okapiforest", WORD: "xylographic"}


@dataclass(frozen=True, slots=True)
class Vault:
    """A tenant with a shared channel in which much has happened, and who asks about it."""

    place: Place
    app: FastAPI
    client: httpx.AsyncClient
    secrets: dict[str, str]  # bearer tokens, by who holds them
    actors: dict[str, Actor]
    things: dict[str, list[str]]  # ids of everything, by table

    async def get(self, path: str, who: str, **query: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.secrets[who]}"}
        return await self.client.get(path, params=query, headers=headers)


async def token_of(place: Place, actor: Actor, role: str, kind: Any = "user") -> str:
    assert actor.account_id is not None
    async with place.home.services.db.tenant(place.tenant) as scope:
        _, secret = await mint(
            scope, place.tenant, NewToken(account_id=actor.account_id, kind=kind, role=role)
        )
    return secret


@pytest.fixture
async def vault(place: Place) -> AsyncIterator[Vault]:
    chat = place.home.room.chat
    await chat.create_channel(
        place.anna, name=CHANNEL, purpose=f"for {WORD} talk", visibility="shared", post_policy="members"
    )
    people = {name: await place.person(name) for name in ("removed", "outsider", "looker")}
    await chat.join(place.anna, CHANNEL, "removed", subscribed=True)
    echo = await place.agent("echo", channel=CHANNEL)
    deaf = await place.agent("deaf", channel=CHANNEL, wake=True)
    stranger = await place.agent("stranger")
    await said_in(place, people["removed"], echo, deaf)
    await chat.leave(place.anna, CHANNEL, "removed")
    other = await make_place(place.home)
    await place.drain()
    tokens = {
        "anna": await token_of(place, place.anna, "operator"),
        "removed": await token_of(place, people["removed"], "operator"),
        "outsider": await token_of(place, people["outsider"], "operator"),
        "looker": await token_of(place, people["looker"], "viewer"),
        "stranger": await token_of(place, stranger, "member", "agent"),
        "other": await token_of(other, other.anna, "operator"),
    }
    app = create_app(place.home.services)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=("127.0.0.1", 5))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        actors = {"anna": place.anna, "stranger": stranger, **people}
        yield Vault(place, app, client, tokens, actors, await things_of(place))


async def said_in(place: Place, removed: Actor, echo: Actor, deaf: Actor) -> None:
    """Messages of every fate: read, offered, held back, refused until dead, and one that a person has not read."""
    told = {"channel": CHANNEL, "topic": TOPIC}
    await place.post(f"@removed the {WORD} plan", **told)
    await place.post(f"{WORD} indeed", by=removed, **told)
    asks = {"type": "ask", "id": "q", "question": f"{WORD} or not?", "options": [f"{WORD} yes", "no"]}
    await place.home.room.chat.post(
        place.anna, CHANNEL, topic=TOPIC, blocks=[asks], mentions=[], request_id="asks"
    )
    author, reader = await place.session(echo), await place.session(deaf)
    await author.beat(turn=1)
    await author.post(f"a held {WORD}", turn=1, channel=CHANNEL, topic=TOPIC)
    await place.drain()
    await author.read_all()
    await place.home.admin.execute(
        "update mainspring.effects set attempts = 11 where tenant_id = $1 and family = 'offered' and state = 'pending'",
        place.tenant,
    )
    [first, *_] = await reader.inbox()
    await reader.ack(refused={first.id: f"cannot read '{first.message.text}' of #{CHANNEL}: {WORD}"})
    await reader.end(errored=True)
    await place.home.room.nets.wake()


async def things_of(place: Place) -> dict[str, list[str]]:
    rows = await place.home.admin.fetch(
        "select table_name as name from information_schema.columns where table_schema = 'mainspring'"
        " and column_name in ('id', 'tenant_id') group by table_name having count(*) = 2"
    )
    found: dict[str, list[str]] = {}
    for row in rows:
        ids = await place.home.admin.fetch(
            f"select id::text from mainspring.{row['name']} where tenant_id = $1 order by id limit 4",
            place.tenant,
        )
        found[row["name"]] = [one["id"] for one in ids]
    return found


def asked_of(
    app: FastAPI, things: dict[str, list[str]], dice: random.Random
) -> list[tuple[str, dict[str, Any]]]:
    """Requests to every route that reads: with the ids of everything there is, with names, with words."""
    ids = [one for of_table in things.values() for one in of_table]
    names = [CHANNEL, f"#{CHANNEL}", TOPIC, WORD, "echo", "deaf"]
    seqs = [str(n) for n in range(1, 40)]
    words = {
        "q": [WORD, f"{WORD} plan", "held"],
        "ref": [*ids, *seqs, *names],
        "kind": ["message.*", "member.joined", "effect.dead", "deliver", "steer", "run"],
        "subject": ids,
        "channel": [CHANNEL],
        "state": ["all", "live", "dead", "pending", "open"],
        "group_by": ["cause"],
        "topic": things["topics"],
        "event_seq": seqs,
        "after": ["0"],
        "after_seq": ["0"],
        "last": ["50"],
        "limit": ["50"],
    }
    asked: list[tuple[str, dict[str, Any]]] = []
    for path, route in routes_of(app):
        if "GET" not in (route.methods or ()) or path.endswith(("/stream", "/live")):
            continue
        plain = re.sub(r"\{(\w+):\w+\}", r"{\1}", path)
        queries = [one.name for one in route.dependant.query_params]
        asked.append((plain, {})) if "{" not in plain else None
        for _ in range(6 if "{" in plain or queries else 0):
            filled = re.sub(r"\{\w+\}", lambda _: dice.choice([*ids, *seqs, *names]), plain)
            some = [name for name in queries if name in words and dice.random() < 0.5]
            asked.append((filled, {name: dice.choice(words[name]) for name in some}))
    return asked


def told_apart(text: str, asked: str) -> list[str]:
    """The secrets in an answer that are not the caller's own words."""
    return [one for one in SECRETS if one in text and one not in asked]


@pytest.mark.slow
async def test_nobody_outside_of_a_shared_channel_is_told_a_byte_of_it_at_any_route(vault):
    dice = random.Random(4)
    routes = asked_of(vault.app, vault.things, dice)
    things = vault.things
    every = [
        *((f"/api/v1/channels/{one}{tail}", {}) for one in (*things["channels"], CHANNEL)
          for tail in ("", "/members", "/topics", "/messages")),
        *((f"/api/v1/messages/{one}", {}) for one in things["messages"]),
        *((f"/api/v1/effects/{one}", {}) for one in things["effects"]),
        *((f"/api/v1/asks/{one}", {}) for one in things["asks"]),
        *((f"/api/v1/messages/{one}/receipts", {}) for one in things["messages"]),
        *((f"/api/v1/desk/{one}", {}) for one in things["effects"]),
        *((f"/api/v1/runs/{one}", {}) for one in things["runs"]),
        *(("/api/v1/explain", {"ref": one}) for one in (*things["messages"], *things["effects"], *map(str, range(1, 20)))),
        *((f"/api/v1/events/{one}", {}) for one in range(1, 20)),
        ("/api/v1/inbox", {"state": "all"}), ("/api/v1/messages", {"q": WORD}), ("/api/v1/desk/export", {}),
        ("/api/v1/events", {"last": 100}), ("/api/v1/events", {"kind": "message.*"}), ("/api/v1/desk", {"group_by": "cause"}),
    ]  # fmt: skip
    outside, seen = ("removed", "outsider", "looker", "stranger", "other"), ""
    for path, query in every:
        answer = await vault.get(path, "anna", **query)
        seen += "".join(told_apart(answer.text, f"{path} {query}"))
    for n, (path, query) in enumerate([*every, *routes]):
        for who in outside if n < len(every) else dice.sample(outside, 2):
            answer = await vault.get(path, who, **query)
            assert answer.status_code < 500, (path, query, answer.text)
            assert not told_apart(answer.text, f"{path} {query}"), (who, path, query, answer.text)
    assert [seen.count(one) > 5 for one in SECRETS] == [True, True, True]
    for who in ("removed", "outsider"):
        headers = {"Authorization": f"Bearer {vault.secrets[who]}"}
        plan = await vault.client.post("/api/v1/desk/plan", json={"all": True}, headers=headers)
        assert (plan.json()["total"], told_apart(plan.text, "")) == (1, [])
        rule = {"when": {"kinds": ["run.queued"]}, "do": {"launch": {"agent": "echo"}}, "last": 100}
        tried = await vault.client.post("/api/v1/rules/test", json=rule, headers=headers)
        assert tried.json()["matched"] == 1, tried.text
        assert not [one for one in things["messages"] if one in tried.text]


@pytest.mark.parametrize("who", ["removed", "outsider", "stranger", "other"])
async def test_what_is_not_the_callers_to_see_is_answered_as_what_is_not_there(vault, who):
    for path, query in (
        (f"channels/{CHANNEL}", {}),
        (f"channels/{CHANNEL}/messages", {}),
        (f"channels/{CHANNEL}/members", {}),
        ("messages", {"q": WORD}),
        ("messages", {"q": "plan", "channel": CHANNEL}),
    ):
        answers = []
        for names in (dict.fromkeys(UNKNOWN, ""), UNKNOWN):
            url, asked = path, dict(query)
            for secret, unknown in names.items():
                url = url.replace(secret, unknown or secret)
                asked = {name: value.replace(secret, unknown or secret) for name, value in asked.items()}
            answer = await vault.get(f"/api/v1/{url}", who, **asked)
            told = answer.json()
            told.pop("request_id", None)
            text = str(told)
            for secret, unknown in UNKNOWN.items():
                text = text.replace(unknown, secret)
            answers.append((answer.status_code, text))
        assert answers[0] == answers[1], path
    for message in vault.things["messages"]:
        answers = [await vault.get(f"/api/v1/messages/{one}", who) for one in (message, str(new_id()))]
        assert [one.status_code for one in answers] == [404, 404]


async def heard(vault: Vault, who: str, query: str = "") -> Listener:
    return Listener(vault.app, f"events/stream{query}", {"Authorization": f"Bearer {vault.secrets[who]}"})


async def texts_until(listener: Listener, last: int) -> str:
    """All that a stream tells until its id is past a seq."""
    told = ""
    while (message := await listener.next()) is not None:
        told += str(message.data)
        if message.id is not None and message.id >= last:
            return told
    raise AssertionError("the stream ended")


async def test_a_stream_passes_over_what_its_reader_does_not_see_and_its_ids_go_on(vault):
    listeners = {who: await heard(vault, who, "?after=0") for who in ("anna", "removed", "outsider")}
    try:
        last = (await vault.place.events())[-1]["seq"]
        before = {who: await texts_until(listener, last) for who, listener in listeners.items()}
        assert WORD in before["anna"]
        for text in (f"another {WORD}", f"a last {WORD}"):
            await vault.place.post(text, channel=CHANNEL, topic=TOPIC)
        await vault.place.home.services.tails.run_once()
        last = (await vault.place.events())[-1]["seq"]
        told = {who: before[who] + await texts_until(listener, last) for who, listener in listeners.items()}
        assert f"another {WORD}" in told["anna"]
        assert not [one for one in SECRETS if one in told["removed"] + told["outsider"]]
    finally:
        for listener in listeners.values():
            await listener.leave()


async def test_one_who_joins_hears_from_then_on_and_one_who_leaves_hears_no_more(vault):
    place, chat = vault.place, vault.place.home.room.chat
    listener = await heard(vault, "outsider")
    try:
        await live(None, listener)
        await chat.join(place.anna, CHANNEL, "outsider", subscribed=True)
        await place.post(f"welcome to {WORD}", channel=CHANNEL)
        await place.home.services.tails.run_once()
        joined = (await place.events())[-1]["seq"]
        assert f"welcome to {WORD}" in await texts_until(listener, joined)
        # said while they were a member, not told yet when they are none
        await place.post(f"between {WORD}", channel=CHANNEL)
        await chat.leave(place.anna, CHANNEL, "outsider")
        await place.post(f"behind {WORD}", channel=CHANNEL)
        await place.home.services.tails.run_once()
        assert WORD not in await texts_until(listener, (await place.events())[-1]["seq"])
    finally:
        await listener.leave()


def stream_of(vault: Vault, who: str, position: int) -> Stream:
    return Stream(
        tenant_id=vault.place.tenant,
        token_id=new_id(),
        reader=Reader(tenant_id=vault.place.tenant, account_id=vault.actors[who].account_id, operates=True),
        position=position,
        wanted=Filter(),
        allowed=lambda _role: True,
    )


async def test_a_stream_that_comes_while_the_tail_asks_who_sees_what_misses_nothing(vault, monkeypatch):
    place, tails = vault.place, vault.place.home.services.tails
    head = (await place.events())[-1]["seq"]
    first, late = stream_of(vault, "outsider", head), stream_of(vault, "anna", head)
    await tails.catch_up(first)
    ask, asked = tails_module._seen_by, []

    async def asks(scope: Any, lines: Any, streams: Any) -> Any:
        asked.append(len(streams))
        found = await ask(scope, lines, streams)
        if len(asked) == 1:
            tails._attach(late)
        return found

    monkeypatch.setattr(tails_module, "_seen_by", asks)
    try:
        await place.post(f"just now {WORD}", channel=CHANNEL)
        await tails.run_once()
        assert asked == [1, 2]
        assert [line.event.kind for line in late.queued] == ["message.posted", "message.settled"]
        assert list(first.queued) == []
    finally:
        tails.leave(first)
        tails.leave(late)


async def test_what_is_queued_is_not_told_to_one_who_has_left_meanwhile(vault):
    place, tails = vault.place, vault.place.home.services.tails
    await place.home.room.chat.join(place.anna, CHANNEL, "outsider", subscribed=True)
    head = (await place.events())[-1]["seq"]
    stream = stream_of(vault, "outsider", head)
    await tails.catch_up(stream)
    try:
        await place.post(f"soon {WORD}", channel=CHANNEL)
        await tails.run_once()
        assert [line.event.kind for line in stream.queued] == ["message.posted", "message.settled"]
        await place.home.room.chat.leave(place.anna, CHANNEL, "outsider")
        await tails.run_once()
        assert await stream.next(within_seconds=1) == Batch([], head + 3)
    finally:
        tails.leave(stream)


async def test_a_page_of_events_goes_on_behind_what_is_not_the_readers(vault):
    head, seqs, after = (await vault.place.events())[-1]["seq"], [], "0"
    hidden = {event["seq"] for event in await vault.place.events() if CHANNEL in str(event["data"])}
    while after is not None:
        page = (await vault.get("/api/v1/events", "outsider", after=after, limit=3)).json()
        seqs += [event["seq"] for event in page["data"]]
        after = page["next"]
    dead = {event["seq"] for event in await vault.place.events("effect.dead")}
    assert seqs == [seq for seq in range(1, head + 1) if seq not in hidden | dead]
    [last] = (await vault.get("/api/v1/events", "outsider", last=1)).json()["data"]
    assert last["seq"] == seqs[-1]


async def test_a_delivery_that_is_not_theirs_is_a_bare_row_for_operators_and_nothing_for_others(vault):
    [dead] = [row for row in await vault.place.effects("steer", "deliver") if row["state"] == "dead"]
    whole = (await vault.get(f"/api/v1/desk/{dead['id']}", "anna")).json()
    assert whole["delivery"]["channel"] == CHANNEL
    assert WORD in whole["history"][-1]["error"]
    bare = (await vault.get(f"/api/v1/desk/{dead['id']}", "outsider")).json()
    assert (bare["delivery"], bare["history"][-1]["error"]) == (None, None)
    assert (bare["state"], bare["outcome"]) == (EffectState.DEAD, "exhausted")
    effect = (await vault.get(f"/api/v1/effects/{dead['id']}", "outsider")).json()
    assert (effect["state"], effect["history"][-1]["error"]) == ("dead", None)
    for path in (f"desk/{dead['id']}", f"effects/{dead['id']}"):
        assert (await vault.get(f"/api/v1/{path}", "looker")).status_code == 404
    assert (await vault.get("/api/v1/explain", "looker", ref=str(dead["id"]))).status_code == 404
    counts = {}
    for who in ("anna", "outsider", "looker"):
        groups = (await vault.get("/api/v1/desk", who, group_by="cause")).json()["data"]
        letters = (await vault.get("/api/v1/desk", who, kind=dead["kind"])).json()["data"]
        counts[who] = (sum(group["count"] for group in groups), len(letters))
    assert counts == {"anna": (1, 1), "outsider": (1, 1), "looker": (0, 0)}
    headers = {"Authorization": f"Bearer {vault.secrets['outsider']}"}
    replay = {"ids": [str(dead["id"])]}
    answer = await vault.client.post("/api/v1/desk/replay", json=replay, headers=headers)
    assert (answer.status_code, told_apart(answer.text, "")) == (200, [])
    assert [one["id"] for one in answer.json()["replayed"]] == [str(dead["id"])]


def test_the_walk_reaches_every_route_that_reads(home):
    app = create_app(home.services)
    things = {"topics": ["t"], "messages": ["m"]}
    walked = {path.split("?")[0] for path, _ in asked_of(app, things, random.Random(1))}
    reads = [path for path, route in routes_of(app) if isinstance(route, APIRoute) and "GET" in route.methods]
    assert len(walked) >= len(reads) - 1
