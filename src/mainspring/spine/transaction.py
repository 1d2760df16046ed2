"""One tenant's open transaction: takes a change's events and effects, leaves them written with it or not at all.

Events are buffered and written as the last statement, so that the lock on the tenant's log lasts for one commit.
If the process dies anywhere in here, nothing happened.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Generic
from uuid import UUID

from mainspring import tracing
from mainspring.faultpoints import FaultPoint, reach
from mainspring.spine.effects import AlreadyOwed, NewEffect, Owed, check_family
from mainspring.spine.errors import Misuse
from mainspring.spine.events import NewEvent, Written
from mainspring.spine.ports import H, Store


class Transaction(Generic[H]):
    """What a command holds while it changes something. `handle` is the store's own open transaction."""

    def __init__(
        self,
        store: Store[H],
        handle: H,
        tenant: UUID,
        *,
        complete: Callable[[NewEffect], NewEffect] = lambda effect: effect,
    ) -> None:
        """`complete` fills in what is the same for all effects of a kind."""
        self._store = store
        self._complete = complete
        self._pending: list[tuple[NewEvent, Callable[[int], Awaitable[None]] | None]] = []
        self._closed = False
        self.handle = handle
        self.tenant = tenant
        self._owed: list[tuple[UUID, UUID]] = []
        self._has_freed = False
        self.appended: tuple[int, ...] = ()

    def append(self, event: NewEvent, *, stamp: Callable[[int], Awaitable[None]] | None = None) -> None:
        """Append an event when the transaction ends.

        `stamp` is then called with the seq, and may write it on rows that this transaction inserted or holds; nothing else.
        """
        if self._closed:
            raise Misuse("this transaction has written its events already")
        if event.traceparent is None and (traceparent := tracing.current()) is not None:
            event = replace(event, traceparent=traceparent)
        self._pending.append((event, stamp))

    async def owe(self, effect: NewEffect) -> Owed | AlreadyOwed:
        """Owe an effect without an event. Raises Misuse when it is owed already with another payload."""
        if self._closed:
            raise Misuse("this transaction has written its events already")
        check_family(effect)
        [owed] = await self._store.owe(self.handle, [(self.tenant, self._complete(effect))])
        if isinstance(owed, Owed):
            self._owed.append((self.tenant, owed.id))
        return owed

    def owed_again(self, effects: Iterable[UUID]) -> None:
        """Note effects that this transaction has returned to pending, or inserted itself: they are made due when it ends, like those it owes."""
        self._owed += [(self.tenant, effect) for effect in effects]

    def freed(self) -> None:
        """Note that this transaction has made rows due that were held: they are looked for when it has committed."""
        self._has_freed = True

    async def write_events(self) -> None:
        """Write the buffered events; called once, by whoever opened the transaction, right before it commits."""
        if self._closed:
            raise Misuse("this transaction has written its events already")
        self._closed = True
        if self._owed:
            await self._store.make_due(self.handle, self._owed)
        if self._pending:
            with tracing.span("append", tenant=str(self.tenant), kinds=list(self.appended_kinds)):
                await self._append()
            reach(FaultPoint.APPEND_BEFORE_COMMIT)

    async def _append(self) -> None:
        self.appended = await self._store.append(
            self.handle, self.tenant, [event for event, _ in self._pending]
        )
        for seq, (_, stamp) in zip(self.appended, self._pending, strict=True):
            if stamp is not None:
                await stamp(seq)

    @property
    def has_owed(self) -> bool:
        """Whether this transaction has owed an effect, owed one again, or set one free."""
        return bool(self._owed) or self._has_freed

    @property
    def written(self) -> tuple[Written, ...]:
        """What this transaction has appended; nothing before it has."""
        return tuple(
            Written(seq, event.kind, event.subject)
            for seq, (event, _) in zip(self.appended, self._pending, strict=False)
        )

    @property
    def appended_kinds(self) -> tuple[str, ...]:
        """The kinds of the events that this transaction appends."""
        return tuple(event.kind for event, _ in self._pending)
