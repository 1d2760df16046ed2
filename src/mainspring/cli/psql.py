"""Opens psql on the database of a running `mainspring dev`. The password goes by the environment, never by argv."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit

from mainspring.cli.exits import CliError

if TYPE_CHECKING:
    from mainspring.embedded.state import StateFolder


def run(state: StateFolder, arguments: Sequence[str]) -> int:
    """Run psql to its end and return its exit code."""
    environment = {**os.environ, **_variables(state.admin_address.read_text())}
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C cancels psql's query, not us
    try:
        return subprocess.run([_program(), *arguments], env=environment, check=False).returncode
    finally:
        signal.signal(signal.SIGINT, before)


def _program() -> Path | str:
    from mainspring.embedded.binaries import originals
    from mainspring.embedded.problems import EmbeddedError

    try:
        bundled = originals() / "psql"
    except EmbeddedError:
        bundled = None
    if bundled is not None and bundled.is_file():
        return bundled
    found = shutil.which("psql")
    if found is None:
        raise CliError("there is no psql here: install PostgreSQL's client, or mainspring[embedded]")
    return found


def _variables(url: str) -> dict[str, str]:
    parts = urlsplit(url)
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    found = {
        "PGHOST": query.get("host") or parts.hostname,
        "PGPORT": query.get("port") or (str(parts.port) if parts.port else None),
        "PGUSER": unquote(parts.username) if parts.username else query.get("user"),
        "PGPASSWORD": unquote(parts.password) if parts.password else query.get("password"),
        "PGDATABASE": unquote(parts.path.lstrip("/")) or None,
    }
    return {name: value for name, value in found.items() if value}
