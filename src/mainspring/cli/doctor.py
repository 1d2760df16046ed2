"""`mainspring doctor`: exit 0 when nothing is bad, 1 when something is; what is wrong here is told even if no server answers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from mainspring.cli.client import Client
from mainspring.cli.exits import CliError, ExitCode
from mainspring.cli.output import Json, emit, printable, table
from mainspring.sdk import profile
from mainspring.sdk.spool import Spool

FREE_WARNING_BYTES: Final = 2 << 30
FREE_BAD_BYTES: Final = 200 << 20
_MARKS: Final = {"ok": "✓", "warning": "!", "bad": "✗"}

Finding = dict[str, str]


def doctor(*, json: Json = False) -> int:
    """Look at everything that could be amiss, here and at the server: is anything lost or late, and what to do about it."""
    local = list(_disk())
    try:
        client = Client.here()
        answer = client.get("doctor")
        local += [*_versions(client), *_spool(client)]
        code = ExitCode.OK
    except CliError as error:
        said = str(error).splitlines()[0]
        answer = {"ok": False, "sentence": "The server does not tell how it is.", "findings": []}
        local.append(_finding("server", "bad", said, "`mainspring dev`, or `mainspring login` to another"))
        code = error.code
    findings = sorted([*local, *answer["findings"]], key=lambda one: list(_MARKS)[::-1].index(one["state"]))
    ok = all(one["state"] != "bad" for one in findings)
    emit({"ok": ok, "sentence": answer["sentence"], "findings": findings}, json, _shown)
    return code if code or ok else ExitCode.ERROR


def _shown(diagnosis: dict[str, Any]) -> str:
    rows = [[_MARKS[one["state"]], one["check"], printable(one["said"])] for one in diagnosis["findings"]]
    todo = [
        f"{_MARKS[one['state']]} {one['check']}: {printable(one['way_out'])}"
        for one in diagnosis["findings"]
        if one["way_out"]
    ]
    return "\n".join([table(["", "check", "how it is"], rows), "", *todo, diagnosis["sentence"]])


def _finding(check: str, state: str, said: str, way_out: str = "") -> Finding:
    return {"check": check, "state": state, "said": said, "way_out": way_out}


def _versions(client: Client) -> Iterator[Finding]:
    ours, theirs = version("mainspring"), client.get("/version")["version"]
    if ours == theirs:
        yield _finding("version", "ok", f"{theirs}, here and there")
    else:
        yield _finding(
            "version", "warning", f"{theirs} there, {ours} here", "use the same version at both ends"
        )


def _disk() -> Iterator[Finding]:
    """The state folder of `mainspring dev`, if there is one here: a full disk stops its database."""
    folder = Path(os.environ.get("MAINSPRING_STATE") or profile.DEV_FOLDER)
    if not folder.is_dir():
        return
    free = shutil.disk_usage(folder).free
    said = f"{free / (1 << 30):.1f} GiB free under {folder}"
    state = "bad" if free < FREE_BAD_BYTES else "warning" if free < FREE_WARNING_BYTES else "ok"
    yield _finding(
        "disk", state, said, "" if state == "ok" else "make room: the database stops on a full disk"
    )
    for secret in (folder / "token", *folder.glob("secrets/*")):
        if secret.is_file() and secret.stat().st_mode & 0o077:
            yield _finding("secrets", "bad", f"others may read {secret}", f"chmod 600 {secret}")


def _spool(client: Client) -> Iterator[Finding]:
    """Results that runners of this user have not been able to hand in."""
    folder = Spool.of(client.url).folder
    waiting, refused = len(list(folder.glob("*.json"))), len(list(folder.glob("refused/*")))
    if waiting:
        said = f"{waiting} finished results wait to be handed in, under {folder}"
        yield _finding("spool", "warning", said, "start the runner again: it sends what it finds")
    if refused:
        said = f"the server refused {refused} results, kept under {folder / 'refused'}"
        yield _finding("spool", "warning", said, "read why, then remove them")
