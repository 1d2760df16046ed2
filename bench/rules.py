"""What judging an event costs in a tenant with many rules, and in one with few: the drain's own load and judge.

Every event matches exactly one rule. In the first two tenants rules differ by board and label; in the third a hundred stand on
the event's board alike and differ by a card's field, which no index knows: all of them are candidates. The tenants take turns.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import asyncpg
import figures
from product import Product, product
from sizes import Sizes

from mainspring.boards.model import BoardState
from mainspring.embedded import EmbeddedPostgres
from mainspring.spine.drain import EVENTS_A_TENANT_MAX
from mainspring.spine.events import Event, NewEvent
from mainspring.spine.ports import Owes
from mainspring.triggers.effects import RuleEffects

TITLE = "Many rules in one tenant"
FEW = 10
BOARDS = 100
_PATTERN = {
    "name": "pattern",
    "when": {"kinds": ["card.moved"], "boards": ["B0"], "labels_all": ["agent", "l0"]},
    "do": {"launch": {"agent": "echo", "prompt": "work on {{card.title}}"}},
}
_COPY = """
with made as (
    insert into mainspring.rules (tenant_id, id, name, enabled, version)
    select r.tenant_id, gen_random_uuid(), g.n::text, true, 1
    from mainspring.rules r, generate_series(1, $2::integer - 1) as g(n)
    where r.tenant_id = $1 and r.name = 'pattern'
    returning tenant_id, id, name::integer as n
)
insert into mainspring.rule_versions (tenant_id, rule_id, version, enabled, terms, action, options, actor_id, from_seq)
select made.tenant_id, made.id, 1, true,
       v.terms || jsonb_build_object('boards', jsonb_build_array('B' || made.n % $3::integer))
           || case when $4::boolean then jsonb_build_object('fields', jsonb_build_object('n', made.n / $3))
                   else jsonb_build_object('labels_all', jsonb_build_array('agent', 'l' || made.n / $3)) end,
       v.action, v.options, v.actor_id, v.from_seq
from made
join mainspring.rule_versions v on v.tenant_id = made.tenant_id
join mainspring.rules p on p.tenant_id = v.tenant_id and p.id = v.rule_id and p.name = 'pattern'
"""


async def measure(postgres: EmbeddedPostgres, sizes: Sizes) -> dict[str, Any]:
    """Judge the same number of events of each tenant, a batch at a time."""
    async with product(postgres, "rules") as made:
        tenants = {
            f"{FEW} rules": await _Tenant.filled(made, FEW, by_field=False),
            f"{sizes.rules} rules": await _Tenant.filled(made, sizes.rules, by_field=False),
            f"{sizes.rules} rules, 100 a board alike": await _Tenant.filled(made, sizes.rules, by_field=True),
        }
        first = {name: await tenant.batch(made) for name, tenant in tenants.items()}
        rounds: dict[str, list[float]] = {name: [] for name in tenants}
        for _ in range(max(3, sizes.judged // EVENTS_A_TENANT_MAX)):
            for name, tenant in tenants.items():
                rounds[name].append(await tenant.batch(made))
    return {
        "events a batch": EVENTS_A_TENANT_MAX,
        "us an event": {name: 1e6 * statistics.median(seconds) for name, seconds in rounds.items()},
        "us an event, each batch": {name: [1e6 * one for one in seconds] for name, seconds in rounds.items()},
        "first load of all rules, ms": {
            name: 1e3 * EVENTS_A_TENANT_MAX * seconds for name, seconds in first.items()
        },
    }


class _Tenant:
    """A tenant with rules, and the events that are judged over and over."""

    def __init__(self, rules: RuleEffects, events: Sequence[Event]) -> None:
        self._rules = rules
        self._events = events

    @classmethod
    async def filled(cls, made: Product, rules: int, *, by_field: bool) -> _Tenant:
        """Make the rules, and events each of which matches one of them."""
        actor = await made.new_person(f"{rules}")
        pattern: dict[str, Any] = json.loads(json.dumps(_PATTERN))
        if by_field:
            del pattern["when"]["labels_all"]
            pattern["when"]["fields"] = {"n": 0}
        await made.services.agents.create(actor, handle="echo")
        states = [BoardState(name="todo"), BoardState(name="doing")]
        await made.services.boards.create_board(actor, key="B0", name="B0", states=states, reflect={})
        await made.services.rules.create(actor, pattern)
        conn = await asyncpg.connect(**made.admin)
        await conn.execute(_COPY, actor.tenant_id, rules, min(rules, BOARDS), by_field)
        await conn.execute("analyze mainspring.rules, mainspring.rule_versions")
        await conn.close()
        spine = made.services.spine
        async with spine.open(actor.tenant_id) as tx:
            for n in range(EVENTS_A_TENANT_MAX):
                tx.append(_happened(n * 37 % rules, boards=min(rules, BOARDS)))
        async with spine.store.tenant(actor.tenant_id) as scope:
            events = await spine.store.read(scope, actor.tenant_id, after=1, limit=EVENTS_A_TENANT_MAX)
        return cls(RuleEffects(), events)

    async def batch(self, made: Product) -> float:
        """Load and judge one batch; return seconds an event."""
        async with made.services.db.system("drain") as scope:
            begun = time.perf_counter()
            context = await self._rules.load(scope, self._events)
            verdicts = [self._rules.judge(event, context) for event in self._events]
            seconds = time.perf_counter() - begun
        owed = [len(one.effects) for one in verdicts if isinstance(one, Owes)]
        if owed != [1] * len(self._events):
            raise figures.Lost(f"{len(owed)} of {len(self._events)} events matched, {sum(owed)} rules in all")
        return seconds / len(self._events)


def _happened(rule: int, *, boards: int) -> NewEvent:
    """Return a move that matches the rule of this number, and no other."""
    board, part = f"B{rule % boards}", rule // boards
    card: Mapping[str, Any] = {
        "id": str(UUID(int=rule)), "key": f"{board}-1", "board": board, "number": 1, "title": "t", "body": "b", "state": "doing",
        "labels": ["agent", "other", f"l{part}"], "agent_id": None, "agent": None, "priority": 0, "fields": {"n": part},
        "version": 1, "state_version": 1, "eligible_version": None,
    }  # fmt: skip
    return NewEvent(
        "card.moved",
        subject=str(card["id"]),
        data={"card": card, "from": "todo", "to": "doing", "actor": {"kind": "human", "handle": "ana"}},
    )


def judge(measured: dict[str, Any]) -> list[figures.Goal]:
    """Fifty microseconds an event, of ten thousand rules that differ by board and label."""
    name = list(measured["us an event"])[1]
    return [figures.at_most(f"{name}, µs an event judged", measured["us an event"][name], 50.0)]


def show(measured: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row a tenant."""
    few = next(iter(measured["us an event, each batch"].values()))
    return [
        (f"load and judge, batches of {measured['events a batch']}", "µs an event", "of few", "first load"),
        *(
            (
                name,
                f"{micros:.1f}",
                f"{figures.ratio(measured['us an event, each batch'][name], few):.1f} x",
                f"{measured['first load of all rules, ms'][name]:,.0f} ms",
            )
            for name, micros in measured["us an event"].items()
        ),
    ]
