"""The names on the wire: which subject a reference travels on, and what may be asked for. Pure.

A subject is `<root>.<tenant>.events.<kind>`. Nothing in it is escaped: what does not fit is refused, on the way out and on the way in.
Installations that share a NATS account have roots of their own, and with them streams of their own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from mainspring.spine.errors import Misuse
from mainspring.spine.events import KIND

EVENTS: Final = "events"
DLQ: Final = "dlq"
ANY: Final = "*"
REST: Final = ">"
KIND_LENGTH_MAX: Final = 100
SHOWN: Final = 200
_ROOT = re.compile(r"[a-z][a-z0-9_-]{0,31}", re.ASCII)
_TOPIC = re.compile(r"[a-z][a-z0-9_-]{0,31}", re.ASCII)
_TENANT = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_FORBIDDEN = re.compile(r"[\s*>\x00-\x1f\x7f]")


def token(text: str) -> str:
    """Return one token of a subject. Raises Misuse for one that is empty, or holds a dot, a wildcard, space or a control character."""
    if not text or "." in text or _FORBIDDEN.search(text):
        raise Misuse(f"{text!r} cannot be a token of a subject")
    return text


def kind_tokens(kind: str) -> str:
    """Return a kind as its one or two tokens. Raises Misuse for what is no kind of event."""
    if len(kind) > KIND_LENGTH_MAX or not KIND.fullmatch(kind):
        raise Misuse(f"{kind[:KIND_LENGTH_MAX]!r} is no kind of event")
    for part in kind.split("."):
        token(part)
    return kind


@dataclass(frozen=True, slots=True)
class Names:
    """Every name of one installation on its NATS."""

    root: str = "mainspring"

    def __post_init__(self) -> None:
        if not _ROOT.fullmatch(self.root):
            raise Misuse(
                f"a root is 1 to 32 of a-z, 0-9, _ and -, beginning with a letter, not {self.root!r}"
            )

    @property
    def stream(self) -> str:
        """The stream of references."""
        return f"{self.root.upper()}_EVENTS"

    @property
    def dlq_stream(self) -> str:
        """The stream of references that nobody could take."""
        return f"{self.root.upper()}_DLQ"

    @property
    def all_events(self) -> str:
        """What the stream of references takes."""
        return f"{self.root}.{ANY}.{EVENTS}.{REST}"

    @property
    def dlq_subject(self) -> str:
        """Where what nobody could take is put."""
        return f"{self.root}.{DLQ}.{EVENTS}"

    def events(self, tenant: UUID, kind: str) -> str:
        """Return the subject of a reference. Raises Misuse for what is no kind of event."""
        return f"{self.root}.{_tenant(tenant)}.{EVENTS}.{kind_tokens(kind)}"

    def events_of_kind(self, kind: str) -> str:
        """Return the filter for one kind, of every tenant. Raises Misuse for what is no kind of event."""
        return f"{self.root}.{ANY}.{EVENTS}.{kind_tokens(kind)}"

    def broadcast(self, tenant: UUID, topic: str) -> str:
        """Return the subject of what is told to every instance, and kept nowhere."""
        return f"{self.root}.{_tenant(tenant)}.{self._topic(topic)}"

    def broadcasts(self, topic: str) -> str:
        """Return the filter for a topic, of every tenant."""
        return f"{self.root}.{ANY}.{self._topic(topic)}"

    def filter(self, subject: str) -> str:
        """Return a filter of references as it is. Raises Misuse for one that would take anything else."""
        if subject == self.all_events:
            return subject
        match subject.split(".", 3):
            case [self.root, tenant, events, rest] if events == EVENTS and (
                tenant == ANY or _TENANT.fullmatch(tenant)
            ):
                pass
            case _:
                raise Misuse(f"{subject[:SHOWN]!r} is no filter of references")
        if rest != REST:
            kind_tokens(rest)
        return subject

    def tenant_of(self, subject: str, topic: str) -> UUID | None:
        """Return whose broadcast a subject says it is; None for one that is nobody's."""
        match subject.split("."):
            case [self.root, tenant, said] if said == topic and _TENANT.fullmatch(tenant):
                return UUID(tenant)
            case _:
                return None

    def owner_of(self, subject: str) -> UUID | None:
        """Return whose reference a subject says it carries; None for one that is nobody's."""
        match subject.split(".", 3):
            case [self.root, tenant, events, _] if events == EVENTS and _TENANT.fullmatch(tenant):
                return UUID(tenant)
            case _:
                return None

    @staticmethod
    def _topic(topic: str) -> str:
        if topic in (EVENTS, DLQ) or not _TOPIC.fullmatch(topic):
            raise Misuse(f"{topic!r} cannot be the topic of a broadcast")
        return topic


def _tenant(tenant: UUID) -> str:
    if not isinstance(tenant, UUID):  # a text could hold what makes another subject of it
        raise Misuse(f"a tenant is an id, not {tenant!r}")
    return str(tenant)
