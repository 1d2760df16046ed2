"""Finished results on disk until the server has them: a result outlives a cut link and the runner's own death.

Takes the body of a complete before it is sent, and leaves one file for each (run, claim), fsync'd, in a folder of the
server's own; `remove` follows the answer that accepted or superseded it. If the runner dies between, the next one to
use the folder sends what it finds. A file that the server refuses for good is kept under `refused/`, with the reason; one that
cannot be read as what `put` writes is renamed, and stops nobody.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mainspring.sdk.profile import state_folder

_log = logging.getLogger("mainspring.sdk")

_NAME = re.compile(r"^(?P<run>[0-9a-f-]{36})\.(?P<claim>[0-9a-f-]{36})\.json$")


@dataclass(frozen=True, slots=True)
class Spooled:
    """A complete that the server has not answered yet."""

    run_id: str
    claim_id: str
    body: Mapping[str, Any] = field(repr=False)


class Spool:
    """The folder. Only `put` raises; what cannot be read or removed costs at most a complete sent twice, and is logged.

    Every method is a few small file operations; a caller on an event loop uses a thread for `put`, which waits for disks.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def of(cls, url: str, *, environ: Mapping[str, str] | None = None) -> Spool:
        """Return the spool for the server at `url`: below MAINSPRING_SPOOL, or the user's own state folder."""
        environ = os.environ if environ is None else environ
        base = environ.get("MAINSPRING_SPOOL")
        root = Path(base) if base else state_folder(environ) / "spool"
        return cls(root / hashlib.sha256(url.encode()).hexdigest()[:16])

    def put(self, spooled: Spooled) -> None:
        """Write it so that it is there after a power cut. Raises OSError where that cannot be promised.

        Raises TypeError and ValueError for what is no JSON: it could not be sent either.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self._path(spooled.run_id, spooled.claim_id)
        text = json.dumps(
            {"version": 1, "run_id": spooled.run_id, "claim_id": spooled.claim_id, "body": spooled.body},
            allow_nan=False,
        )
        fresh = path.with_suffix(f".{os.getpid()}.new")
        with _private(fresh) as descriptor:
            _write_all(descriptor, text.encode())
            os.fsync(descriptor)
        fresh.replace(path)
        _sync_folder(self.folder)

    def remove(self, run_id: str, claim_id: str) -> None:
        """Forget it: the server has it, or does not want it any more."""
        with _logged():
            self._path(run_id, claim_id).unlink(missing_ok=True)

    def refuse(self, run_id: str, claim_id: str, reason: str) -> Path:
        """Set it aside with the reason, for a person to look at; return where."""
        path = self._path(run_id, claim_id)
        aside = self.folder / "refused" / path.name
        with _logged():
            aside.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.replace(aside)
            aside.with_suffix(".reason").write_text(reason + "\n", encoding="utf-8")
        return aside

    def get(self, run_id: str, claim_id: str) -> Spooled | None:
        """Return what is kept for this claim of this run, if anything is."""
        return _read(self._path(run_id, claim_id))

    def waiting(self) -> list[Spooled]:
        """Return everything that still waits for the server, oldest name first. A half-written file is not among it."""
        names: list[Path] = []
        with _logged():
            names = sorted(path for path in self.folder.iterdir() if _NAME.match(path.name))
        return [spooled for path in names if (spooled := _read(path)) is not None]

    def _path(self, run_id: str, claim_id: str) -> Path:
        name = f"{run_id}.{claim_id}.json"
        if not _NAME.match(name):
            raise ValueError(f"not the ids of a run and a claim: {name!r}")
        return self.folder / name


def _read(path: Path) -> Spooled | None:
    with _logged():
        try:
            said = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_json)
            spooled = Spooled(run_id=said["run_id"], claim_id=said["claim_id"], body=said["body"])
            if path.name != f"{spooled.run_id}.{spooled.claim_id}.json" or not isinstance(spooled.body, dict):
                raise ValueError("it is not what its name says")
            return spooled
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            _log.warning("%s is no result and is set aside: %s", path, error)
            path.replace(path.with_suffix(".unreadable"))
    return None


def _no_json(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


@contextlib.contextmanager
def _logged() -> Iterator[None]:
    """Let nothing but a log line come of a file that cannot be reached. One that is not there is no news at all."""
    try:
        yield
    except FileNotFoundError:
        pass
    except OSError as error:
        _log.warning("the spool: %s", error)


@contextlib.contextmanager
def _private(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
