"""`mainspring login`, `logout`, `whoami`: which server, and who we are to it. The token never stands in argv or in any output."""

from __future__ import annotations

import contextlib
import json as jsonlib
import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from mainspring.cli.client import Client
from mainspring.cli.exits import CliError, ExitCode
from mainspring.cli.output import Json, emit, say
from mainspring.sdk import profile
from mainspring.sdk.errors import NotConfigured

_Url = Annotated[str | None, Parameter(help="Where the server is; the one last used by default.")]


def login(*, url: _Url = None, json: Json = False) -> int:
    """Remember a server and a token. The token is read from stdin: mainspring login --url URL < token-file.

    Commands use them wherever MAINSPRING_URL and MAINSPRING_TOKEN are not set, but for a folder in which `mainspring dev`
    runs: there they talk to that one. `mainspring whoami` says which it is.
    """
    where = (url or os.environ.get("MAINSPRING_URL") or _remembered() or profile.DEFAULT_URL).rstrip("/")
    if not where.startswith(("http://", "https://")):
        raise CliError(f"{where} is not an address: it begins with http:// or https://", code=ExitCode.USAGE)
    token = _read_token()
    who = Client(where, token).get("whoami")
    path = _keep(where, token)
    emit({"url": where, "handle": who["handle"], "role": who["role"], "profile": str(path)}, json, _welcome)
    _say_what_goes_before(where)
    return ExitCode.OK


def logout(*, json: Json = False) -> int:
    """Forget the server and the token. The token stays valid: an operator revokes it."""
    path = profile.login_file(os.environ)
    there = path.exists()
    path.unlink(missing_ok=True)
    emit({"forgotten": there}, json, lambda _: "logged out" if there else "nobody was logged in")
    return ExitCode.OK


def whoami(*, json: Json = False) -> int:
    """Who the server takes you for, and what your token reaches."""
    client = Client.here()
    emit({"url": client.url, "source": client.source, **client.get("whoami")}, json)
    return ExitCode.OK


def _welcome(said: dict[str, str]) -> str:
    return f"{said['handle']} ({said['role']}) at {said['url']}; kept in {said['profile']}"


def _read_token() -> str:
    if sys.stdin.isatty():
        from getpass import getpass

        token = getpass("token: ").strip()
    else:
        token = sys.stdin.read().strip()
    if not token or any(c.isspace() for c in token):
        say("the token is read from stdin: mainspring login --url URL < token-file")
        raise CliError("that is no token", code=ExitCode.USAGE)
    return token


def _remembered() -> str | None:
    try:
        return profile.find().url
    except NotConfigured:
        return None


def _say_what_goes_before(url: str) -> None:
    """Say so when commands given here do not talk to the server that was just logged in to."""
    with contextlib.suppress(NotConfigured):
        used = profile.find()
        if used.url != url:
            say(f"for now commands given here talk to {used.url}, which {used.source} names")


def _keep(url: str, token: str) -> Path:
    """Write the profile so that only its owner can ever have read it."""
    path = profile.login_file(os.environ)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            jsonlib.dump({"url": url, "token": token}, file)
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    return path
