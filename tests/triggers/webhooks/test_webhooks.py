"""Rules that call a webhook: the whole way, from a moved card to what a real server was sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from standardwebhooks import Webhook

from mainspring.rooms import Invalid, ServerSpine
from mainspring.spine.breaker import FAILURES_MAX, OPEN
from mainspring.spine.effects import EffectRow
from mainspring.spine.engine import SpineSettings
from mainspring.spine.events import Cause
from mainspring.spine.ports import ClaimRequest
from mainspring.triggers import limits
from mainspring.triggers.model import DEPTH_MAX
from mainspring.triggers.service import Written
from mainspring.triggers.webhooks.effects import Caller
from mainspring.triggers.webhooks.outbound import Outbound
from tests.databases import connected
from tests.triggers.conftest import House, another_engine
from tests.triggers.webhooks.hook_server import HookServer, hook_server, plain

READY = {"kinds": ["card.moved"], "boards": ["OPS"], "to_states": ["doing"]}


@pytest.fixture
async def hook() -> AsyncIterator[HookServer]:
    async with hook_server() as made:
        yield made


async def rule(house: House, url: str, name: str = "hook", **options: Any) -> Written:
    body = {"name": name, "when": READY, "do": {"webhook": {"url": url}}, "options": options}
    return await house.rules.create(house.ana, body)


async def moved(house: House, title: str = "mend it") -> None:
    card = await house.card(title, board="OPS")
    await house.move(card, "doing")


async def rows(house: House) -> list[EffectRow]:
    async with house.db.tenant(house.tenant) as scope:
        return await house.spine.store.effects(scope, house.tenant, kind="webhook", limit=1000)


async def replay(house: House, row: EffectRow, *, new_key: bool) -> None:
    async with house.db.tenant(house.tenant) as scope:
        await house.spine.store.replay(scope, house.tenant, [(row, new_key)])
        await house.spine.store.make_due(scope, [(house.tenant, row.id)])


async def test_what_matched_is_sent_signed_with_the_secret_that_was_shown(house: House, hook: HookServer):
    made = await rule(house, hook.url())
    assert made.secret is not None
    await moved(house)
    await house.spine.run_once()
    [got] = hook.received
    told = Webhook(made.secret).verify(got.body, got.headers)
    event = await house.last("card.moved")
    assert told["type"] == "card.moved"
    assert told["rule"] == {"id": str(made.rule.id), "name": "hook", "version": 1}
    assert (told["data"]["seq"], told["data"]["data"]["to"]) == (event.seq, "doing")
    assert told["data"]["data"]["card"]["title"] == "mend it"
    [row] = await rows(house)
    assert (row.state.value, row.outcome, row.key) == ("done", "answered 204", f"{event.seq}:{made.rule.id}")
    assert row.target == f"127.0.0.1:{hook.port}"


async def test_the_secret_is_told_once_and_stands_in_no_rule_and_no_event(house: House, hook: HookServer):
    made = await rule(house, hook.url())
    assert made.secret is not None
    edited = await house.rules.edit(house.ana, "hook", {"do": {"webhook": {"url": hook.url(path="/other")}}})
    assert edited.secret is None
    shown = await house.rules.show(house.tenant, "hook")
    told = json.dumps([shown.as_json(), [dict(event.data) for event in await house.events()]])
    assert made.secret not in told
    assert made.secret not in repr(made)
    await moved(house)
    await house.spine.run_once()
    assert Webhook(made.secret).verify(hook.received[0].body, hook.received[0].headers)


async def test_a_rule_that_comes_to_call_a_webhook_is_given_its_secret_then(house: House, hook: HookServer):
    await house.rule(READY, name="was a launch")
    edited = await house.rules.edit(house.ana, "was a launch", {"do": {"webhook": {"url": hook.url()}}})
    assert edited.secret is not None


async def test_each_attempt_sends_the_same_event_under_the_same_id(house: House, hook: HookServer):
    await rule(house, hook.url())
    hook.answers = [plain(500, b"oops"), plain(503), plain(200)]
    await moved(house)
    for _ in range(3):
        await house.spine.run_once()
        await house.later(seconds=60)
    assert len(hook.received) == 3
    assert len({got.headers["webhook-id"] for got in hook.received}) == 1
    assert len({json.loads(got.body)["data"]["id"] for got in hook.received}) == 1
    [row] = await rows(house)
    assert (row.state.value, row.attempts) == ("done", 2)


@pytest.mark.parametrize(
    ("status", "headers", "came_to"),
    [
        (410, {}, ("dead", "failed", 1)),
        (404, {}, ("dead", "failed", 1)),
        (302, {"location": "http://example.com/"}, ("dead", "failed", 1)),
        (429, {"retry_after": "30"}, ("pending", "deferred", 0)),
        (429, {}, ("pending", "retry", 1)),
        (503, {"retry_after": "30"}, ("pending", "retry", 1)),
    ],
)
async def test_what_it_answers_decides(
    house: House, hook: HookServer, status: int, headers: dict[str, str], came_to: tuple[str, str, int]
):
    await rule(house, hook.url())
    hook.answers = [plain(status, b"because", **headers)]
    await moved(house)
    await house.spine.run_once()
    [row] = await rows(house)
    assert (row.state.value, row.outcome, row.attempts) == came_to
    assert row.error is not None
    named = "" if row.outcome == "deferred" else f"{row.target}: "
    assert row.error.startswith(f"{named}answered {status}")
    assert len(hook.received) == 1
    async with house.spine.store.tenant(house.tenant) as tx:
        attempts = await house.spine.store.attempts(tx, house.tenant, row.id)
    assert [attempt.outcome for attempt in attempts] == [row.outcome]  # whatever it was told, it was sent


async def test_an_operators_new_key_is_a_new_id_and_the_old_key_the_old_one(house: House, hook: HookServer):
    await rule(house, hook.url())
    hook.answers = [plain(410)]
    await moved(house)
    for new_key in (None, False, True):
        if new_key is not None:
            await replay(house, (await rows(house))[0], new_key=new_key)
        await house.spine.run_once()
    first, same, new = (got.headers["webhook-id"] for got in hook.received)
    assert first == same != new


async def test_a_rule_that_is_off_or_gone_by_then_sends_nothing(house: House, hook: HookServer):
    await rule(house, hook.url(), "off")
    await rule(house, hook.url(), "gone")
    await moved(house)
    await house.spine.drain.run_once()
    await house.rules.disable(house.ana, "off")
    await house.rules.delete(house.ana, "gone")
    await house.spine.run_once()
    assert {row.outcome for row in await rows(house)} == {"dropped(rule disabled)", "dropped(rule deleted)"}
    assert hook.received == []


async def test_what_a_paused_rule_owes_is_held_and_sent_when_it_is_resumed(house: House, hook: HookServer):
    await rule(house, hook.url())
    await house.rules.pause(house.ana, "hook", because="too loud")
    await moved(house)
    await house.spine.run_once()
    [row] = await rows(house)
    assert (row.outcome, row.not_before) == ("held", None)
    await house.rules.resume(house.ana, "hook", owed="run")
    await house.spine.run_once()
    assert len(hook.received) == 1


async def test_an_event_that_was_too_long_ago_is_not_sent(house: House, hook: HookServer):
    await rule(house, hook.url(), max_event_age_seconds=60)
    await moved(house)
    await house.later(seconds=61)
    await house.spine.run_once()
    [row] = await rows(house)
    assert "max_event_age_seconds" in str(row.outcome)
    assert hook.received == []


async def test_with_recheck_a_card_that_no_longer_matches_is_not_sent(house: House, hook: HookServer):
    await rule(house, hook.url(), recheck=True)
    card = await house.card("t", board="OPS")
    card = await house.move(card, "doing")
    await house.spine.drain.run_once()
    await house.move(card, "done")
    await house.spine.run_once()
    [row] = await rows(house)
    assert str(row.outcome).startswith("dropped(no longer matches")
    assert hook.received == []


async def test_a_chain_of_causes_that_is_too_long_calls_nobody(house: House, hook: HookServer):
    await rule(house, hook.url())
    card = await house.card("t", board="OPS")
    deep = house.system(Cause(seq=1, depth=DEPTH_MAX))
    await house.move(card, "doing", by=deep)
    await house.spine.run_once()
    assert await rows(house) == []
    verdict = (await house.verdicts(await house.last("card.moved")))["hook"]
    assert verdict.failed_term == "depth"


async def test_a_private_address_is_a_dead_letter_and_nothing_was_sent(house: House, hook: HookServer):
    await rule(house, hook.url("localhost"))
    await moved(house)
    await house.spine.drain.run_once()
    [effect] = (
        await house.spine.store.claim(ClaimRequest(worker="w", lease_seconds={"webhook": 60.0}, limit=1))
    ).effects
    outcome = await Caller(house.spine, None, Outbound())(effect)  # type: ignore[arg-type]
    assert "webhook_allow_private" in outcome.error  # type: ignore[union-attr]
    assert hook.received == []


async def test_a_host_that_is_away_is_found_down_and_costs_its_rows_nothing(house: House, hook: HookServer):
    async with hook_server() as away:
        await rule(house, away.url(), "away")
    await rule(house, hook.url(), "there")
    for n in range(FAILURES_MAX + 3):
        await moved(house, f"card {n}")
    await house.spine.run_once()
    await house.later(seconds=OPEN.cap_seconds * 1.3)
    await house.spine.run_once()
    found = [row for row in await rows(house) if row.target == f"127.0.0.1:{away.port}"]
    assert sum(row.attempts for row in found) == FAILURES_MAX
    assert {row.state.value for row in found} == {"pending"}
    assert len(hook.received) == FAILURES_MAX + 3
    async with house.db.tenant(house.tenant) as scope:
        [breaker] = await house.spine.store.breakers(scope, house.tenant)
    assert breaker.target == f"127.0.0.1:{away.port}"
    assert breaker.open_until is not None
    assert "ConnectError" in str(breaker.error)


# what a rule may say ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("do", "pointer"),
    [
        ({"webhook": {}}, "/do/webhook/url"),
        ({"webhook": {"url": "ftp://example.com"}}, "/do/webhook/url"),
        ({"webhook": {"url": "https://u:p@example.com"}}, "/do/webhook/url"),
        ({"webhook": {"url": 7}}, "/do/webhook/url"),
        ({"webhook": {"url": "https://example.com", "method": "GET"}}, "/do/webhook/method"),
        ({"webhook": "https://example.com"}, "/do/webhook"),
        ({"webhook": {"url": "https://example.com"}, "promote": {"agent": "echo"}}, "/do"),
    ],
)
async def test_an_address_that_nothing_can_be_sent_to_is_refused(house: House, do: Any, pointer: str):
    with pytest.raises(Invalid) as refused:
        await house.rules.create(house.ana, {"name": "x", "when": READY, "do": do})
    assert pointer in {error.pointer for error in refused.value.errors}


@pytest.mark.parametrize(
    "options",
    [
        {"consume_label": True},
        {"while_running": "skip"},
        {"queued_timeout_seconds": 5},
    ],
)
async def test_what_speaks_of_launches_is_refused(house: House, options: dict[str, Any]):
    with pytest.raises(Invalid, match="is for a rule that launches"):
        await rule(house, "https://example.com/", **options)


async def test_it_rests_on_a_card_and_goes_out_for_another(house: House, hook: HookServer):
    await rule(house, hook.url(), cooldown_seconds=600)
    card = await house.card("one", board="OPS")
    for _ in range(2):
        await house.move(card, "doing")
        await house.move(card, "inbox")
    await moved(house, "two")
    await house.spine.run_once()
    assert sorted(str(row.outcome).split(":")[0] for row in await rows(house)) == [
        "answered 204", "answered 204", "dropped(cooldown_seconds",
    ]  # fmt: skip
    assert len(hook.received) == 2
    await house.later(seconds=601)
    await house.move(card, "doing")
    await house.spine.run_once()
    assert len(hook.received) == 3


async def test_what_was_begun_counts_once_however_often_it_is_tried(house: House, hook: HookServer):
    """Its own first attempt is no reason to rest, nor to pause: it would be lost by the limit that it has passed."""
    await rule(house, hook.url(), cooldown_seconds=600, max_per_hour=1)
    hook.answers = [plain(500), plain(500), plain(200)]
    await moved(house)
    for _ in range(3):
        await house.spine.run_once()
        await house.later(seconds=60)
    [row] = await rows(house)
    assert (row.state.value, row.outcome, row.attempts) == ("done", "answered 200", 2)
    assert len(hook.received) == 3


async def test_what_was_begun_still_counts_once_when_it_is_tried_again_after_the_hour(
    house: House, hook: HookServer
):
    """What it noted is kept for as long as it is owed: noted anew, it would stand in the way of the next event."""
    await rule(house, hook.url(), max_per_hour=1)
    hook.answers = [plain(500), plain(204), plain(204)]
    await moved(house, "is late")
    await house.spine.run_once()
    await house.later(seconds=3_700)
    await trim(house)
    await house.spine.run_once()
    await moved(house, "comes next")
    await house.spine.run_once()
    assert [row.outcome for row in await rows(house)] == ["answered 204", "answered 204"]
    await house.later(seconds=3_700)
    assert await trim(house) == 0


async def test_what_was_begun_is_not_dropped_for_what_began_behind_it(house: House, hook: HookServer):
    """A target that is down for longer than the rule rests loses nothing that was begun."""
    await rule(house, hook.url(), cooldown_seconds=3)
    hook.answers = [plain(503, retry_after="5"), plain(204), plain(204)]
    card = await house.card("one", board="OPS")
    for seconds in (3.5, 2):
        await house.move(card, "doing")
        await house.spine.run_once()
        await house.move(card, "inbox")
        await house.later(seconds=seconds)
    await house.spine.run_once()
    assert [row.outcome for row in await rows(house)] == ["answered 204", "answered 204"]


async def test_what_was_begun_pauses_no_rule_when_it_is_tried_again(house: House, hook: HookServer):
    await rule(house, hook.url(), max_per_hour=2)
    hook.answers = [plain(503, retry_after="3800"), plain(204), plain(204), plain(204)]
    await moved(house, "a")
    await house.spine.run_once()
    await house.later(seconds=3_700)
    for name in ("b", "c"):
        await moved(house, name)
        await house.spine.run_once()
    await house.later(seconds=200)
    await house.spine.run_once()
    assert [row.outcome for row in await rows(house)] == ["answered 204"] * 3
    assert (await house.rules.show(house.tenant, "hook")).paused is None


async def trim(house: House) -> int:
    """Forget what may be forgotten; return how many firings are left."""
    async with house.db.system("test") as scope:
        await limits.trim_firings(scope)
        left: int = await scope.fetchval("select count(*) from mainspring.firings")
    return left


async def test_one_more_within_the_hour_pauses_the_rule_and_is_held(
    house: House, other: ServerSpine, hook: HookServer
):
    await rule(house, hook.url(), max_per_hour=2)
    for n in range(6):
        await moved(house, f"c{n}")
    card = await house.card("later", board="OPS")
    await house.spine.drain.run_once()
    await house.spine.run_once()
    assert len(hook.received) == 2
    assert sorted(str(row.outcome) for row in await rows(house)) == ["answered 204"] * 2 + ["held"] * 4
    shown = await house.rules.show(house.tenant, "hook")
    assert shown.paused is not None
    assert shown.paused.because == "max_per_hour: it fired 2 times within the hour, and 2 are allowed"
    [wake] = (await house.preview.move(house.ana, card.key, "doing")).wakes
    assert wake.then.startswith("held: the rule is paused: max_per_hour")
    assert (await house.rules.resume(house.ana, "hook", owed="run")).held == 4
    await house.spine.run_once()
    assert len(hook.received) == 6
    assert {str(row.outcome) for row in await rows(house)} == {"answered 204"}


@pytest.mark.slow
async def test_no_more_of_them_are_begun_at_once_than_leave_connections_to_the_others(
    house: House, hook: HookServer
):
    """Each waits in a transaction of its own for its rule: they must not be all that the pool has."""
    await rule(house, hook.url(), max_per_hour=100)
    for n in range(12):
        await moved(house, f"c{n}")
    spine = another_engine(house, SpineSettings(transactions_max=2))
    await spine.drain.run_once()
    await filled(house)
    async with connected(house.admin) as holder, connected(house.admin) as watch:
        async with holder.transaction():
            await holder.execute("select from mainspring.rules for update")
            sending = asyncio.create_task(spine.run_once())
            await until_locks_are_waited_for(watch)
            assert spine.worker.in_hand == 12
            assert house.db.pool.get_size() - house.db.pool.get_idle_size() == 2
        await sending
    assert len(hook.received) == 12


async def filled(house: House) -> None:
    """Open all connections of the pool: from here on one that is taken is one that is busy."""
    pool = house.db.pool
    for conn in [await pool.acquire() for _ in range(pool.get_max_size())]:
        await pool.release(conn)


async def until_locks_are_waited_for(watch: asyncpg.Connection) -> None:
    """As soon as one waits, every other executor has asked for its connection, too."""
    asked = "select exists (select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database())"
    async with asyncio.timeout(20):
        while not await watch.fetchval(asked):  # noqa: ASYNC110 - the database has no event for it
            await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_two_workers_at_once_send_no_more_than_may_be_sent(
    house: House, other: ServerSpine, hook: HookServer
):
    await rule(house, hook.url(), max_per_hour=3)
    for n in range(12):
        await moved(house, f"c{n}")
    await house.spine.drain.run_once()
    await asyncio.gather(house.spine.run_once(), other.run_once())
    assert len(hook.received) == 3
    changes = [event.data["change"] for event in await house.events() if event.kind == "rule.changed"]
    assert changes == ["created", "paused"]


async def test_a_preview_knows_that_one_more_would_pause_it(house: House, hook: HookServer):
    await rule(house, hook.url(), max_per_hour=1)
    await moved(house)
    await house.spine.run_once()
    card = await house.card("later", board="OPS")
    [wake] = (await house.preview.move(house.ana, card.key, "doing")).wakes
    assert not wake.happens
    assert wake.then.startswith("held, and the rule would be paused: max_per_hour")


async def test_it_is_tried_out_without_sending_anything(house: House, hook: HookServer):
    await rule(house, hook.url())
    await moved(house)
    tried = await house.rules.test(house.tenant, "hook", last=50)
    assert [line.then for line in tried.lines if line.happens] == [f"send to {hook.url()}"]
    card = await house.card("later", board="OPS")
    preview = await house.preview.move(house.ana, card.key, "doing")
    assert [(wake.do, wake.agent, wake.then) for wake in preview.wakes] == [
        ("webhook", None, f"is sent to {hook.url()}")
    ]
    assert hook.received == []
