"""One POST to a place that a member named, which may be anywhere: takes a signed message, leaves what came back.

The name is resolved once; when any of its addresses is not of the public internet, nothing is sent. The connection goes to the
address that was looked at, and to none that the name means a moment later; the host's own name is still what its certificate and
its Host header are checked by. No redirect is followed, no proxy asked, and of the answer only the beginning is read.
If it dies here after the request was sent, it may have happened, and is sent again under the same id.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, Final, TypeAlias

import httpx

from mainspring.triggers.webhooks.model import (
    Address,
    Answered,
    Message,
    NotAllowed,
    NotSent,
    Place,
    Reply,
    Unanswered,
    address_of,
    refusal_of,
    retry_after_of,
)

TIMEOUT_SECONDS: Final = 30.0
CONNECT_SECONDS: Final = 10.0
SAID_SECONDS: Final = 2.0
SAID_BYTES_MAX: Final = 2_048
SAID_SHOWN_MAX: Final = 300


@dataclass(slots=True)
class _Progress:
    """Whether anything has gone out, as the connection tells it."""

    sent: bool = False

    async def note(self, event: str, _info: Any) -> None:
        if event.endswith("send_request_headers.started"):
            self.sent = True


Resolver: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]


async def _resolve(host: str, port: int) -> Sequence[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(info[4][0]) for info in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outbound:
    """Sends messages.

    Args:
        allow_private: also send to addresses that are not of the public internet.
        timeout_seconds: for one message, all in all.
        resolve: returns the addresses of a name, as text; raises OSError.
    """

    allow_private: bool = False
    timeout_seconds: float = TIMEOUT_SECONDS
    resolve: Resolver = _resolve

    async def post(self, message: Message, *, now: datetime) -> Reply:
        """Send a message; never raises for what the other side does."""
        progress = _Progress()
        try:
            async with asyncio.timeout(self.timeout_seconds):
                addresses = await self._addresses(message.place)
                if isinstance(addresses, NotAllowed | NotSent):
                    return addresses
                return await _post_to_one_of(addresses, message, progress, now)
        except TimeoutError:
            if progress.sent:
                return Unanswered(f"no answer within {self.timeout_seconds:g} s")
            return NotSent(f"no connection to {message.place.target} within {self.timeout_seconds:g} s")

    async def _addresses(self, place: Place) -> Sequence[Address] | NotAllowed | NotSent:
        try:
            found = await self.resolve(place.host, place.port)
        except (OSError, UnicodeError) as error:
            return NotSent(f"{place.host} cannot be resolved: {error}")
        addresses = list(dict.fromkeys(address_of(text) for text in found))
        if not addresses:
            return NotSent(f"{place.host} has no address")
        for address in () if self.allow_private else addresses:
            if (reason := refusal_of(address)) is not None:
                return NotAllowed(
                    f"{place.host} is {address}, which is {reason}: nothing is sent there (webhook_allow_private)"
                )
        return addresses


async def _post_to_one_of(
    addresses: Sequence[Address], message: Message, progress: _Progress, now: datetime
) -> Reply:
    """Send to the first address that takes a connection."""
    reply: Reply = NotSent("there is no address")
    for address in addresses:
        reply = await _post(address, message, progress, now)
        if not isinstance(reply, NotSent):
            break
    return reply


async def _post(address: Address, message: Message, progress: _Progress, now: datetime) -> Reply:
    place = message.place
    pinned = place.url.copy_with(host=str(address))
    request = httpx.Request(
        "POST",
        pinned,
        headers={"host": place.url.netloc.decode("ascii"), **message.headers},
        content=message.body,
        extensions={
            # the certificate is checked for this name, though the connection goes to an address
            "sni_hostname": place.host,
            "trace": progress.note,
            "timeout": {"connect": CONNECT_SECONDS, "read": None, "write": None, "pool": None},
        },
    )
    # a connection of its own: one that is kept would be found by its address, whatever name it was made for
    transport = httpx.AsyncHTTPTransport(
        verify=_trusted(),
        trust_env=False,
        limits=httpx.Limits(max_connections=1, max_keepalive_connections=0),
    )
    try:
        async with transport:
            response = await transport.handle_async_request(request)
            try:
                return await _answer(response, now)
            finally:
                await response.aclose()
    except (httpx.TransportError, httpx.StreamError, OSError) as error:
        told = f"{place.target}: {type(error).__name__}: {error}".rstrip(": ")
        return Unanswered(told) if progress.sent else NotSent(told)


@cache
def _trusted() -> ssl.SSLContext:
    """The certificates that are trusted, read once a process."""
    return httpx.create_ssl_context(trust_env=False)


async def _answer(response: httpx.Response, now: datetime) -> Answered:
    wait = retry_after_of(response.headers.get("retry-after"), now)
    said = "" if response.is_success else await _beginning(response)
    return Answered(status=response.status_code, retry_after_seconds=wait, said=said)


async def _beginning(response: httpx.Response) -> str:
    """Return the beginning of what it said, as much as comes in a moment; its status counts, whatever becomes of this."""
    read = bytearray()
    try:
        async with asyncio.timeout(SAID_SECONDS):
            async for chunk in response.aiter_raw():
                read += chunk
                if len(read) >= SAID_BYTES_MAX:
                    break
    except (TimeoutError, httpx.HTTPError, httpx.StreamError, OSError):
        pass
    text = bytes(read[:SAID_BYTES_MAX]).decode("utf-8", "replace")
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:SAID_SHOWN_MAX]
