"""What an operator may set, from four places, checked as a whole before anything starts.

Takes (in order of precedence) arguments, MAINSPRING_<NAME>_FILE, MAINSPRING_<NAME> and a TOML file (mainspring.toml
in the working folder, or MAINSPRING_CONFIG); leaves one frozen `Settings`, or a `ConfigError` that names every
mistake at once. A misspelt variable is refused: silently ignored, it would be believed.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

PREFIX = "MAINSPRING_"
CONFIG_VARIABLE = "MAINSPRING_CONFIG"
DEFAULT_FILE = "mainspring.toml"
# Read by other parts of Mainspring (client, runner, embedded server, tests), so they are no mistakes here.
ALSO_KNOWN = frozenset(
    {
        CONFIG_VARIABLE,
        "MAINSPRING_FAULT",
        "MAINSPRING_NATS_SERVER",
        "MAINSPRING_PG_BINDIR",
        "MAINSPRING_URL",
        "MAINSPRING_TOKEN",
        "MAINSPRING_TOKEN_FILE",
        "MAINSPRING_STATE",
        "MAINSPRING_SPOOL",
        "MAINSPRING_TEST_DATABASE_URL",
        "MAINSPRING_TEST_PG15_BINDIR",
        # what a runner tells the program it starts
        "MAINSPRING_AGENT",
        "MAINSPRING_ATTEMPT",
        "MAINSPRING_CARD_KEY",
        "MAINSPRING_PROMPT",
        "MAINSPRING_PROMPT_FILE",
        "MAINSPRING_RUN_ID",
    }
)

_NATS_SCHEMES = ("nats://", "tls://", "ws://", "wss://")
_NATS_FILES = ("nats_creds", "nats_tls_ca", "nats_tls_cert", "nats_tls_key")
_NATS_SECRET = re.compile(r"://.*@")


class ConfigError(Exception):
    """The settings cannot be used; the message lists what is wrong, one line each."""


class Settings(BaseSettings):
    """The server's settings. Durations are in the unit that ends their name."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", frozen=True, hide_input_in_errors=True, validate_default=True
    )

    database_url: str = Field(
        default="", repr=False, description="postgresql:// address of the server's own login"
    )
    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(default=7700, ge=1, le=65535, description="port to listen on")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least level logged"
    )
    listen_fd: int | None = Field(
        default=None,
        ge=3,
        description="number of an open socket to take connections from, inherited from whoever starts the process and bound to host and port",
    )
    dev_mode: bool = Field(default=False, description="fault points over HTTP; on loopback only")
    shutdown_grace_seconds: float = Field(
        default=10.0, ge=0, le=600, description="time to hand work back at shutdown"
    )

    pool_size: int = Field(default=10, ge=3, le=200, description="database connections of one process")
    statement_cache_size: int = Field(
        default=100, ge=0, le=10_000, description="prepared statements kept per connection; 0 behind a pooler"
    )

    nats_url: str = Field(
        default="",
        repr=False,
        description="nats:// or tls:// address of NATS with JetStream, 2.10 or newer; several with commas between",
    )
    nats_creds: Path | None = Field(default=None, description="credentials file for NATS")
    nats_tls_ca: Path | None = Field(default=None, description="certificates that NATS's must descend from")
    nats_tls_cert: Path | None = Field(default=None, description="certificate to show to NATS")
    nats_tls_key: Path | None = Field(default=None, description="the key of that certificate")
    nats_root: str = Field(
        default="mainspring",
        pattern="^[a-z][a-z0-9_-]{0,31}$",
        description="first word of every subject; another one for each installation that shares a NATS account",
    )
    nats_replicas: int = Field(
        default=1,
        ge=1,
        le=5,
        description="copies of the streams in a NATS cluster, where they are first made",
    )
    nats_wait_seconds: float = Field(
        default=15.0, ge=0, le=600, description="how long a start waits for a NATS that does not answer"
    )

    requests_max: int = Field(
        default=500, ge=1, le=100_000, description="requests worked on at once; more are answered 503"
    )
    waits_max: int = Field(
        default=5_000,
        ge=2,
        le=100_000,
        description="long polls and streams that wait at once, half of them of one tenant at most",
    )

    worker_slots: int = Field(
        default=64, ge=1, le=200, description="effects executed at the same time by one process"
    )
    lease_seconds_transactional: float = Field(
        default=10.0, ge=0.5, le=600, description="claim of an effect in one transaction"
    )
    lease_seconds_external: float = Field(
        default=60.0, ge=0.5, le=3600, description="claim of an effect that leaves the database"
    )
    floor_tick_seconds: float = Field(
        default=1.0, ge=0.05, le=60, description="how often work is looked for without a wake"
    )
    run_lease_seconds: float = Field(
        default=60.0, ge=1, le=3600, description="a runner's silence before its run is taken back"
    )
    run_attempts_max: int = Field(
        default=3, ge=1, le=100, description="attempts of a run before it is lost for good"
    )
    session_lease_seconds: float = Field(
        default=30.0, ge=1, le=3600, description="an agent's silence before its session is lost"
    )
    webhook_allow_private: bool = Field(
        default=False, description="let webhooks call private, loopback and link-local addresses"
    )
    retention_done_days: float = Field(
        default=7.0, ge=0.01, le=3650, description="how long finished effects are kept"
    )
    agent_launches_per_hour_max: int = Field(
        default=1000, ge=1, le=100_000, description="launches of one agent within an hour; further ones wait"
    )

    @model_validator(mode="after")
    def _holds_together(self) -> Settings:
        problems: list[str] = []
        if self.dev_mode and not is_loopback(self.host):
            problems.append(f"dev_mode: only on a loopback address, and host is {self.host}")
        if self.floor_tick_seconds > self.lease_seconds_transactional / 2:
            problems.append(
                "floor_tick_seconds: must be at most half of lease_seconds_transactional, or leases outlive the nets"
            )
        if self.lease_seconds_external < self.lease_seconds_transactional:
            problems.append("lease_seconds_external: must not be shorter than lease_seconds_transactional")
        if self.database_url and not self.database_url.startswith(("postgresql://", "postgres://")):
            problems.append("database_url: must begin with postgresql://")
        problems += _nats_problems(self)
        if problems:
            raise ValueError("\n".join(problems))
        return self

    @property
    def url(self) -> str:
        """Where this server answers."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def shown(self) -> dict[str, Any]:
        """The settings with passwords and tokens blotted out, for people to read."""
        files = {name: str(path) for name in _NATS_FILES if (path := getattr(self, name)) is not None}
        blots = {"database_url": blotted(self.database_url), "nats_url": blotted_nats(self.nats_url)}
        return self.model_dump() | files | blots

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - no .env files: one more place to look in
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - X_FILE instead
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, X_FILE, X, TOML."""
        toml = TomlConfigSettingsSource(settings_cls, toml_file=_toml_file(os.environ))
        return init_settings, _FileVariables(settings_cls), env_settings, toml


class _FileVariables(PydanticBaseSettingsSource):
    """MAINSPRING_X_FILE: the value is what that file holds, as secret managers mount it."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:  # noqa: ARG002
        path = os.environ.get(f"{PREFIX}{field_name.upper()}_FILE")
        if path is None:
            return None, field_name, False
        try:
            return Path(path).read_text(encoding="utf-8").strip(), field_name, False
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{PREFIX}{field_name.upper()}_FILE: cannot read {path}: {error}") from error

    def __call__(self) -> dict[str, Any]:
        found = {
            name: self.get_field_value(field, name)[0]
            for name, field in self.settings_cls.model_fields.items()
        }
        return {name: value for name, value in found.items() if value is not None}


def load(**given: Any) -> Settings:
    """The settings of this process; `given` wins over every other place. Raises ConfigError, listing all mistakes."""
    problems = _mistaken_variables(os.environ)
    settings: Settings | None = None
    try:
        settings = Settings(**given)
    except ValidationError as error:
        problems += _readable(error)
    except (ValueError, OSError) as error:  # the TOML file is broken, or cannot be read
        problems.append(str(error))
    if problems or settings is None:
        raise ConfigError("\n".join(problems))
    return settings


def refuse_exposed_demo(settings: Settings, *, demo_token: bool) -> None:
    """Called by the server before it listens: the demo's operator token must not open a door to the network."""
    if demo_token and not is_loopback(settings.host):
        raise ConfigError(
            f"host is {settings.host}, which others can reach, and the bootstrap token is the demo's: "
            "make an operator token of your own (mainspring server bootstrap), then revoke the demo's"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address; a name other than localhost counts as reachable."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def blotted(url: str) -> str:
    """A database address without its password."""
    scheme, separator, rest = url.partition("://")
    credentials, at, where = rest.rpartition("@")
    if not separator or not at:
        return url
    return f"{scheme}://{credentials.partition(':')[0]}:…@{where}" if ":" in credentials else url


def blotted_nats(url: str) -> str:
    """A NATS address, or several, without passwords and tokens."""
    return ",".join(_NATS_SECRET.sub("://…@", one) for one in url.split(","))


def _nats_problems(settings: Settings) -> list[str]:
    problems: list[str] = []
    if settings.nats_url and not all(
        one.strip().startswith(_NATS_SCHEMES) for one in settings.nats_url.split(",")
    ):
        problems.append(f"nats_url: must begin with {', '.join(_NATS_SCHEMES)}")
    if settings.nats_tls_key is not None and settings.nats_tls_cert is None:
        problems.append("nats_tls_key: is of no use without nats_tls_cert")
    return problems


def _toml_file(environment: Mapping[str, str]) -> Path | None:
    chosen = environment.get(CONFIG_VARIABLE)
    if chosen is None:
        default = Path(DEFAULT_FILE)
        return default if default.is_file() else None
    if not Path(chosen).is_file():
        raise ConfigError(f"{CONFIG_VARIABLE}: there is no file {chosen}")
    return Path(chosen)


def _mistaken_variables(environment: Mapping[str, str]) -> list[str]:
    """Variables that look like ours and mean nothing, and settings that are given twice."""
    fields = {PREFIX + name.upper() for name in Settings.model_fields}
    known = fields | {f"{name}_FILE" for name in fields} | ALSO_KNOWN
    ours = sorted(name for name in environment if name.upper().startswith(PREFIX))
    unknown = [f"{name}: there is no such setting" for name in ours if name not in known]
    twice = [
        f"{n}: given here and as {n}_FILE; keep one"
        for n in ours
        if n in fields and f"{n}_FILE" in environment
    ]
    return unknown + twice


def _readable(error: ValidationError) -> list[str]:
    lines: list[str] = []
    for found in error.errors(include_url=False, include_input=False):
        where = ".".join(str(part) for part in found["loc"])
        message = found["msg"].removeprefix("Value error, ")
        lines += [f"{where}: {message}"] if where else message.splitlines()
    return lines
