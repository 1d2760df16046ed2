"""Which user may run PostgreSQL, and what that user can reach.

PostgreSQL refuses to run as root. Root therefore hands it to `nobody` (or to whoever owns the data already); an
ordinary user runs it as himself. No user is created and no folder of somebody else is opened for it.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from mainspring.embedded import processes
from mainspring.embedded.problems import EmbeddedError
from mainspring.embedded.processes import Account


def account_for(data: Path) -> Account:
    """The account to run a cluster in `data` with; `data` need not exist yet."""
    if os.geteuid() != 0:
        return _ourselves()
    owner = _owner(data)
    if owner is not None and owner.uid != 0:
        return owner
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError as missing:
        raise EmbeddedError(
            "PostgreSQL refuses to run as root and this machine has no user 'nobody': "
            "run as an ordinary user, or give --database-url"
        ) from missing
    return Account(uid=nobody.pw_uid, gid=nobody.pw_gid, drop=True)


def _ourselves() -> Account:
    uid = os.geteuid()
    try:
        pwd.getpwuid(uid)
    except KeyError as missing:  # initdb asks for the name and fails without one, late and in other words
        raise EmbeddedError(
            f"user id {uid} has no entry in the password database, which PostgreSQL's initdb insists on: "
            "add one, or give --database-url"
        ) from missing
    return Account(uid=uid, gid=os.getegid(), drop=False)


def _owner(data: Path) -> Account | None:
    try:
        found = data.stat()
    except FileNotFoundError:
        return None
    return Account(uid=found.st_uid, gid=found.st_gid, drop=True)


def can_enter(account: Account, folder: Path) -> bool:
    """Whether the account may pass through `folder` and everything above it."""
    return _succeeds(account, ["/bin/sh", "-c", 'test -x "$1"', "sh", os.fspath(folder)])


def can_run(account: Account, program: Path) -> bool:
    """Whether the account can really execute `program`, its shared libraries included."""
    return _succeeds(account, [os.fspath(program), "-V"])


def _succeeds(account: Account, argv: list[str]) -> bool:
    try:
        return processes.run(argv, account=account).returncode == 0
    except (PermissionError, FileNotFoundError):
        return False  # the change of user was refused, or the program is out of reach


def give(account: Account, path: Path) -> None:
    """Hand a file or folder to the account (a no-op when it is ours)."""
    if account.drop:
        os.chown(path, account.uid, account.gid)
