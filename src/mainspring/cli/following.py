"""The event stream, followed: takes a client and where to begin, leaves messages as they come, across broken links and restarts.

The last seq that was seen is where the next connection goes on, at whichever process answers: nothing is missed or told twice.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mainspring.cli.client import ApiProblem, Client, TimedOut, Unreachable
from mainspring.cli.output import printable, say

SILENCE_SECONDS: Final = 45.0  # three pings missed: the link is dead, whatever it says
FIRST_PAUSE_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Message:
    """One message: an event of the log, a word of the stream itself (`reset`, `bye`), or only how far it has come."""

    seq: int | None = None
    name: str | None = None
    data: Any = None
    retry_seconds: float | None = None

    @property
    def is_event(self) -> bool:
        """Whether it is of the log."""
        return self.name is None and self.data is not None


def follow(
    client: Client, *, after: int | None = None, deadline: float | None = None, **wanted: Any
) -> Iterator[Message]:
    """Yield messages for ever: behind `after`, or from now on. `deadline` is of the monotonic clock; TimedOut is raised then.

    The first connection must succeed; a later one that breaks off, or finds nobody, is made again after a pause.
    """
    seen, pause, connected = after, FIRST_PAUSE_SECONDS, False
    while True:
        try:
            for message in _messages(client, seen, wanted, deadline):
                connected = True
                seen = seen if message.seq is None else message.seq
                pause = message.retry_seconds or (FIRST_PAUSE_SECONDS if message.data else pause)
                if message.name == "reset" and message.data.get("reason") == "beyond_head":
                    say("the log is not the one that was read before: going on at its end")
                yield message
        except (Unreachable, ApiProblem) as error:
            if not connected or (isinstance(error, ApiProblem) and error.status < 429):
                raise
        if deadline is not None and time.monotonic() + pause >= deadline:
            raise TimedOut("it did not happen in time")
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def _messages(
    client: Client, after: int | None, wanted: Mapping[str, Any], deadline: float | None
) -> Iterator[Message]:
    """Yield the messages of one connection, until it ends."""
    headers = {"Accept": "text/event-stream"}
    if after is not None:
        headers["Last-Event-ID"] = str(after)
    with client.opened("GET", "events/stream", query=wanted, headers=headers, timeout_seconds=SILENCE_SECONDS) as (
        conn,
        reply,
    ):  # fmt: skip
        lines: list[str] = []
        while (line := _line(conn, reply, deadline)) is not None:
            if line:
                lines.append(line)
            elif lines:
                yield _message(lines)
                lines = []


def _line(
    conn: http.client.HTTPConnection, reply: http.client.HTTPResponse, deadline: float | None
) -> str | None:
    """Return the next line, without its end; None when the link is over."""
    left = SILENCE_SECONDS if deadline is None else deadline - time.monotonic()
    if conn.sock is not None:
        conn.sock.settimeout(max(0.001, min(SILENCE_SECONDS, left)))
    try:
        raw = reply.readline()
    except TimeoutError:
        if left < SILENCE_SECONDS:
            raise TimedOut("it did not happen in time") from None
        return None
    except (OSError, http.client.HTTPException):
        return None
    return raw.decode().rstrip("\r\n") if raw else None


def _message(lines: list[str]) -> Message:
    parts = dict(line.split(": ", 1) for line in lines if ": " in line)
    parts.pop("", None)  # a comment: the server lives
    return Message(
        seq=int(parts["id"]) if "id" in parts else None,
        name=parts.get("event"),
        data=json.loads(parts["data"]) if "data" in parts else None,
        retry_seconds=int(parts["retry"]) / 1000 if "retry" in parts else None,
    )


def line_of(event: Mapping[str, Any]) -> str:
    """Return an event in a line: its seq, when, what, about what, and by whom."""
    said = event["data"]
    card, run, ask = said.get("card") or {}, said.get("run") or {}, said.get("ask") or {}
    about = card.get("key") or event["subject"]
    what = [
        f"{said['from']} → {said['to']}" if "from" in said and "to" in said else "",
        " ".join([*(f"+{one}" for one in said.get("added") or ()), *(f"-{one}" for one in said.get("removed") or ())]),
        run.get("agent") or "",
        run.get("error") or "",
        ask.get("question") or "",
        f"answered: {ask['answer']}" if ask.get("answer") else "",
    ]  # fmt: skip
    by = (said.get("actor") or {}).get("handle")
    parts = [str(event["seq"]), event["occurred_at"], event["kind"], about, *what, f"by {by}" if by else ""]
    return printable("  ".join(part for part in parts if part).replace("\n", " "))
