"""`mainspring export` and `mainspring apply`: agents, boards and rules as files that stand in version control.

Export writes a file for each; apply makes what is not there and changes what differs, each by a command of its own, and leaves
alone what no file names. Cut off in between, what was applied stands, and applying again does the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from cyclopts import Parameter

from mainspring.cli.client import Client, segment
from mainspring.cli.documents import (
    FIELDS,
    NAMED_BY,
    Document,
    Kind,
    document_of,
    dumped,
    file_names,
    read_all,
)
from mainspring.cli.exits import CliError, ExitCode
from mainspring.cli.output import Json, emit_rows, say

Action: TypeAlias = Literal["create", "change", "same"]
_COLUMNS = ("action", "kind", "name", "fields", "file")


@dataclass(frozen=True, slots=True)
class Step:
    """What applying a document comes to; `there` is what the server has now."""

    document: Document
    action: Action
    fields: Sequence[str] = ()
    there: Mapping[str, Any] | None = None

    def as_row(self) -> dict[str, Any]:
        """Return the step as it is shown."""
        document = self.document
        return {
            "action": self.action,
            "kind": document.kind,
            "name": document.name,
            "fields": list(self.fields),
            "file": document.where,
        }


def export(
    *,
    output: Annotated[
        str, Parameter(name=("--output", "-o"), help="A folder; it is made if it is not there.")
    ],
) -> int:
    """Write agents, boards and rules as YAML, a file each: the same bytes as long as nothing has changed.

    Files there of what is gone are named, and left for you to remove.
    """
    client, folder = Client.here(), Path(output)
    written: dict[str, str] = {}
    for kind in FIELDS:
        things = list(client.pages(f"{kind}s"))
        names = file_names(kind, [thing[NAMED_BY[kind]] for thing in things])
        written |= {name: dumped(document_of(kind, thing)) for name, thing in zip(names, things, strict=True)}
    try:
        stale = _write(folder, written)
    except OSError as error:
        raise CliError(f"{output}: {error.strerror or error}") from error
    say(f"{len(written)} files in {output}")
    for name in stale:
        say(f"of nothing that is there: {name}")
    return ExitCode.OK


def apply(
    *,
    file: Annotated[
        str,
        Parameter(name=("--file", "-f"), help="A folder, a file, or - for stdin.", allow_leading_hyphen=True),
    ],
    dry_run: Annotated[
        bool, Parameter(name="--dry-run", negative="", help="Say what would be done; change nothing.")
    ] = False,
    json: Json = False,
) -> int:
    """Make the agents, boards and rules of YAML files, and change those that differ. What no file names is left alone.

    A board that is there is not changed: when its file says something else, nothing at all is applied (exit 5).
    """
    client = Client.here()
    steps = list(_planned(client, read_all(file)))
    if fixed := [step for step in steps if step.document.kind == "board" and step.action == "change"]:
        told = "; ".join(f"{step.document.name}: {', '.join(step.fields)}" for step in fixed)
        raise CliError(f"boards cannot be changed yet, and these differ: {told}", code=ExitCode.CONFLICT)
    done = steps if dry_run else [_applied(client, step) for step in steps]
    if rows := [step.as_row() for step in done if json or step.action != "same"]:
        emit_rows(rows, _COLUMNS, json)
    counted = Counter(step.action for step in done)
    would = "would be " if dry_run else ""
    say(f"{counted['create']} {would}created, {counted['change']} {would}changed, {counted['same']} the same")
    return ExitCode.OK


# Comparing ----------------------------------------------------------------------------------------------------


def _planned(client: Client, documents: Sequence[Document]) -> Iterator[Step]:
    there: dict[tuple[Kind, str], Mapping[str, Any]] = {}
    for kind in {document.kind for document in documents}:
        for thing in client.pages(f"{kind}s"):
            there[kind, str(thing[NAMED_BY[kind]]).lower()] = thing
    for document in documents:
        now = there.get(document.known_as)
        if now is None:
            yield Step(document, "create")
            continue
        differing = [name for name in document.body if name != "cards" and not _same(document, name, now)]
        yield Step(document, "change" if differing else "same", differing, now)


def _same(document: Document, name: str, now: Mapping[str, Any]) -> bool:
    """Tell whether a field says what the server has; names are folded there, and what is left out is filled in."""
    if name == NAMED_BY[document.kind]:
        return True
    return _says(document.body[name], now[name])


def _says(asked: Any, now: Any) -> bool:
    match asked, now:
        case dict(), dict():
            said = {name for name in asked if name in now or asked[name] not in (False, None)}
            filled_in = {
                name for name in now if name not in asked and (now[name] is False or name == "prompt")
            }
            return said == now.keys() - filled_in and all(_says(asked[name], now[name]) for name in said)
        case list(), list() if all(isinstance(one, str) for one in [*asked, *now]):
            return sorted(map(_folded, asked)) == sorted(map(_folded, now))
        case list(), list():
            return len(asked) == len(now) and all(map(_says, asked, now))
        case _:
            return bool(asked == now)


def _folded(text: str) -> str:
    return text.strip().lower()


# Doing --------------------------------------------------------------------------------------------------------


def _applied(client: Client, step: Step) -> Step:
    document = step.document
    body = {name: value for name, value in document.body.items() if name != "cards"}
    match step.action:
        case "create":
            if document.kind == "board":
                body.setdefault("name", document.name)
            _tell_secret(document, client.post(f"{document.kind}s", body))
        case "change":
            assert step.there is not None
            changes = {name: body[name] for name in step.fields}
            path = f"{document.kind}s/{segment(step.there['id'])}"
            after = client.patch(path, changes, version=step.there["version"])
            _tell_secret(document, after)
            if after["version"] == step.there["version"]:
                return Step(document, "same")
        case "same":
            pass
    return step


def _tell_secret(document: Document, written: Mapping[str, Any]) -> None:
    """Say what a rule's webhook is signed with: it is told here or never."""
    if written.get("secret"):
        say(
            f"{document.kind} {document.name}: its webhook is signed with {written['secret']}: keep it, it is not shown again"
        )


def _write(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Write files; return those beside them that are of nothing that is there."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    found = {f"{kind}s/{old.name}" for kind in FIELDS for old in (folder / f"{kind}s").glob("*.yaml")}
    return sorted(found - files.keys())
