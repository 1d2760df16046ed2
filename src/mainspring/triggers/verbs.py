"""What can be done to a rule inside an open transaction. Takes checked input; leaves the rows written and a `rule.changed`
appended, whose seq then bounds the versions. If it dies here, the transaction was never committed, and no event was judged
by a version that is not there.

Whoever changes a rule locks it first (`lock_rule`) and hands that value in; every verb returns the rule as it is now.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias
from uuid import UUID

from asyncpg import Record

from mainspring.boards.model import fold
from mainspring.db import Scope
from mainspring.ids import new_id
from mainspring.rooms import Actor, Tx
from mainspring.spine.events import NewEvent
from mainspring.sql import Queries
from mainspring.triggers import checks
from mainspring.triggers.model import Definition, Known, Launch, Options, Rule, RuleVersion, Terms, snapshot

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
_ACCOUNTS_KINDS = SQL["accounts_kinds"]
_SHARE_RULE = SQL["share_rule"]
_VERSION = SQL["version"]

Change: TypeAlias = Literal["created", "edited", "enabled", "disabled", "deleted"]
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


async def known_to(tx: Tx, definition: Definition) -> Known:
    """Look up what a rule's names are checked against."""
    boards = await tx.handle.fetch(_BOARDS_STATES, tx.tenant)
    accounts = await tx.handle.fetch(_ACCOUNTS_KINDS, tx.tenant, sorted(checks.handles_of(definition)))
    return Known(
        boards={row["key"]: frozenset(fold(state) for state in row["states"]) for row in boards},
        accounts={row["handle"]: row["kind"] for row in accounts},
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
    await tx.handle.execute(_UPDATE_RULE, tx.tenant, rule.id, definition.name, enabled)
    return await _write_version(tx, after, change, actor)


async def delete_rule(tx: Tx, rule: Rule, actor: Actor) -> Rule:
    """Delete the locked rule softly: it judges nothing that comes after, and what it owes is dropped when it is met."""
    await tx.handle.execute(_DELETE_RULE, tx.tenant, rule.id)
    after = replace(rule, enabled=False, version=rule.version + 1, deleted=True)
    _append(tx, after, "deleted", actor)
    return after


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


def _append(tx: Tx, rule: Rule, change: Change, actor: Actor) -> None:
    event = NewEvent(
        "rule.changed",
        subject=str(rule.id),
        data={"rule": snapshot(rule), "change": change, "actor": actor.snapshot()},
        actor_id=actor.account_id,
        cause=actor.cause,
    )
    tx.append(event, stamp=_stamp(tx, rule.id, rule.version))


def _stamp(tx: Tx, rule_id: UUID, version: int) -> Callable[[int], Awaitable[None]]:
    async def stamp(seq: int) -> None:
        await tx.handle.execute(_STAMP_CHANGE, tx.tenant, rule_id, version, seq)

    return stamp


# Launching ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Gone:
    """The rule launches nobody any more; `reason` says why."""

    reason: str


async def rule_for_launch(tx: Tx, rule_id: UUID, version: int) -> RuleVersion | Gone:
    """Return the version that matched, while its rule is enabled; it stays so until the transaction ends."""
    now = await tx.handle.fetchrow(_SHARE_RULE, tx.tenant, rule_id)
    if now is None or now["deleted"]:
        return Gone("rule deleted")
    if not now["enabled"]:
        return Gone("rule disabled")
    row = await tx.handle.fetchrow(_VERSION, tx.tenant, rule_id, version)
    return version_of(row) if row is not None else Gone("rule version gone")


# Rows to values -------------------------------------------------------------------------------------------------


def version_of(row: Record) -> RuleVersion:
    """Read one version as `versions_for`, `versions_at` and `version` return it."""
    return RuleVersion(
        rule_id=row["rule_id"],
        name=row["name"],
        version=row["version"],
        enabled=row["enabled"],
        terms=Terms.from_json(row["terms"]),
        action=Launch.from_json(row["action"]),
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
            action=Launch.from_json(row["action"]),
            options=Options.from_json(row["options"]),
        ),
        enabled=row["enabled"],
        version=row["version"],
        from_seq=row["from_seq"],
        created_at=row["created_at"],
        changed_at=row["changed_at"],
        changed_by=row["changed_by"],
    )
