"""Commands and queries on rules. Takes who acts and what they want; leaves it done in one transaction, with its event, or
refused with nothing written.

A command locks its rule, checks the version that the caller has seen, and calls one verb. If it dies here, nothing happened.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from mainspring.db import Database, unique_violation
from mainspring.rooms import Actor, Conflict, NotFound, ServerSpine, Tx, VersionConflict
from mainspring.spine.errors import BadData
from mainspring.triggers import checks, verbs
from mainspring.triggers.model import Remark, Rule


@dataclass(frozen=True, slots=True)
class Written:
    """A rule as it was written, and what about it may not be as its author means it."""

    rule: Rule
    remarks: tuple[Remark, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the answer to whoever wrote it."""
        return self.rule.as_json() | {"remarks": [remark.as_json() for remark in self.remarks]}


class RuleService:
    """Rules, one method a command or query, one transaction a method. A rule is named by its id or its name."""

    def __init__(self, spine: ServerSpine, db: Database) -> None:
        self._spine = spine
        self._db = db

    async def create(self, actor: Actor, body: Mapping[str, Any], *, enabled: bool = True) -> Written:
        """Make a rule from `name`, `when`, `do`, `options`. Raises Invalid, and Conflict when its name is taken."""
        definition = checks.definition_of(body)
        async with self._writing(actor, definition.name) as tx:
            remarks = checks.remarks_on(definition, await verbs.known_to(tx, definition))
            rule = await verbs.create_rule(tx, definition, actor, enabled=enabled)
        return Written(_with_seq(rule, tx), tuple(remarks))

    async def list(self, tenant: UUID, *, after: UUID | None = None, limit: int = 50) -> list[Rule]:
        """Return the tenant's rules behind `after`, oldest first."""
        async with self._db.tenant(tenant) as scope:
            return await verbs.list_rules(scope, tenant, after=after, limit=limit)

    async def show(self, tenant: UUID, ref: str) -> Rule:
        """Return the rule with this id or name. Raises NotFound."""
        async with self._db.tenant(tenant) as scope:
            rule_id = await verbs.find_rule(scope, tenant, ref)
            rule = await verbs.read_rule(scope, tenant, rule_id) if rule_id else None
        if rule is None:
            raise NotFound("rule", ref[: checks.NAME_LENGTH_MAX])
        return rule

    async def edit(
        self,
        actor: Actor,
        ref: str,
        changes: Mapping[str, Any],
        *,
        enabled: bool | None = None,
        expected_version: int | None = None,
    ) -> Written:
        """Replace any of `name`, `when`, `do`, `options`, each as a whole. Raises NotFound, Invalid, Conflict, VersionConflict."""
        async with self._writing(actor, changes.get("name")) as tx:
            rule = await self._locked(tx, ref, expected_version)
            definition = checks.definition_of({**rule.definition.as_json(), **changes})
            remarks = checks.remarks_on(definition, await verbs.known_to(tx, definition))
            on = rule.enabled if enabled is None else enabled
            rule = await verbs.change_rule(tx, rule, definition, actor, enabled=on)
        return Written(_with_seq(rule, tx), tuple(remarks))

    async def enable(self, actor: Actor, ref: str, *, expected_version: int | None = None) -> Rule:
        """Switch the rule on: it judges what comes after. Raises NotFound and VersionConflict."""
        return await self._switch(actor, ref, enabled=True, expected_version=expected_version)

    async def disable(self, actor: Actor, ref: str, *, expected_version: int | None = None) -> Rule:
        """Switch the rule off: what it owes and has not launched yet is dropped. Raises NotFound and VersionConflict."""
        return await self._switch(actor, ref, enabled=False, expected_version=expected_version)

    async def delete(self, actor: Actor, ref: str, *, expected_version: int | None = None) -> None:
        """Delete the rule: what it owes and has not launched yet is dropped. Raises NotFound and VersionConflict."""
        async with self._spine.open(actor.tenant_id) as tx:
            await verbs.delete_rule(tx, await self._locked(tx, ref, expected_version), actor)

    async def _switch(self, actor: Actor, ref: str, *, enabled: bool, expected_version: int | None) -> Rule:
        async with self._spine.open(actor.tenant_id) as tx:
            rule = await self._locked(tx, ref, expected_version)
            rule = await verbs.change_rule(tx, rule, rule.definition, actor, enabled=enabled)
        return _with_seq(rule, tx)

    async def _locked(self, tx: Tx, ref: str, expected_version: int | None) -> Rule:
        rule_id = await verbs.find_rule(tx.handle, tx.tenant, ref)
        rule = await verbs.lock_rule(tx, rule_id) if rule_id else None
        if rule is None:
            raise NotFound("rule", ref[: checks.NAME_LENGTH_MAX])
        if expected_version is not None and expected_version != rule.version:
            raise VersionConflict(
                f"the rule is at version {rule.version}, not {expected_version}: last changed by {rule.changed_by}",
                current=rule.as_json(),
            )
        return rule

    @asynccontextmanager
    async def _writing(self, actor: Actor, name: Any) -> AsyncIterator[Tx]:
        try:
            async with self._spine.open(actor.tenant_id) as tx:
                yield tx
        except BadData as error:
            if unique_violation(error) != "rules_name":
                raise
            raise Conflict(f"there is a rule named {name!r} already", code="rule_name_taken") from error


def _with_seq(rule: Rule, tx: Tx) -> Rule:
    """Return a rule with the seq of its event, when the transaction that wrote it has ended."""
    return rule if rule.from_seq is not None else replace(rule, from_seq=tx.appended[-1])
