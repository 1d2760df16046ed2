"""`mainspring explain REF`: the story as a tree. The server tells it; here it is only drawn."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from mainspring.cli.client import Client
from mainspring.cli.exits import ExitCode
from mainspring.cli.output import Json, emit, printable

if TYPE_CHECKING:
    from rich.tree import Tree

_STYLES = {"good": "green", "bad": "bold red", "wait": "yellow", "quiet": "dim", "plain": ""}
_Ref = Annotated[
    str,
    Parameter(help="OPS-1, event:12 or 12, the id of a card, effect, run or message, a rule's id or name."),
]


def explain(ref: _Ref, *, limit: int = 50, json: Json = False) -> int:
    """The whole story: what happened, what was owed, every attempt, and why each rule did or did not match.

    Parameters
    ----------
    limit
        How many events, the latest.
    """
    story = Client.here().get("explain", ref=ref, limit=limit)
    if json:
        emit(story, json)
    else:
        draw = _draw if sys.stdout.isatty() else _print
        draw(story["tree"])
    return ExitCode.OK


def _draw(root: dict[str, Any]) -> None:
    from rich.console import Console

    Console(highlight=False, emoji=False).print(_branch(root, None))


def _print(root: dict[str, Any]) -> None:
    """The same tree for a pipe: nothing is coloured, and nothing cut to the width of a terminal that is not there."""
    todo: list[tuple[dict[str, Any], str, str]] = [(root, "", "")]
    while todo:
        node, before, below = todo.pop()
        print(before + printable(" ".join(node["text"].split())))
        children = node["children"]
        todo += [
            (child, below + ("└── " if last else "├── "), below + ("    " if last else "│   "))
            for child, last in reversed([(child, n == len(children) - 1) for n, child in enumerate(children)])
        ]


def _branch(node: dict[str, Any], parent: Tree | None) -> Tree:
    from rich.text import Text
    from rich.tree import Tree

    text = Text(printable(node["text"]), style=_STYLES.get(node["tone"], ""))
    tree = Tree(text, guide_style="dim") if parent is None else parent.add(text)
    for child in node["children"]:
        _branch(child, tree)
    return tree
