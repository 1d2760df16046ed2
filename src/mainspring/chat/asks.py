"""Answers to questions that stand in messages. Takes the first one; leaves it posted in the question's topic, mentioning who asked, so that
it is owed to them like any other message, and the question answered, in one transaction.

If it dies here, nobody has answered.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final
from uuid import UUID

from mainspring.chat import reads, verbs
from mainspring.chat.model import ENGINES_REQUESTS, NewMessage
from mainspring.chat.questions import MessageAsk, append, read_asks
from mainspring.chat.rows import SQL
from mainspring.db import Database
from mainspring.rooms import Actor, Conflict, FieldError, Invalid, NotFound, ServerSpine

_LIST = SQL["list_message_asks"]
_ANSWER = SQL["answer_message_ask"]
_LOCK_CHANNEL = SQL["lock_channel"]

ANSWER_LENGTH_MAX: Final = 16_384
_LOWEST: Final = UUID(int=0)


class MessageAskService:
    """Questions of messages as people, and agents, see and answer them."""

    def __init__(self, spine: ServerSpine, db: Database) -> None:
        self._spine = spine
        self._db = db

    async def list_asks(
        self, actor: Actor, *, all_states: bool = False, after: UUID | None = None, limit: int = 50
    ) -> list[MessageAsk]:
        """Return the questions that the actor sees and that wait for an answer, or all, behind `after`, the oldest first."""
        async with self._db.tenant(actor.tenant_id) as scope:
            rows = await scope.fetch(
                _LIST, actor.tenant_id, after or _LOWEST, not all_states, actor.account_id, limit
            )
            return await read_asks(scope, actor.tenant_id, [row["id"] for row in rows], actor.account_id)

    async def get(self, actor: Actor, ask_id: UUID) -> MessageAsk:
        """Return one question. Raises NotFound."""
        async with self._db.tenant(actor.tenant_id) as scope:
            found = await read_asks(scope, actor.tenant_id, [ask_id], actor.account_id)
        if not found:
            raise NotFound("ask", ask_id)
        return found[0]

    async def answer(self, actor: Actor, ask_id: UUID, text: str) -> MessageAsk:
        """Answer a question: the first answer counts. Raises NotFound, Invalid, Forbidden, and Conflict when another was quicker, or
        nothing is said there any more."""
        async with self._spine.open(actor.tenant_id) as tx:
            found = await read_asks(tx.handle, tx.tenant, [ask_id], actor.account_id)
            if not found:
                raise NotFound("ask", ask_id)
            [ask] = found
            said = checked_answer(ask, text)
            # answers of one channel come in turn, and see what the one before has come to
            await tx.handle.execute(_LOCK_CHANNEL, tx.tenant, ask.channel_id)
            found = await read_asks(tx.handle, tx.tenant, [ask_id], actor.account_id)
            if not found:
                raise NotFound("ask", ask_id)
            [ask] = found
            if ask.state == "answered":
                if ask.answered_by_id == actor.account_id and ask.answer == said:
                    return ask
                raise Conflict(f"{ask.answered_by} has answered it: {ask.answer}", code="ask_answered")
            channel = await reads.find_channel(tx.handle, tx.tenant, actor.account_id, str(ask.channel_id))
            assert channel is not None
            message, _ = await verbs.post(tx, channel, _answer_message(ask, said), actor)
            await tx.handle.execute(_ANSWER, tx.tenant, ask.id, said, actor.account_id)
            [after] = await read_asks(tx.handle, tx.tenant, [ask_id], actor.account_id)
            append(tx, "ask.answered", after, message, actor)
            return after


def checked_answer(ask: MessageAsk, text: str) -> str:
    """Return an answer as it is kept: one of the options as the question spells it, or any text. Raises Invalid."""
    said = text.strip()
    if not 1 <= len(said) <= ANSWER_LENGTH_MAX or "\0" in said:
        raise Invalid(FieldError("/answer", f"1 to {ANSWER_LENGTH_MAX} characters"))
    if not ask.options:
        return said
    for option in ask.options:
        if option.casefold() == said.casefold():
            return option
    raise Invalid(FieldError("/answer", f"is none of the options: {', '.join(ask.options)}"))


def _answer_message(ask: MessageAsk, said: str) -> NewMessage:
    block = {"type": "answer", "ask_id": str(ask.id), "question": ask.question, "answer": said}
    return NewMessage(
        topic=ask.topic_name,
        blocks=[block],
        mentions=frozenset({ask.author_handle}),
        request_id=f"{ENGINES_REQUESTS}answer:{ask.id}",
        sent=sha256(said.encode()).digest(),
    )
