"""What can be done to a rule inside an open transaction. Takes checked input; leaves the rows written and a `rule.changed`
appended, whose seq then bounds the versions. If it dies here, the transaction was never committed, and no event was judged
by a version that is not there.

Whoever changes a rule locks it first (`lock_rule`) and hands that value in; every verb returns the rule as it is now.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias
from uuid import UUID

from asyncpg import Record

from mainspring.boards.model import fold
from mainspring.db import Scope
from mainspring.ids import new_id
from mainspring.rooms import Actor, Newer, Tx
from mainspring.spine.events import NewEvent
from mainspring.sql import Queries
from mainspring.triggers import sense
from mainspring.triggers.model import (
    Definition,
    Known,
    Options,
    Paused,
    Rule,
    RuleVersion,
    action_of,
    snapshot,
)
from mainspring.triggers.terms import Terms

SQL: Final = Queries("mainspring.triggers.sql")
_INSERT_RULE = SQL["insert_rule"]
_INSERT_VERSION = SQL["insert_version"]
_STAMP_CHANGE = SQL["stamp_change"]
_LOCK_RULE = SQL["lock_rule"]
_UPDATE_RULE = SQL["update_rule"]
_DELETE_RULE = SQL["delete_rule"]
_RULE = SQL["rule"]
_RULES = SQL["rules"]
_RULE_ID_BY_NAME = SQL["rule_id_by_name"]
_BOARDS_STATES = SQL["boards_states"]
_OPEN_CHANNELS = SQL["open_channels"]
_ACCOUNTS_KINDS = SQL["accounts_kinds"]
_SHARE_RULE = SQL["share_rule"]
_HOLD_RULE = SQL["hold_rule"]
_VERSION = SQL["version"]
_PAUSE_RULE = SQL["pause_rule"]
_UNPAUSE_RULE = SQL["unpause_rule"]
_STAMP_RESUMED = SQL["stamp_resumed"]
_FREE_HELD = SQL["free_held"]
_GIVE_UP_HELD = SQL["give_up_held"]
_COUNT_HELD = SQL["count_held"]

Change: TypeAlias = Literal["created", "edited", "enabled", "disabled", "deleted", "paused", "resumed"]
Owed: TypeAlias = Literal["run", "discard"]  # what a resume does with what is owed
GIVEN_UP: Final = "given up when the rule was resumed"
_LOWEST: Final = UUID(int=0)


# Reading --------------------------------------------------------------------------------------------------------


async def read_rule(scope: Scope, tenant: UUID, rule_id: UUID) -> Rule | None:
    """Return the rule, None when it is not there or deleted."""
    row = await scope.fetchrow(_RULE, tenant, rule_id)
    return _rule_of(row) if row is not None else None


async def list_rules(scope: Scope, tenant: UUID, *, after: UUID | None, limit: int) -> list[Rule]:
    """Return the tenant's rules behind `after`, oldest first."""
    return [_rule_of(row) for row in await scope.fetch(_RULES, tenant, after or _LOWEST, limit)]


async def find_rule(scope: Scope, tenant: UUID, ref: str) -> UUID | None:
    """Return the id of the rule that an id or a name means; a name's case and outer space do not matter."""
    try:
        return UUID(ref)
    except ValueError:
        pass
    if "\0" in ref:
        return None
    found: UUID | None = await scope.fetchval(_RULE_ID_BY_NAME, tenant, ref.strip())
    return found


async def known_in(scope: Scope, tenant: UUID, definition: Definition) -> Known:
    """Look up what a rule's names are checked against."""
    boards = await scope.fetch(_BOARDS_STATES, tenant)
    accounts = await scope.fetch(_ACCOUNTS_KINDS, tenant, sorted(sense.handles_of(definition)))
    channels = await scope.fetch(_OPEN_CHANNELS, tenant, sorted(definition.terms.channels))
    return Known(
        channels=frozenset(row["name"] for row in channels),
        boards={row["key"]: frozenset(fold(state) for state in row["states"]) for row in boards},
        accounts={row["handle"]: row["kind"] for row in accounts},
        reflected={row["key"]: frozenset(map(fold, row["reflected"])) for row in boards},
    )


async def lock_rule(tx: Tx, rule_id: UUID) -> Rule | None:
    """Lock the rule until the transaction ends and return it as it is then; None when it is not there or deleted."""
    if await tx.handle.fetchval(_LOCK_RULE, tx.tenant, rule_id) is None:
        return None
    return await read_rule(tx.handle, tx.tenant, rule_id)


# Changing -------------------------------------------------------------------------------------------------------


async def create_rule(tx: Tx, definition: Definition, actor: Actor, *, enabled: bool) -> Rule:
    """Make a rule. Raises BadData under the constraint `rules_name` when its name is taken."""
    rule_id = new_id()
    created_at = await tx.handle.fetchval(_INSERT_RULE, tx.tenant, rule_id, definition.name, enabled)
    rule = Rule(
        id=rule_id,
        definition=definition,
        enabled=enabled,
        version=1,
        from_seq=None,
        created_at=created_at,
        changed_at=created_at,
        changed_by=actor.handle,
    )
    return await _write_version(tx, rule, "created", actor)


async def change_rule(tx: Tx, rule: Rule, definition: Definition, actor: Actor, *, enabled: bool) -> Rule:
    """Give the locked rule another definition, switch it on or off; nothing to change makes no version."""
    if (definition, enabled) == (rule.definition, rule.enabled):
        return rule
    change: Change = "edited"
    if definition == rule.definition:
        change = "enabled" if enabled else "disabled"
    after = replace(rule, definition=definition, enabled=enabled, version=rule.version + 1, from_seq=None)
    if not enabled:
        after = await _set_free(tx, after)
    await tx.handle.execute(_UPDATE_RULE, tx.tenant, rule.id, definition.name, enabled)
    return await _write_version(tx, after, change, actor)


async def delete_rule(tx: Tx, rule: Rule, actor: Actor) -> Rule:
    """Delete the locked rule softly: it judges nothing that comes after, and what it owes is dropped when it is met."""
    rule = await _set_free(tx, rule)
    await tx.handle.execute(_DELETE_RULE, tx.tenant, rule.id)
    after = replace(rule, enabled=False, version=rule.version + 1, deleted=True)
    _append(tx, after, "deleted", actor)
    return after


async def _set_free(tx: Tx, rule: Rule) -> Rule:
    """End the pause of a rule that goes off: what was held is met once more, and dropped for what it is then."""
    if rule.paused is not None:
        await tx.handle.execute(_UNPAUSE_RULE, tx.tenant, rule.id)
        await _free_held(tx, rule.id)
    return replace(rule, paused=None)


async def _free_held(tx: Tx, rule_id: UUID) -> int:
    freed: int = await tx.handle.fetchval(_FREE_HELD, tx.tenant, rule_id)
    if freed:
        tx.freed()
    return freed


# Pausing: what a paused rule owes is held, and what happens meanwhile is judged and owed the same ----------------------


async def pause_rule(tx: Tx, rule: Rule, because: str, actor: Actor) -> Rule:
    """Pause the locked, enabled rule. No version is made: it judges what happens as before."""
    since = await tx.handle.fetchval(_PAUSE_RULE, tx.tenant, rule.id, because)
    after = replace(rule, paused=Paused(since=since, because=because))
    _append(tx, after, "paused", actor, because=because)
    return after


async def resume_rule(tx: Tx, rule: Rule, owed: Owed, actor: Actor) -> tuple[Rule, int]:
    """Resume the locked rule; return it and how many held rows were set free, or given up.

    What it owes for events up to this one runs, however old or many they are by now, or is given up, met already or not.
    """
    await tx.handle.execute(_UNPAUSE_RULE, tx.tenant, rule.id)
    held: int = await (
        _free_held(tx, rule.id)
        if owed == "run"
        else tx.handle.fetchval(_GIVE_UP_HELD, tx.tenant, rule.id, GIVEN_UP)
    )
    after = replace(rule, paused=None)
    stamp = _resume_stamp(tx, after, owed)
    _append(tx, after, "resumed", actor, stamp=stamp, owed=owed, held=held)
    return after, held


async def count_held(scope: Scope, tenant: UUID, rule_id: UUID) -> int:
    """Return how many rows of a rule wait for its resume."""
    held: int = await scope.fetchval(_COUNT_HELD, tenant, rule_id)
    return held


async def free_stray(tx: Tx, rule_id: UUID) -> int:
    """Set free what a rule that is not paused holds; return how many rows those were."""
    rule = await tx.handle.fetchrow(_HOLD_RULE, tx.tenant, rule_id)
    if rule is None or rule["paused_because"] is not None:
        return 0
    return await _free_held(tx, rule_id)


def _resume_stamp(tx: Tx, rule: Rule, owed: Owed) -> Callable[[int], Awaitable[None]]:
    async def stamp(seq: int) -> None:
        await _stamp(tx, rule.id, rule.version)(seq)
        await tx.handle.execute(_STAMP_RESUMED, tx.tenant, rule.id, seq, owed == "run")

    return stamp


async def _write_version(tx: Tx, rule: Rule, change: Change, actor: Actor) -> Rule:
    definition = rule.definition
    changed_at = await tx.handle.fetchval(
        _INSERT_VERSION,
        tx.tenant,
        rule.id,
        rule.version,
        rule.enabled,
        definition.terms.as_json(),
        definition.action.as_json(),
        definition.options.as_json(),
        actor.account_id,
    )
    _append(tx, rule, change, actor)
    return replace(rule, changed_at=changed_at, changed_by=actor.handle)


def _append(
    tx: Tx,
    rule: Rule,
    change: Change,
    actor: Actor,
    *,
    stamp: Callable[[int], Awaitable[None]] | None = None,
    **more: Any,
) -> None:
    event = NewEvent(
        "rule.changed",
        subject=str(rule.id),
        data={"rule": snapshot(rule), "change": change, "actor": actor.snapshot(), **more},
        actor_id=actor.account_id,
        cause=actor.cause,
    )
    tx.append(event, stamp=stamp or _stamp(tx, rule.id, rule.version))


def _stamp(tx: Tx, rule_id: UUID, version: int) -> Callable[[int], Awaitable[None]]:
    async def stamp(seq: int) -> None:
        await tx.handle.execute(_STAMP_CHANGE, tx.tenant, rule_id, version, seq)

    return stamp


# Carrying out ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Gone:
    """The rule does nothing any more; `reason` says why."""

    reason: str


@dataclass(frozen=True, slots=True)
class OnHold:
    """The rule is paused; `because` says why."""

    because: str


@dataclass(frozen=True, slots=True)
class Beyond:
    """The version that matched was written by a newer release; `what` is what this one does not know of it."""

    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InForce:
    """The version that matched, of a rule that is enabled and not paused, and stays so until the transaction ends.

    What it owes for events up to `waived_seq` was told, at a resume, to run whatever its age and rate.
    """

    version: RuleVersion
    waived_seq: int


async def rule_in_force(
    tx: Tx, rule_id: UUID, version: int, *, event_seq: int
) -> InForce | OnHold | Gone | Beyond:
    """Return the version that matched the event, and hold its rule: shared, or alone where it counts what it did before."""
    row = await tx.handle.fetchrow(_VERSION, tx.tenant, rule_id, version)
    if row is None:
        return Gone("rule version gone")
    try:
        matched = version_of(row)
    except Newer as newer:
        return Beyond(str(newer))
    counts = matched.options.is_limited or matched.options.while_running != "allow"
    now = await tx.handle.fetchrow(_HOLD_RULE if counts else _SHARE_RULE, tx.tenant, rule_id)
    if now is None or now["deleted"]:
        return Gone("rule deleted")
    if not now["enabled"]:
        return Gone("rule disabled")
    if event_seq <= now["given_up_seq"]:
        return Gone(GIVEN_UP)
    if now["paused_because"] is not None:
        return OnHold(now["paused_because"])
    return InForce(version=matched, waived_seq=now["waived_seq"])


# Rows to values -------------------------------------------------------------------------------------------------


def version_of(row: Record) -> RuleVersion:
    """Read one version as `versions_for`, `versions_at` and `version` return it."""
    return RuleVersion(
        rule_id=row["rule_id"],
        name=row["name"],
        version=row["version"],
        enabled=row["enabled"],
        terms=Terms.from_json(row["terms"]),
        action=action_of(row["action"]),
        options=Options.from_json(row["options"]),
        from_seq=row["from_seq"],
        until_seq=row["until_seq"],
    )


def _rule_of(row: Record) -> Rule:
    return Rule(
        id=row["id"],
        definition=Definition(
            name=row["name"],
            terms=Terms.from_json(row["terms"]),
            action=action_of(row["action"]),
            options=Options.from_json(row["options"]),
        ),
        enabled=row["enabled"],
        version=row["version"],
        from_seq=row["from_seq"],
        created_at=row["created_at"],
        changed_at=row["changed_at"],
        changed_by=row["changed_by"],
        paused=Paused(since=row["paused_at"], because=row["paused_because"])
        if row["paused_at"] is not None
        else None,
    )
