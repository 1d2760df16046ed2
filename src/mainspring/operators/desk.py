"""The desk: dead effects and failed or lost runs alike, read, grouped by cause, planned, replayed, discarded.

Takes ids, and decides on them at once, in one transaction; or a description, and leaves an operation that goes through all of
them (operations.py). What is left is owed or queued again, or given up, with an event for each. If we die here, nothing of it
has happened.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, assert_never
from uuid import UUID

from mainspring.chat.sight import Reader
from mainspring.db import Database, Scope
from mainspring.operators import letters
from mainspring.operators.letters import Place
from mainspring.operators.model import (
    RUN,
    Asked,
    Decision,
    Described,
    Discard,
    Letter,
    Named,
    Replay,
    RunDesk,
    grouped,
)
from mainspring.rooms import Actor, Conflict, FieldError, Invalid, NotFound, ServerSpine, Tx
from mainspring.spine import desk as spine_desk
from mainspring.spine.ports import Store

ASKED_MAX: Final = 1_000
PLANNED_MAX: Final = 500
EXPORTED_AT_ONCE: Final = 200
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

    async def described(
        self,
        tenant: UUID,
        *,
        kind: str | None = None,
        cause: str | None = None,
        rule: str | None = None,
        agent: str | None = None,
    ) -> Described:
        """Return a description in which the rule and the agent, by name or id, are known. Raises NotFound for one that is not."""
        if rule is None and agent is None:
            return Described(kind=kind, cause=cause)
        async with self._db.tenant(tenant, purpose="desk") as scope:
            return Described(
                kind=kind,
                cause=cause,
                rule=None if rule is None else await letters.whose_rule(scope, tenant, rule),
                agent=None if agent is None else await letters.whose_agent(scope, tenant, agent),
            )

    async def letters(
        self, reader: Reader, asked: Described, *, after: tuple[datetime, UUID] | None, limit: int
    ) -> tuple[list[Letter], tuple[datetime, UUID] | None]:
        """Return those that are meant, whatever their cause, behind `after` (since, id), the latest first, and behind which there may
        be more."""
        async with self._db.tenant(reader.tenant_id, purpose="desk") as scope:
            return await letters.latest(scope, reader, asked, after=after, limit=limit)

    async def groups(self, reader: Reader, asked: Described) -> tuple[list[dict[str, Any]], int]:
        """Return those that are meant by cause, the most frequent first, and how many more there are that no group counts."""
        async with self._db.tenant(reader.tenant_id, purpose="desk") as scope:
            found, uncounted = await letters.heaps(scope, reader, asked)
        return grouped(found), uncounted

    async def show(self, reader: Reader, letter_id: UUID) -> dict[str, Any]:
        """Return one dead letter with its attempts and its payload or prompt. Raises NotFound."""
        tenant = reader.tenant_id
        async with self._db.tenant(tenant, purpose="desk") as scope:
            found = await letters.whole(scope, tenant, await letters.by_id(scope, reader, [letter_id]))
        if not found:
            raise NotFound("dead letter", letter_id)
        return found[0]

    async def export(self, reader: Reader, asked: Described) -> AsyncIterator[list[dict[str, Any]]]:
        """Yield whole letters, oldest event first, so many at a time; each part is a transaction of its own."""
        place, over, tenant = Place(), False, reader.tenant_id
        while not over:
            async with self._db.tenant(tenant, purpose="desk") as scope:
                looked = await letters.look(scope, tenant, asked, place, limit=EXPORTED_AT_ONCE)
                part = await letters.whole(scope, tenant, await _in_order(scope, reader, looked.ids))
            place, over = looked.place, looked.over
            yield part

    # deciding -----------------------------------------------------------------------------------------------

    async def plan(self, reader: Reader, asked: Asked, *, new_key: bool | None = None) -> dict[str, Any]:
        """Return what a replay would do, in which order, and what it would leave alone and why. Changes nothing.

        Of what is described, at most PLANNED_MAX are listed; `total` is how many there are, null when they were not counted.
        Raises NotFound for a cause that no letter has.
        """
        tenant = reader.tenant_id
        async with self._db.tenant(tenant, purpose="desk") as scope:
            total: int | None
            match asked:
                case Named(ids):
                    _check_number(ids)
                    found = await letters.by_id(scope, reader, ids)
                    dead = sorted((one for one in found if one.dead), key=_age)
                    total, skipped = len(dead), _skipped(ids, found)
                case Described():
                    dead, skipped = await _first(scope, reader, asked), []
                    total = await letters.count(scope, reader, asked)
                    letters.refuse_unknown(asked, total)
                case _:
                    assert_never(asked)
            effects = [letter.id for letter in dead if letter.kind != RUN]
            rows = await self._spine.store.effects_by_id(scope, tenant, effects)
            tried = await self._spine.store.tried(scope, tenant, effects)
        planned = spine_desk.plan(effects, rows, tried=tried, new_key=new_key)
        keys = {one.row.id: one.new_key for one in planned.eligible}
        return {
            "eligible": [_planned(letter, new_key=keys.get(letter.id)) for letter in dead],
            "skipped": skipped,
            "order": "oldest event first",
            "waived": list(WAIVED),
            "total": total,
        }

    async def decide(self, actor: Actor, ids: Sequence[UUID], decision: Decision) -> dict[str, Any]:
        """Decide on the dead ones of these; return which, and which were left alone and why.

        Raises Invalid, and for one letter alone NotFound, or Conflict when it is not dead.
        """
        check(decision)
        _check_number(ids)
        async with self._spine.open(actor.tenant_id) as tx:
            found = await letters.by_id(tx.handle, reader_of(actor), ids)
            dead = sorted((one for one in found if one.dead), key=_age)
            if not dead and len(ids) == 1:
                raise _nothing_to_do(ids[0], found)
            runs = [letter.id for letter in dead if letter.kind == RUN]
            effects = [letter.id for letter in dead if letter.kind != RUN]
            moved = await carry_out(self._spine.store, self._runs, tx, runs, effects, decision, actor)
        word = "replayed" if isinstance(decision, Replay) else "discarded"
        late = [one for one in dead if one.id not in moved]
        return {
            word: [
                {"kind": one.kind, "id": str(one.id), "subject": one.subject}
                for one in dead
                if one.id in moved
            ],
            "skipped": _skipped(ids, found)
            + [{"id": str(one.id), "because": "somebody else decided meanwhile"} for one in late],
        }


async def carry_out(
    store: Store[Scope],
    desk: RunDesk,
    tx: Tx,
    runs: Sequence[UUID],
    effects: Sequence[UUID],
    decision: Decision,
    actor: Actor,
    *,
    note: Mapping[str, Any] | None = None,
) -> set[UUID]:
    """Decide on the dead ones of these in an open transaction, runs before effects, as rows are locked; return them.

    `note` stands in the event of each.
    """
    by = spine_desk.By(actor_id=actor.account_id, actor=actor.snapshot(), note=note or {})
    moved: set[UUID] = set()
    match decision:
        case Replay(new_key):
            if runs:
                moved.update(await desk.replay_runs(tx, sorted(runs), actor, note=note))
            done = await spine_desk.replay(store, tx, effects, new_key=new_key, by=by)
        case Discard(reason):
            if runs:
                moved.update(await desk.discard_runs(tx, sorted(runs), reason, actor, note=note))
            done = await spine_desk.discard(store, tx, effects, reason=reason, by=by)
        case _:
            assert_never(decision)
    return moved | {one.row.id for one in done.eligible}


def check(decision: Decision) -> None:
    """Raise Invalid when a discard does not say why."""
    if isinstance(decision, Discard) and not 1 <= len(decision.reason.strip()) <= REASON_LENGTH_MAX:
        raise Invalid(FieldError("/reason", f"say why, in 1 to {REASON_LENGTH_MAX} characters"))


def reader_of(actor: Actor) -> Reader:
    """Return who decides, as a reader: nobody does who does not operate."""
    return Reader(tenant_id=actor.tenant_id, account_id=actor.account_id, operates=True)


async def _first(scope: Scope, reader: Reader, asked: Described) -> list[Letter]:
    """Return the first of what is described."""
    ids: list[UUID] = []
    place, over = Place(), False
    while not over and len(ids) < PLANNED_MAX:
        looked = await letters.look(scope, reader.tenant_id, asked, place, limit=PLANNED_MAX - len(ids))
        ids += looked.ids
        place, over = looked.place, looked.over
    return await _in_order(scope, reader, ids)


async def _in_order(scope: Scope, reader: Reader, ids: Sequence[UUID]) -> list[Letter]:
    return sorted(await letters.by_id(scope, reader, ids), key=_age) if ids else []


def _check_number(ids: Sequence[UUID]) -> None:
    if len(ids) > ASKED_MAX:
        raise Invalid(FieldError("/ids", f"at most {ASKED_MAX} at once"))


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
    left = [one for one in dict.fromkeys(ids) if one not in found or not found[one].dead]
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
