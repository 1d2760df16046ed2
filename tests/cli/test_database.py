"""What `dev --database-url` and `server migrate` do to somebody's own PostgreSQL, and what they say when they may not."""

from __future__ import annotations

import os

import asyncpg
import pytest

from mainspring import migrate, roles
from mainspring.cli import database
from mainspring.cli.exits import CliError, ExitCode

pytestmark = pytest.mark.slow


@pytest.fixture
async def own(fresh_database):
    """A database that belongs to an ordinary login, as a hosting provider hands it out; with its superuser's way in."""
    made = await fresh_database("empty")
    admin = await asyncpg.connect(**made.admin)
    yield made, admin
    await admin.close()


async def test_one_login_migrates_and_serves_once_it_holds_the_roles(own):
    made, admin = own
    login = made.dsn["user"]
    if not await roles.is_ready(admin, login):
        with pytest.raises(database.SqlToRun) as refused:
            await database.prepare(made.url)
        assert login in refused.value.sql
        await admin.execute(refused.value.sql)
    done = await database.prepare(made.url)
    assert done.login == login
    assert {name.split("/")[0] for name in done.applied} == set(migrate.SERVER_SETS)
    assert (await database.prepare(made.url)).applied == ()
    assert await database.pending(made.url) == []


async def test_a_login_that_may_not_make_a_schema_is_told_what_to_run(own, databases):
    made, admin = own
    guest = f"guest_{os.getpid()}"
    await roles.ensure_login(admin, guest, "secret")
    try:
        await roles.ensure(admin, guest)
        url = database.with_login(made.url, guest, "secret")
        with pytest.raises(database.SqlToRun, match="may not make the schema") as refused:
            await database.prepare(url)
        await admin.execute(refused.value.sql)
        assert (await database.prepare(url)).applied
    finally:
        await admin.execute(f"drop owned by {guest} cascade")
        await admin.execute(f"drop role {guest}")


async def test_a_superuser_migrates_but_another_login_serves(own, databases):
    made, _ = own
    assert await database.is_privileged(made.admin_url)
    assert not await database.is_privileged(made.url)
    with pytest.raises(CliError, match="superuser"):
        await database.prepare(made.admin_url)
    await database.make_login(made.admin_url, databases.password)  # the login is the whole cluster's
    done = await database.prepare(made.admin_url, login=roles.LOGIN)
    assert done.login == roles.LOGIN
    url = database.with_login(made.admin_url, roles.LOGIN, databases.password)
    assert not await database.is_privileged(url)


async def test_a_database_that_does_not_answer_is_named_without_its_password():
    with pytest.raises(CliError) as refused:
        await database.prepare("postgresql://me:hunter2@127.0.0.1:1/nothing")
    assert "127.0.0.1:1" in str(refused.value)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://a:b@h:5433/d", "postgresql://u:p%2F@h:5433/d"),
        ("postgresql://h/d?sslmode=require", "postgresql://u:p%2F@h/d?sslmode=require"),
        ("postgresql:///d?host=/tmp/x&user=a&password=b", "postgresql://u:p%2F@/d?host=/tmp/x"),
    ],
)
def test_another_login_keeps_the_rest_of_the_address(url, expected):
    assert database.with_login(url, "u", "p/") == expected


async def test_a_schema_in_use_is_said_to_be_and_by_whom(fresh_database, monkeypatch):
    monkeypatch.setattr(migrate, "LOCK_SECONDS", 0.05)
    monkeypatch.setattr(migrate, "TRIES", 1)
    made = await fresh_database("server")
    admin = await asyncpg.connect(**made.admin)
    [alters] = [one for one in migrate.load("product").migrations if one.name == "webhook_firings"]
    await admin.execute(
        'delete from mainspring.schema_migrations where "set" = $1 and version >= $2',
        alters.set,
        alters.version,
    )
    async with admin.transaction():
        await admin.execute("lock mainspring.firings in access share mode")
        with pytest.raises(
            CliError, match=f"{alters} is not applied.*process {admin.get_server_pid()}"
        ) as blocked:
            await database.prepare(made.admin_url, login=made.dsn["user"])
    assert blocked.value.code == ExitCode.TRY_AGAIN
    await admin.close()
