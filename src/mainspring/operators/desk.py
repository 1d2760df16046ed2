"""The desk: dead effects and failed or lost runs alike, read, grouped by cause, planned, replayed, discarded.

Takes ids, or a description of them; leaves them owed or queued again, or given up, with an event for each. A batch is one
transaction: if we die in between, whole batches are done and the rest still lies on the desk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from mainspring.db import Database, Scope
from mainspring.operators.model import RUN, Asked, Heap, Letter, RunDesk, grouped
from mainspring.rooms import Actor, Conflict, FieldError, Invalid, NotFound, ServerSpine
from mainspring.spine import desk as spine_desk
from mainspring.spine.desk import cause_of
from mainspring.sql import Queries

SQL = Queries("mainspring.operators.sql")
ASKED_MAX: Final = 1_000
BATCH: Final = 100
REASON_LENGTH_MAX: Final = 500
# A replay is a person's decision: what holds back automatic work does not hold it back.
WAIVED: Final = ("age", "cooldown", "rate")


class DeskService:
    """What an operator does with dead letters."""

    def __init__(self, db: Database, spine: ServerSpine, runs: RunDesk) -> None:
        """`runs` are the agents room's verbs."""
        self._db = db
        self._spine = spine
        self._runs = runs

    # reading ------------------------------------------------------------------------------------------------

    async def letters(
        self, tenant: UUID, *, kind: str | None, after: tuple[Any, UUID] | None, limit: int
    ) -> list[Letter]:
        """Return dead letters behind `after` (since, id), the latest first."""
        since, last = after or (None, None)
        async with self._db.tenant(tenant, purpose="desk") as scope:
            found = await scope.fetch(SQL["letters"], tenant, kind, since, last, limit)
        return [Letter(**dict(row)) for row in found]

    async def groups(self, tenant: UUID, *, kind: str | None) -> list[dict[str, Any]]:
        """Return dead letters by cause, the most frequent first."""
        async with self._db.tenant(tenant, purpose="desk") as scope:
            found = await scope.fetch(SQL["heaps"], tenant, kind)
        return grouped([Heap(**dict(row)) for row in found])

    async def show(self, tenant: UUID, letter_id: UUID) -> dict[str, Any]:
        """Return one dead letter with its attempts and its payload or prompt; raise NotFound."""
        async with self._db.tenant(tenant, purpose="desk") as scope:
            letter = next(iter(await _by_id(scope, tenant, [letter_id])), None)
            if letter is None:
                raise NotFound("dead letter", letter_id)
            whole = await scope.fetchrow(
                SQL["run_body" if letter.kind == RUN else "effect_body"], tenant, letter_id
            )
            name = "run_attempts" if letter.kind == RUN else "effect_attempts"
            attempts = await scope.fetch(SQL[name], tenant, [letter_id])
        return {
            **letter.as_json(),
            **(dict(whole) if whole else {}),
            "history": [{k: v for k, v in dict(one).items() if k != "of"} for one in attempts],
        }

    # deciding -----------------------------------------------------------------------------------------------

    async def plan(self, tenant: UUID, asked: Asked, *, new_key: bool | None = None) -> dict[str, Any]:
        """Return what a replay would do, in which order, and what it would leave alone and why. Changes nothing."""
        async with self._db.tenant(tenant, purpose="desk") as scope:
            ids = await _resolve(scope, tenant, asked)
            letters = await _by_id(scope, tenant, ids)
            effects = [letter.id for letter in letters if letter.kind != RUN]
            rows = await self._spine.store.effects_by_id(scope, tenant, effects)
        planned = spine_desk.plan(effects, rows, new_key=new_key)
        keys = {one.row.id: one.new_key for one in planned.eligible}
        eligible = sorted((one for one in letters if one.dead), key=_age)
        return {
            "eligible": [_planned(letter, new_key=keys.get(letter.id)) for letter in eligible],
            "skipped": _skipped(ids, letters),
            "order": "oldest event first",
            "waived": list(WAIVED),
        }

    async def replay(self, actor: Actor, asked: Asked, *, new_key: bool | None = None) -> dict[str, Any]:
        """Owe or queue the dead ones again; return which, and which were left alone and why."""
        return await self._decide(actor, asked, "replayed", new_key=new_key)

    async def discard(self, actor: Actor, asked: Asked, *, reason: str) -> dict[str, Any]:
        """Give the dead ones up, for a reason that is kept; return which, and which were left alone and why."""
        if not reason.strip() or len(reason) > REASON_LENGTH_MAX:
            raise Invalid(FieldError("/reason", f"say why, in 1 to {REASON_LENGTH_MAX} characters"))
        return await self._decide(actor, asked, "discarded", reason=reason.strip())

    async def _decide(
        self, actor: Actor, asked: Asked, word: str, *, new_key: bool | None = None, reason: str | None = None
    ) -> dict[str, Any]:
        tenant = actor.tenant_id
        async with self._db.tenant(tenant, purpose="desk") as scope:
            ids = await _resolve(scope, tenant, asked)
            letters = await _by_id(scope, tenant, ids)
        dead = sorted((one for one in letters if one.dead), key=_age)
        if not dead and not asked.by_filter and len(ids) == 1:
            raise _nothing_to_do(ids[0], letters)
        done: list[Letter] = []
        for start in range(0, len(dead), BATCH):
            done += await self._batch(actor, dead[start : start + BATCH], new_key=new_key, reason=reason)
        late = [one for one in dead if one not in done]
        return {
            word: [{"kind": one.kind, "id": str(one.id), "subject": one.subject} for one in done],
            "skipped": _skipped(ids, letters)
            + [{"id": str(one.id), "because": "somebody else decided meanwhile"} for one in late],
        }

    async def _batch(
        self, actor: Actor, letters: Sequence[Letter], *, new_key: bool | None, reason: str | None
    ) -> list[Letter]:
        """Decide on some letters in one transaction: runs before effects, as rows are locked."""
        runs = sorted(letter.id for letter in letters if letter.kind == RUN)
        effects = [letter.id for letter in letters if letter.kind != RUN]
        by = spine_desk.By(actor_id=actor.account_id, actor=actor.snapshot())
        moved: set[UUID] = set()
        async with self._spine.open(actor.tenant_id) as tx:
            if reason is None:
                moved.update(await self._runs.replay_runs(tx, runs, actor) if runs else ())
                done = await spine_desk.replay(self._spine.store, tx, effects, new_key=new_key, by=by)
            else:
                moved.update(await self._runs.discard_runs(tx, runs, reason, actor) if runs else ())
                done = await spine_desk.discard(self._spine.store, tx, effects, reason=reason, by=by)
        moved.update(one.row.id for one in done.eligible)
        return [letter for letter in letters if letter.id in moved]


async def _resolve(scope: Scope, tenant: UUID, asked: Asked) -> list[UUID]:
    """Return the ids that are meant; refuse more than one request should decide on."""
    ids = list(dict.fromkeys(asked.ids))
    if asked.by_filter:
        found = await scope.fetch(SQL["letters_of_kind"], tenant, asked.kind)
        ids = [
            row["id"]
            for row in found
            if asked.cause is None or cause_of(row["outcome"], row["error"]) == asked.cause
        ][:ASKED_MAX]
    if len(ids) > ASKED_MAX:
        raise Invalid(FieldError("/ids", f"at most {ASKED_MAX} at once"))
    return ids


async def _by_id(scope: Scope, tenant: UUID, ids: Sequence[UUID]) -> list[Letter]:
    return [Letter(**dict(row)) for row in await scope.fetch(SQL["letters_by_id"], tenant, list(ids))]


def _age(letter: Letter) -> tuple[bool, int, UUID]:
    return (letter.event_seq is None, letter.event_seq or 0, letter.id)


def _planned(letter: Letter, *, new_key: bool | None) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "kind": letter.kind,
        "id": str(letter.id),
        "subject": letter.subject,
        "cause": letter.cause,
        "event_seq": letter.event_seq,
    }
    if letter.kind == RUN:
        waits = f"; it will wait: {letter.agent} is paused" if letter.paused else ""
        return {**shown, "then": f"the same run is queued again with fresh attempts{waits}"}
    key = "under a new idempotency key" if new_key else "under the same idempotency key"
    return {**shown, "new_key": bool(new_key), "then": f"owed again with fresh attempts, {key}"}


def _skipped(ids: Sequence[UUID], letters: Sequence[Letter]) -> list[dict[str, str]]:
    found = {letter.id: letter for letter in letters}
    left = [one for one in ids if one not in found or not found[one].dead]
    return [
        {
            "id": str(one),
            "because": f"it is {found[one].state}, not dead"
            if one in found
            else "there is no such dead letter",
        }
        for one in left
    ]


def _nothing_to_do(asked: UUID, letters: Sequence[Letter]) -> NotFound | Conflict:
    if not letters:
        return NotFound("dead letter", asked)
    return Conflict(f"{letters[0].kind} {asked} is {letters[0].state}, not dead", code="not_dead")
