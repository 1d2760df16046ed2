"""What the commands say about themselves; the page of commands is made of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mainspring.cli import build


def commands(app: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for name in (one for one in app if not one.startswith("-")):
        below = app[name]
        if below.default_command is not None:
            yield f"{path}{name}", below
        yield from commands(below, f"{path}{name} ")


def test_every_command_and_every_argument_says_what_it_is():
    found = dict(commands(build()))
    assert len(found) > 40
    assert [path for path, command in found.items() if not command.default_command.__doc__] == []
    unsaid = [
        f"{path} {argument.names[0]}"
        for path, command in found.items()
        for argument in command.assemble_argument_collection(parse_docstring=True)
        if argument.show and not argument.parameter.help
    ]
    assert unsaid == []
