"""Operations: a decision on all dead letters of a description, carried out step by step, as fast as was asked.

Takes a description and leaves a row, and an effect that is its first step. Each step decides on some letters, notes how far it
has come and owes the next step, all in one transaction with its own settle: if we die in it, it has not happened, and whoever
claims it next begins where the last one ended. Whoever stops an operation waits for the step under way; no other follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from mainspring.db import Database, Scope
from mainspring.ids import new_id
from mainspring.operators import letters
from mainspring.operators.desk import carry_out, check, reader_of
from mainspring.operators.letters import Place
from mainspring.operators.model import (
    OPERATION,
    RATE_MAX,
    RATE_MIN,
    Decision,
    Described,
    Discard,
    Operation,
    Replay,
    RunDesk,
    Whose,
)
from mainspring.rooms import Actor, Conflict, FieldError, Invalid, NotFound, ServerSpine, Tx
from mainspring.spine.effects import Done, Dropped, Effect, EffectKind, NewEffect, Outcome
from mainspring.spine.executors import Transactional
from mainspring.sql import Queries

SQL = Queries("mainspring.operators.sql")
KIND: Final = EffectKind(name=OPERATION, transactional=True, lease_seconds=10)
_HIGHEST: Final = UUID(int=2**128 - 1)


class OperationService:
    """Operations, one method a command or query, one transaction a method."""

    def __init__(self, db: Database, spine: ServerSpine) -> None:
        self._db = db
        self._spine = spine

    async def start(
        self, actor: Actor, asked: Described, decision: Decision, *, rate_per_second: float | None = None
    ) -> Operation:
        """Begin to decide on all that is described and lies on the desk now; at most so many a second.

        Raises Invalid, and NotFound for a cause that no letter has.
        """
        check(decision)
        if rate_per_second is not None and not RATE_MIN <= rate_per_second <= RATE_MAX:
            raise Invalid(FieldError("/rate_per_second", f"{RATE_MIN} to {RATE_MAX:g}"))
        operation_id, tenant = new_id(), actor.tenant_id
        async with self._spine.open(tenant) as tx:
            total = await letters.count(tx.handle, reader_of(actor), asked)
            letters.refuse_unknown(asked, total)
            await tx.handle.execute(
                SQL["insert_operation"],
                tenant,
                operation_id,
                "replay" if isinstance(decision, Replay) else "discard",
                actor.account_id,
                actor.snapshot(),
                asked.kind,
                asked.cause,
                asked.rule.id if asked.rule else None,
                asked.agent.id if asked.agent else None,
                decision.new_key if isinstance(decision, Replay) else None,
                decision.reason.strip() if isinstance(decision, Discard) else None,
                rate_per_second,
                total,
            )
            await tx.owe(step_of(operation_id, 0, narrowed=asked.narrowed))
            return await _read(tx.handle, tenant, operation_id)

    async def list_operations(self, tenant: UUID, *, after: UUID | None, limit: int) -> list[Operation]:
        """Return operations behind `after`, the newest first."""
        async with self._db.tenant(tenant, purpose="operations") as scope:
            rows = await scope.fetch(SQL["operations"], tenant, after or _HIGHEST, limit)
        return [_operation_of(row) for row in rows]

    async def get(self, tenant: UUID, operation_id: UUID) -> Operation:
        """Return an operation, and how far it is. Raises NotFound."""
        async with self._db.tenant(tenant, purpose="operations") as scope:
            return await _read(scope, tenant, operation_id)

    async def stop(self, actor: Actor, operation_id: UUID) -> Operation:
        """End an operation; what it has decided stands. Raises NotFound, and Conflict when it has ended already."""
        tenant = actor.tenant_id
        async with self._spine.open(tenant) as tx:
            await tx.handle.fetchval(SQL["lock_operation"], tenant, operation_id)
            before = await _read(tx.handle, tenant, operation_id)
            if before.state != "running":
                raise Conflict(f"the operation is {before.state} already", code="operation_ended")
            await tx.handle.execute(SQL["stop_operation"], tenant, operation_id, actor.handle)
            return await _read(tx.handle, tenant, operation_id)


class Stepper:
    """Carries one step out."""

    def __init__(self, spine: ServerSpine, runs: RunDesk) -> None:
        self._store = spine.store
        self._runs = runs

    async def __call__(self, effect: Effect, tx: Tx) -> Outcome:
        """Decide on the next letters of an operation, and owe the step behind this one."""
        operation_id, step = UUID(effect.payload["operation_id"]), _step_in(effect.payload)
        if await tx.handle.fetchval(SQL["lock_operation"], tx.tenant, operation_id) is None:
            return Dropped("operation gone")
        operation = await _read(tx.handle, tx.tenant, operation_id)
        if operation.state != "running":
            return Dropped(f"operation {operation.state}")
        if operation.step != step:
            return Dropped(f"the operation is at step {operation.step}")
        looked = await letters.look(
            tx.handle,
            tx.tenant,
            operation.asked,
            Place(operation.after_age, operation.after_id),
            limit=operation.batch,
            until=operation.created_at,
        )
        moved = await carry_out(
            self._store,
            self._runs,
            tx,
            looked.runs,
            looked.effects,
            operation.decision,
            _actor_of(tx.tenant, operation),
            note={"operation": str(operation_id)},
        )
        found = len(looked.ids)
        counted = (len(moved), found - len(moved), looked.place.age, looked.place.id, looked.over, step)
        moved_on = await tx.handle.execute(SQL["move_operation"], tx.tenant, operation_id, *counted)
        assert moved_on == 1
        if not looked.over:
            narrowed, pause = operation.asked.narrowed, operation.pause_seconds(found)
            await tx.owe(step_of(operation_id, step + 1, narrowed=narrowed, delay_seconds=pause))
        return Done(f"{operation.verb}: {len(moved)} of {found}")


def step_of(
    operation_id: UUID, step: int, *, narrowed: bool = False, delay_seconds: float = 0.0
) -> NewEffect:
    """Return the effect that is a step of an operation.

    `narrowed`: to the letters of a rule or an agent. An older server, which knows neither, would decide on all letters: it finds
    no step here, and fails, until a newer one takes the effect.
    """
    return NewEffect(
        OPERATION,
        key=f"{operation_id}:{step}",
        payload={"operation_id": str(operation_id), "narrowed_step" if narrowed else "step": step},
        delay_seconds=delay_seconds,
    )


def _step_in(payload: Mapping[str, Any]) -> int:
    step: int = payload["narrowed_step"] if "narrowed_step" in payload else payload["step"]
    return step


def register(spine: ServerSpine, runs: RunDesk) -> None:
    """Tell the engine how operations are carried on; `build.py` calls it once."""
    spine.register_executor(Transactional(kind=KIND, run=Stepper(spine, runs)))


async def _read(scope: Scope, tenant: UUID, operation_id: UUID) -> Operation:
    row = await scope.fetchrow(SQL["operation"], tenant, operation_id)
    if row is None:
        raise NotFound("operation", operation_id)
    return _operation_of(row)


def _operation_of(row: Any) -> Operation:
    told = {name: value for name, value in row.items() if name in Operation.__dataclass_fields__}
    decision = Replay(row["new_key"]) if row["verb"] == "replay" else Discard(row["reason"])
    asked = Described(
        kind=row["kind"],
        cause=row["cause"],
        rule=Whose(row["rule_id"], row["rule"]) if row["rule_id"] else None,
        agent=Whose(row["agent_id"], row["agent"]) if row["agent_id"] else None,
    )
    return Operation(**told, decision=decision, asked=asked)


def _actor_of(tenant: UUID, operation: Operation) -> Actor:
    """Return who began the operation: every letter is decided on in their name."""
    return Actor(
        tenant_id=tenant,
        account_id=operation.account_id,
        kind=operation.actor["kind"],
        handle=operation.actor["handle"],
    )
