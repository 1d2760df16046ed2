"""`mainspring <noun> <verb>`: the command line. Takes argv, leaves an exit code; talk goes to stderr, data to stdout.

Every noun is a module of its own, imported only when it is used, so that a command starts in a fraction of a second.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from mainspring.cli.exits import CliError, ExitCode

if TYPE_CHECKING:
    from cyclopts import App

__all__ = ["CliError", "ExitCode", "main"]

# noun → (module:object, one line of help). An App's own name must equal the noun.
_NOUNS: Final[dict[str, tuple[str, str]]] = {
    "dev": ("mainspring.cli.dev:app", "Run everything here, on an embedded PostgreSQL."),
    "server": ("mainspring.cli.server:app", "Run a server process; migrate and bootstrap its database."),
    "login": ("mainspring.cli.account:login", "Remember a server and a token."),
    "logout": ("mainspring.cli.account:logout", "Forget them."),
    "whoami": ("mainspring.cli.account:whoami", "Who the server takes you for."),
    "board": ("mainspring.cli.board:app", "Boards and their states."),
    "card": ("mainspring.cli.card:app", "Cards: create, move, edit, assign, label, comment."),
    "channel": ("mainspring.cli.channel:app", "Channels: who is in them, and what is said there."),
    "post": ("mainspring.cli.post:post", "Say something in a channel."),
    "message": ("mainspring.cli.message:app", "Messages: show, edit, search, receipts."),
    "inbox": ("mainspring.cli.inbox:app", "Your inbox: the messages that mention you."),
    "agent": ("mainspring.cli.agent:app", "Agents that rules launch."),
    "runner": ("mainspring.cli.runner:app", "Runners: the machines that do agents' work."),
    "session": ("mainspring.cli.session:app", "Sessions: agents that read what is said, as it is said."),
    "run": ("mainspring.cli.run:app", "Runs: one piece of work of one agent."),
    "ask": ("mainspring.cli.ask:app", "What runs and messages ask: list, show, answer."),
    "rule": ("mainspring.cli.rule:app", "Rules: which card changes launch whom."),
    "desk": ("mainspring.cli.desk:app", "Dead letters: group, plan, replay, discard, export."),
    "operation": (
        "mainspring.cli.operation:app",
        "Long decisions on dead letters: how far they are, and their end.",
    ),
    "event": ("mainspring.cli.event:app", "The log of what happened."),
    "effect": ("mainspring.cli.effect:app", "What is owed, and how far it is."),
    "apply": ("mainspring.cli.ascode:apply", "Make agents, boards and rules from YAML files."),
    "export": ("mainspring.cli.ascode:export", "Write agents, boards and rules as YAML files."),
    "audit": ("mainspring.cli.audit:app", "Who did what."),
    "token": ("mainspring.cli.token:app", "Tokens of people, agents and runners."),
    "explain": ("mainspring.cli.explain:explain", "The whole story of a card, event, effect, run or rule."),
    "doctor": ("mainspring.cli.doctor:doctor", "Is anything lost or late, and what is amiss?"),
    "verify": ("mainspring.cli.verify:verify", "Check that nothing was lost or doubled."),
    "api": ("mainspring.cli.api:api", "Call the HTTP API directly."),
}


def build() -> App:
    """The command tree, with nothing of the nouns imported yet."""
    from cyclopts import App

    app = App(
        name="mainspring",
        help="What commits is owed: boards, agents and the engine that keeps the promise.",
        version=_version,
        result_action="return_value",
    )
    for noun, (path, line) in _NOUNS.items():
        app.command(path, name=noun, help=line)
    return app


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. The console script's entry point."""
    tokens = list(sys.argv[1:] if argv is None else argv)
    if tokens and not tokens[0].startswith("-") and tokens[0] not in _NOUNS:
        return _unknown(tokens[0])
    from cyclopts import CycloptsError

    try:
        result = build()(tokens, exit_on_error=False, print_error=True)
    except CycloptsError:
        return ExitCode.USAGE
    except CliError as error:
        return _failed(error, as_json="--json" in tokens)
    except KeyboardInterrupt:
        return ExitCode.ERROR
    except BrokenPipeError:  # the reader of our output left (head, less): not our failure
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    return int(result) if isinstance(result, int) else ExitCode.OK


def _unknown(noun: str) -> int:
    from difflib import get_close_matches

    close = get_close_matches(noun, _NOUNS, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else f" Known: {', '.join(_NOUNS)}."
    print(f"mainspring: there is no command {noun!r}.{hint}", file=sys.stderr)
    return ExitCode.USAGE


def _failed(error: CliError, *, as_json: bool) -> int:
    if as_json:
        import json

        print(json.dumps(error.problem, ensure_ascii=False))
        return error.code
    print(f"mainspring: {error}", file=sys.stderr)
    return error.code


def _version() -> str:
    from importlib.metadata import version

    return version("mainspring")
