"""Makes the first tenant and the first tokens by the product's own verbs, and keeps them where `dev` looks for them.

Takes a migrated database; leaves tokens in files that only their owner can read. Repeatable: what is valid is kept.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mainspring.cli.exits import CliError
from mainspring.embedded.postgres import write_secret

if TYPE_CHECKING:
    from mainspring.bootstrap import DevTokens
    from mainspring.embedded.state import StateFolder
    from mainspring.wiring import Services


async def dev_tokens(server_url: str, state: StateFolder) -> DevTokens:
    """The demo's data and the tokens of this state folder, made where they are missing or no longer open anything."""
    from mainspring import bootstrap

    async with _joined(server_url) as services:
        made = await bootstrap.ensure_dev(
            services, operator=_kept(state.token), runner=_kept(state.runner_token)
        )
    write_secret(state.token, made.operator + "\n")
    write_secret(state.runner_token, made.runner + "\n")
    return made


async def first_operator(database_url: str) -> str | None:
    """A fresh operator token, or None when somebody holds one already."""
    from mainspring import bootstrap

    async with _joined(database_url) as services:
        return await bootstrap.first_operator(services)


@asynccontextmanager
async def _joined(database_url: str) -> AsyncIterator[Services]:
    """A server's parts, joined and not started."""
    from mainspring import config, wiring
    from mainspring.db import gather_closed

    try:
        services = await wiring.build(config.load(database_url=database_url))
    except (wiring.CannotStart, config.ConfigError) as error:
        raise CliError(str(error)) from error
    try:
        yield services
    finally:
        await gather_closed(services.pool, timeout_seconds=wiring.POOL_CLOSES_SECONDS)


def _kept(path: Path) -> str | None:
    return path.read_text().strip() if path.exists() else None
