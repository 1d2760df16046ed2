"""The migration runner on small sets of its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from mainspring import migrate, roles
from mainspring.migrate import MigrationBlocked, MigrationRefused, MigrationSet

pytestmark = pytest.mark.slow


def folder_of(tmp_path, **files: str) -> MigrationSet:
    tmp_path.mkdir(exist_ok=True)
    for name, sql in files.items():
        (tmp_path / f"{name.removeprefix('m')}.sql").write_text(sql)
    return MigrationSet.from_folder("small", tmp_path)


@pytest.fixture
async def conn(fresh_database):
    database = await fresh_database("empty")
    opened = await asyncpg.connect(**database.dsn)
    yield opened
    await opened.close()


ONE = "create table mainspring.one (n int); insert into mainspring.one values (1);"
TWO = "insert into mainspring.one values (2);"


async def test_each_file_is_applied_once_in_order(conn, tmp_path):
    small = folder_of(tmp_path, m0001_one=ONE, m0002_two=TWO)
    assert [str(m) for m in await migrate.pending(conn, [small])] == ["small/0001_one", "small/0002_two"]
    assert [m.version for m in await migrate.apply(conn, [small])] == [1, 2]
    assert await migrate.apply(conn, [small]) == []
    assert await migrate.pending(conn, [small]) == []
    assert [r["n"] for r in await conn.fetch("select n from mainspring.one order by n")] == [1, 2]


async def test_looking_changes_nothing(conn, tmp_path):
    await migrate.pending(conn, [folder_of(tmp_path, m0001_one=ONE)])
    assert await conn.fetchval("select to_regnamespace('mainspring') is null")


async def test_an_edited_file_is_refused_and_named(conn, tmp_path):
    await migrate.apply(conn, [folder_of(tmp_path, m0001_one=ONE)])
    edited = folder_of(tmp_path, m0001_one=ONE + " -- better", m0002_two=TWO)
    for verb in (migrate.apply, migrate.pending):
        with pytest.raises(MigrationRefused, match="small/0001_one was changed"):
            await verb(conn, [edited])
    assert await conn.fetchval("select count(*) from mainspring.one") == 1


async def test_a_database_of_a_newer_version_is_refused(conn, tmp_path):
    await migrate.apply(conn, [folder_of(tmp_path / "new", m0001_one=ONE, m0002_two=TWO)])
    with pytest.raises(MigrationRefused, match=r"0002_two.*newer"):
        await migrate.apply(conn, [folder_of(tmp_path / "old", m0001_one=ONE)])


async def test_a_hole_in_what_was_applied_is_refused(conn, tmp_path):
    small = folder_of(tmp_path, m0001_one=ONE, m0002_two=TWO)
    await migrate.apply(conn, [small])
    await conn.execute("delete from mainspring.schema_migrations where version = 1")
    with pytest.raises(MigrationRefused, match="never applied"):
        await migrate.apply(conn, [small])


@pytest.mark.parametrize(
    "names", [("0002_first",), ("0001_a", "0003_b"), ("0001_a", "0001_b"), ("1_a",), ("0001_UPPER",)]
)
def test_misnumbered_files_are_refused(tmp_path, names):
    with pytest.raises(MigrationRefused):
        folder_of(tmp_path, **dict.fromkeys(names, "select 1;"))


async def test_a_failing_file_leaves_no_trace_and_the_earlier_ones_stay(conn, tmp_path):
    broken = folder_of(tmp_path, m0001_one=ONE, m0002_two=TWO + " select 1/0;")
    with pytest.raises(asyncpg.DivisionByZeroError):
        await migrate.apply(conn, [broken])
    assert await conn.fetchval("select count(*) from mainspring.one") == 1
    mended = folder_of(tmp_path, m0002_two=TWO)
    assert [m.version for m in await migrate.apply(conn, [mended])] == [2]


@pytest.mark.slow
async def test_four_at_once_apply_each_file_once_even_a_concurrent_index(fresh_database, tmp_path):
    """A blocking lock would deadlock here: the waiters' snapshots hold up CREATE INDEX CONCURRENTLY."""
    database = await fresh_database("empty")
    index = "-- mainspring: no transaction\ncreate index concurrently one_n on mainspring.one (n);\n"
    small = folder_of(tmp_path, m0001_one=ONE, m0002_index=index, m0003_two=TWO)

    async def start() -> int:
        conn = await asyncpg.connect(**database.dsn)
        try:
            return len(await migrate.apply(conn, [small]))
        finally:
            await conn.close()

    assert sorted(await asyncio.gather(*(start() for _ in range(4)))) == [0, 0, 0, 3]


# beside servers that work --------------------------------------------------------------------


WIDER = "alter table mainspring.one add column m int;"
WAITING = "select exists (select from pg_locks where not granted and relation = $1::regclass)"


@asynccontextmanager
async def in_use(dsn: dict[str, Any], table: str) -> AsyncIterator[asyncpg.Connection]:
    """A session that has read a table, and whose transaction goes on."""
    conn = await asyncpg.connect(**dsn)
    try:
        async with conn.transaction():
            await conn.execute(f"select from {table}")
            yield conn
    finally:
        await conn.close()


async def until_waited_for(conn: asyncpg.Connection, table: str) -> None:
    async with asyncio.timeout(20):
        while not await conn.fetchval(WAITING, table):  # noqa: ASYNC110 - nothing tells of another session's wait
            await asyncio.sleep(0.01)


@pytest.fixture
def impatient(monkeypatch):
    """Gives up after two short tries."""
    monkeypatch.setattr(migrate, "LOCK_SECONDS", 0.1)
    monkeypatch.setattr(migrate, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(migrate, "TRIES", 2)


@pytest.mark.slow
async def test_a_table_that_is_being_read_keeps_a_file_waiting_and_nobody_else(fresh_database, tmp_path):
    """Whoever reads it meanwhile would wait behind the file, and give up before the long reader is done."""
    database = await fresh_database("empty")
    conn, other = [await asyncpg.connect(**database.dsn) for _ in range(2)]
    await migrate.apply(conn, [folder_of(tmp_path / "old", m0001_one=ONE)])
    async with in_use(database.dsn, "mainspring.one"):
        new = folder_of(tmp_path / "new", m0001_one=ONE, m0002_wider=WIDER)
        applying = asyncio.create_task(migrate.apply(conn, [new]))
        await until_waited_for(other, "mainspring.one")
        await other.execute("set lock_timeout = '5s'")  # as a server's
        assert await other.fetchval("select n from mainspring.one") == 1
        assert not applying.done()
    assert [str(m) for m in await applying] == ["small/0002_wider"]
    assert await other.fetchval("show lock_timeout") == "5s"
    assert await conn.fetchval("show lock_timeout") == "0"
    for opened in (conn, other):
        await opened.close()


async def test_who_keeps_a_file_waiting_is_named_when_it_gives_up(fresh_database, tmp_path, impatient):
    database = await fresh_database("empty")
    conn = await asyncpg.connect(**database.dsn)
    await migrate.apply(
        conn, [folder_of(tmp_path / "old", m0001_one=ONE, m0002_idle="create table mainspring.idle ();")]
    )
    new = folder_of(
        tmp_path / "new", m0001_one=ONE, m0002_idle="create table mainspring.idle ();", m0003_wider=WIDER
    )
    async with (
        in_use(database.dsn, "mainspring.idle") as idle,
        in_use(database.dsn, "mainspring.one") as busy,
    ):
        with pytest.raises(MigrationBlocked, match=r"small/0003_wider .*2 times") as blocked:
            await migrate.apply(conn, [new])
        assert f"process {busy.get_server_pid()} (" in str(blocked.value)
        assert "select from mainspring.one" in str(blocked.value)
        assert f"process {idle.get_server_pid()} (" not in str(blocked.value)
    assert [str(m) for m in await migrate.apply(conn, [new])] == ["small/0003_wider"]
    await conn.close()


async def test_what_runs_outside_a_transaction_is_tried_once(fresh_database, tmp_path, impatient):
    """It may have left something behind, such as an invalid index: somebody has to look."""
    database = await fresh_database("empty")
    conn = await asyncpg.connect(**database.dsn)
    await migrate.apply(conn, [folder_of(tmp_path / "old", m0001_one=ONE)])
    await conn.execute("set lock_timeout = '50ms'")
    new = folder_of(tmp_path / "new", m0001_one=ONE, m0002_wider=f"-- mainspring: no transaction\n{WIDER}")
    async with in_use(database.dsn, "mainspring.one"):
        with pytest.raises(MigrationBlocked, match="1 times"):
            await migrate.apply(conn, [new])
    await conn.close()


@pytest.mark.slow
async def test_an_older_server_that_takes_tables_in_another_order_costs_a_file_one_try(fresh_database):
    """0011 alters runners, then runs; a server holds runs and asks for runners. One of the two has to let go: the file."""
    await fresh_database("server")  # with it comes the login that serves
    database = await fresh_database("library")
    conn = await asyncpg.connect(**database.admin)
    product = migrate.load("product")
    before = replace(product, migrations=product.migrations[:10])
    await conn.execute("drop schema mainspring cascade")
    await roles.ensure(conn, roles.LOGIN)
    await migrate.apply(conn, ["spine", before])
    async with in_use(database.admin, "mainspring.runs") as server:
        await server.execute("set deadlock_timeout = '60s'")  # so that it is the other that is told
        applying = asyncio.create_task(migrate.apply(conn, migrate.SERVER_SETS))
        await until_waited_for(server, "mainspring.runs")
        assert await server.fetch("select from mainspring.runners") == []
    assert "product/0011_runner_labels" in [str(m) for m in await applying]
    await conn.close()


async def test_an_open_transaction_is_refused(conn, tmp_path):
    async with conn.transaction():
        with pytest.raises(MigrationRefused, match="outside"):
            await migrate.apply(conn, [folder_of(tmp_path, m0001_one=ONE)])


async def test_a_lost_session_lock_is_noticed(conn, tmp_path):
    """What a transaction-mode pooler does: the next statement runs on another session."""
    forgetful = folder_of(tmp_path, m0001_one=ONE + " select pg_advisory_unlock_all();", m0002_two=TWO)
    with pytest.raises(MigrationRefused, match="pooler"):
        await migrate.apply(conn, [forgetful])
    assert await conn.fetchval("select count(*) from mainspring.one") == 1


async def test_the_script_does_the_same(fresh_database, tmp_path):
    small = folder_of(tmp_path, m0001_one=ONE, m0002_two=TWO)
    database = await fresh_database("empty")
    conn = await asyncpg.connect(**database.dsn)
    try:
        await conn.execute(migrate.script([small]))
        assert await migrate.pending(conn, [small]) == []
        assert await conn.fetchval("select count(*) from mainspring.one") == 2
    finally:
        await conn.close()


async def test_a_library_user_gets_the_spine_and_nothing_else(fresh_database):
    database = await fresh_database("library")
    conn = await asyncpg.connect(**database.dsn)
    try:
        assert await conn.fetch('select distinct "set" as s from mainspring.schema_migrations') == [
            ("spine",)
        ]
    finally:
        await conn.close()


def test_an_unknown_set_is_refused():
    with pytest.raises(MigrationRefused, match="spine, product"):
        migrate.load("sprine")


# ---------------------------------------------------------------------- roles


@pytest.fixture
async def admin(fresh_database):
    database = await fresh_database("empty")
    opened = await asyncpg.connect(**database.admin)
    yield opened
    await opened.close()


@pytest.fixture
async def login(admin, databases):
    """An ordinary login of this test alone."""
    name = f"serving_{os.getpid()}_{id(admin)}"
    await roles.ensure_login(admin, name, "secret")
    yield name
    await admin.execute(f"drop owned by {name}")
    await admin.execute(f"drop role {name}")


async def connect_as(admin_dsn, login: str) -> asyncpg.Connection:
    return await asyncpg.connect(**admin_dsn | {"user": login, "password": "secret"})


async def test_roles_are_made_once_and_reached_only_by_set_role(admin, admin_dsn, login):
    assert not await roles.is_ready(admin, login)
    await roles.ensure(admin, login)
    await roles.ensure(admin, login)
    conn = await connect_as(admin_dsn, login)
    try:
        assert await roles.is_ready(conn, login)
        assert not await conn.fetchval("select pg_has_role($1, 'mainspring_app', 'usage')", login)
        await conn.execute("set role mainspring_system")
    finally:
        await conn.close()


async def test_a_login_that_may_make_roles_prepares_itself(admin, admin_dsn, login):
    await admin.execute(f"alter role {login} createrole")
    await admin.execute(roles._MAKE_ROLES)  # the cluster's other tests have made them, as somebody else
    await admin.execute(f"grant mainspring_app, mainspring_system to {login} with admin option")
    if admin.get_server_version().major >= 16:  # what CREATE ROLE gives its own maker
        await admin.execute(
            f"grant mainspring_app, mainspring_system to {login} with inherit false, set false"
        )
    conn = await connect_as(admin_dsn, login)
    try:
        await roles.ensure(conn, login)
        assert await roles.is_ready(conn, login)
    finally:
        await conn.close()


async def test_a_login_that_may_not_is_told_what_to_run(admin, admin_dsn, login):
    conn = await connect_as(admin_dsn, login)
    try:
        with pytest.raises(roles.NotAllowed) as refused:
            await roles.ensure(conn, login)
        await admin.execute(refused.value.script)
        await roles.ensure(conn, login)
    finally:
        await conn.close()


async def test_a_login_that_inherits_is_refused(admin, login):
    await roles.ensure(admin, login)
    inherits = (
        "grant mainspring_app to {} with inherit true"
        if admin.get_server_version().major >= 16
        else "alter role {} inherit"
    )
    await admin.execute(inherits.format(login))
    assert not await roles.is_ready(admin, login)


async def test_a_superuser_does_not_serve(admin, admin_dsn):
    with pytest.raises(roles.Unfit, match="superuser"):
        await roles.ensure(admin, admin_dsn["user"])


async def test_names_and_passwords_are_quoted(admin):
    name, password = f'o"dd; name {os.getpid()}', "pass'word\\"
    try:
        await roles.ensure_login(admin, name, password)
        await roles.ensure_login(admin, name, password)
        await roles.ensure(admin, name)
        assert await roles.is_ready(admin, name)
    finally:
        await admin.execute(f"drop role {roles.quoted(name)}")
