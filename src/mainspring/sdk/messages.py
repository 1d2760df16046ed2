"""What a handler of messages is given: the message, and the way to answer in its topic.

A reply is posted at once, for people to read while it grows, and is held from other agents until the turn is over. It is named after
the delivery that it answers, so that a post whose answer was cut off, or a handler that begins again, says it once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mainspring.sdk.client import Client
from mainspring.sdk.errors import Refused
from mainspring.sdk.outcomes import clean
from mainspring.sdk.wire import segment

TAKEN = "request_id_reused"


async def _none() -> AsyncIterator[Message]:
    return
    yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message as it was read. `kind`: it mentions the agent (`steer`), or is read between turns (`deliver`).

    The same message comes again, with a higher `revision`, when its author could finish it only after it had settled.
    `pins` are the pinned messages of the agent's channels as they were when its session began: what its context begins with.
    """

    id: str
    revision: int
    kind: str
    text: str
    author: str
    author_kind: str
    channel: str
    channel_id: str
    topic: str
    topic_id: str
    card_id: str | None
    trust: str
    blocks: Sequence[Mapping[str, Any]] = field(repr=False)
    pins: Sequence[Message] = field(default=(), repr=False, compare=False)
    steers: Callable[[], AsyncIterator[Message]] = field(default=_none, repr=False, compare=False)

    def steering(self) -> AsyncIterator[Message]:
        """Yield what has mentioned the agent in this topic meanwhile, and end when there is nothing more: ask again later.

        What is read here belongs to this turn, and does not come as a message of its own; what is not, comes next.
        """
        return self.steers()


def message_from(said: Mapping[str, Any], kind: str = "deliver") -> Message:
    """Read a message of the server's."""
    return Message(
        id=said["id"],
        revision=said["revision"],
        kind=kind,
        text=said.get("text") or "",
        author=said["author"],
        author_kind=said["author_kind"],
        channel=said["channel"],
        channel_id=said["channel_id"],
        topic=said["topic"],
        topic_id=said["topic_id"],
        card_id=said.get("card_id"),
        trust=said.get("trust") or "",
        blocks=said.get("blocks") or (),
    )


@dataclass(slots=True)
class Posted:
    """A message that was posted, and may still be edited: as often as the turn lasts."""

    id: str
    text: str
    revision: int
    client: Client = field(repr=False, compare=False)
    speaking: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)

    async def edit(self, text: str, *, mentions: Sequence[str] | None = None, final: bool = False) -> None:
        """Let it say this from now on, and call these, if they are given, in the place of those whom it called.

        `final`: it settles at once, though the turn goes on. What has settled calls nobody else: Refused when it should.
        """
        body: dict[str, Any] = {"text": clean(text), "final": final}
        if mentions is not None:
            body["mentions"] = list(mentions)
        if self.speaking is not None:
            body["session"] = dict(self.speaking)
        said = await self.client.call("PATCH", f"/messages/{segment(self.id)}", body=body)
        self.text, self.revision = said["text"], said["revision"]


async def post(
    client: Client,
    path: str,
    text: str,
    request_id: str,
    *,
    mentions: Sequence[str] = (),
    speaking: Mapping[str, Any] | None = None,
    **more: Any,
) -> Posted:
    """Post a message, once for its request id: said before in other words, it says these from now on.

    Raises Refused when it was said elsewhere, or has settled and called others: an edit would not be what is asked for.
    """
    body: dict[str, Any] = {"text": clean(text), "request_id": request_id, "mentions": list(mentions), **more}
    if speaking is not None:
        body["session"] = dict(speaking)
    try:
        said = await client.call("POST", path, body=body)
    except Refused as taken:
        before = taken.problem.get("current")
        if taken.code != TAKEN or not isinstance(before, Mapping) or _is_elsewhere(before, more.get("topic")):
            raise
        posted = Posted(before["id"], before["text"], before["revision"], client, speaking)
        await posted.edit(text, mentions=mentions, final=bool(more.get("final")))
        return posted
    return Posted(said["id"], said["text"], said["revision"], client, speaking)


def _is_elsewhere(before: Mapping[str, Any], topic: str | None) -> bool:
    """Tell whether a message stands in another topic than the one that is named, by its id or its name."""
    there = {str(before.get(name)).casefold() for name in ("topic", "topic_id")}
    return topic is not None and topic.strip().casefold() not in there


class Reply:
    """Answers in the topic of the message that is handled: `await reply("…")`, as often as there is something to say."""

    def __init__(
        self, client: Client, message: Message, delivery_id: str, speaking: Mapping[str, Any]
    ) -> None:
        self._client = client
        self._message = message
        self._delivery_id = delivery_id
        self._speaking = {**speaking, "delivery": delivery_id}
        self._said = 0

    def __repr__(self) -> str:
        return f"<Reply in {self._message.channel}/{self._message.topic}>"

    async def __call__(self, text: str, *, mentions: Sequence[str] = (), final: bool = False) -> Posted:
        """Post `text`, and return it for editing. Agents that it is to call are named in `mentions`: an `@` in its text calls nobody.

        Other agents are owed it when the turn is over, or at once if it is `final`. Raises Refused when the agent may not post there.
        """
        self._said += 1
        return await post(
            self._client,
            f"/channels/{segment(self._message.channel_id)}/messages",
            text,
            f"{self._delivery_id}:{self._said}",
            mentions=mentions,
            speaking=self._speaking,
            topic=self._message.topic_id,  # by its id: it may have been renamed meanwhile
            final=final,
        )
