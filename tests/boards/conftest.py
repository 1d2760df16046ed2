"""A server's database with one tenant, people, agents and a board."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from uuid import UUID

import pytest

from mainspring.boards import effects
from mainspring.boards.model import Board, BoardState, Card, NewCard
from mainspring.boards.service import BoardService
from mainspring.db import Database, Scope, create_pool
from mainspring.ids import new_id
from mainspring.rooms import Actor, ServerSpine, Tx
from mainspring.spine.engine import Spine
from mainspring.spine.events import NO_CAUSE, Cause, Event, NewEvent, Trust
from mainspring.stores.postgres import PostgresStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A row of `runs`, as boards see it."""

    id: UUID
    state: str
    card_id: UUID | None
    card_state_version: int | None
    newest_of_card: bool
    agent_handle: str
    cause: Cause


class Runs:
    """Boards' side of runs on the real table, so that this room is tested without the other."""

    async def run_now(self, tx: Tx, run_id: UUID) -> Run | None:
        row = await tx.handle.fetchrow(
            """
            select r.id, r.state, r.card_id, r.card_state_version, a.handle, r.via, r.depth, r.trust, r.event_seq,
                   not exists (select from mainspring.runs n where n.tenant_id = r.tenant_id
                               and n.card_id = r.card_id and n.id > r.id) as newest
            from mainspring.runs r join mainspring.accounts a on a.tenant_id = r.tenant_id and a.id = r.agent_id
            where r.tenant_id = $1 and r.id = $2
            """,
            tx.tenant,
            run_id,
        )
        if row is None:
            return None
        cause = Cause(
            seq=row["event_seq"], via=tuple(row["via"]), depth=row["depth"], trust=Trust(row["trust"])
        )
        return Run(
            id=row["id"],
            state=row["state"],
            card_id=row["card_id"],
            card_state_version=row["card_state_version"],
            newest_of_card=row["newest"],
            agent_handle=row["handle"],
            cause=cause,
        )

    async def saw_card_state(self, tx: Tx, run_id: UUID, state_version: int) -> None:
        await tx.handle.execute(
            "update mainspring.runs set card_state_version = $3 where tenant_id = $1 and id = $2",
            tx.tenant,
            run_id,
            state_version,
        )


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
    runs: Runs
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
        from mainspring.boards.model import snapshot

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
        runs = Runs()
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
