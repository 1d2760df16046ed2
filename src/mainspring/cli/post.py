"""`mainspring post`: say something in a channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from cyclopts import Parameter

from mainspring.cli.client import Client, segment
from mainspring.cli.exits import ExitCode
from mainspring.cli.message import Mention, RequestId, Text, said
from mainspring.cli.output import Json, emit, printable, say

NAMED_MAX = 10
_HOW = {"steer": "steers", "deliver": "delivered to", "inbox": "in the inbox of"}


def post(
    channel: Annotated[str, Parameter(help="Its name or id.")],
    text: Text = None,
    *,
    topic: Annotated[
        str | None, Parameter(help="In which topic; it is made if it is not there. general by default.")
    ] = None,
    mention: Mention = None,
    request_id: RequestId = None,
    json: Json = False,
) -> int:
    """Say something in a channel, and be told whom it is owed to, say: mainspring post general "@coder look at OPS-12" --topic pumps."""
    body = {"text": said(text), "topic": topic, "mentions": mention or [], "request_id": request_id}
    client = Client.here()
    told(client, client.post(f"channels/{segment(channel)}/messages", body), as_json=json)
    return ExitCode.OK


def told(client: Client, message: Mapping[str, Any], *, as_json: bool) -> None:
    """Print where a message went, and say whom it is owed to."""
    emit(message, as_json, _where)
    if not as_json:
        say(_owed(client, message))


def _where(message: Mapping[str, Any]) -> str:
    where = f"#{message['channel']} › {printable(message['topic'])}"
    return f"{message['id']}  {where}  seq {message['channel_seq']}"


def _owed(client: Client, message: Mapping[str, Any]) -> str:
    """Say whom a message is owed to, as its settling has it; nothing is owed before."""
    receipts = client.get(f"messages/{segment(message['id'])}/receipts")
    if receipts["state"] == "held":
        return f"held, and owed to nobody yet: {receipts['because']}"
    told = [
        _named(label, [one["handle"] for one in receipts["data"] if one["how"] == how])
        for how, label in _HOW.items()
    ]
    return (
        "; ".join(filter(None, told)) or "owed to nobody: no agent subscribes here, and nobody is mentioned"
    )


def _named(label: str, handles: Sequence[str]) -> str:
    more = f" and {len(handles) - NAMED_MAX} more" if len(handles) > NAMED_MAX else ""
    return f"{label} {', '.join(sorted(handles)[:NAMED_MAX])}{more}" if handles else ""
