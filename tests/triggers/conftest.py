"""A server's database with one tenant, two boards, people, agents, and the real rooms joined as the server joins them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from mainspring import db
from mainspring.agents.verbs import RunVerbs
from mainspring.boards import effects as board_effects
from mainspring.boards import verbs as board_verbs
from mainspring.boards.model import BoardState, Card, NewCard
from mainspring.boards.service import BoardService
from mainspring.ids import new_id
from mainspring.migrations.deadlines import DEADLINES as PRODUCT_DEADLINES
from mainspring.rooms import Actor, ServerSpine, system_actor
from mainspring.spine.engine import Spine, SpineSettings
from mainspring.spine.events import NO_CAUSE, Cause, Event
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.deadlines import DEADLINES, age
from mainspring.triggers import dispatch, effects
from mainspring.triggers.explain import RuleVerdict, verdicts
from mainspring.triggers.model import Rule
from mainspring.triggers.preview import PreviewService
from mainspring.triggers.service import RuleService

STATES = (
    BoardState(name="inbox"),
    BoardState(name="ready", eligible=True),
    BoardState(name="doing"),
    BoardState(name="done", terminal=True),
)


@dataclass(slots=True)
class House:
    """Everything a test of triggers stands on. OPS has an eligible state, WEB has none; neither reflects."""

    spine: ServerSpine
    db: db.Database
    boards: BoardService
    runs: RunVerbs
    rules: RuleService
    preview: PreviewService
    tenant: UUID
    ana: Actor
    echo: Actor
    flaky: Actor
    admin: dict[str, Any]

    async def rule(self, when: dict[str, Any], name: str = "r", **more: Any) -> Rule:
        """A rule that launches echo."""
        launch = {"agent": more.pop("agent", "echo"), "prompt": more.pop("prompt", "{{card.title}}")}
        body = {"name": name, "when": when, "do": {"launch": launch}, "options": more}
        return (await self.rules.create(self.ana, body)).rule

    async def promotion(
        self, when: dict[str, Any], name: str = "p", *, agent: str = "echo", **options: Any
    ) -> Rule:
        """A rule that pins to echo."""
        body = {"name": name, "when": when, "do": {"promote": {"agent": agent}}, "options": options}
        return (await self.rules.create(self.ana, body)).rule

    async def card(
        self, title: str = "t", *, board: str = "WEB", by: Actor | None = None, **more: Any
    ) -> Card:
        return await self.boards.create_card(by or self.ana, board, NewCard(title=title, **more))

    async def move(self, card: Card, to_state: str, *, by: Actor | None = None) -> Card:
        return await self.boards.move_card(by or self.ana, card.key, to_state)

    async def events(self) -> list[Event]:
        async with self.db.tenant(self.tenant) as scope:
            return await self.spine.store.read(scope, self.tenant, after=0, limit=10_000)

    async def last(self, kind: str) -> Event:
        return [event for event in await self.events() if event.kind == kind][-1]

    async def launches(self, kind: str = "launch") -> list[tuple[str, str | None, str | None]]:
        """(state, outcome, error) of every launch, oldest first."""
        async with self.db.tenant(self.tenant) as scope:
            rows = await self.spine.store.effects(scope, self.tenant, kind=kind, limit=10_000)
        return [(row.state.value, row.outcome, row.error) for row in rows]

    async def keys(self) -> list[str]:
        async with self.db.tenant(self.tenant) as scope:
            return [
                row.key
                for row in await self.spine.store.effects(scope, self.tenant, kind="launch", limit=10_000)
            ]

    async def outcomes(self, kind: str = "launch") -> list[str | None]:
        """What every launch came to, oldest first."""
        return [outcome for _, outcome, _ in await self.launches(kind)]

    async def queued(self) -> list[asyncpg.Record]:
        async with self.db.tenant(self.tenant) as scope:
            return await scope.fetch(
                "select * from mainspring.runs where tenant_id = $1 order by event_seq, id", self.tenant
            )

    async def end_runs(self, state: str = "done") -> None:
        async with self.db.tenant(self.tenant) as scope:
            await scope.execute(
                """update mainspring.runs set state = $2, lease_until = null, ended_at = clock_timestamp()
                   where tenant_id = $1 and state = 'queued'""",
                self.tenant,
                state,
            )

    async def verdicts(self, event: Event) -> dict[str, RuleVerdict]:
        async with self.db.tenant(self.tenant) as scope:
            return {verdict.name: verdict for verdict in await verdicts(scope, event)}

    async def sweep(self) -> int:
        return await dispatch.dispatch_sweep(self.spine, self.db, horizon_seconds=6 * 86_400.0)

    async def later(self, *, days: float = 0.0, seconds: float = 0.0) -> None:
        """Let time pass."""
        conn = await asyncpg.connect(**self.admin)
        try:
            await age(conn, days * 86_400.0 + seconds, {**DEADLINES, **PRODUCT_DEADLINES})
        finally:
            await conn.close()

    def system(self, cause: Cause = NO_CAUSE) -> Actor:
        return system_actor(self.tenant, cause)


async def _account(scope: db.Scope, tenant: UUID, handle: str, kind: Any) -> Actor:
    account = new_id()
    await scope.execute(
        "insert into mainspring.accounts (tenant_id, id, kind, handle, name) values ($1, $2, $3, $4, $4)",
        tenant,
        account,
        kind,
        handle,
    )
    if kind == "agent":
        await scope.execute("insert into mainspring.agents (tenant_id, id) values ($1, $2)", tenant, account)
    return Actor(tenant_id=tenant, account_id=account, kind=kind, handle=handle)


@asynccontextmanager
async def house_on(database: Any) -> AsyncIterator[House]:
    """A house on a migrated database, with a tenant of its own."""
    pool = await db.create_pool(max_size=6, **database.dsn)
    try:
        store = PostgresStore(pool, roles=True)
        spine: ServerSpine = Spine(store)
        runs = RunVerbs(board_verbs)
        board_effects.register(spine, runs)
        effects.register(spine, store.db, board_verbs, runs, webhook_allow_private=True)
        boards = BoardService(spine, store.db, runs)
        tenant = new_id()
        await spine.create_tenant(tenant, "main")
        async with store.db.tenant(tenant) as scope:
            ana = await _account(scope, tenant, "ana", "human")
            echo = await _account(scope, tenant, "echo", "agent")
            flaky = await _account(scope, tenant, "flaky", "agent")
        await boards.create_board(ana, key="OPS", name="Operations", states=STATES, reflect={})
        plain = tuple(BoardState(name=name) for name in ("inbox", "ready", "doing", "shipped"))
        await boards.create_board(ana, key="WEB", name="Web", states=plain, reflect={})
        preview = PreviewService(
            spine, boards, board_verbs, runs, launches_per_hour_max=1_000, runner_silence_seconds=60.0
        )
        rules = RuleService(spine, store.db)
        yield House(
            spine=spine, db=store.db, boards=boards, runs=runs, rules=rules, preview=preview, tenant=tenant,
            ana=ana, echo=echo, flaky=flaky, admin=database.admin,
        )  # fmt: skip
    finally:
        await pool.close()


@pytest.fixture
async def house(fresh_database: Callable[..., Awaitable[Any]]) -> AsyncIterator[House]:
    async with house_on(await fresh_database("server")) as made:
        yield made


def another_engine(house: House, settings: SpineSettings | None = None) -> ServerSpine:
    """Another server process's engine on the same database, with rules of its own in memory."""
    spine: ServerSpine = Spine(house.spine.store, settings, name="other")
    runs = RunVerbs(board_verbs)
    board_effects.register(spine, runs)
    effects.register(spine, house.db, board_verbs, runs, webhook_allow_private=True)
    return spine


@pytest.fixture
async def other(house: House) -> ServerSpine:
    return another_engine(house)
