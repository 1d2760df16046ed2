"""Where the server is and with which token: the first of five places that says so.

    1. what the program passes
    2. MAINSPRING_URL with MAINSPRING_TOKEN, or the file that MAINSPRING_TOKEN_FILE names
    3. the `mainspring dev` that runs in this folder: dev.json in ./.mainspring, or in the folder that MAINSPRING_STATE names
    4. the login profile, written by `mainspring login`: mainspring/profile.json in XDG_CONFIG_HOME (or ~/.config)
    5. dev.json, when nobody is behind it: a `dev` that was killed comes back with the same address and token

What one has started where one stands is meant before what one once logged in to; whoever means another server there says so by 2.

A file's address and token belong together: a stored token is never sent to an address that came from elsewhere.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mainspring.sdk.errors import NotConfigured

DEV_FOLDER = ".mainspring"
DEV_FILE = "dev.json"
LOCK_FILE = "lock"
DEFAULT_URL = "http://127.0.0.1:7700"


@dataclass(frozen=True, slots=True)
class Profile:
    """An address, a token, and the place that named them."""

    url: str
    token: str = field(repr=False)
    source: str


def find(
    url: str | None = None,
    token: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Profile:
    """Return the profile to use, or raise NotConfigured with the places that were looked at."""
    environ = os.environ if environ is None else environ
    folder = Path.cwd() if folder is None else folder
    login, dev = login_file(environ), dev_file(environ, folder)
    if url or token:
        return _both(
            "the program's arguments", url or environ.get("MAINSPRING_URL"), token or _token(environ)
        )
    if environ.get("MAINSPRING_URL") or _token(environ):
        return _both("the environment", environ.get("MAINSPRING_URL") or _running_here(dev), _token(environ))
    for path in (dev, login) if is_running(dev) else (login, dev):
        if path.is_file():
            return _read(path)
    raise NotConfigured(
        "no server to talk to: set MAINSPRING_URL and MAINSPRING_TOKEN, or run `mainspring login`, or start "
        f"`mainspring dev` in this folder (looked for {login} and {dev})"
    )


def _running_here(dev: Path) -> str | None:
    """Return the address of the folder's own server while it runs: a token is sent to no address that nobody has named."""
    return _read(dev).url if is_running(dev) else None


def dev_file(environ: Mapping[str, str], folder: Path) -> Path:
    """Return where the `mainspring dev` of a folder says where it serves, whether or not one does."""
    return folder / (environ.get("MAINSPRING_STATE") or DEV_FOLDER) / DEV_FILE


def is_running(dev: Path) -> bool:
    """Tell whether a `mainspring dev` stands behind this dev.json: it holds its folder's lock, which ends with it however it dies."""
    try:
        import fcntl
    except ImportError:  # Windows, where `dev` does not run
        return False
    try:
        with (dev.parent / LOCK_FILE).open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return dev.is_file()
    except OSError:
        return False
    return False


def login_file(environ: Mapping[str, str]) -> Path:
    """Return where the login profile stands, whether or not it exists."""
    base = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME") or Path.home()) / ".config")
    return Path(base) / "mainspring" / "profile.json"


def state_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder for what must outlive a process, by the XDG rules."""
    base = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME") or Path.home()) / ".local" / "state")
    return Path(base) / "mainspring"


def _token(environ: Mapping[str, str]) -> str | None:
    if token := environ.get("MAINSPRING_TOKEN"):
        return token
    if path := environ.get("MAINSPRING_TOKEN_FILE"):
        try:
            return Path(path).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise NotConfigured(f"MAINSPRING_TOKEN_FILE cannot be read: {error}") from error
    return None


def _both(source: str, url: str | None, token: str | None) -> Profile:
    if not url:
        raise NotConfigured(
            f"{source} named a token but no address, and no `mainspring dev` runs in this folder: set MAINSPRING_URL"
        )
    if not token:
        raise NotConfigured(
            f"{source} named the address {url} but no token: set MAINSPRING_TOKEN, or MAINSPRING_TOKEN_FILE to a file that holds it"
        )
    return Profile(url=url.rstrip("/"), token=token, source=source)


def _read(path: Path) -> Profile:
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise NotConfigured(f"{path} cannot be read: {error}") from error
    if not isinstance(said, dict):
        raise NotConfigured(f"{path} is not a profile: expected an object with url and token")
    return _both(str(path), said.get("url"), said.get("token"))
