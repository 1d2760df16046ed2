"""`mainspring api METHOD PATH [BODY]`: the HTTP API as it is, with the address and token that every command uses."""

from __future__ import annotations

import json as jsonlib
import sys
from typing import Annotated, Any

from cyclopts import Parameter

from mainspring.cli.client import Client, exit_code_of
from mainspring.cli.exits import CliError, ExitCode
from mainspring.cli.output import Json, body_text, emit, say

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_Body = Annotated[str | None, Parameter(allow_leading_hyphen=True, help="JSON; - reads stdin.")]
_Headers = Annotated[
    list[str] | None, Parameter(name=["--header", "-H"], negative="", help="Repeat: 'Name: value'.")
]


def api(method: str, path: str, body: _Body = None, /, *, header: _Headers = None, json: Json = False) -> int:
    """Call the API, say: mainspring api POST cards/OPS-1/move '{"state": "doing"}'

    What comes back goes to stdout, whatever it is; the status goes to stderr and decides the exit code.

    Parameters
    ----------
    method
        GET, POST, PUT, PATCH or DELETE.
    path
        Under /api/v1, or from the root when it begins with /.
    """
    verb = method.upper()
    if verb not in _METHODS:
        raise CliError(f"{method} is no method: {', '.join(_METHODS)}", code=ExitCode.USAGE)
    data = None if body is None else body_text(body).encode("utf-8", "surrogateescape")
    answer = Client.here().send(verb, path, body=data, headers=_headers(header or []))
    if not json:
        say(f"{answer.status}")
    _print(answer.body, as_json=json)
    return exit_code_of(answer.status)


def _headers(given: list[str]) -> dict[str, str]:
    pairs = [line.partition(":") for line in given]
    if any(not colon for _, colon, _ in pairs):
        raise CliError("a header is 'Name: value'", code=ExitCode.USAGE)
    return {name.strip(): value.strip() for name, _, value in pairs}


def _print(body: Any, *, as_json: bool) -> None:
    if body is None:
        return
    if isinstance(body, str) and not as_json:
        sys.stdout.write(body)
        return
    emit(body, as_json, lambda value: jsonlib.dumps(value, indent=2, ensure_ascii=False))
