"""The state folder of `mainspring dev`: what it remembers between starts, and who is working on it now.

Takes a path (./.mainspring); leaves a folder that one process holds by a kernel lock, so that the holder's death
releases it however he died. `dev.json` tells other commands where the running server is; it is believed only while
the lock is held.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from mainspring.embedded import homes
from mainspring.embedded.postgres import make_state_folder, write_secret
from mainspring.embedded.problems import HeldByAnother

DEFAULT = Path(".mainspring")
_TRIES = 5  # somebody who only asks who holds the folder has its lock for an instant
_PAUSE_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The `mainspring dev` that works on a folder, as it describes itself in dev.json."""

    pid: int
    url: str
    urls: tuple[str, ...] = ()
    token: str = ""
    token_file: str = ""
    database: str = ""
    fabric: str = ""
    processes: dict[str, int] | None = None  # name → process id of every child
    births: dict[str, str] | None = None  # name → when it began, by which it is known again


class StateFolder:
    """One state folder; `hold` it before changing anything in it."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self._lock: IO[str] | None = None

    @property
    def logs(self) -> Path:
        """Where the children's output goes."""
        return self.path / "logs"

    @property
    def token(self) -> Path:
        """The operator's token, readable by its owner only."""
        return self.path / "token"

    @property
    def url(self) -> Path:
        """The server's address, for `curl "$(cat .mainspring/url)/..."`."""
        return self.path / "url"

    @property
    def runner_token(self) -> Path:
        """The built-in runner's token."""
        return self.path / "secrets" / "runner.token"

    @property
    def server_address(self) -> Path:
        """The database address the server logs in with, password included."""
        return self.path / "secrets" / "server.url"

    @property
    def fabric_address(self) -> Path:
        """The address of NATS, token included."""
        return self.path / "secrets" / "nats.url"

    @property
    def admin_address(self) -> Path:
        """The database address that migrates, password included."""
        return self.path / "secrets" / "admin.url"

    @property
    def login_password(self) -> Path:
        """The password of the server's own login."""
        return self.path / "secrets" / "login.password"

    def hold(self) -> Holder | None:
        """Take the folder, making it if need be. Raises HeldByAnother, saying by whom.

        Returns what a holder that was killed had said of itself: its children may still be about to end, and whoever is killed
        while he waits for them leaves that to the next. `introduce` says something else.
        """
        make_state_folder(self.path)
        self.logs.mkdir(mode=0o700, exist_ok=True)
        handle = (self.path / "lock").open("a")
        for _ in range(_TRIES):
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._lock = handle
                return self._introduced()
            time.sleep(_PAUSE_SECONDS)
        handle.close()
        raise HeldByAnother(f"{self.path} is held by {_described(self._introduced())}")

    def release(self) -> None:
        """Let go; the introduction goes first, so that nobody believes it afterwards."""
        if self._lock is not None:
            self._introduction.unlink(missing_ok=True)
            self._lock.close()
            self._lock = None

    def unintroduce(self) -> None:
        """Forget what a killed holder had said of itself. Only for the one who holds the folder, once nothing is left of it."""
        self._introduction.unlink(missing_ok=True)

    def introduce(self, holder: Holder) -> None:
        """Tell other commands where the server is."""
        write_secret(self._introduction, json.dumps(asdict(holder), indent=2) + "\n")
        self.url.write_text(f"{holder.url}\n")

    def holder(self) -> Holder | None:
        """Who works on the folder now; None when nobody does, or nobody has said so yet."""
        try:
            handle = (self.path / "lock").open("r")
        except FileNotFoundError:
            return None
        with handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return self._introduced()
        return None

    @property
    def _introduction(self) -> Path:
        return self.path / "dev.json"

    def _introduced(self) -> Holder | None:
        try:
            said = json.loads(self._introduction.read_text())
            return Holder(**said | {"urls": tuple(said.get("urls", ()))})
        except (FileNotFoundError, PermissionError, ValueError, TypeError):
            return None

    def stored_port(self) -> int | None:
        """The port of the last start, so that addresses in a browser stay good."""
        try:
            return int((self.path / "port").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def store_port(self, port: int) -> None:
        """Remember the port for the next start."""
        (self.path / "port").write_text(f"{port}\n")

    def forget(self) -> None:
        """Delete everything, the database included. Only for the one who holds the folder."""
        homes.forget(self.path)
        self.release()
        shutil.rmtree(self.path)


def _described(holder: Holder | None) -> str:
    if holder is None:
        return "another mainspring that is just starting (or belongs to another user)"
    return f"another `mainspring dev` (process {holder.pid}), which serves {holder.url}"


def located(environment_value: str | None) -> Path:
    """The state folder to use: MAINSPRING_STATE, or ./.mainspring."""
    return Path(environment_value) if environment_value else DEFAULT
