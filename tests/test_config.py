"""Settings: four places, one verdict."""

from __future__ import annotations

import os

import pytest

from mainspring import config


@pytest.fixture(autouse=True)
def _clean(monkeypatch, tmp_path):
    for name in list(os.environ):
        if name.startswith(config.PREFIX):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_defaults_are_the_documented_ones():
    settings = config.load()
    assert (settings.host, settings.port, settings.pool_size) == ("127.0.0.1", 7700, 10)
    assert (settings.lease_seconds_transactional, settings.lease_seconds_external) == (10, 60)
    assert settings.url == "http://127.0.0.1:7700"


def test_arguments_win_over_files_over_environment_over_toml(monkeypatch, tmp_path):
    (tmp_path / "mainspring.toml").write_text(
        'port = 7001\nhost = "127.0.0.2"\npool_size = 5\nlog_level = "error"\n'
    )
    monkeypatch.setenv("MAINSPRING_HOST", "127.0.0.3")
    monkeypatch.setenv("MAINSPRING_POOL_SIZE", "6")
    (tmp_path / "url").write_text("postgresql://me:secret@db/mainspring\n")
    monkeypatch.setenv("MAINSPRING_DATABASE_URL_FILE", str(tmp_path / "url"))
    settings = config.load(pool_size=7)
    assert (settings.port, settings.host, settings.pool_size, settings.log_level) == (
        7001,
        "127.0.0.3",
        7,
        "error",
    )
    assert settings.database_url == "postgresql://me:secret@db/mainspring"


def test_the_named_toml_file_must_exist(monkeypatch, tmp_path):
    monkeypatch.setenv("MAINSPRING_CONFIG", str(tmp_path / "nowhere.toml"))
    with pytest.raises(config.ConfigError, match="there is no file"):
        config.load()


def test_every_mistake_is_named_at_once(monkeypatch, tmp_path):
    (tmp_path / "mainspring.toml").write_text("pool_sise = 5\nworker_slots = 500\n")
    monkeypatch.setenv("MAINSPRING_PRT", "1")
    with pytest.raises(config.ConfigError) as caught:
        config.load()
    message = str(caught.value)
    assert "MAINSPRING_PRT: there is no such setting" in message
    assert "pool_sise" in message
    assert "worker_slots" in message


def test_a_setting_given_twice_is_refused(monkeypatch, tmp_path):
    (tmp_path / "port").write_text("7001")
    monkeypatch.setenv("MAINSPRING_PORT_FILE", str(tmp_path / "port"))
    monkeypatch.setenv("MAINSPRING_PORT", "7002")
    with pytest.raises(config.ConfigError, match="keep one"):
        config.load()


def test_an_unreadable_secret_file_names_the_variable(monkeypatch):
    monkeypatch.setenv("MAINSPRING_DATABASE_URL_FILE", "/nowhere/at/all")
    with pytest.raises(config.ConfigError, match="MAINSPRING_DATABASE_URL_FILE"):
        config.load()


def test_a_broken_toml_file_is_a_config_error(tmp_path):
    (tmp_path / "mainspring.toml").write_text("port = \n")
    with pytest.raises(config.ConfigError):
        config.load()


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"dev_mode": True, "host": "0.0.0.0"}, "dev_mode"),
        ({"floor_tick_seconds": 9.0}, "floor_tick_seconds"),
        ({"lease_seconds_external": 5.0}, "lease_seconds_external"),
        ({"database_url": "mysql://root@db/x"}, "database_url"),
    ],
)
def test_values_are_checked_together(given, named):
    with pytest.raises(config.ConfigError, match=named):
        config.load(**given)


def test_errors_and_shown_settings_never_carry_the_password():
    settings = config.load(database_url="postgresql://me:hunter2@db/x")
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in str(settings.shown())
    assert settings.shown()["database_url"] == "postgresql://me:…@db/x"
    with pytest.raises(config.ConfigError) as caught:
        config.load(database_url="mysql://me:hunter2@db/x")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("db.example", False)],
)
def test_loopback(host, expected):
    assert config.is_loopback(host) is expected


def test_the_demo_token_keeps_the_server_on_loopback():
    config.refuse_exposed_demo(config.load(), demo_token=True)
    exposed = config.load(host="0.0.0.0")
    config.refuse_exposed_demo(exposed, demo_token=False)
    with pytest.raises(config.ConfigError, match="demo"):
        config.refuse_exposed_demo(exposed, demo_token=True)


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"nats_url": "http://nats:4222"}, "nats_url: must begin with nats://"),
        ({"nats_url": "nats://one:4222,two:4222"}, "nats_url: must begin with nats://"),
        ({"nats_tls_key": "/key"}, "nats_tls_key: is of no use without nats_tls_cert"),
        ({"nats_root": "a.b"}, "nats_root"),
        ({"nats_root": ">"}, "nats_root"),
    ],
)
def test_what_reaches_no_nats_is_refused(given, wrong):
    with pytest.raises(config.ConfigError) as refused:
        config.load(**given)
    assert wrong in str(refused.value)
