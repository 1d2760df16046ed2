"""Every statement of this room means something to the migrated schema, and the ones behind a poll stay off full scans."""

from __future__ import annotations

from mainspring.agents.rows import SQL


async def test_every_statement_is_prepared_on_the_migrated_schema(home):
    async with home.db.system("test") as scope:
        for _name, text in SQL.items():
            await scope.conn.prepare(text)
