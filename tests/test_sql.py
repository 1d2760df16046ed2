"""Every named statement is prepared on the migrated schema: a wrong column, type or keyword is found here, not in production."""

from __future__ import annotations

import pkgutil
import re
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


_CLOCK = r"clock_timestamp\(\)"
_MOVED = r"(\s*[-+]\s*(interval\s*'[^']*'|make_interval\([^)]*\)))?"
_COMPARED = re.compile(rf"[<>]=?\s*{_CLOCK}|between\s+{_CLOCK}|{_CLOCK}{_MOVED}\s*[<>]")
_OF_THE_TRANSACTION = re.compile(
    r"\b(now|transaction_timestamp)\(\)|\bcurrent_timestamp\b|\blocaltimestamp\b"
)


def test_deadlines_are_set_by_one_clock_and_compared_with_another() -> None:
    """A comparison with `clock_timestamp()` is no index condition; `now()` is when the transaction began, however long ago."""
    wrong = []
    for package in packages_of_sql():
        for name, text in Queries(package).items():
            said = re.sub(r"--.*", "", text)
            if _COMPARED.search(said) or _OF_THE_TRANSACTION.search(said):
                wrong.append(f"{package}.{name}")
    assert wrong == []
    assert _COMPARED.search("where lease_until < clock_timestamp()")
    assert _COMPARED.search("where clock_timestamp() - interval '1 s' > lease_until")
    assert not _COMPARED.search(
        "set lease_until = clock_timestamp() + $1 where lease_until < statement_timestamp()"
    )


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
