"""What the database reads to answer the operators' questions, behind the walls and by a plan that is made for any arguments."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from mainspring.ids import new_id
from mainspring.sql import Queries

ROWS = 6_000
TENANT, AGENT, BUSY, CARD, BOARD = (new_id() for _ in range(5))
LATEST = "9999-12-31"
LOWEST, HIGHEST = UUID(int=0), UUID(int=2**128 - 1)
WHOSE = (new_id(), AGENT, "echo")  # a rule, and an agent by id and handle
_FILL = f"""
insert into mainspring.tenants (id, name) values ('{TENANT}', 'big');
insert into mainspring.log_heads (tenant_id) values ('{TENANT}');
insert into mainspring.accounts (tenant_id, id, kind, handle, name) values ('{TENANT}', '{AGENT}', 'agent', 'echo', 'echo'), ('{TENANT}', '{BUSY}', 'agent', 'busy', 'busy');
insert into mainspring.agents (tenant_id, id, slots) values ('{TENANT}', '{AGENT}', 9), ('{TENANT}', '{BUSY}', 9);
insert into mainspring.rules (tenant_id, id, name, enabled, version)
select '{TENANT}', gen_random_uuid(), 'Rule ' || n, true, 1 from generate_series(1, {ROWS}) n;
insert into mainspring.effects (tenant_id, id, kind, family, key, event_seq, payload, state, not_before, settled_at, claim_id, lease_until)
select '{TENANT}', gen_random_uuid(), 'launch', 'executed', n::text, n, '{{}}', case n % 100 when 0 then 'dead' when 1 then 'pending' else 'done' end,
       clock_timestamp(), case n % 100 when 1 then null else clock_timestamp() end, null, null
  from generate_series(1, {ROWS}) n;
insert into mainspring.runs (tenant_id, id, agent_id, card_key, effect_kind, effect_key, event_seq, state, ended_at, prompt, trust)
select '{TENANT}', gen_random_uuid(), case n % 200 when 50 then '{AGENT}'::uuid else '{BUSY}' end, 'OPS-' || n, 'launch', n::text, n, case n % 100 when 0 then 'failed' when 1 then 'queued' else 'done' end,
       case n % 100 when 1 then null else clock_timestamp() end, 'p', 'member'
  from generate_series(1, {ROWS}) n;
insert into mainspring.events (tenant_id, seq, id, kind, subject, data, trust, occurred_at)
select '{TENANT}', n, gen_random_uuid(), case n % 100 when 0 then 'card.moved' else 'run.done' end, 's' || n, '{{}}', 'member', clock_timestamp()
  from generate_series(1, {ROWS}) n;
insert into mainspring.boards (tenant_id, id, key, name, states) values ('{TENANT}', '{BOARD}', 'OPS', 'Operations', '[{{"name": "todo"}}]');
insert into mainspring.cards (tenant_id, id, board_id, number, title, state)
select '{TENANT}', gen_random_uuid(), '{BOARD}', n, 't', 'todo' from generate_series(1, {ROWS}) n;
insert into mainspring.card_labels (tenant_id, card_id, label)
select tenant_id, id, case number % 100 when 0 then 'urgent' else 'common' end from mainspring.cards;
analyze mainspring.rules, mainspring.effects, mainspring.runs, mainspring.events, mainspring.cards, mainspring.card_labels;
"""


@pytest.fixture(scope="module")
async def big(databases) -> AsyncIterator[asyncpg.Connection]:
    """A tenant with much that is over, seen as the server sees it."""
    database = await databases.create("server")
    conn = await asyncpg.connect(**database.admin)
    await conn.execute(_FILL)
    await conn.execute("set plan_cache_mode = force_generic_plan")
    await conn.execute(f"set mainspring.tenant = '{TENANT}'; set role mainspring_app")
    yield conn
    await conn.close()
    await databases.drop(database)


def literal(value: Any) -> str:
    """Return a value as SQL text."""
    match value:
        case None:
            return "null"
        case list():
            return literal("{" + ",".join(map(str, value)) + "}")
        case _:
            return "'" + str(value) + "'"


async def plan_of(conn: asyncpg.Connection, sql: str, *args: Any) -> str:
    """Return how a statement is carried out."""
    await conn.execute(f"prepare asked as {sql}")
    try:
        lines = await conn.fetch(f"explain execute asked ({', '.join(map(literal, args))})")
    finally:
        await conn.execute("deallocate asked")
    return "\n".join(line[0] for line in lines)


ASKED: list[tuple[str, str, tuple[Any, ...], str]] = [
    ("triggers", "rule_id_by_name", (TENANT, "rule 7"), "rules_name"),
    ("operators", "rule_by_name", (TENANT, "rule 7"), "rules_name"),
    ("agents", "list_runs", (TENANT, HIGHEST, 50, None, None), "runs_pkey"),
    ("agents", "list_runs_of_card", (TENANT, HIGHEST, 50, None, None, CARD), "runs_card"),
    ("agents", "list_runs_of_key", (TENANT, HIGHEST, 50, None, None, "OPS-7"), "runs_card_key"),
    ("agents", "list_runs_of_agent", (TENANT, HIGHEST, 50, AGENT, None), "runs_agent"),
    ("agents", "list_live_runs", (TENANT, HIGHEST, 50, None, ["queued"]), "runs_live"),
    ("agents", "list_dead_runs", (TENANT, HIGHEST, 50, None, ["failed"]), "runs_dead"),
    ("stores.postgres", "effects_by_id", (TENANT, [new_id()]), "effects_pkey"),
    ("stores.postgres", "effects", (TENANT, LOWEST, 50, None, None), "effects_pkey"),
    ("stores.postgres", "effects_of_event", (TENANT, None, 50, None, None, 7), "effects_event"),
    ("stores.postgres", "effects_pending", (TENANT, None, 50, None), "effects_"),
    ("stores.postgres", "effects_dead", (TENANT, None, 50, None), "effects_dead"),
    ("stores.postgres", "events_at", (TENANT, [1, 2, 3]), "events_pkey"),
    ("operators", "letters", (TENANT, LATEST, HIGHEST, 50, *WHOSE), "effects_dead on"),
    ("operators", "letters_of_effects", (TENANT, LATEST, HIGHEST, 50, *WHOSE, "mail"), "effects_dead on"),
    ("operators", "letters_of_runs", (TENANT, LATEST, HIGHEST, 50, *WHOSE[:2]), "runs_dead on"),
    ("operators", "letters_by_age", (TENANT, 7, LOWEST, 50, LATEST, *WHOSE), "effects_dead_age on"),
    ("operators", "effects_by_age", (TENANT, 7, LOWEST, 50, LATEST, *WHOSE, "mail"), "effects_dead_age on"),
    ("operators", "runs_by_age", (TENANT, 7, LOWEST, 50, LATEST, *WHOSE[:2]), "runs_dead_age on"),
    ("operators", "count_letters", (TENANT, None, *WHOSE, True, None), "effects_dead"),
    ("operators", "heaps", (TENANT, None, *WHOSE, True, None, 50), "effects_dead"),
    ("chat", "due_nets", (20,), "effects_unspoken"),
    ("chat", "receipts", (TENANT, [7], 60.0), "effects_event"),
    ("chat", "settlings", (TENANT, str(CARD)), "events_subject"),
    ("chat", "seen_by", ([TENANT], [CARD], [new_id()], [AGENT]), "channels_pkey"),
    ("operators", "letters_by_id", (TENANT, [new_id()]), "effects_pkey"),
]  # fmt: skip


PAGED = {
    "letters",
    "letters_of_effects",
    "letters_of_runs",
    "letters_by_age",
    "effects_by_age",
    "runs_by_age",
}


@pytest.mark.parametrize(("room", "name", "args", "index"), ASKED, ids=[one[1] for one in ASKED])
async def test_a_question_is_answered_by_an_index(big, room, name, args, index):
    plan = await plan_of(big, Queries(f"mainspring.{room}.sql")[name], *args)
    assert "Seq Scan" not in plan, plan
    assert index in plan, plan
    if name in PAGED:  # no letter of an earlier page is read again
        assert plan.count("AND (ROW(") == plan.count("Scan using") + plan.count("Scan Backward using"), plan


async def test_cards_are_found_by_their_label_behind_the_walls_however_often_it_is_asked(big):
    """Whatever plan is kept after the first few: neither all cards are read, nor those with another label."""
    args = (TENANT, None, None, None, None, 50, None, ["urgent"])
    await big.execute("set plan_cache_mode = auto")
    await big.execute(f"prepare asked as {Queries('mainspring.boards.sql')['find_labeled_cards']}")
    asked = f"execute asked ({', '.join(map(literal, args))})"
    try:
        for _ in range(8):
            assert len(await big.fetch(asked)) == 50
        plan = "\n".join(line[0] for line in await big.fetch(f"explain {asked}"))
    finally:
        await big.execute("deallocate asked; set plan_cache_mode = force_generic_plan")
    assert "Seq Scan" not in plan, plan
    assert "card_labels_label" in plan, plan


@pytest.fixture(scope="module")
async def fired(big) -> UUID:
    """A rule that owes much and has fired often, each time on another card, beside one that has not."""
    rule = new_id()
    await big.execute("reset role")
    await big.execute(
        f"""
        insert into mainspring.effects (tenant_id, id, kind, family, key, event_seq, rule_id, rule_version, payload, state, not_before)
        select '{TENANT}', gen_random_uuid(), 'launch', 'executed', n || ':r', n, '{rule}', 1,
               jsonb_build_object('card_id', case when n % 100 > 0 then gen_random_uuid() end), 'pending', clock_timestamp()
          from generate_series(1, {ROWS}) n;
        insert into mainspring.firings (tenant_id, effect_id, kind, rule_id, card_id, agent_id, event_seq, kept_until)
        select tenant_id, id, 'launch', rule_id, (payload ->> 'card_id')::uuid, '{AGENT}', event_seq, clock_timestamp()
          from mainspring.effects where rule_id = '{rule}';
        analyze mainspring.effects, mainspring.firings
        """
    )
    await big.execute("set role mainspring_app")
    return rule


@pytest.mark.parametrize("card", [new_id(), None], ids=["with a card", "without"])
async def test_when_a_rule_last_fired_on_a_card_is_read_of_that_card_alone(big, fired, card):
    asked = (TENANT, fired, card, 7, 600.0, 0, new_id())
    plan = await plan_of(big, Queries("mainspring.triggers.sql")["pace"], *asked)
    asked_for = [line for line in plan.splitlines() if "Cond" in line and "card_id" in line]
    assert plan.count("firings_card") == 2, plan
    assert ["(card_id = $3)" in line for line in asked_for] == [True, False], plan
    assert ["(card_id IS NULL)" in line for line in asked_for] == [False, True], plan


@pytest.mark.parametrize("card", [new_id(), None], ids=["with a card", "without"])
async def test_whether_a_later_launch_takes_the_place_of_one_is_read_of_that_card_alone(big, fired, card):
    """As the server asks it: of what payloads say no index is used behind the walls."""
    name = "later_launch_without_card" if card is None else "later_launch_on_card"
    asked = (TENANT, fired, 7, 1, 9) if card is None else (TENANT, fired, card, card, 7, 1, 9)
    await big.execute("set role mainspring_system")
    try:
        plan = await plan_of(big, Queries("mainspring.triggers.sql")[name], *asked)
    finally:
        await big.execute("set role mainspring_app")
    assert "Seq Scan" not in plan, plan
    waits, launched = plan.split("effects_waiting", 1)[1].split("firings_card", 1)
    by = "IS NULL" if card is None else "= $4"
    assert f"((payload ->> 'card_id'::text) {by})" in waits, plan
    assert ("(card_id IS NULL)" if card is None else "(card_id = $3)") in launched, plan


async def test_forgetting_what_fired_asks_for_its_effects_by_their_keys(big):
    """As many as have fired within the hour may be looked at; what else was ever owed is not read."""
    transaction = big.transaction()
    await transaction.start()
    try:
        await big.execute("reset role")
        await big.execute(
            """
            delete from mainspring.firings;
            insert into mainspring.firings (tenant_id, effect_id, kind, event_seq, kept_until)
            select tenant_id, id, 'webhook', event_seq, clock_timestamp() from mainspring.effects;
            analyze mainspring.firings;
            set local role mainspring_system
            """
        )
        plan = await plan_of(big, Queries("mainspring.triggers.sql")["trim_firings"], 10_000)
    finally:
        await transaction.rollback()
    assert "Index Cond: ((tenant_id = o.tenant_id) AND (id = o.effect_id))" in plan, plan
