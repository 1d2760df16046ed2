"""Who calls, and what they may do.

Takes a bearer token; leaves a `Caller`, or refuses: 401 for no token or one that is not valid, 403 when the token does not
reach the verb. Every route names its verb with `require("noun.verb")`, and `VERBS` says the least role of each.
A run's token reaches its own run and its own card; anything else does not exist for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any, Literal, Protocol, TypeAlias, cast
from uuid import UUID

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from mainspring.agents.tokens import Holder
from mainspring.chat.sight import Reader
from mainspring.rooms import Actor, Forbidden, NotFound, Refusal

TokenKind: TypeAlias = Literal["user", "agent", "runner", "run"]


class Role(IntEnum):
    """Who may do what: each role may all that the lower ones may."""

    VIEWER = 1
    MEMBER = 2
    OPERATOR = 3

    @classmethod
    def named(cls, name: str) -> Role:
        """Return the role with this lower-case name, as tokens store it."""
        return cls[name.upper()]


PEOPLE: frozenset[TokenKind] = frozenset({"user", "agent"})
RUNNERS: frozenset[TokenKind] = frozenset({"runner"})
WITH_RUN: frozenset[TokenKind] = PEOPLE | {"run"}
ANYONE: frozenset[TokenKind] = PEOPLE | RUNNERS | {"run"}


@dataclass(frozen=True, slots=True)
class Access:
    """The least role that a verb asks for, and the kinds of token that reach it.

    `own` says which thing a run's token is held to: the route's first path parameter must name it.
    """

    least: Role
    kinds: frozenset[TokenKind] = PEOPLE
    own: Literal["run", "card"] | None = None


_VIEW, _CHANGE, _OPERATE = Access(Role.VIEWER), Access(Role.MEMBER), Access(Role.OPERATOR)
_OWN_CARD_READ = Access(Role.VIEWER, WITH_RUN, own="card")
_OWN_CARD = Access(Role.MEMBER, WITH_RUN, own="card")
_SESSION = Access(Role.MEMBER, RUNNERS | {"agent", "run"})

VERBS: Mapping[str, Access] = {
    "account.whoami": Access(Role.VIEWER, ANYONE),
    "board.list": _VIEW,
    "board.show": _VIEW,
    "board.create": _OPERATE,
    "card.list": _VIEW,
    "card.show": _OWN_CARD_READ,
    "card.preview": _OWN_CARD_READ,
    "card.create": _CHANGE,
    "card.update": _OWN_CARD,
    "card.move": _OWN_CARD,
    "card.assign": _CHANGE,
    "card.label": _OWN_CARD,
    "card.delete": _CHANGE,
    "agent.list": _VIEW,
    "agent.show": _VIEW,
    "agent.create": _OPERATE,
    "agent.update": _OPERATE,
    "agent.pause": _OPERATE,
    "agent.resume": _OPERATE,
    "runner.list": _VIEW,
    "runner.show": _VIEW,
    "runner.drain": _OPERATE,
    "runner.claim": Access(Role.MEMBER, RUNNERS),
    "runner.leave": Access(Role.MEMBER, RUNNERS),
    "run.list": _VIEW,
    "run.show": Access(Role.VIEWER, ANYONE, own="run"),
    "run.log": Access(Role.VIEWER, WITH_RUN, own="run"),
    # the runner's own token: what a run's token is told to do ends with the run
    "run.heartbeat": Access(Role.MEMBER, RUNNERS),
    "run.append_log": Access(Role.MEMBER, RUNNERS),
    "run.ask": Access(Role.MEMBER, RUNNERS),
    "run.complete": Access(Role.MEMBER, RUNNERS),
    "run.cancel": _CHANGE,
    "run.answer": _CHANGE,
    "run.retry": _OPERATE,
    "ask.list": _VIEW,
    "ask.show": _VIEW,
    "ask.answer": _CHANGE,
    "channel.list": _VIEW,
    "channel.show": _VIEW,
    "channel.members": _VIEW,
    "channel.topics": _VIEW,
    "channel.create": _CHANGE,
    "channel.update": _CHANGE,
    "channel.update_topic": _CHANGE,
    "channel.pins": _VIEW,
    "channel.live": _VIEW,
    "channel.pin": _CHANGE,
    "channel.join": _CHANGE,
    "channel.leave": _CHANGE,
    "message.list": _VIEW,
    "message.show": _VIEW,
    "message.search": _VIEW,
    "message.receipts": _VIEW,
    # a run's token speaks as its agent, where that may
    "message.post": Access(Role.MEMBER, ANYONE),
    "message.edit": Access(Role.MEMBER, ANYONE),
    "card.comment": _OWN_CARD,
    "inbox.list": _VIEW,
    "inbox.ack": _VIEW,
    "session.list": _VIEW,
    # an agent's own token, or that of a runner that names it
    "session.start": _SESSION,
    "session.heartbeat": _SESSION,
    "session.settle": _SESSION,
    "session.inbox": _SESSION,
    "session.ack": _SESSION,
    "session.live": _SESSION,
    "rule.list": _VIEW,
    "rule.show": _VIEW,
    "rule.create": _OPERATE,
    "rule.update": _OPERATE,
    "rule.enable": _OPERATE,
    "rule.disable": _OPERATE,
    "rule.pause": _OPERATE,
    "rule.resume": _OPERATE,
    "rule.test": _CHANGE,
    "rule.delete": _OPERATE,
    "event.list": _VIEW,
    "event.show": _VIEW,
    "event.skip": _OPERATE,
    "event.stream": _VIEW,
    "event.post": Access(Role.MEMBER, WITH_RUN),
    "effect.list": _VIEW,
    "effect.show": _VIEW,
    "effect.cancel": _OPERATE,
    "desk.list": _VIEW,
    "desk.show": _VIEW,
    "desk.plan": _OPERATE,
    "desk.replay": _OPERATE,
    "desk.discard": _OPERATE,
    "desk.export": _VIEW,
    "parked.list": _VIEW,
    "parked.replay": _OPERATE,
    "parked.discard": _OPERATE,
    "operation.list": _VIEW,
    "operation.show": _VIEW,
    "operation.stop": _OPERATE,
    "explain.show": _VIEW,
    "verify.run": _OPERATE,
    "audit.list": _OPERATE,
    "doctor.run": _OPERATE,
    "token.list": _OPERATE,
    "token.create": _OPERATE,
    "token.revoke": _OPERATE,
    "dev.fault": _OPERATE,
}

# Routes that ask for no token: they show no tenant's data.
PUBLIC = frozenset({"/", "/livez", "/readyz", "/metrics", "/version", "/docs/problems/{code}"})


class Unauthorized(Refusal):
    """There is no token, or it is not valid any more."""

    code = "unauthorized"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who calls, as their token says; never a field of the request.

    `agents` are those that a runner's token names. `run_id`, `claim_id`, `card_id` and `card_key` belong to a run's token.
    """

    token_id: UUID
    actor: Actor
    kind: TokenKind
    role: Role
    extras: frozenset[str] = frozenset()
    agents: frozenset[UUID] = frozenset()
    run_id: UUID | None = None
    claim_id: UUID | None = None
    card_id: UUID | None = None
    card_key: str | None = None

    @classmethod
    def of(cls, holder: Holder) -> Caller:
        """Return the caller that a valid token's holder is."""
        return cls(
            token_id=holder.token_id,
            actor=holder.actor,
            kind=holder.kind,
            role=Role.named(holder.role),
            extras=holder.extras,
            agents=holder.agents,
            run_id=holder.run_id,
            claim_id=holder.claim_id,
            card_id=holder.card_id,
            card_key=holder.card_key,
        )

    @property
    def tenant_id(self) -> UUID:
        """The tenant whose wall this caller stands behind."""
        return self.actor.tenant_id

    @property
    def reader(self) -> Reader:
        """The caller, as whoever reads what may name channels is asked about."""
        return Reader(
            tenant_id=self.tenant_id, account_id=self.actor.account_id, operates=self.role >= Role.OPERATOR
        )

    def refusal(self, verb: str, path: Mapping[str, Any]) -> Refusal | None:
        """Return why this caller may not do a verb on what the path names, or None when they may. Pure."""
        access = VERBS[verb]
        if self.kind not in access.kinds:
            return Forbidden(f"a {self.kind} token does not reach {verb}")
        if self.role < access.least:
            return Forbidden(
                f"{verb} asks for the role {access.least.name.lower()}, and this token has {self.role.name.lower()}"
            )
        if self.kind == "run" and access.own is not None and not self._owns(access.own, path):
            return NotFound(access.own, next(iter(path.values()), ""))
        return None

    def reaches_card(self, ref: str) -> bool:
        """Tell whether a card that the body names exists for this caller: for a run, its own alone."""
        return self.kind != "run" or self._owns("card", {"card": ref})

    def _owns(self, noun: Literal["run", "card"], path: Mapping[str, Any]) -> bool:
        named = str(next(iter(path.values()), "")).casefold()
        if noun == "run":
            return named == str(self.run_id)
        return self.card_id is not None and named in (str(self.card_id), (self.card_key or "").casefold())


class Authenticator(Protocol):
    """What the server asks of the agents room: who holds this secret? None when nobody does any more."""

    async def authenticate(self, secret: str) -> Holder | None: ...


def bearer(request: Request) -> str:
    """Return the request's bearer token; raise Unauthorized when there is none."""
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        raise Unauthorized("send a token: Authorization: Bearer <token>")
    return secret.strip()


async def authenticate(request: Request) -> Caller:
    """Return who calls; raise Unauthorized. Long polls and streams call it again before each batch."""
    authenticator = cast(Authenticator, request.app.state.services.tokens)
    holder = await authenticator.authenticate(bearer(request))
    if holder is None:
        raise Unauthorized("this token is not valid: revoked, expired, or never was")
    return Caller.of(holder)


async def known(request: Request) -> None:
    """Every route's first dependency: whoever is nobody learns nothing of what else is wrong with their request."""
    if not hasattr(request.state, "caller"):  # a keyed command is asked before its transaction begins
        request.state.caller = await authenticate(request)


# Only tells the API's description where the token goes; what it says is read by `bearer`, and refused in our own words.
_SCHEME = HTTPBearer(scheme_name="token", auto_error=False, description="A token of Mainspring")


class Requirement:
    """A route's dependency on a verb; `verb` is what the test that walks all routes looks for."""

    def __init__(self, verb: str) -> None:
        if verb not in VERBS:
            raise LookupError(f"{verb} has no line in VERBS")
        self.verb = verb

    async def __call__(
        self, request: Request, _described: Annotated[HTTPAuthorizationCredentials | None, Depends(_SCHEME)]
    ) -> Caller:
        """Return the caller, who may do the verb on what the path names; refuse otherwise."""
        caller: Caller = request.state.caller
        if (refusal := caller.refusal(self.verb, request.path_params)) is not None:
            raise refusal
        return caller


def require(verb: str) -> Any:
    """Return the dependency of a route on a verb: `caller: Annotated[Caller, require("card.move")]`."""
    dependency = Requirement(verb)
    return Depends(dependency)
