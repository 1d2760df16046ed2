"""The page of settings, and of every other variable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mainspring import config
from making.markdown import code, table

OTHER_VARIABLES: Mapping[str, tuple[str, str]] = {
    "MAINSPRING_CONFIG": ("server", "the TOML file; `mainspring.toml` in the working folder by default"),
    "MAINSPRING_FAULT": ("server; `dev` passes it to their first start", "fault points to arm: `point[:nth][:kill|stop|raise]`, several with commas"),
    "MAINSPRING_NATS_SERVER": ("embedded", "the `nats-server` program, instead of that of the `embedded` extra"),
    "MAINSPRING_PG_BINDIR": ("embedded", "a folder with PostgreSQL's programs, instead of those of the `embedded` extra"),
    "MAINSPRING_STATE": ("`dev`, commands", "the state folder, instead of `./.mainspring`"),
    "MAINSPRING_URL": ("commands, runners", "the server's address"),
    "MAINSPRING_TOKEN": ("commands, runners", "the token; in a program that a runner started, the run's own"),
    "MAINSPRING_TOKEN_FILE": ("commands, runners", "a file with the token"),
    "MAINSPRING_SPOOL": ("runners", "the folder of results that the server has not taken yet"),
    "MAINSPRING_TEST_DATABASE_URL": ("tests", "a superuser's address of a PostgreSQL to test on, instead of the embedded one"),
    "MAINSPRING_TEST_PG15_BINDIR": ("tests", "where the programs of a PostgreSQL 15 are, for `make test-pg15`; the places where packages put them by default"),
    "MAINSPRING_AGENT": ("set by a runner", "the agent's handle"),
    "MAINSPRING_ATTEMPT": ("set by a runner", "which attempt this is, from 1"),
    "MAINSPRING_CARD_KEY": ("set by a runner", "the card's key, or nothing"),
    "MAINSPRING_PROMPT": ("set by a runner", "the prompt, cut where the kernel takes no more"),
    "MAINSPRING_PROMPT_FILE": ("set by a runner", "a file with the whole prompt"),
    "MAINSPRING_RUN_ID": ("set by a runner", "the run's id"),
}  # fmt: skip
_SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def _limits(field: Any) -> str:
    said = [
        f"{sign} {getattr(one, name):g}"
        for one in field.metadata
        for name, sign in _SIGNS.items()
        if hasattr(one, name)
    ]
    choices = getattr(field.annotation, "__args__", ())
    return ", ".join(said or map(code, choices)) or "-"


def configuration() -> str:
    """The server's settings, and every other variable."""
    rows = [
        [code(name), code(field.default) if field.default != "" else "-", _limits(field), field.description]
        for name, field in config.Settings.model_fields.items()
    ]
    others = [[code(name), *OTHER_VARIABLES[name]] for name in sorted(config.ALSO_KNOWN)]
    return f"""# Configuration

A server's settings come from, in this order: `MAINSPRING_<NAME>_FILE` (the value is what the file holds), `MAINSPRING_<NAME>`, and
a TOML file (`{config.DEFAULT_FILE}` in the working folder, or the one that `{config.CONFIG_VARIABLE}` names), where they stand by
their names at the top level. A `{config.PREFIX}…` variable that means nothing is refused, and so is a setting given both
directly and by file. `mainspring server check-config` prints the settings, or everything that is wrong with them.

`mainspring dev` hands the variables around it on to its servers, but decides `database_url`, `host`, `port` and `dev_mode` itself.

{table(["setting", "default", "allowed", "what it is"], rows)}
Checked together: `floor_tick_seconds` is at most half of `lease_seconds_transactional`; `lease_seconds_external` is not shorter than
`lease_seconds_transactional`; `dev_mode` needs a loopback `host`.

## Other variables

{table(["variable", "read by", "what it is"], others)}
A client (a command, a runner, the SDK) finds its server in the first of: what the program passes; `MAINSPRING_URL` and
`MAINSPRING_TOKEN`; the `mainspring dev` that runs in this folder; the profile that `mainspring login` wrote. `mainspring whoami`
says which it was. A token without an address is used for the `mainspring dev` that runs in this folder, and is sent nowhere else.
"""
