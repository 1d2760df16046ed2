"""The page of commands, as their --help says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from inspect import cleandoc
from typing import TYPE_CHECKING, Any

from mainspring.cli import build as command_tree
from mainspring.cli.exits import ExitCode
from making.markdown import code, table

if TYPE_CHECKING:
    from cyclopts import App


def _commands(app: App, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], App]]:
    for name in sorted(one for one in app if not one.startswith("-")):
        below = app[name]
        if below.default_command is not None:
            yield (*path, name), below
        yield from _commands(below, (*path, name))


def _described(command: App) -> str:
    text = cleandoc(getattr(command.default_command, "__doc__", None) or command.help or "")
    return text.split("Parameters\n---", maxsplit=1)[0].strip()


def _argument(one: Any) -> Sequence[object]:
    name = one.names[0]
    positional = str(one.field_info.kind).startswith(("POSITIONAL", "VAR"))
    shown = name.lstrip("-").upper() if positional else ", ".join(one.names)
    said = [one.parameter.help or ""]
    choices = one.get_choices()
    if choices:
        said.append("One of " + ", ".join(map(code, choices)) + ".")
    default = one.field_info.default
    if one.show_default and default not in (False, ""):
        said.append(f"Default: {code(default)}.")
    return code(shown), "yes" if one.required else "", " ".join(filter(None, said))


def commands() -> str:
    """Every command, as its --help says."""
    parts = []
    tree = command_tree()
    for path, command in _commands(tree, ()):
        arguments = [one for one in command.assemble_argument_collection(parse_docstring=True) if one.show]
        rows = [_argument(one) for one in arguments]
        shown = f"## `mainspring {' '.join(path)}`\n\n{_described(command)}\n"
        parts.append(shown + ("\n" + table(["argument", "needed", "what it is"], rows) if rows else ""))
    codes = [[int(one), one.name.lower().replace("_", " "), EXITS[one]] for one in ExitCode]
    return f"""# Commands

`mainspring <noun> <verb>`. Data goes to stdout, talk to stderr; `--json` prints one object, or one a line for a list. A text argument
of `-` is read from stdin. With `--json` an error is a problem document on stdout.

{table(["exit code", "name", "when"], codes)}
{chr(10).join(parts)}"""


EXITS: Mapping[ExitCode, str] = {
    ExitCode.OK: "it was done",
    ExitCode.ERROR: "it was refused or failed; also: `verify` found something, `migrate --check` has something pending",
    ExitCode.USAGE: "the command line or a setting is wrong",
    ExitCode.NOT_FOUND: "there is no such thing, or it is not yours to see",
    ExitCode.AUTH: "no token, not a valid one, or not one that may do this",
    ExitCode.CONFLICT: "it was changed meanwhile, or does not fit what is there",
    ExitCode.TIMEOUT: "no answer in time; it may have been done",
    ExitCode.TRY_AGAIN: "the server is away or busy, and was not asked: send it again",
}
