"""A server's database with one tenant, people, agents and a board."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from uuid import UUID

import pytest

from mainspring.agents.verbs import RunVerbs
from mainspring.boards import effects, verbs
from mainspring.boards.model import Board, BoardState, Card, NewCard, snapshot
from mainspring.boards.service import BoardService
from mainspring.db import Database, Scope, create_pool
from mainspring.ids import new_id
from mainspring.rooms import Actor, ServerSpine
from mainspring.spine.engine import Spine
from mainspring.spine.events import NO_CAUSE, Cause, Event, NewEvent
from mainspring.stores.postgres import PostgresStore

STATES = (
    BoardState(name="inbox"),
    BoardState(name="ready", eligible=True),
    BoardState(name="doing"),
    BoardState(name="review"),
    BoardState(name="done", terminal=True),
)
REFLECT = {"running": "doing", "done": "review"}


@dataclass(slots=True)
class House:
    """Everything a test of boards stands on."""

    spine: ServerSpine
    db: Database
    boards: BoardService
    runs: RunVerbs
    tenant: UUID
    ana: Actor
    qa: Actor
    echo: Actor
    flaky: Actor
    board: Board

    async def card(self, title: str = "t", **more) -> Card:
        return await self.boards.create_card(self.ana, "OPS", NewCard(title=title, **more))

    async def events(self, *, after: int = 0) -> list[Event]:
        async with self.db.tenant(self.tenant) as scope:
            return await self.spine.store.read(scope, self.tenant, after=after, limit=1000)

    async def head(self) -> int:
        async with self.db.tenant(self.tenant) as scope:
            return await self.spine.store.head(scope, self.tenant)

    async def value(self, sql: str, *args):
        async with self.db.tenant(self.tenant) as scope:
            return await scope.fetchval(sql, *args)

    async def effects(self) -> list[tuple[str, str, str | None]]:
        async with self.db.tenant(self.tenant) as scope:
            rows = await self.spine.store.effects(scope, self.tenant, kind="reflect")
            return [(row.key, row.state.value, row.outcome) for row in rows]

    async def run(
        self, card: Card, state: str = "running", *, depth: int = 1, via: tuple[UUID, ...] = ()
    ) -> UUID:
        """A run of echo on the card, as a launch leaves it."""
        run_id = new_id()
        async with self.db.tenant(self.tenant) as scope:
            await scope.execute(
                """
                insert into mainspring.runs (tenant_id, id, agent_id, card_id, effect_kind, effect_key, event_seq,
                    card_state_version, state, prompt, via, depth, trust)
                values ($1, $2::uuid, $3, $4, 'launch', $2::uuid::text, 1, $5, 'queued', '', $6, $7, 'member')
                """,
                self.tenant, run_id, self.echo.account_id, card.id, card.state_version, list(via), depth,
            )  # fmt: skip
        await self.set_run(run_id, state)
        return run_id

    async def set_run(self, run_id: UUID, state: str) -> None:
        async with self.db.tenant(self.tenant) as scope:
            await scope.execute(
                """
                update mainspring.runs
                set state = $3, claim_id = coalesce(claim_id, id),
                    lease_until = case when $3 in ('claimed', 'running') then clock_timestamp() + interval '60 s' end,
                    ended_at = case when $3 in ('done', 'failed', 'blocked', 'cancelled', 'lost')
                               then clock_timestamp() end
                where tenant_id = $1 and id = $2
                """,
                self.tenant,
                run_id,
                state,
            )

    async def say(self, card: Card, run_id: UUID, kind: str, state: str, *, cause: Cause = NO_CAUSE) -> int:
        """Append the run's event, as the agents room does; return its seq."""
        async with self.spine.open(self.tenant) as tx:
            run = {"id": str(run_id), "agent_id": str(self.echo.account_id), "agent": "echo", "state": state}
            tx.append(
                NewEvent(kind, subject=str(run_id), data={"run": run, "card": snapshot(card)}, cause=cause)
            )
        return tx.appended[0]


async def _account(scope: Scope, tenant: UUID, handle: str, kind: str) -> Actor:
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


@pytest.fixture
async def house(fresh_database) -> AsyncIterator[House]:
    database = await fresh_database("server")
    pool = await create_pool(max_size=6, **database.dsn)
    try:
        spine = Spine(PostgresStore(pool, roles=True))
        db = spine.store.db
        runs = RunVerbs(verbs)
        effects.register(spine, runs)
        boards = BoardService(spine, db, runs)
        tenant = new_id()
        await spine.create_tenant(tenant, "main")
        async with db.tenant(tenant) as scope:
            ana = await _account(scope, tenant, "ana", "human")
            qa = await _account(scope, tenant, "qa", "human")
            echo = await _account(scope, tenant, "echo", "agent")
            flaky = await _account(scope, tenant, "flaky", "agent")
        board = await boards.create_board(ana, key="OPS", name="Operations", states=STATES, reflect=REFLECT)
        yield House(
            spine=spine, db=db, boards=boards, runs=runs, tenant=tenant,
            ana=ana, qa=qa, echo=echo, flaky=flaky, board=board,
        )  # fmt: skip
    finally:
        await pool.close()
