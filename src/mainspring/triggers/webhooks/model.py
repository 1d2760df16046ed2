"""Webhooks as values: which addresses may be called, what is sent, and what an answer means. Pure: no await, no clock, no network.

Takes a rule's URL, an event and an answer; leaves a place to connect to, a signed message and an outcome.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, TypeAlias, assert_never

import httpx
import msgspec
from standardwebhooks import Webhook as Signer

from mainspring.spine.effects import Deferred, Done, Failed, Outcome, Retry, Unknown
from mainspring.spine.events import Event
from mainspring.triggers.model import RuleVersion

URL_LENGTH_MAX: Final = 2_000
SECRET_BYTES: Final = 32
RETRY_AFTER_SECONDS_MAX: Final = 86_400.0
_PORTS: Final[Mapping[str, int]] = {"http": 80, "https": 443}
_NAME: Final = re.compile(r"[a-z0-9_-][a-z0-9._-]{0,252}")

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


# Where --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a webhook goes. `host` is a name, or an address without brackets."""

    url: httpx.URL
    host: str
    port: int

    @property
    def target(self) -> str:
        """What its breaker goes by: one host is down for all the rules that call it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def place_of(url: str) -> Place | str:
    """Read a URL; return what is wrong with it when nothing can be sent there."""
    if len(url) > URL_LENGTH_MAX:
        return f"is {len(url)} characters long; {URL_LENGTH_MAX} are allowed"
    if not url.isprintable() or " " in url:
        return "must not hold spaces or control characters"
    try:
        parsed = httpx.URL(url)
        host = parsed.raw_host.decode("ascii").strip("[]").rstrip(".").lower()
        port = _PORTS.get(parsed.scheme, 0) if parsed.port is None else parsed.port
    except (httpx.InvalidURL, UnicodeError, ValueError) as error:
        return f"is no URL: {error}"
    if parsed.scheme not in _PORTS:
        return "must begin with https:// or http://"
    if not _is_host(host):
        return "names no host"
    if not 0 < port < 65_536:
        return f"has no port {port}"
    if parsed.userinfo:
        return "must not hold a user or a password: the signature says who sends"
    if parsed.fragment:
        return "must not have a #fragment: it is never sent"
    return Place(url=parsed, host=host, port=port)


def _is_host(text: str) -> bool:
    try:
        address_of(text)
    except ValueError:
        return _NAME.fullmatch(text) is not None
    return "%" not in text


def refusal_of(address: Address) -> str | None:
    """Return why nothing is sent to an address, or None when it is one of the public internet.

    An IPv6 address that carries an IPv4 one (mapped, 6to4, Teredo, NAT64) goes by the one that it carries as well.
    """
    if isinstance(address, ipaddress.IPv6Address):
        for inner in _carried(address):
            if (reason := refusal_of(inner)) is not None:
                return reason
        if address.ipv4_mapped is not None or address in _NAT64:
            return None
    if address.is_loopback:
        return "loopback"
    if address.is_link_local:
        return "link-local"
    if address.is_multicast:
        return "multicast"
    if address.is_private or any(address in network for network in _SPECIAL):
        return "private"
    if not address.is_global or address.is_reserved or (address.version == 6 and address not in _UNICAST):
        return "not of the public internet"
    return None


# what Python's own list gained only in later versions, and what leads to whoever answers first
_SPECIAL: Final = tuple(
    ipaddress.ip_network(text)
    for text in ("192.0.0.0/24", "192.88.99.0/24", "64:ff9b:1::/48", "2001::/23", "3fff::/20")
)
_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_COMPATIBLE: Final = ipaddress.IPv6Network("::/96")


def _carried(address: ipaddress.IPv6Address) -> list[ipaddress.IPv4Address]:
    carried = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address in _NAT64 or (address in _COMPATIBLE and int(address) > 0xFFFF):
        carried.append(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
    return [inner for inner in carried if inner is not None]


def address_of(text: str) -> Address:
    """Read an address as the resolver gives it; a zone says where it is, not what it is."""
    return ipaddress.ip_address(text.partition("%")[0])


# What ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What is sent."""

    place: Place
    headers: Mapping[str, str]
    body: bytes


def body_of(event: Event, rule: RuleVersion) -> bytes:
    """Return the body: the event as the API shows it, and which rule sends it. The same bytes at every attempt."""
    told = {
        "type": event.kind,
        "timestamp": event.occurred_at.isoformat(),
        "rule": {"id": str(rule.rule_id), "name": rule.name, "version": rule.version},
        "data": {
            "seq": event.seq,
            "id": str(event.id),
            "kind": event.kind,
            "subject": event.subject,
            "actor_id": str(event.actor_id) if event.actor_id else None,
            "data": dict(event.data),
            "cause_seq": event.cause_seq,
            "via": [str(one) for one in event.via],
            "depth": event.depth,
            "trust": str(event.trust),
            "occurred_at": event.occurred_at.isoformat(),
        },
    }
    return msgspec.json.encode(told)


def message_of(place: Place, body: bytes, *, id_: str, secret: str, now: datetime) -> Message:
    """Sign a body as Standard Webhooks wants it. `id_` is the same at every attempt, `now` is when this one is made."""
    signature = Signer(secret).sign(id_, now.astimezone(UTC), body.decode())
    headers = {
        "content-type": "application/json",
        "user-agent": "Mainspring-Webhook",
        "webhook-id": id_,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": signature,
    }
    return Message(place=place, headers=headers, body=body)


# And what came back -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """It answered with this status. `said` is the beginning of what it said."""

    status: int
    retry_after_seconds: float | None = None
    said: str = ""


@dataclass(frozen=True, slots=True)
class NotSent:
    """Nothing was sent: it has not happened."""

    error: str


@dataclass(frozen=True, slots=True)
class Unanswered:
    """It was sent, and nothing came back: it may have happened."""

    error: str


@dataclass(frozen=True, slots=True)
class NotAllowed:
    """Nothing is ever sent there."""

    error: str


Reply: TypeAlias = Answered | NotSent | Unanswered | NotAllowed


def outcome_of(reply: Reply) -> Outcome:
    """Return what a reply makes of the effect."""
    match reply:
        case NotSent(error):
            return Retry(error)
        case Unanswered(error):
            return Unknown(error)
        case NotAllowed(error):
            return Failed(error)
        case Answered():
            return _outcome_of_answer(reply)
        case _:
            assert_never(reply)


def _outcome_of_answer(answer: Answered) -> Outcome:
    status, wait = answer.status, answer.retry_after_seconds
    told = f"answered {status}" + (f": {answer.said}" if answer.said else "")
    if 200 <= status < 300:
        return Done(f"answered {status}")
    if 300 <= status < 400:
        return Failed(f"answered {status}: redirects are not followed, name the address itself")
    if status == 429 and wait is not None:
        return Deferred(told, after_seconds=wait, tried=True)
    if status in (408, 425, 429) or status >= 500 or status < 200:
        return Retry(told, after_seconds=wait)
    return Failed(told)


def retry_after_of(value: str | None, now: datetime) -> float | None:
    """Read a Retry-After header, in seconds or as a date; None when there is none that can be read."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), RETRY_AFTER_SECONDS_MAX)
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError):
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return min(max((moment - now).total_seconds(), 0.0), RETRY_AFTER_SECONDS_MAX)
