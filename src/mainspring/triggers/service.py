"""Commands and queries on rules. Takes who acts and what they want; leaves it done in one transaction, with its event, or
refused with nothing written.

A command locks its rule, checks the version that the caller has seen, and calls one verb. If it dies here, nothing happened.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import UUID

from mainspring.db import Database, Scope, unique_violation
from mainspring.ids import new_id
from mainspring.rooms import Actor, Conflict, FieldError, Invalid, NotFound, ServerSpine, Tx, VersionConflict
from mainspring.spine.errors import BadData
from mainspring.triggers import checks, rehearsal, sense, verbs
from mainspring.triggers.model import Definition, Remark, Rule, RuleVersion, Webhook
from mainspring.triggers.rehearsal import Rehearsal
from mainspring.triggers.webhooks import verbs as webhooks


@dataclass(frozen=True, slots=True)
class Written:
    """A rule as it was written, and what about it may not be as its author means it."""

    rule: Rule
    remarks: tuple[Remark, ...] = ()
    secret: str | None = field(default=None, repr=False)  # what its webhook is signed with, told this once

    def as_json(self) -> dict[str, Any]:
        """Return the answer to whoever wrote it."""
        told = {"remarks": [remark.as_json() for remark in self.remarks], "secret": self.secret}
        return self.rule.as_json() | told


BECAUSE_LENGTH_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class Resumed:
    """A rule as it was resumed, and how many rows that had been held were set free, or given up."""

    rule: Rule
    held: int

    def as_json(self) -> dict[str, Any]:
        """Return the answer to whoever resumed it."""
        return self.rule.as_json() | {"held": self.held}


class RuleService:
    """Rules, one method a command or query, one transaction a method. A rule is named by its id or its name."""

    def __init__(self, spine: ServerSpine, db: Database) -> None:
        self._spine = spine
        self._db = db

    async def create(self, actor: Actor, body: Mapping[str, Any], *, enabled: bool = True) -> Written:
        """Make a rule from `name`, `when`, `do`, `options`. Raises Invalid, and Conflict when its name is taken."""
        definition = checks.definition_of(body)
        async with self._writing(actor, definition.name) as tx:
            remarks = sense.remarks_on(definition, await verbs.known_in(tx.handle, tx.tenant, definition))
            rule = await verbs.create_rule(tx, definition, actor, enabled=enabled)
            secret = await _keep_secret(tx, rule)
        return Written(_with_seq(rule, tx), tuple(remarks), secret)

    async def list(self, tenant: UUID, *, after: UUID | None = None, limit: int = 50) -> list[Rule]:
        """Return the tenant's rules behind `after`, oldest first."""
        async with self._db.tenant(tenant) as scope:
            return await verbs.list_rules(scope, tenant, after=after, limit=limit)

    async def show(self, tenant: UUID, ref: str) -> Rule:
        """Return the rule with this id or name. Raises NotFound."""
        async with self._db.tenant(tenant) as scope:
            return await self._read(scope, tenant, ref)

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
            remarks = sense.remarks_on(definition, await verbs.known_in(tx.handle, tx.tenant, definition))
            on = rule.enabled if enabled is None else enabled
            rule = await verbs.change_rule(tx, rule, definition, actor, enabled=on)
            secret = await _keep_secret(tx, rule)
        return Written(_with_seq(rule, tx), tuple(remarks), secret)

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

    async def pause(self, actor: Actor, ref: str, *, because: str | None = None) -> Rule:
        """Pause the rule: what it owes, and will owe, is held until somebody resumes it. Pausing twice is as good as once.

        Raises NotFound, Invalid, and Conflict when it is switched off.
        """
        reason = f"by {actor.handle}" if because is None else because.strip()
        if not 0 < len(reason) <= BECAUSE_LENGTH_MAX or "\0" in reason:
            raise Invalid(FieldError("/because", f"say why, in 1 to {BECAUSE_LENGTH_MAX} characters"))
        async with self._spine.open(actor.tenant_id) as tx:
            rule = await self._locked(tx, ref, None)
            if not rule.enabled:
                raise Conflict("the rule is switched off: it does nothing already", code="rule_disabled")
            return rule if rule.paused else await verbs.pause_rule(tx, rule, reason, actor)

    async def resume(self, actor: Actor, ref: str, *, owed: verbs.Owed) -> Resumed:
        """Resume a paused rule: what it owes by now is run, or discarded. Raises NotFound, and Conflict when it is not paused."""
        async with self._spine.open(actor.tenant_id) as tx:
            rule = await self._locked(tx, ref, None)
            if rule.paused is None:
                raise Conflict("the rule is not paused", code="rule_not_paused")
            rule, held = await verbs.resume_rule(tx, rule, owed, actor)
        return Resumed(rule, held)

    async def held(self, tenant: UUID, rule: Rule) -> int:
        """Return how many rows of a rule wait for its resume."""
        async with self._db.tenant(tenant) as scope:
            return await verbs.count_held(scope, tenant, rule.id)

    # trying out ---------------------------------------------------------------------------------------------

    async def test(self, tenant: UUID, ref: str, *, last: int) -> Rehearsal:
        """Return what the rule, as it is now, makes of the last events. Changes nothing. Raises NotFound."""
        async with self._db.tenant(tenant, purpose="rule test") as scope:
            rule = await self._read(scope, tenant, ref)
            version = _as_if(rule.definition, rule.id, rule.version)
            return await rehearsal.rehearse(self._spine.store, scope, tenant, version, last=last)

    async def test_unsaved(self, tenant: UUID, body: Mapping[str, Any], *, last: int) -> Rehearsal:
        """Return what a rule that is not saved would make of the last events. Raises Invalid as `create` does."""
        definition = checks.definition_of({"name": "unsaved", **body})
        async with self._db.tenant(tenant, purpose="rule test") as scope:
            remarks = sense.remarks_on(definition, await verbs.known_in(scope, tenant, definition))
            version = _as_if(definition, new_id(), 1)
            return await rehearsal.rehearse(
                self._spine.store, scope, tenant, version, last=last, remarks=remarks
            )

    # ----------------------------------------------------------------------------------------------------------

    async def _read(self, scope: Scope, tenant: UUID, ref: str) -> Rule:
        rule_id = await verbs.find_rule(scope, tenant, ref)
        rule = await verbs.read_rule(scope, tenant, rule_id) if rule_id else None
        if rule is None:
            raise NotFound("rule", ref[: checks.NAME_LENGTH_MAX])
        return rule

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


async def _keep_secret(tx: Tx, rule: Rule) -> str | None:
    """Return the secret that a rule is given when it first calls a webhook, and None ever after."""
    calls = isinstance(rule.definition.action, Webhook)
    return await webhooks.keep_secret(tx, rule.id) if calls else None


def _as_if(definition: Definition, rule_id: UUID, version: int) -> RuleVersion:
    """Return a version that judges everything."""
    return RuleVersion(
        rule_id=rule_id,
        name=definition.name,
        version=version,
        enabled=True,
        terms=definition.terms,
        action=definition.action,
        options=definition.options,
        from_seq=0,
    )


def _with_seq(rule: Rule, tx: Tx) -> Rule:
    """Return a rule with the seq of its event, when the transaction that wrote it has ended."""
    return rule if rule.from_seq is not None else replace(rule, from_seq=tx.appended[-1])
