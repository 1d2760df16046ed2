"""`mainspring server …` as an operator runs it: exit codes, what stands on stdout, and secrets that stay off it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

from mainspring import migrate, roles
from tests.server.conftest import free_port

pytestmark = pytest.mark.slow

NOWHERE = "nats://127.0.0.1:1"  # for what is refused before it is asked for


@pytest.fixture
async def empty(fresh_database):
    return await fresh_database("empty")


@pytest.fixture
async def migrated(fresh_database):
    return await fresh_database("server")


def run(
    tmp_path, *words: str, pass_fds: tuple[int, ...] = (), **settings: str
) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")}
    return subprocess.run(
        [sys.executable, "-m", "mainspring", "server", *words],
        cwd=tmp_path,
        env=kept
        | {f"MAINSPRING_{name}": value for name, value in ({"NATS_URL": NOWHERE} | settings).items()},
        capture_output=True,
        text=True,
        check=False,
        pass_fds=pass_fds,
        timeout=60,  # one that serves where it should refuse
    )


def test_migrating_checks_applies_and_then_has_nothing_to_do(empty, migrated, tmp_path):
    address = tmp_path / "address"
    address.write_text(empty.admin_url + "\n")
    settings = {"DATABASE_URL_FILE": str(address)}
    before = run(tmp_path, "migrate", "--check", "--json", **settings)
    assert before.returncode == 1
    assert json.loads(before.stdout)["pending"] == [
        str(m) for name in migrate.SERVER_SETS for m in migrate.load(name).migrations
    ]
    nobody = run(tmp_path, "migrate", "--login", "nobody_yet", **settings)
    assert nobody.returncode == 1
    assert 'create role "nobody_yet"' in nobody.stderr
    done = run(tmp_path, "migrate", "--login", roles.LOGIN, "--json", **settings)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["applied"] == json.loads(before.stdout)["pending"]
    again = run(tmp_path, "migrate", "--login", roles.LOGIN, **settings)
    assert (again.returncode, again.stdout) == (0, ""), "what is kept from stdout is SQL, or nothing"
    assert "nothing to do" in again.stderr
    after = run(tmp_path, "migrate", "--check", **settings)
    assert (after.returncode, after.stdout) == (0, "nothing is pending\n")


def test_a_superuser_is_no_login_to_serve_with(empty, tmp_path):
    refused = run(tmp_path, "migrate", DATABASE_URL=empty.admin_url)
    assert refused.returncode == 1
    assert "superuser" in refused.stderr


def test_the_sql_is_printed_without_a_database_and_then_only_what_is_missing(migrated, tmp_path):
    everything = run(tmp_path, "migrate", "--sql")
    assert everything.returncode == 0
    assert "create table mainspring.effects" in everything.stdout
    assert "create role mainspring_app" in everything.stdout
    missing = run(tmp_path, "migrate", "--sql", DATABASE_URL=migrated.url)
    assert "create table mainspring.effects" not in missing.stdout


def test_settings_are_shown_without_their_secret_or_refused_all_at_once(migrated, tmp_path):
    nats = {
        "NATS_URL": "nats://hunter2@one:4222,nats://me:hunter2@other:4222",
        "NATS_CREDS": str(tmp_path / "creds"),
    }
    shown = run(tmp_path, "check-config", "--json", DATABASE_URL=migrated.url, **nats)
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["port"] == 7700
    assert json.loads(shown.stdout)["nats_creds"] == str(tmp_path / "creds")
    assert json.loads(shown.stdout)["nats_url"] == "nats://…@one:4222,nats://…@other:4222"
    assert migrated.dsn["password"] not in shown.stdout
    assert "hunter2" not in shown.stdout + shown.stderr
    assert run(tmp_path, "check-config", DATABASE_URL=migrated.url, NATS_URL="").returncode == 1
    refused = run(tmp_path, "check-config", PROT="1", PORT="0")
    assert refused.returncode == 2
    assert "MAINSPRING_PROT" in refused.stderr
    assert "port" in refused.stderr


def test_the_first_operator_token_is_made_once_and_can_go_to_a_file(migrated, tmp_path):
    token = tmp_path / "token"
    made = run(tmp_path, "bootstrap", "--token-file", str(token), DATABASE_URL=migrated.url)
    assert made.returncode == 0, made.stderr
    assert token.read_text().startswith("ms_user_")
    assert token.stat().st_mode & 0o077 == 0
    assert made.stdout == ""
    assert token.read_text().strip() not in made.stderr
    again = run(tmp_path, "bootstrap", "--json", DATABASE_URL=migrated.url)
    assert json.loads(again.stdout) == {"created": False}


def test_a_server_without_a_fabric_does_not_start(migrated, tmp_path):
    refused = run(tmp_path, "run", DATABASE_URL=migrated.url, NATS_URL="", PORT=str(free_port()))
    assert refused.returncode == 2
    assert "MAINSPRING_NATS_URL" in refused.stderr


def test_a_server_without_a_schema_says_what_to_run(empty, tmp_path):
    refused = run(tmp_path, "run", DATABASE_URL=empty.url, PORT=str(free_port()))
    assert refused.returncode == 1
    assert "mainspring server migrate" in refused.stderr


def test_a_socket_that_was_not_handed_down_is_said_to_be_none(migrated, tmp_path):
    refused = run(tmp_path, "run", DATABASE_URL=migrated.url, LISTEN_FD="777")
    assert refused.returncode == 1
    assert "777 is no open socket" in refused.stderr


@pytest.mark.parametrize("bound", ["another address", "another port", "a path"])
def test_a_socket_that_is_bound_elsewhere_than_the_settings_say_is_refused(migrated, tmp_path, bound):
    port = free_port()
    with socket.socket(socket.AF_UNIX if bound == "a path" else socket.AF_INET) as sock:
        match bound:
            case "another address":
                sock.bind(("0.0.0.0", port))
            case "another port":
                sock.bind(("127.0.0.1", 0))
            case _:
                sock.bind(str(tmp_path / "sock"))
        refused = run(
            tmp_path,
            "run",
            pass_fds=(sock.fileno(),),
            DATABASE_URL=migrated.url,
            PORT=str(port),
            LISTEN_FD=str(sock.fileno()),
        )
    assert refused.returncode == 1
    assert f"and not to 127.0.0.1:{port}" in refused.stderr


def test_an_unknown_command_is_a_usage_error_with_a_guess():
    asked = subprocess.run(
        [sys.executable, "-m", "mainspring", "crad", "list"], capture_output=True, text=True, check=False
    )
    assert asked.returncode == 2
    assert "'card'" in asked.stderr
