"""Accounts and their tokens. Takes a secret, leaves who holds it; or makes one, shows it once, and keeps its digest alone."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias
from uuid import UUID

from mainspring.agents.rows import SQL, cause_of
from mainspring.agents.views import TokenView
from mainspring.db import Database, Scope
from mainspring.ids import new_id
from mainspring.rooms import AccountKind, Actor, Conflict, FieldError, Invalid, NotFound
from mainspring.spine.errors import Misuse
from mainspring.spine.events import Cause, Trust, least_trusted

if TYPE_CHECKING:
    from asyncpg import Record

_ADD_ACCOUNT = SQL["add_account"]
_ACCOUNT_BY_HANDLE = SQL["account_by_handle"]
_AUTHENTICATE = SQL["authenticate"]
_ADD_TOKEN = SQL["add_token"]
_TOKENS = SQL["tokens"]
_REVOKE_TOKEN = SQL["revoke_token"]
_DEMO_TOKEN_LIVES = SQL["demo_token_lives"]
_OPERATOR_LIVES = SQL["operator_lives"]
_LOCK_ACCOUNT = SQL["lock_account"]

TokenKind: TypeAlias = Literal["user", "agent", "runner", "run"]
RoleName: TypeAlias = Literal["viewer", "member", "operator"]

HANDLE = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
RESERVED: Final = frozenset({"mainspring", "system", "agents", "members", "anyone", "everyone"})
EXTRAS: Final = frozenset({"broadcast"})
EXPIRY_SECONDS_MAX: Final = 10 * 366 * 86_400.0
SECRET_LENGTH_MAX: Final = 200
_ROLES: Final[tuple[RoleName, ...]] = ("viewer", "member", "operator")
_RANDOM_SHOWN: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A person, an agent or the system itself, by the handle that others use."""

    id: UUID
    kind: AccountKind
    handle: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds a secret, and what it reaches: a valid token's row with its account's.

    `agents` are those that a runner's token names; `run_id`, `claim_id` and the card belong to a run's token.
    """

    token_id: UUID
    actor: Actor
    kind: TokenKind
    role: RoleName
    extras: frozenset[str] = frozenset()
    agents: frozenset[UUID] = frozenset()
    run_id: UUID | None = None
    claim_id: UUID | None = None
    card_id: UUID | None = None
    card_key: str | None = None
    demo: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """A token about to be made, its owner found. A run's token names its run and the claim that it is good for."""

    account_id: UUID
    kind: TokenKind
    role: RoleName
    extras: tuple[str, ...] = ()
    agents: tuple[UUID, ...] = ()
    run_id: UUID | None = None
    claim_id: UUID | None = None
    demo: bool = False
    expires_in_seconds: float | None = None


def new_secret(kind: TokenKind) -> str:
    """Return a fresh secret of 256 random bits: `ms_<kind>_<random>`."""
    return f"ms_{kind}_{secrets.token_urlsafe(32)}"


def prefix_of(secret: str) -> str:
    """Return the part of a secret by which people tell tokens apart; too short to guess the rest from."""
    marker, kind, random = secret.split("_", 2)
    return f"{marker}_{kind}_{random[:_RANDOM_SHOWN]}"


def digest(secret: str) -> bytes:
    """Return what is kept of a secret. It is random, so a plain hash is as good as a slow one."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def checked_handle(handle: str, pointer: str = "/handle") -> str:
    """Return a handle as it is stored; raise Invalid when it cannot be one."""
    folded = handle.strip().lower()
    if not HANDLE.fullmatch(folded):
        raise Invalid(FieldError(pointer, "1 to 64 of a-z 0-9 _ -, beginning with a letter or a digit"))
    if folded in RESERVED:
        raise Invalid(FieldError(pointer, f"{folded} has a meaning of its own"))
    return folded


async def mint(scope: Scope, tenant: UUID, new: NewToken) -> tuple[UUID, str]:
    """Make a token in the caller's transaction; return its id and its secret, which is kept nowhere."""
    token_id, secret = new_id(), new_secret(new.kind)
    await scope.execute(
        _ADD_TOKEN, tenant, token_id, new.account_id, new.kind, new.role, list(new.extras), prefix_of(secret),
        digest(secret), list(new.agents), new.run_id, new.claim_id, new.demo, new.expires_in_seconds,
    )  # fmt: skip
    return token_id, secret


async def account_by_handle(scope: Scope, tenant: UUID, handle: str) -> Account | None:
    """Return the account of that handle, in the caller's transaction."""
    row = await scope.fetchrow(_ACCOUNT_BY_HANDLE, tenant, handle.strip().lower())
    return _account_of(row) if row else None


async def add_account(
    scope: Scope, tenant: UUID, kind: AccountKind, handle: str, name: str
) -> Account | None:
    """Make an account in the caller's transaction; None when its handle is taken."""
    account = Account(id=new_id(), kind=kind, handle=handle, name=name)
    made = await scope.execute(_ADD_ACCOUNT, tenant, account.id, kind, handle, name)
    return account if made else None


class TokenService:
    """Tokens, one method a command or query, one transaction a method."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def authenticate(self, secret: str) -> Holder | None:
        """Return who holds this secret now; None when nobody does (any more)."""
        if len(secret) > SECRET_LENGTH_MAX:
            return None
        async with self._db.system("authenticate") as scope:
            row = await scope.fetchrow(_AUTHENTICATE, digest(secret))
        return _holder_of(row) if row else None

    async def create(
        self,
        actor: Actor,
        *,
        kind: TokenKind,
        role: RoleName | None = None,
        account: str | None = None,
        agents: Sequence[str] = (),
        extras: Sequence[str] = (),
        expires_in_seconds: float | None = None,
        demo: bool = False,
    ) -> tuple[TokenView, str]:
        """Make a token and return it with its secret, which is never shown again.

        A user's token belongs to the caller, or to the person whose handle `account` is (made, if nobody has it yet).
        An agent's belongs to the agent `account`. A runner's names the `agents` that it may run. Raises Invalid, NotFound.
        """
        chosen = _checked_role(kind, role)
        _check(kind, agents, extras, expires_in_seconds)
        async with self._db.tenant(actor.tenant_id) as scope:
            owner = await self._owner(scope, actor, kind, account)
            named = [await _agent(scope, actor.tenant_id, handle) for handle in agents]
            new = NewToken(
                account_id=owner,
                kind=kind,
                role=chosen,
                extras=tuple(sorted(set(extras))),
                agents=tuple(sorted({agent.id for agent in named})),
                demo=demo,
                expires_in_seconds=expires_in_seconds,
            )
            token_id, secret = await mint(scope, actor.tenant_id, new)
            [row] = await scope.fetch(_TOKENS, actor.tenant_id, None, token_id, 1)
        return _token_of(row), secret

    async def list_tokens(
        self, tenant: UUID, *, after: UUID | None = None, limit: int = 50
    ) -> list[TokenView]:
        """Return the tokens of people, agents and runners behind `after`, the newest first."""
        async with self._db.tenant(tenant) as scope:
            return [_token_of(row) for row in await scope.fetch(_TOKENS, tenant, after, None, limit)]

    async def revoke(self, tenant: UUID, token_id: UUID) -> TokenView:
        """Make a token worthless, at once and for good; twice is as good as once. Raises NotFound."""
        async with self._db.tenant(tenant) as scope:
            await scope.execute(_REVOKE_TOKEN, tenant, token_id)
            rows = await scope.fetch(_TOKENS, tenant, None, token_id, 1)
        if not rows:
            raise NotFound("token", token_id)
        return _token_of(rows[0])

    async def person(self, tenant: UUID, handle: str, name: str) -> Actor:
        """Return the person of that handle as an actor; made, if there is none. Raises Invalid when it is no person's."""
        folded = checked_handle(handle)
        async with self._db.tenant(tenant) as scope:
            # a second maker waits here for the first, and then finds what he made
            await add_account(scope, tenant, "human", folded, name)
            found = await account_by_handle(scope, tenant, folded)
        if found is None or found.kind != "human":
            raise Invalid(FieldError("/handle", f"{folded} is no person"))
        return Actor(tenant_id=tenant, account_id=found.id, kind="human", handle=found.handle)

    async def first_operator(self, person: Actor) -> str | None:
        """Make the tenant's first operator token and return its secret; None when there is one already. The demo's do not count."""
        if person.account_id is None:
            raise Misuse("a token belongs to an account")
        tenant = person.tenant_id
        async with self._db.tenant(tenant) as scope:
            await scope.fetchval(_LOCK_ACCOUNT, tenant, person.account_id)
            if await scope.fetchval(_OPERATOR_LIVES, tenant):
                return None
            _, secret = await mint(
                scope, tenant, NewToken(account_id=person.account_id, kind="user", role="operator")
            )
        return secret

    async def demo_token_lives(self) -> bool:
        """Tell whether an operator's token that was made for the demo still opens this database."""
        async with self._db.system("check exposure") as scope:
            return bool(await scope.fetchval(_DEMO_TOKEN_LIVES))

    async def _owner(self, scope: Scope, actor: Actor, kind: TokenKind, handle: str | None) -> UUID:
        """Return whose the token shall be."""
        if kind == "agent":
            if handle is None:
                raise Invalid(FieldError("/account", "an agent's token names the agent"))
            return (await _agent(scope, actor.tenant_id, handle)).id
        if handle is None or kind == "runner":
            if actor.account_id is None:
                raise Invalid(FieldError("/account", "name the account"))
            return actor.account_id
        found = await account_by_handle(scope, actor.tenant_id, handle)
        if found is None:
            folded = checked_handle(handle, "/account")
            found = await add_account(scope, actor.tenant_id, "human", folded, folded)
        if found is None:
            raise Conflict("somebody has made this account in the same moment: try again")
        if found.kind != "human":
            raise Invalid(
                FieldError("/account", f"{found.handle} is no person: ask for a token of kind agent")
            )
        return found.id


async def _agent(scope: Scope, tenant: UUID, handle: str) -> Account:
    found = await account_by_handle(scope, tenant, handle)
    if found is None or found.kind != "agent":
        raise NotFound("agent", handle)
    return found


def _checked_role(kind: TokenKind, role: RoleName | None) -> RoleName:
    if kind == "run":
        raise Invalid(FieldError("/kind", "a run's token is made by the claim of its run"))
    chosen = role or "member"
    if chosen not in _ROLES:
        raise Invalid(FieldError("/role", "viewer, member or operator"))
    if kind == "runner" and chosen != "member":
        raise Invalid(FieldError("/role", "a runner's token has the role member"))
    if kind == "agent" and chosen == "operator":
        raise Invalid(FieldError("/role", "an agent is no operator"))
    return chosen


def _check(kind: TokenKind, agents: Sequence[str], extras: Sequence[str], expires: float | None) -> None:
    if kind == "runner" and not agents:
        raise Invalid(FieldError("/agents", "a runner's token names the agents that it may run"))
    if kind != "runner" and agents:
        raise Invalid(FieldError("/agents", "only a runner's token names agents"))
    if unknown := set(extras) - EXTRAS:
        raise Invalid(FieldError("/extras", f"unknown: {', '.join(sorted(unknown))}"))
    if expires is not None and not 0 < expires <= EXPIRY_SECONDS_MAX:
        raise Invalid(FieldError("/expires_in_seconds", "more than 0, and at most ten years"))


def _account_of(row: Record) -> Account:
    return Account(id=row["id"], kind=row["kind"], handle=row["handle"], name=row["name"])


def _holder_of(row: Record) -> Holder:
    return Holder(
        token_id=row["id"],
        actor=Actor(
            tenant_id=row["tenant_id"],
            account_id=row["account_id"],
            kind=row["account_kind"],
            handle=row["handle"],
            cause=_cause(row),
            run_id=row["run_id"],
        ),
        kind=row["kind"],
        role=row["role"],
        extras=frozenset(row["extras"]),
        agents=frozenset(row["agents"]),
        run_id=row["run_id"],
        claim_id=row["claim_id"],
        card_id=row["card_id"],
        card_key=row["card_key"],
        demo=row["demo"],
    )


def _cause(row: Record) -> Cause:
    """What a holder does descends from its run, if it is one's; an agent is trusted no further than an agent."""
    if row["run_id"] is None:
        return Cause(trust=Trust.AGENT if row["account_kind"] == "agent" else Trust.MEMBER)
    run = cause_of(row)
    return Cause(seq=run.seq, via=run.via, depth=run.depth, trust=least_trusted(run.trust, Trust.AGENT))


def _token_of(row: Record) -> TokenView:
    return TokenView(
        id=row["id"],
        account=row["account"],
        kind=row["kind"],
        role=row["role"],
        extras=tuple(row["extras"]),
        prefix=row["prefix"],
        agents=tuple(row["agent_handles"]),
        demo=row["demo"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        revoked_at=row["revoked_at"],
        expired=row["expired"],
    )
