"""What commands print: data on stdout, talk on stderr, one object (or one line a row) with --json."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeAlias

from cyclopts import Parameter

from mainspring.cli.exits import CliError, ExitCode

Json: TypeAlias = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON.")]
Limit: TypeAlias = Annotated[int | None, Parameter(help="At most this many; all by default.")]


def say(text: str) -> None:
    """Print talk: what a person may want to know and a program need not."""
    print(text, file=sys.stderr)


def emit(value: Any, as_json: bool, text: Callable[[Any], str] | None = None) -> None:
    """Print one thing: as JSON, or as `text` makes it; without `text`, its fields one a line."""
    if as_json:
        print(json.dumps(value, indent=2 if sys.stdout.isatty() else None, ensure_ascii=False))
    else:
        print(text(value) if text is not None else fields(value))


def emit_rows(
    rows: Iterable[Mapping[str, Any]],
    columns: Mapping[str, str] | Sequence[str],
    as_json: bool,
    *,
    whole: str = "",
) -> None:
    """Print many things: one JSON object a line, or a table of the named columns ({heading: dotted.path}), the `whole` one uncut."""
    if as_json:
        for row in rows:
            print(json.dumps(row, ensure_ascii=False), flush=True)
        return
    named = columns if isinstance(columns, Mapping) else {name: name for name in columns}
    cells = [[_cell(_at(row, path), whole=path == whole) for path in named.values()] for row in rows]
    if not cells:
        say("nothing")
        return
    print(table(list(named), cells))


def table(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """Return aligned columns under their headings."""
    widths = [max(len(line[n]) for line in (headings, *cells)) for n in range(len(headings))]
    lines = [[heading.upper() for heading in headings], *cells]
    return "\n".join(
        "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def fields(value: Any) -> str:
    """Return a thing's fields, one a line; nested ones as JSON."""
    if not isinstance(value, Mapping):
        return _cell(value)
    width = max((len(str(name)) for name in value), default=0)
    return "\n".join(f"{name:<{width}}  {_cell(one, whole=True)}" for name, one in value.items())


def _at(row: Any, path: str) -> Any:
    for part in path.split("."):
        row = row.get(part) if isinstance(row, Mapping) else None
    return row


def _cell(value: Any, *, whole: bool = False) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case list() if all(isinstance(one, str) for one in value):
            return printable(", ".join(value)) or "-"
        case dict() | list():
            text = json.dumps(value, ensure_ascii=False)
        case _:
            text = str(value)
    return printable(text if whole else _short(text))


def printable(text: str) -> str:
    """Return a text without what a terminal would obey: what others wrote is shown, not carried out."""
    return (
        text
        if text.isprintable()
        else "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
    )


def _short(text: str, most: int = 80) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def named_values(flag: str, given: Iterable[str]) -> dict[str, Any]:
    """Return NAME=VALUE arguments as a mapping; a value that reads as JSON is JSON."""
    values: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise CliError(f"{flag} {text}: must be NAME=VALUE", code=ExitCode.USAGE)
        try:
            values[name] = json.loads(value)
        except ValueError:
            values[name] = value
    return values


def body_text(text: str) -> str:
    """Return a text argument, or all of stdin when it is `-`."""
    return sys.stdin.read() if text == "-" else text
