"""Who a runner is to the server: a runner's token as it is, or a person's, with which it makes a runner's for itself.

Takes whatever token was found; leaves a client that the runner protocol accepts. Only runner tokens claim runs, since
they name their agents; so that a newcomer's own token is enough to start the first agent, an operator's makes what is
missing: the agents that the server does not know yet, and a runner's token. That one is good for a day and replaced
after half of it, so that what a killed runner leaves behind ends by itself; it is revoked when the runner ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

from mainspring.sdk.client import Client
from mainspring.sdk.errors import Conflict, MainspringError, NotAuthorized, NotFound
from mainspring.sdk.slots import Slots
from mainspring.sdk.wire import segment

_log = logging.getLogger("mainspring.sdk")

GOODBYE_SECONDS = 2.0
LIFETIME_SECONDS = 86_400.0


class Named(Protocol):
    """An agent that this runner is to serve, and of how many slots it is made when the server does not know it."""

    @property
    def handle(self) -> str: ...
    @property
    def slots(self) -> int: ...


@asynccontextmanager
async def introduced(
    client: Client,
    agents: Sequence[Named],
    *,
    slots: Slots | None = None,
    lifetime_seconds: float = LIFETIME_SECONDS,
) -> AsyncIterator[Client]:
    """Yield a client with a runner's token for these agents; `slots` hears how many those have that are known already.

    Raises NotAuthorized if the token found cannot make one.
    """
    who = await client.get("/whoami")
    if who.get("token_kind") == "runner":
        yield client
        return
    made = _Made(client, [agent.handle for agent in agents], lifetime_seconds)
    try:
        for agent in agents:
            known = await _make_known(client, agent)
            if slots is not None and "slots" in known:
                slots.heard({agent.handle: known["slots"]})
        runner = await made.first()
    except NotAuthorized as refused:
        names = " ".join(f"--agent {agent.handle}" for agent in agents)
        raise NotAuthorized(
            refused.status,
            {
                **refused.problem,
                "detail": f"the token of {who.get('handle')} ({who.get('role')}) may not run agents, nor make a token that "
                f"may: ask an operator for `mainspring token create --kind runner {names}`",
            },
        ) from refused
    _log.info("a token for this runner was made with the one of %s", who.get("handle"))
    keeping = asyncio.create_task(made.keep(), name="keep the runner's token fresh")
    try:
        yield runner
    finally:
        keeping.cancel()
        await asyncio.wait({keeping})
        await made.revoke()


class _Made:
    """The runner's token that a person's made, and the one that replaces it in time.

    The one before is not revoked at once, since a poll may still be under way with it: it ends by itself.
    """

    def __init__(self, person: Client, handles: Sequence[str], lifetime_seconds: float) -> None:
        self._person = person
        self._handles = handles
        self._lifetime_seconds = lifetime_seconds
        self._turn = asyncio.Lock()
        self._runner = person
        self._id = ""

    async def first(self) -> Client:
        """Make the first, and return the client that uses it."""
        self._runner = self._person.acting_as(
            await self._mint(), patience_seconds=self._person.patience_seconds, renew=self.renew
        )
        return self._runner

    async def renew(self, worn: str) -> None:
        """Replace a token, unless that has happened already. Raises NotAuthorized when the person's may make none any more."""
        async with self._turn:
            if self._runner.profile.token == worn:
                self._runner.replace_token(await self._mint())

    async def keep(self) -> None:
        """Replace the token after half its life, again and again."""
        while True:
            await asyncio.sleep(self._lifetime_seconds / 2)
            try:
                await self.renew(self._runner.profile.token)
            except MainspringError as error:
                _log.warning("this runner's token could not be replaced, and ends soon: %s", error)

    async def revoke(self) -> None:
        """Make the last one worthless."""
        try:
            revoke = f"/tokens/{segment(self._id)}/revoke"
            await self._person.call("POST", revoke, body={}, patience_seconds=GOODBYE_SECONDS)
        except MainspringError as error:
            _log.warning("the token made for this runner was not revoked, and ends by itself: %s", error)

    async def _mint(self) -> str:
        body = {
            "kind": "runner",
            "agents": list(self._handles),
            "expires_in_seconds": self._lifetime_seconds,
        }
        try:
            made = await self._person.post("/tokens", body)
        except Conflict as lost:
            if lost.code != "answer_withheld" or lost.current is None:
                raise
            # one was made, but the answer with its secret was cut off: nobody has it, and nobody shall
            self._id = lost.current["token"]["id"]
            await self.revoke()
            made = await self._person.post("/tokens", body)
        self._id = made["token"]["id"]
        secret: str = made["secret"]
        return secret


async def _make_known(client: Client, agent: Named) -> Mapping[str, Any]:
    """Make an agent that the server does not know; return what it says of one that it does."""
    try:
        known: dict[str, Any] = await client.get(f"/agents/{segment(agent.handle)}")
        return known
    except NotFound:
        try:
            await client.post("/agents", {"handle": agent.handle, "slots": agent.slots})
            _log.info("agent %s is new, and was made", agent.handle)
        except Conflict:
            pass  # another runner made it at the same moment
    return {}
