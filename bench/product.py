"""The whole product on a database of its own: tables, roles, and everything that one server process runs.

The pool is the server's own, on connections that count what is asked of them.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import UUID

import asyncpg
import scene

from mainspring import db, migrate, roles, wiring
from mainspring.agents.tokens import add_account
from mainspring.config import Settings
from mainspring.embedded import EmbeddedPostgres
from mainspring.embedded.postgres import as_url
from mainspring.ids import new_id
from mainspring.rooms import Actor
from mainspring.wiring import Services

# what opens and ends a scope: there is nothing to ask less of
_FRAME = ("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "SELECT SET_CONFIG")


@dataclass
class Asked:
    """The statements that were sent on counted connections, by their first line."""

    statements: Counter[str] = field(default_factory=Counter)
    frames: int = 0

    def note(self, query: asyncpg.connection.LoggedQuery) -> None:
        """Count one statement; an opening, an end or a setting of a transaction apart."""
        text = query.query.strip()
        if text.upper().startswith(_FRAME):
            self.frames += 1
        else:
            self.statements[text] += 1

    def clear(self) -> None:
        """Count from zero."""
        self.statements.clear()
        self.frames = 0

    def connection_class(self) -> type[asyncpg.Connection]:
        """Return a class of connections that tell this counter what they are asked."""
        note = self.note

        class Counted(asyncpg.Connection):
            def __init__(self, *arguments: object, **more: object) -> None:
                super().__init__(*arguments, **more)
                self.add_query_logger(note)

        return Counted


@dataclass
class Product:
    """A database with the product in it. `url` is the server login's, `admin` the superuser's way in."""

    url: str
    admin: dict[str, object]
    services: Services
    asked: Asked

    async def person(self, tenant: UUID, name: str) -> Actor:
        """Make a tenant and an operator in it."""
        await self.services.spine.create_tenant(tenant, name)
        async with self.services.db.tenant(tenant) as scope:
            account = await add_account(scope, tenant, "human", "ana", "Ana")
        assert account is not None
        return Actor(tenant_id=tenant, account_id=account.id, kind="human", handle="ana")

    async def new_person(self, name: str) -> Actor:
        """The same, in a tenant of a new id."""
        return await self.person(new_id(), name)


@asynccontextmanager
async def product(postgres: EmbeddedPostgres, name: str) -> AsyncIterator[Product]:
    """Make the product's database; join its parts on it, start none of them."""
    admin = await scene.database(postgres, name)
    login, password = f"{roles.LOGIN}_{name}", secrets.token_hex(8)
    conn = await asyncpg.connect(**admin)
    try:
        await roles.ensure_login(conn, login, password)
        await roles.ensure(conn, login)
        await migrate.apply(conn, migrate.SERVER_SETS)
    finally:
        await conn.close()
    where = postgres.connect_arguments(name, user=login, password=password)
    settings = Settings(database_url=as_url(where))
    asked = Asked()
    pool = await db.create_pool(
        max_size=settings.pool_size, connection_class=asked.connection_class(), **where
    )
    await wiring.check(pool)
    services = wiring.join(settings, pool)
    try:
        yield Product(url=settings.database_url, admin=dict(admin), services=services, asked=asked)
    finally:
        await services.stop()
