"""What every room shares: the transaction that its verbs run in, who acts, and what a refusal looks like.

A verb takes a `Tx`, which is somebody else's open transaction, and never commits; a service opens one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias
from uuid import UUID

from mainspring.db import Scope
from mainspring.spine.engine import Spine
from mainspring.spine.events import NO_CAUSE, Cause
from mainspring.spine.transaction import Transaction

Tx: TypeAlias = Transaction[Scope]
ServerSpine: TypeAlias = Spine[Scope]
AccountKind: TypeAlias = Literal["human", "agent", "system"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """Who acts, as their token says, in which tenant, and what made them act.

    `cause` is that of the run or effect that acts, or none for a person; its trust bounds what follows.
    """

    tenant_id: UUID
    account_id: UUID | None
    kind: AccountKind
    handle: str
    cause: Cause = NO_CAUSE
    run_id: UUID | None = None

    def snapshot(self) -> dict[str, Any]:
        """Return who acted, as events carry it under `actor`."""
        return {
            "id": str(self.account_id) if self.account_id else None,
            "kind": self.kind,
            "handle": self.handle,
        }


def system_actor(tenant_id: UUID, cause: Cause) -> Actor:
    """Return the engine itself as an actor: what it does descends from `cause`."""
    return Actor(tenant_id=tenant_id, account_id=None, kind="system", handle="mainspring", cause=cause)


# Refusals: a command that raises one of these has written nothing ---------------------------------------------


@dataclass(frozen=True, slots=True)
class FieldError:
    """What is wrong with one field of the input; `pointer` is a JSON pointer."""

    pointer: str
    detail: str


class Refusal(Exception):
    """The root of what a command answers when it does nothing. `code` is stable and documented."""

    code = "refused"


class NotFound(Refusal):
    """There is no such thing, or it is not for the caller to see: one answer for both."""

    code = "not_found"

    def __init__(self, noun: str, ref: object) -> None:
        super().__init__(f"no {noun} {ref}")
        self.noun = noun


class Forbidden(Refusal):
    """The caller's token does not reach this verb."""

    code = "forbidden"


class Invalid(Refusal):
    """The input is refused, field by field. `current` is what stands in its way, where that helps."""

    code = "invalid"

    def __init__(
        self, *errors: FieldError, code: str = "invalid", current: dict[str, Any] | None = None
    ) -> None:
        super().__init__("; ".join(f"{error.pointer}: {error.detail}" for error in errors))
        self.errors: Sequence[FieldError] = errors
        self.code = code
        self.current = current


class Conflict(Refusal):
    """It does not fit the state that things are in."""

    code = "conflict"

    def __init__(self, detail: str, *, code: str = "conflict") -> None:
        super().__init__(detail)
        self.code = code


class Newer(Refusal):
    """A newer release has written something that this one does not know; newer processes do what it says."""

    code = "newer_release"


class VersionConflict(Refusal):
    """It was changed meanwhile: `current` is what it is now."""

    code = "version_conflict"

    def __init__(self, detail: str, *, current: dict[str, Any]) -> None:
        super().__init__(detail)
        self.current = current
