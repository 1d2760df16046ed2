"""Where a cluster's files live: beside the state folder, or under /var/lib when its account cannot get that far.

A home is chosen once and remembered in the state folder, so that a moved state folder keeps its data and a private
folder (/root, a 0700 home) is never opened for PostgreSQL's sake.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from pathlib import Path

from mainspring.embedded import accounts
from mainspring.embedded.problems import EmbeddedError
from mainspring.embedded.processes import Account

SHARED = Path("/var/lib/mainspring")
_SOCKET_FOLDERS = Path("/tmp")  # noqa: S108 - socket paths hold 107 bytes; owner and mode are checked below


def choose(state: Path) -> tuple[Path, Account]:
    """The folder that holds (or will hold) this state's cluster, and the account it runs as."""
    home = remembered(state) or state / "postgres"
    account = accounts.account_for(home / "data")
    if not account.drop or home.parent != state or accounts.can_enter(account, state):
        return home, account
    if (home / "data").exists():
        raise EmbeddedError(
            f"the data in {home} belongs to user id {account.uid}, which can no longer enter {state}: "
            f"let it pass again (chmod o+x on the folders above), or move the state folder"
        )
    home = _outside(state, SHARED)
    _note(state).write_text(f"{home}\n")
    return home, account


def remembered(state: Path) -> Path | None:
    """The home outside of the state folder that was chosen at an earlier start, if any."""
    note = _note(state)
    return Path(note.read_text().strip()) if note.exists() else None


def _note(state: Path) -> Path:
    return state / "postgres.home"


def _outside(state: Path, shared: Path) -> Path:
    """A place of our own under `shared`; one that is taken belongs to another state, whatever its path was once."""
    name = hashlib.sha256(os.fsencode(state)).hexdigest()[:12]
    while (shared / name).exists():
        name = secrets.token_hex(6)
    (shared / name).mkdir(parents=True, mode=0o755)
    return shared / name


def make(home: Path, account: Account) -> None:
    """Create the home for the account alone."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    home.chmod(0o700)
    accounts.give(account, home)


def socket_folder(data: Path, account: Account) -> Path:
    """A short folder for the server's socket: the same at every start, and nobody's but the account's."""
    folder = _socket_path(data, account)
    try:
        folder.mkdir(mode=0o700)
        accounts.give(account, folder)
    except FileExistsError:
        pass
    found = folder.lstat()
    private = (
        found.st_mode & 0o170777 == 0o040700
    )  # a folder, not a link to one, and closed to everybody else
    if found.st_uid != account.uid or not private:
        raise EmbeddedError(
            f"{folder} was made by somebody else (user id {found.st_uid}): remove it and start again"
        )
    return folder


def _socket_path(data: Path, account: Account) -> Path:
    return _SOCKET_FOLDERS / f"ms-pg-{account.uid}-{hashlib.sha256(os.fsencode(data)).hexdigest()[:10]}"


def forget(state: Path) -> None:
    """Delete this state's cluster, wherever it lives, and the socket folder that a killed server left."""
    home = remembered(state) or state / "postgres"
    if (home / "data").exists():
        shutil.rmtree(_socket_path(home / "data", accounts.account_for(home / "data")), ignore_errors=True)
    shutil.rmtree(home, ignore_errors=True)
    home.with_name(f"{home.name}.lock").unlink(missing_ok=True)
