"""A card as a client sees it: a value, and verbs that return the card as it is afterwards."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from mainspring.sdk.client import Client
from mainspring.sdk.messages import Posted, post
from mainspring.sdk.wire import segment


class Keep(Enum):
    """What is given for what is to stay as it is."""

    KEEP = "keep"


KEEP: Final = Keep.KEEP


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A card at one version. The verbs change the server's card and return the new value; this one stays as it was.

    `if_version=card.version` makes a verb raise `Conflict` instead of overwriting what somebody did meanwhile.
    """

    id: str
    key: str
    board: str
    title: str
    body: str
    state: str
    labels: frozenset[str]
    agent: str | None
    assignee: str | None
    priority: int
    fields: Mapping[str, Any]
    version: int
    client: Client = field(repr=False, compare=False)

    async def move(self, state: str, *, if_version: int | None = None) -> Card:
        """Move it to `state`."""
        return await self._post("move", {"state": state}, if_version)

    async def label(self, *add: str, remove: Iterable[str] = (), if_version: int | None = None) -> Card:
        """Put the labels `add` on it and take `remove` off."""
        return await self._post("labels", {"add": list(add), "remove": list(remove)}, if_version)

    async def assign(
        self,
        *,
        agent: str | Keep | None = KEEP,
        assignee: str | Keep | None = KEEP,
        if_version: int | None = None,
    ) -> Card:
        """Set its agent, its assignee, or both, by their handles; None takes one away."""
        given = {"agent": agent, "assignee": assignee}
        body = {name: value for name, value in given.items() if not isinstance(value, Keep)}
        return await self._post("assign", body, if_version)

    async def edit(
        self,
        *,
        title: str | None = None,
        body: str | None = None,
        priority: int | None = None,
        fields: Mapping[str, Any] | None = None,
        if_version: int | None = None,
    ) -> Card:
        """Change what is given; `fields` are merged into the card's own, a None takes a field away."""
        given = {"title": title, "body": body, "priority": priority, "fields": fields}
        changes = {key: value for key, value in given.items() if value is not None}
        return card_from(
            await self.client.patch(f"/cards/{segment(self.id)}", changes, if_version=if_version), self.client
        )

    async def comment(self, text: str, *, key: str | None = None, mentions: Sequence[str] = ()) -> Posted:
        """Post `text` to the card's topic, once for its `key`: again with other words, it is edited. `mentions` are called by their handles."""
        path = f"/cards/{segment(self.id)}/comments"
        return await post(self.client, path, text, key or str(uuid.uuid4()), mentions=mentions)

    async def refresh(self) -> Card:
        """Return it as it is now."""
        return await get_card(self.client, self.id)

    async def _post(self, verb: str, body: Mapping[str, Any], if_version: int | None) -> Card:
        answer = await self.client.post(f"/cards/{segment(self.id)}/{verb}", body, if_version=if_version)
        return card_from(answer, self.client)


async def get_card(client: Client, ref: str) -> Card:
    """Return the card with this id or key (`OPS-12`). Raises NotFound."""
    return card_from(await client.get(f"/cards/{segment(ref)}"), client)


def card_from(said: Mapping[str, Any], client: Client) -> Card:
    """Read a card of the server's."""
    return Card(
        id=said["id"],
        key=said["key"],
        board=said["board"],
        title=said["title"],
        body=said.get("body") or "",
        state=said["state"],
        labels=frozenset(said.get("labels") or ()),
        agent=said.get("agent"),
        assignee=said.get("assignee"),
        priority=said.get("priority") or 0,
        fields=said.get("fields") or {},
        version=said["version"],
        client=client,
    )
