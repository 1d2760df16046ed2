"""The log as it grows: takes pokes and the floor tick, leaves new events with every stream of their tenant.

One tail a tenant reads for all its streams of this process, and one question reads for all tails. A stream that is behind its
tail reads pages of its own until it has caught up. Which reader may be told of which event is one question a batch, asked again of what
is queued whenever there is news. Nothing is owed by what stands here: a stream that ends, for whatever
reason, is opened again behind the last seq that its reader saw, at any process.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias
from uuid import UUID

import msgspec

from mainspring import telemetry
from mainspring.chat import sight
from mainspring.chat.sight import Reader, Seen
from mainspring.db import Database, Scope
from mainspring.operators.log import shown
from mainspring.spine.events import Event
from mainspring.sql import Queries
from mainspring.stores.postgres.rows import event_of

SQL = Queries("mainspring.operators.sql")
PAGE: Final = 200
QUEUED_EVENTS_MAX: Final = 2_000
QUEUED_BYTES_MAX: Final = 4 << 20
CHECKED_EVERY_SECONDS: Final = 15.0


class Line:
    """One event as streams tell it; its text is made once, for all who ask."""

    __slots__ = ("_text", "event", "named", "seq")

    def __init__(self, event: Event) -> None:
        self.event = event
        self.seq = event.seq
        self.named = sight.named_by(event)
        self._text: bytes | None = None

    @property
    def text(self) -> bytes:
        """The event as JSON, in one line."""
        if self._text is None:
            told = {
                **shown(self.event),
                "occurred_at": self.event.occurred_at,
            }  # written as the API writes times
            self._text = msgspec.json.encode(told)
        return self._text


@dataclass(frozen=True, slots=True)
class Filter:
    """What a stream tells of: a kind or all of a noun (`card.*`), a subject, whatever is about a card; None for all."""

    kind: str | None = None
    subject: str | None = None
    card_id: UUID | None = None

    def takes(self, event: Event) -> bool:
        """Tell whether an event is told."""
        if self.kind is not None and not _is_of(event.kind, self.kind):
            return False
        if self.subject is not None and event.subject != self.subject:
            return False
        return self.card_id is None or _is_about(event, str(self.card_id))


def _is_of(kind: str, wanted: str) -> bool:
    return kind.startswith(wanted[:-1]) if wanted.endswith(".*") else kind == wanted


def _is_about(event: Event, card_id: str) -> bool:
    card = event.data.get("card")
    return event.subject == card_id or (isinstance(card, dict) and card.get("id") == card_id)


@dataclass(frozen=True, slots=True)
class Batch:
    """What is new: the lines to be told, and the seq through which the stream has now seen the log."""

    lines: Sequence[Line]
    through: int


@dataclass(frozen=True, slots=True)
class Quiet:
    """Nothing happened for as long as one waited."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The stream is over: `slow`, `unauthorized`, or `closing`."""

    reason: str


Next: TypeAlias = Batch | Quiet | Ended


@dataclass(frozen=True, slots=True)
class Bounds:
    """A log's last seq, and its oldest that is still kept (head + 1 when none is)."""

    head: int
    oldest: int


@dataclass(eq=False, slots=True)
class Stream:
    """One reader of a tenant's log, behind `position`. `allowed` says whether a role (None: none any more) may read on."""

    tenant_id: UUID
    token_id: UUID
    reader: Reader
    position: int
    wanted: Filter
    allowed: Callable[[str | None], bool]
    _queue: deque[Line] = field(default_factory=deque)
    _bytes: int = 0
    _seen: int = 0
    _ended: Ended | None = None
    _woken: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def queued(self) -> Sequence[Line]:
        """What is still to be told."""
        return self._queue

    def takes(self, line: Line, seen: Seen) -> bool:
        """Tell whether a line is wanted, and the reader's to see."""
        return self.wanted.takes(line.event) and seen.sees(self.reader.account_id, line.named)

    def offer(self, lines: Sequence[Line], seen: Seen) -> None:
        """Take what the tail has read, and let go of what is not the reader's to see any more.

        A reader who is too far behind is given up, and not waited for.
        """
        fresh = [line for line in lines if line.seq > self.position]
        if not fresh or self._ended is not None:
            return
        if any(not seen.sees(self.reader.account_id, line.named) for line in self._queue):
            self._queue = deque(line for line in self._queue if self.takes(line, seen))
            self._bytes = sum(len(line.text) for line in self._queue)
        told = [line for line in fresh if self.takes(line, seen)]
        self._queue.extend(told)
        self._bytes += sum(len(line.text) for line in told)
        self._seen = fresh[-1].seq
        if len(self._queue) > QUEUED_EVENTS_MAX or self._bytes > QUEUED_BYTES_MAX:
            self.end("slow")
        self._woken.set()

    def end(self, reason: str) -> None:
        """End it; what is queued is not told any more."""
        if self._ended is None:
            self._ended = Ended(reason)
            self._queue.clear()
            telemetry.streams_ended.labels(reason).inc()
        self._woken.set()

    @property
    def is_over(self) -> bool:
        """Whether it was ended."""
        return self._ended is not None

    async def next(self, *, within_seconds: float) -> Next:
        """Return what comes next, waiting for it."""
        try:
            async with asyncio.timeout(within_seconds):
                await self._woken.wait()
        except TimeoutError:
            return Quiet()
        self._woken.clear()
        if self._ended is not None:
            return self._ended
        lines, self._bytes = list(self._queue), 0
        self._queue.clear()
        self.position = self._seen
        return Batch(lines, self._seen)


@dataclass(eq=False, slots=True)
class _Tail:
    position: int
    streams: set[Stream] = field(default_factory=set)


class Tails:
    """Every stream of this process, and one tail for each tenant that has any."""

    def __init__(self, db: Database, *, poke: Callable[[], None] = lambda: None) -> None:
        self._db = db
        self._tails: dict[UUID, _Tail] = {}
        self._checked_at = 0.0
        self._closed = False
        self.poke = poke  # set by whoever makes the loop

    def heard(self, tenant: UUID, _kinds: tuple[str, ...] = ()) -> None:
        """Note a commit in this process: whoever streams that tenant's log is served at once."""
        if tenant in self._tails:
            self.poke()

    @property
    def open(self) -> int:
        """How many streams hang on a tail."""
        return sum(len(tail.streams) for tail in self._tails.values())

    # one stream ---------------------------------------------------------------------------------------------

    async def bounds(self, tenant: UUID) -> Bounds:
        """Return between which seqs a tenant's log can be read now."""
        async with self._db.tenant(tenant, purpose="events") as scope:
            row = await scope.fetchrow(SQL["log_bounds"], tenant)
        assert row is not None
        head = row["head"] or 0
        return Bounds(head=head, oldest=row["oldest"] or head + 1)

    async def catch_up(self, stream: Stream) -> Batch:
        """Read the next page behind the stream's position; when it was the last, attach the stream to its tail if it can be."""
        async with self._db.tenant(stream.tenant_id, purpose="events") as scope:
            found = await scope.fetch(
                SQL["list_events"], stream.tenant_id, stream.position, None, None, None, PAGE
            )
            lines = [Line(event_of(row)) for row in found]
            seen = await sight.seen_by(scope, (line.named for line in lines), [stream.reader.account_id])
        if lines:
            stream.position = lines[-1].seq
        if len(lines) < PAGE:
            self._attach(stream)
        return Batch([line for line in lines if stream.takes(line, seen)], stream.position)

    def is_live(self, stream: Stream) -> bool:
        """Tell whether a stream hangs on its tail: from then on it is told by `next`."""
        tail = self._tails.get(stream.tenant_id)
        return tail is not None and stream in tail.streams

    def _attach(self, stream: Stream) -> None:
        if self._closed:
            stream.end("closing")
            return
        # nothing waits between the look and the act: what the tail reads next is offered to this stream too
        tail = self._tails.setdefault(stream.tenant_id, _Tail(stream.position))
        if stream.position >= tail.position:
            tail.streams.add(stream)
            telemetry.streams.set(self.open)
            self.poke()

    def leave(self, stream: Stream) -> None:
        """Let go of a stream; a tail without any is not read any more."""
        tail = self._tails.get(stream.tenant_id)
        if tail is not None:
            tail.streams.discard(stream)
            if not tail.streams:
                del self._tails[stream.tenant_id]
            telemetry.streams.set(self.open)

    # all of them --------------------------------------------------------------------------------------------

    async def run_once(self) -> bool:
        """Read once for all tails, and look whether those who listen still may; tell whether there is more at once."""
        tails = dict(self._tails)
        if not tails:
            return False
        now = asyncio.get_running_loop().time()
        read: dict[UUID, list[Line]] = {}
        async with self._db.system("event tails") as scope:
            positions = [tail.position for tail in tails.values()]
            for row in await scope.fetch(SQL["tail_events"], list(tails), positions, PAGE):
                read.setdefault(row["tenant_id"], []).append(Line(event_of(row)))
            lines = [line for of_tenant in read.values() for line in of_tenant]
            check = bool(lines) or now - self._checked_at >= CHECKED_EVERY_SECONDS
            streams = known = self._streams() if check else []
            roles = await scope.fetch(
                SQL["roles_of_tokens"], [one.tenant_id for one in streams], [one.token_id for one in streams]
            ) if streams else []  # fmt: skip
            seen = await _seen_by(scope, lines, streams)
        while lines and (late := set(self._streams()).difference(streams)):
            # they have come while the question was on its way, and it was not asked about them
            streams = [*streams, *late]
            async with self._db.system("event tails") as scope:
                seen = await _seen_by(scope, lines, streams)
        if check:
            self._checked_at = now
            _end_strangers(known, {row["id"]: row["role"] for row in roles})
        for tenant, news in read.items():
            tails[tenant].position = news[-1].seq
            for stream in tails[tenant].streams:
                stream.offer(news, seen)
        return any(len(news) == PAGE for news in read.values())

    def _streams(self) -> list[Stream]:
        return [stream for tail in self._tails.values() for stream in tail.streams]

    def close(self) -> None:
        """End every stream, and whichever else would begin: the process is asked to stop."""
        self._closed = True
        for tail in list(self._tails.values()):
            for stream in list(tail.streams):
                stream.end("closing")


async def _seen_by(scope: Scope, lines: Sequence[Line], streams: Sequence[Stream]) -> Seen:
    """Ask which of the news, and of what is queued, these streams' readers may be told of."""
    if not lines:
        return Seen()
    queued = (line.named for stream in streams for line in stream.queued)
    accounts = [stream.reader.account_id for stream in streams]
    return await sight.seen_by(scope, [*(line.named for line in lines), *queued], accounts)


def _end_strangers(streams: Iterable[Stream], roles: dict[UUID, str]) -> None:
    for stream in streams:
        if not stream.allowed(roles.get(stream.token_id)):
            stream.end("unauthorized")
