"""Every statement of this room means something to the migrated schema."""

from __future__ import annotations

from mainspring.agents.rows import SQL


async def test_every_statement_is_prepared_on_the_migrated_schema(home):
    async with home.db.system("test") as scope:
        for _, text in SQL.items():  # noqa: PERF102 - not a dict
            await scope.conn.prepare(text)
