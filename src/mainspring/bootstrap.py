"""The first tenant, its first person, and the tokens that open a fresh database.

Takes a joined server's parts; leaves what is missing made, and secrets in the hands of the caller alone. Every step may be
repeated: what is there already is left as it is, so a start that died half-way is carried on by the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol
from uuid import UUID

from mainspring import demo_data
from mainspring.agents.service import AgentService
from mainspring.agents.tokens import TokenService
from mainspring.boards.service import BoardService
from mainspring.chat.build import ChatRoom
from mainspring.rooms import Actor, ServerSpine
from mainspring.triggers.service import RuleService

# Every fresh database has this one tenant; any number of others may stand beside it
TENANT: Final = UUID("01970000-0000-7000-8000-000000000001")
TENANT_NAME: Final = "main"
ADMIN: Final = "admin"


class Parts(Protocol):
    """What is asked of a joined server."""

    @property
    def spine(self) -> ServerSpine: ...
    @property
    def agents(self) -> AgentService: ...
    @property
    def boards(self) -> BoardService: ...
    @property
    def rules(self) -> RuleService: ...
    @property
    def talk(self) -> ChatRoom: ...
    @property
    def tokens(self) -> TokenService: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DevTokens:
    """The tokens of a `mainspring dev`: its person's, and its built-in runner's."""

    operator: str = field(repr=False)
    runner: str = field(repr=False)


async def ensure_admin(parts: Parts) -> Actor:
    """Return the bootstrap tenant's first person, both made if they are not there."""
    await parts.spine.create_tenant(TENANT, TENANT_NAME)
    return await parts.tokens.person(TENANT, ADMIN, "Admin")


async def first_operator(parts: Parts) -> str | None:
    """Return a fresh operator token; None when somebody holds one already (the demo's does not count)."""
    return await parts.tokens.first_operator(await ensure_admin(parts))


async def ensure_dev(
    parts: Parts, *, operator: str | None = None, runner: str | None = None, demo: bool = True
) -> DevTokens:
    """Make what `mainspring dev` shows a newcomer, and return tokens for him and for the built-in runner.

    `operator` and `runner` are the secrets that an earlier start was given: they stay as long as they are valid.
    """
    admin = await ensure_admin(parts)
    if demo:
        await demo_data.ensure(
            admin, agents=parts.agents, boards=parts.boards, rules=parts.rules, chat=parts.talk.chat
        )
    else:
        await demo_data.ensure_agents(admin, parts.agents)
    if operator is None or not await _opens(parts.tokens, operator, role="operator"):
        _, operator = await parts.tokens.create(admin, kind="user", role="operator", demo=True)
    handles = demo_data.AGENTS
    if runner is None or not await _runs(parts, runner, handles):
        _, runner = await parts.tokens.create(admin, kind="runner", agents=handles)
    return DevTokens(operator=operator, runner=runner)


async def _opens(tokens: TokenService, secret: str, *, role: str) -> bool:
    holder = await tokens.authenticate(secret)
    return holder is not None and holder.actor.tenant_id == TENANT and holder.role == role


async def _runs(parts: Parts, secret: str, handles: Sequence[str]) -> bool:
    holder = await parts.tokens.authenticate(secret)
    if holder is None or holder.actor.tenant_id != TENANT or holder.kind != "runner":
        return False
    wanted = {(await parts.agents.get(TENANT, handle)).agent.id for handle in handles}
    return wanted <= holder.agents
