"""Every named statement is prepared on the migrated schema: a wrong column, type or keyword is found here, not in production."""

from __future__ import annotations

import pkgutil
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

import asyncpg

import mainspring
from mainspring.migrations.deadlines import DEADLINES as PRODUCT_DEADLINES
from mainspring.migrations.deadlines import RECORDS as PRODUCT_RECORDS
from mainspring.sql import Queries
from mainspring.stores.postgres.deadlines import DEADLINES, RECORDS


def packages_of_sql() -> list[str]:
    found = [
        module.name
        for module in pkgutil.walk_packages(mainspring.__path__, "mainspring.")
        if module.name.endswith(".sql")
    ]
    return [name for name in found if import_module(name).__spec__.submodule_search_locations is not None]  # type: ignore[union-attr]


async def test_every_statement_prepares_on_the_migrated_schema(
    fresh_database: Callable[..., Awaitable[Any]],
) -> None:
    database = await fresh_database("server")
    conn = await asyncpg.connect(**database.admin)
    broken = []
    try:
        for package in packages_of_sql():
            for name, text in Queries(package).items():
                try:
                    await conn.prepare(text)
                except asyncpg.PostgresError as error:
                    broken.append(f"{package}.{name}: {error}")
    finally:
        await conn.close()

    assert len(packages_of_sql()) > 1
    assert broken == []


async def test_every_timestamp_is_on_one_list(fresh_database: Callable[..., Awaitable[Any]]) -> None:
    """Moving time in tests shifts the deadlines; a column on no list would stay behind, unnoticed."""
    database = await fresh_database("server")
    conn = await asyncpg.connect(**database.admin)
    try:
        found = await conn.fetch(
            """select table_name || '.' || column_name from information_schema.columns
               where table_schema = 'mainspring' and data_type = 'timestamp with time zone'"""
        )
    finally:
        await conn.close()

    listed = [
        f"{table}.{column}"
        for columns_of in (DEADLINES, RECORDS, PRODUCT_DEADLINES, PRODUCT_RECORDS)
        for table, columns in columns_of.items()
        for column in columns
    ]
    assert sorted(row[0] for row in found) == sorted(listed)
