"""`mainspring post`: say something in a channel."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from cyclopts import Parameter

from mainspring.cli.client import Client, CutOff, TimedOut, Unreachable, segment
from mainspring.cli.exits import CliError, ExitCode
from mainspring.cli.message import Mention, RequestId, Text, said
from mainspring.cli.output import Json, emit, printable, say

NAMED_MAX = 10
PAUSES_SECONDS: Final = (0.5, 1.0, 2.0, 4.0)  # together longer than a server that dies needs to come back
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
    told(client, posted(client, f"channels/{segment(channel)}/messages", body), as_json=json)
    return ExitCode.OK


def posted(client: Client, path: str, body: Mapping[str, Any]) -> Any:
    """Post under a request id, and once more under the same one when the link breaks: it is said once. Gives up naming the id."""
    named = {**body, "request_id": body["request_id"] or str(uuid.uuid4())}
    cut: CliError | None = None
    for pause in (*PAUSES_SECONDS, None):
        try:
            return client.post(path, named)
        except (TimedOut, Unreachable) as error:
            if cut is None and isinstance(error, Unreachable):
                raise  # nothing was sent
            cut = error
        if pause is not None:
            time.sleep(pause)
    raise CutOff(
        f"{cut}\n  send it again under the same id, and it is said once: --request-id {named['request_id']}"
    ) from cut


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
    meant = [one for one in receipts["not_owed"] if one["mentioned"]]
    if not any(told):
        told.append(
            "owed to nobody" if meant else "owed to nobody: no agent subscribes here, and nobody is mentioned"
        )
    told += [f"not owed to {one['handle']}: {one['because']}" for one in meant[:NAMED_MAX]]
    known = {one["handle"] for one in (*receipts["data"], *receipts["not_owed"])} | {message["author"]}
    told += [f"nobody is called {name}" for name in sorted(_called(message["text"]) - known)[:NAMED_MAX]]
    return "; ".join(filter(None, told))


def _called(text: str) -> frozenset[str]:
    """Return whom a text calls. Imported late: every start pays for what it imports."""
    from mainspring.chat import mentions

    return mentions.called(text) - frozenset(mentions.RESERVED)


def _named(label: str, handles: Sequence[str]) -> str:
    more = f" and {len(handles) - NAMED_MAX} more" if len(handles) > NAMED_MAX else ""
    return f"{label} {', '.join(sorted(handles)[:NAMED_MAX])}{more}" if handles else ""
