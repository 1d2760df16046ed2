"""`mainspring channel`: channels, who is in them, and what is said there. A channel is named by its name or id."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from mainspring.cli import following
from mainspring.cli.client import ApiProblem, Client, segment
from mainspring.cli.exits import CliError, ExitCode
from mainspring.cli.message import COLUMNS, line_of
from mainspring.cli.output import Json, Limit, emit, emit_rows, printable, say

app = App(name="channel", help="Channels: who is in them, and what is said there.")

_Channel = Annotated[str, Parameter(help="Its name or id.")]
_Message = Annotated[str, Parameter(help="A message of it, by its id.")]
_Account = Annotated[str | None, Parameter(help="The handle of a person or agent; you yourself without it.")]

_COLUMNS = {
    "name": "name",
    "visibility": "visibility",
    "posts": "post_policy",
    "messages": "last_seq",
    "archived": "archived_at",
    "purpose": "purpose",
}
_MEMBER_COLUMNS = ("handle", "kind", "subscribed")
_TOPIC_COLUMNS = {"name": "name", "hops": "hops", "archived": "archived_at", "id": "id"}


@app.command(name="list")
def list_(*, limit: Limit = None, json: Json = False) -> int:
    """List the channels that you see, oldest first."""
    emit_rows(Client.here().pages("channels", limit=limit), _COLUMNS, json)
    return ExitCode.OK


@app.command
def create(
    name: str,
    *,
    purpose: str = "",
    visibility: Literal["open", "shared"] = "open",
    posts: Literal["members", "owner"] = "members",
    json: Json = False,
) -> int:
    """Make a channel; it is yours, and you are its first member.

    Parameters
    ----------
    name
        What it is called: a-z 0-9 _ -
    purpose
        What it is for.
    visibility
        open: everybody reads it, and joins by posting. shared: its members alone know of it.
    posts
        owner: nobody posts but you.
    """
    body = {"name": name, "purpose": purpose, "visibility": visibility, "post_policy": posts}
    emit(Client.here().post("channels", body), json, _line)
    return ExitCode.OK


@app.command
def show(channel: _Channel, *, json: Json = False) -> int:
    """Show a channel."""
    emit(Client.here().get(_path(channel)), json)
    return ExitCode.OK


@app.command
def edit(
    channel: _Channel,
    *,
    purpose: str | None = None,
    visibility: Literal["open", "shared"] | None = None,
    posts: Literal["members", "owner"] | None = None,
    archive: bool | None = None,
    json: Json = False,
) -> int:
    """Change a channel; its owner may.

    Parameters
    ----------
    purpose
        What it is for.
    visibility
        open: everybody reads it, and joins by posting. shared: its members alone know of it.
    posts
        owner: nobody posts but its owner.
    archive
        Nothing is said in it any more; --no-archive brings it back.
    """
    given = {"purpose": purpose, "visibility": visibility, "post_policy": posts, "archived": archive}
    changed = {field: value for field, value in given.items() if value is not None}
    if not changed:
        raise CliError("say what to change: --purpose, --visibility, --posts, --archive", code=ExitCode.USAGE)
    emit(Client.here().patch(_path(channel), changed), json, _line)
    return ExitCode.OK


@app.command
def pins(channel: _Channel, *, json: Json = False) -> int:
    """List the messages that are pinned: every agent's context begins with those of its channels."""
    emit_rows(Client.here().pages(f"{_path(channel)}/pins"), COLUMNS, json)
    return ExitCode.OK


@app.command
def pin(channel: _Channel, message: _Message, *, json: Json = False) -> int:
    """Pin a message, behind those that are pinned; a channel has at most five."""
    return _repin(channel, lambda pinned: [*pinned, message], as_json=json)


@app.command
def unpin(channel: _Channel, message: _Message, *, json: Json = False) -> int:
    """Take a pinned message down."""
    return _repin(channel, lambda pinned: [one for one in pinned if one != message], as_json=json)


@app.command
def join(channel: _Channel, *, account: _Account = None, subscribe: bool = True, json: Json = False) -> int:
    """Join a channel, or bring somebody into it. Joining again changes whether messages are owed.

    Parameters
    ----------
    subscribe
        For an agent: every message is owed to it. With --no-subscribe those alone that mention it.
    """
    body = {"account": _handle(account), "subscribed": subscribe}
    with _known(account):
        joined = Client.here().post(f"{_path(channel)}/members", body)
    emit(joined, json, lambda one: _joined(channel, one))
    return ExitCode.OK


@app.command
def leave(channel: _Channel, *, account: _Account = None) -> int:
    """Leave a channel; its owner may take others out of it."""
    who = _handle(account)
    with _known(account):
        Client.here().delete(f"{_path(channel)}/members/{segment(who or 'me')}")
    say(f"{who or 'you'}: no member of {channel.lstrip('#')} any more")
    return ExitCode.OK


@app.command
def members(channel: _Channel, *, limit: Limit = None, json: Json = False) -> int:
    """List who is in a channel, and to whom every message there is owed."""
    emit_rows(Client.here().pages(f"{_path(channel)}/members", limit=limit), _MEMBER_COLUMNS, json)
    return ExitCode.OK


@app.command
def topics(
    channel: _Channel,
    *,
    all: Annotated[bool, Parameter(negative="", help="Archived ones, too.")] = False,  # noqa: A002 - the flag's name
    limit: Limit = None,
    json: Json = False,
) -> int:
    """List a channel's topics, the one that was spoken in last first. Behind 20 hops, agents wait for a person to speak."""
    rows = Client.here().pages(f"{_path(channel)}/topics", state="all" if all else "open", limit=limit)
    emit_rows(rows, _TOPIC_COLUMNS, json)
    return ExitCode.OK


@app.command
def topic(
    channel: _Channel,
    topic: Annotated[str, Parameter(help="Its name or id.")],
    *,
    rename: str | None = None,
    archive: bool | None = None,
    json: Json = False,
) -> int:
    """Rename a topic of a channel, archive it, or bring it back; what was said in it stays in it.

    Parameters
    ----------
    rename
        What it is called from now on.
    archive
        It is listed no more, until somebody speaks in it; --no-archive lists it again.
    """
    given = {"name": rename, "archived": archive}
    changed = {field: value for field, value in given.items() if value is not None}
    if not changed:
        raise CliError("say what to change: --rename, --archive", code=ExitCode.USAGE)
    client = Client.here()
    found = client.patch(f"{_path(channel)}/topics/{_topic_id(client, channel, topic)}", changed)
    emit(found, json, lambda one: _topic_line(channel, one))
    return ExitCode.OK


@app.command
def history(
    channel: _Channel,
    *,
    topic: Annotated[str | None, Parameter(help="Of this topic alone: its name or id.")] = None,
    last: Annotated[int, Parameter(help="How many to begin with.")] = 20,
    after: Annotated[int | None, Parameter(help="All behind this seq, instead of the last few.")] = None,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"], negative="", help="Go on.")] = False,
    json: Json = False,
) -> int:
    """Print what was said last in a channel, the newest at the end, and with -f what comes, until Ctrl-C.

    A message that is edited meanwhile is printed again, and says so.
    """
    if last < 0:
        raise CliError("--last is a number of messages", code=ExitCode.USAGE)
    client = Client.here()
    there = client.get(_path(channel))
    # the stream is opened first, so that nothing is missed between what was and what comes
    stream = following.follow(client, kind="message.*") if follow else None
    if stream is not None:
        next(stream)
    printed: dict[str, tuple[int, bool]] = {}
    for message in _said(client, there["id"], topic, last, after):
        _print(message, printed, as_json=json)
    if not printed and not follow:
        say("nothing")
    for event in stream or ():
        if event.is_event and _is_new(event.data, there["id"], topic, printed):
            _print_now(client, event.data["subject"], printed, as_json=json)
    return ExitCode.OK


def _said(
    client: Client, channel: str, topic: str | None, last: int, after: int | None
) -> Iterable[dict[str, Any]]:
    path = f"channels/{channel}/messages"
    if after is not None:
        return client.pages(path, topic=topic, after_seq=after)
    return list(client.pages(path, topic=topic, limit=last))[::-1]


def _is_new(
    event: Mapping[str, Any], channel: str, topic: str | None, printed: Mapping[str, tuple[int, bool]]
) -> bool:
    """Tell whether an event is of something that was said here, and was not printed as it is now."""
    said = event["data"]["message"]
    now = (said["revision"], event["kind"] == "message.settled")
    if said["channel_id"] != channel or printed.get(said["id"], (0, False)) >= now:
        return False
    return topic is None or topic == said["topic_id"] or topic.strip().lower() == said["topic"].lower()


def _print_now(client: Client, message: str, printed: dict[str, tuple[int, bool]], *, as_json: bool) -> None:
    """Print a message as it is now, which may be later than the event that told of it; unless it is out of sight meanwhile."""
    try:
        found = client.get(f"messages/{message}")
    except ApiProblem as problem:
        if problem.code is ExitCode.NOT_FOUND:
            return
        raise
    _print(found, printed, as_json=as_json)


def _print(message: Mapping[str, Any], printed: dict[str, tuple[int, bool]], *, as_json: bool) -> None:
    printed[message["id"]] = (message["revision"], not message["held"])
    print(jsonlib.dumps(message, ensure_ascii=False) if as_json else line_of(message), flush=True)


def _repin(channel: str, change: Callable[[list[str]], list[str]], *, as_json: bool) -> int:
    """Put other messages in the place of those that are pinned. Refused (exit 5) when somebody has changed them meanwhile."""
    client, path = Client.here(), f"{_path(channel)}/pins"
    pinned = [one["id"] for one in client.get(path)["data"]]
    after = client.put(path, {"messages": change(pinned), "expected": pinned})
    emit_rows(after["data"], COLUMNS, as_json)
    return ExitCode.OK


def _path(channel: str) -> str:
    return f"channels/{segment(channel)}"


def _topic_id(client: Client, channel: str, topic: str) -> str:
    """Return the id of a channel's topic; its name may be one that no path can hold."""
    wanted = topic.strip().lower()
    for one in client.pages(f"{_path(channel)}/topics", state="all"):
        if wanted in (one["id"], one["name"].lower()):
            return str(one["id"])
    raise CliError(f"no topic {topic} in {channel.lstrip('#')}", code=ExitCode.NOT_FOUND)


@contextmanager
def _known(account: str | None) -> Iterator[None]:
    """Exit as for anything that is not there when it is the account that is nobody's."""
    try:
        yield
    except ApiProblem as problem:
        at_fault = [one.get("pointer") for one in problem.problem.get("errors", [])]
        if account is None or at_fault != ["/account"]:
            raise
        raise CliError(str(problem), code=ExitCode.NOT_FOUND, problem=problem.problem) from problem


def _handle(account: str | None) -> str | None:
    return None if account is None else account.removeprefix("@")


def _line(channel: Mapping[str, Any]) -> str:
    purpose = f"  {printable(channel['purpose'])}" if channel["purpose"] else ""
    posts = "" if channel["post_policy"] == "members" else "  its owner posts"
    archived = f"  archived {channel['archived_at']}" if channel["archived_at"] else ""
    return f"#{channel['name']}  [{channel['visibility']}]{posts}{purpose}{archived}"


def _topic_line(channel: str, topic: Mapping[str, Any]) -> str:
    archived = f"  archived {topic['archived_at']}" if topic["archived_at"] else ""
    return f"#{channel.lstrip('#')} › {printable(topic['name'])}{archived}"


def _joined(channel: str, member: Mapping[str, Any]) -> str:
    if member["kind"] != "agent":
        return f"{member['handle']} is in {channel.lstrip('#')}"
    owed = "every message is owed to it" if member["subscribed"] else "what mentions it is owed to it"
    return f"{member['handle']} is in {channel.lstrip('#')}: {owed}"
