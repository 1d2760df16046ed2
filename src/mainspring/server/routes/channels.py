"""`/channels`: channels, their members and topics, and what is said in them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID, uuid4

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from mainspring.chat.live import Watcher
from mainspring.chat.model import Channel, Member, Topic
from mainspring.chat.service import ChatService
from mainspring.chat.sessions import SessionService
from mainspring.rooms import NotFound
from mainspring.server.auth import Caller, Unauthorized, authenticate, require
from mainspring.server.keyed import Route
from mainspring.server.pages import Paging, unseal
from mainspring.server.routes.messages import MessageOut, MessagePage, NewMessage, post_as, shown, speaking_of
from mainspring.server.streams import MEDIA_TYPE, PING_SECONDS, EventStream, control, end

router = APIRouter(prefix="/channels", tags=["channels"], route_class=Route)

GATHER_SECONDS = 0.2  # what passes within it is told at once: it is asked so often at most who sees it, and of all that is told

Ref = Annotated[str, Path(max_length=100, description="Id or name")]


class NewChannel(BaseModel):
    """A channel to be made. `open`: everybody of the tenant reads it, and joins by posting; `shared`: its members alone know of it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(min_length=1, max_length=80, examples=["general"])
    purpose: str = Field(default="", max_length=1000)
    visibility: Literal["open", "shared"] = "open"
    post_policy: Literal["members", "owner"] = Field(
        default="members", description="`owner`: nobody posts but its owner"
    )


class ChannelOut(BaseModel):
    """A channel. `last_seq` is that of its last message."""

    id: UUID
    name: str
    purpose: str
    visibility: Literal["open", "shared"]
    post_policy: Literal["members", "owner"]
    owner_id: UUID | None
    board_id: UUID | None
    last_seq: int
    version: int
    created_at: datetime
    archived_at: datetime | None


class ChannelPage(BaseModel):
    """A page of channels, oldest first."""

    data: list[ChannelOut]
    next: str | None


class ChannelEdit(BaseModel):
    """What is to change of a channel; what is left out stays. Archived, nothing is said in it any more."""

    model_config = ConfigDict(extra="forbid", strict=True)

    purpose: str | None = Field(default=None, max_length=1000)
    visibility: Literal["open", "shared"] | None = None
    post_policy: Literal["members", "owner"] | None = None
    archived: bool | None = None


class TopicEdit(BaseModel):
    """What is to change of a topic. Archived, it is listed no more; a message to it brings it back."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str | None = Field(default=None, min_length=1, max_length=200)
    archived: bool | None = None


class Pinning(BaseModel):
    """The messages that shall be pinned, in order, and those that are, as far as the caller knows."""

    model_config = ConfigDict(extra="forbid", strict=True)

    messages: list[Annotated[UUID, Field(strict=False)]] = Field(max_length=5)
    expected: list[Annotated[UUID, Field(strict=False)]] = Field(default_factory=list, max_length=5)


class Pins(BaseModel):
    """A channel's pinned messages, in order: every agent's context begins with those of its channels."""

    data: list[MessageOut]
    next: None = None


class Joining(BaseModel):
    """Who joins, and whether every message is owed to them, or those alone that mention them."""

    model_config = ConfigDict(extra="forbid", strict=True)

    account: str | None = Field(
        default=None, min_length=1, max_length=100, description="A handle; the caller without it"
    )
    subscribed: bool = True


class MemberOut(BaseModel):
    """A member of a channel."""

    account_id: UUID
    kind: Literal["human", "agent", "system"]
    handle: str
    subscribed: bool


class MemberPage(BaseModel):
    """A page of members."""

    data: list[MemberOut]
    next: str | None


class TopicOut(BaseModel):
    """A topic. `hops` counts the messages of agents since a person spoke last: behind 20, agents wait for one."""

    id: UUID
    channel_id: UUID
    name: str
    card_id: UUID | None
    hops: int
    archived_at: datetime | None


class TopicPage(BaseModel):
    """A page of topics, the one spoken in last first."""

    data: list[TopicOut]
    next: str | None


def service_of(request: Request) -> ChatService:
    """Return the service of this server."""
    service: ChatService = request.app.state.services.talk.chat
    return service


def shown_channel(channel: Channel) -> dict[str, Any]:
    """Return a channel as the API shows it."""
    return {name: getattr(channel, name) for name in ChannelOut.model_fields}


def shown_member(member: Member) -> dict[str, Any]:
    """Return a member as the API shows it."""
    return {name: getattr(member, name) for name in MemberOut.model_fields}


def shown_topic(found: tuple[Topic, int]) -> dict[str, Any]:
    """Return a topic as the API shows it."""
    return {name: getattr(found[0], name) for name in TopicOut.model_fields}


@router.get("", response_model=ChannelPage)
async def list_channels(
    request: Request, paging: Paging, caller: Annotated[Caller, require("channel.list")]
) -> dict[str, Any]:
    """List the channels that the caller sees, oldest first."""
    rows = await service_of(request).list_channels(
        caller.actor, after=paging.after_id(), limit=paging.limit + 1
    )
    return paging.page(rows, shown_channel, key=lambda channel: (channel.id,))


@router.post("", response_model=ChannelOut, status_code=201)
async def create_channel(
    request: Request, body: NewChannel, caller: Annotated[Caller, require("channel.create")]
) -> dict[str, Any]:
    """Make a channel; the caller is its owner and first member. 409 `channel_name_taken`."""
    made = await service_of(request).create_channel(
        caller.actor,
        name=body.name,
        purpose=body.purpose,
        visibility=body.visibility,
        post_policy=body.post_policy,
    )
    return shown_channel(made)


@router.get("/{channel}", response_model=ChannelOut)
async def show_channel(
    request: Request, channel: Ref, caller: Annotated[Caller, require("channel.show")]
) -> dict[str, Any]:
    """Show one channel."""
    return shown_channel(await service_of(request).get_channel(caller.actor, channel))


@router.patch("/{channel}", response_model=ChannelOut)
async def edit_channel(
    request: Request, channel: Ref, body: ChannelEdit, caller: Annotated[Caller, require("channel.update")]
) -> dict[str, Any]:
    """Change a channel; its owner may, and an operator who sees it."""
    edited = await service_of(request).edit_channel(
        caller.actor,
        channel,
        purpose=body.purpose,
        visibility=body.visibility,
        post_policy=body.post_policy,
        archived=body.archived,
        operates=caller.reader.operates,
    )
    return shown_channel(edited)


@router.get("/{channel}/pins", response_model=Pins)
async def show_pins(
    request: Request, channel: Ref, caller: Annotated[Caller, require("channel.pins")]
) -> dict[str, Any]:
    """Show a channel's pinned messages."""
    return {"data": [shown(message) for message in await service_of(request).pins(caller.actor, channel)]}


@router.put("/{channel}/pins", response_model=Pins)
async def pin_messages(
    request: Request, channel: Ref, body: Pinning, caller: Annotated[Caller, require("channel.pin")]
) -> dict[str, Any]:
    """Pin at most five messages, in the place of those that are. 409 `pins_changed` when those are not the expected ones."""
    pinned = await service_of(request).pin(caller.actor, channel, body.messages, expected=body.expected)
    return {"data": [shown(message) for message in pinned]}


@router.patch("/{channel}/topics/{topic}", response_model=TopicOut)
async def edit_topic(
    request: Request,
    channel: Ref,
    topic: Annotated[UUID, Path(description="The topic's id")],
    body: TopicEdit,
    caller: Annotated[Caller, require("channel.update_topic")],
) -> dict[str, Any]:
    """Rename a topic, archive it, or bring it back. 409 `topic_name_taken`."""
    edited = await service_of(request).edit_topic(
        caller.actor, channel, topic, name=body.name, archived=body.archived
    )
    return shown_topic((edited, 0))


@router.get("/{channel}/members", response_model=MemberPage)
async def list_members(
    request: Request, channel: Ref, paging: Paging, caller: Annotated[Caller, require("channel.members")]
) -> dict[str, Any]:
    """List a channel's members."""
    rows = await service_of(request).list_members(
        caller.actor, channel, after=paging.after_id(), limit=paging.limit + 1
    )
    return paging.page(rows, shown_member, key=lambda member: (member.account_id,))


@router.post("/{channel}/members", response_model=MemberOut)
async def join_channel(
    request: Request, channel: Ref, body: Joining, caller: Annotated[Caller, require("channel.join")]
) -> dict[str, Any]:
    """Join a channel, or bring an account into it; again, with another `subscribed`, changes that. Joining owes no history."""
    member = await service_of(request).join(caller.actor, channel, body.account, subscribed=body.subscribed)
    return shown_member(member)


@router.delete("/{channel}/members/{account}", status_code=204)
async def leave_channel(
    request: Request,
    channel: Ref,
    account: Annotated[str, Path(max_length=100, description="A handle, or `me`")],
    caller: Annotated[Caller, require("channel.leave")],
) -> None:
    """End a membership: what is still owed to that member is dropped when it would be offered, unless the channel is open.

    Others are taken out by the channel's owner, or an operator who sees it. A shared channel that its last member leaves is archived and
    its name is free.
    """
    await service_of(request).leave(
        caller.actor, channel, None if account == "me" else account, operates=caller.reader.operates
    )


@router.get("/{channel}/topics", response_model=TopicPage)
async def list_topics(
    request: Request,
    channel: Ref,
    paging: Paging,
    caller: Annotated[Caller, require("channel.topics")],
    state: Annotated[Literal["open", "all"], Query(description="All: archived ones, too")] = "open",
) -> dict[str, Any]:
    """List a channel's topics, the one that was spoken in last first."""
    after = None if paging.after is None else unseal(paging.after, int, UUID)
    rows = await service_of(request).list_topics(
        caller.actor,
        channel,
        archived=state == "all",
        after=after,  # type: ignore[arg-type]
        limit=paging.limit + 1,
    )
    return paging.page(rows, shown_topic, key=lambda found: (found[1], found[0].id))


@router.get("/{channel}/messages", response_model=MessagePage)
async def history(
    request: Request,
    channel: Ref,
    paging: Paging,
    caller: Annotated[Caller, require("message.list")],
    topic: Annotated[
        str | None, Query(max_length=200, description="Of this topic alone: its id or name")
    ] = None,
    after_seq: Annotated[
        int | None, Query(ge=0, lt=2**63, description="Those behind this seq, the oldest first")
    ] = None,
) -> dict[str, Any]:
    """List a channel's messages, the newest first, or from a seq on in the order in which they were posted."""
    cursor = None if paging.after is None else unseal(paging.after, int)[0]
    before, after = (cursor, None) if after_seq is None else (None, after_seq if cursor is None else cursor)
    rows = await service_of(request).history(
        caller.actor, channel, topic=topic, before=before, after=after, limit=paging.limit + 1
    )
    return paging.page(rows, shown, key=lambda message: (message.channel_seq,))


@router.post("/{channel}/messages", response_model=MessageOut, status_code=201)
async def post_message(
    request: Request,
    response: Response,
    channel: Ref,
    body: NewMessage,
    caller: Annotated[Caller, require("message.post")],
) -> dict[str, Any]:
    """Post a message; the topic is made if need be. Sent again with the same `request_id` it is the same message (200)."""
    speaking = speaking_of(body.session)
    posted = await service_of(request).post(
        await post_as(request, caller, speaking),
        channel,
        topic=body.topic,
        blocks=body.given_blocks(),
        mentions=body.mentions,
        request_id=body.request_id or str(uuid4()),
        final=body.final,
        speaking=speaking,
        may_broadcast="broadcast" in caller.extras,
    )
    response.status_code = 201 if posted.new else 200
    return {**shown(posted.message), "session_lost": posted.lost}


@router.get(
    "/{channel}/live",
    response_class=Response,
    responses={
        200: {
            "description": "Server-sent events `presence` and `text`, without ids: what passes is kept by nobody",
            "content": {MEDIA_TYPE: {"schema": {"type": "string"}}},
        }
    },
)
async def watch_channel(
    request: Request, channel: Ref, caller: Annotated[Caller, require("channel.live")]
) -> Response:
    """Watch who is at work in a channel, and what agents are writing, as far as it passes this server."""
    found = await service_of(request).get_channel(caller.actor, channel)
    with ExitStack() as held:
        held.enter_context(request.app.state.load.wait(caller.tenant_id))
        watcher = held.enter_context(
            request.app.state.services.talk.live.watching(caller.tenant_id, found.id)
        )
        return EventStream(_passing(request, caller, found.id, watcher), held=held.pop_all())


async def _passing(
    request: Request, caller: Caller, channel: UUID, watcher: Watcher
) -> AsyncGenerator[bytes, None]:
    """Yield how the channel's agents are, and what passes; now and then all of it again, for as long as the caller sees the channel."""
    closing: asyncio.Event = request.app.state.closing
    sessions: SessionService = request.app.state.services.talk.sessions
    time = asyncio.get_running_loop().time
    while not closing.is_set():
        if not await _sees(request, channel):
            yield end("unauthorized")
            return
        for one in await sessions.present(caller.tenant_id, channel):
            yield control(one.what, dict(one.data))
        again = time() + PING_SECONDS
        while (left := again - time()) > 0 and not closing.is_set():
            if (passing := await watcher.next(within_seconds=min(left, 1.0))) is None:
                continue
            told = [passing, *watcher.waiting()]  # they passed before it is asked who sees them
            if not await _sees(request, channel):
                yield end("unauthorized")
                return
            asked = time()
            for one in told:
                yield control(one.what, dict(one.data))
            await asyncio.sleep(max(0.0, asked + GATHER_SECONDS - time()))
    yield end("closing")


async def _sees(request: Request, channel: UUID) -> bool:
    """Tell whether the caller's token is valid still, and the channel theirs to see."""
    try:
        still = await authenticate(request)
        await service_of(request).get_channel(still.actor, str(channel))
    except (Unauthorized, NotFound):
        return False
    return True
