"""Who a runner is to the server: a runner's token as it is, or a person's, with which it makes a runner's for itself.

Takes whatever token was found; leaves a client that the runner protocol accepts. Only runner tokens claim runs, since
they name their agents; so that a newcomer's own token is enough to start the first agent, an operator's makes what is
missing: the agents that the server does not know yet, and a runner's token that is revoked when the runner ends. If the
runner dies before that, the token stays valid, but nobody has its secret any more.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from mainspring.sdk.client import Client
from mainspring.sdk.errors import Conflict, MainspringError, NotAuthorized, NotFound
from mainspring.sdk.execution import Agent

_log = logging.getLogger("mainspring.sdk")

GOODBYE_SECONDS = 2.0


@asynccontextmanager
async def introduced(client: Client, agents: Sequence[Agent]) -> AsyncIterator[Client]:
    """Yield a client with a runner's token for these agents. Raises NotAuthorized if the token found cannot make one."""
    who = await client.get("/whoami")
    if who.get("token_kind") == "runner":
        yield client
        return
    try:
        for agent in agents:
            await _make_known(client, agent)
        body = {"kind": "runner", "agents": [agent.handle for agent in agents]}
        made = await client.post("/tokens", body)
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
    try:
        yield client.acting_as(made["secret"], patience_seconds=client.patience_seconds)
    finally:
        try:
            revoke = f"/tokens/{made['token']['id']}/revoke"
            await client.call("POST", revoke, body={}, patience_seconds=GOODBYE_SECONDS)
        except MainspringError as error:
            _log.warning("the token made for this runner was not revoked: %s", error)


async def _make_known(client: Client, agent: Agent) -> None:
    try:
        await client.get(f"/agents/{agent.handle}")
    except NotFound:
        try:
            await client.post("/agents", {"handle": agent.handle, "slots": agent.slots})
            _log.info("agent %s is new, and was made", agent.handle)
        except Conflict:
            pass  # another runner made it at the same moment
