"""What channels and messages accept as input. Pure: takes what a caller sent, leaves it as it is stored, or all that is wrong with it."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mainspring.chat import mentions
from mainspring.chat.model import ENGINES_REQUESTS, Block, Broadcast, Called, NewMessage
from mainspring.rooms import AccountKind, FieldError, Forbidden, Invalid

BLOCKS_MAX: Final = 50
BLOCKS_BYTES_MAX: Final = 256 * 1024
OPTIONS_MAX: Final = 20
OPTION_LENGTH_MAX: Final = 200
MENTIONS_MAX: Final = 100
TOPIC_LENGTH_MAX: Final = 200
REQUEST_LENGTH_MAX: Final = 200
DEFAULT_TOPIC: Final = "general"

_BLANK: Final = frozenset(
    "\u115f\u1160\u2800\u3164\uffa0"
)  # letters and signs by Unicode's count, and nothing to see
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,79}")
_BROADCASTS: Final[Mapping[str, Broadcast]] = mentions.RESERVED


def channel_name(name: str) -> str:
    """Return a channel's name as it is kept. Raises Invalid."""
    folded = name.strip().lstrip("#").lower()
    if not _NAME.fullmatch(folded):
        raise Invalid(
            FieldError("/name", "1 to 80 of a-z, 0-9, - and _, and begins with a letter or a digit")
        )
    return folded


def topic_name(name: str, *, pointer: str = "/topic") -> str:
    """Return a topic's name as it is kept. Raises Invalid."""
    line = name.strip()
    if not 1 <= len(line) <= TOPIC_LENGTH_MAX or any(
        unicodedata.category(one) in ("Cc", "Cs", "Zl", "Zp") for one in line
    ):
        raise Invalid(FieldError(pointer, f"one line of 1 to {TOPIC_LENGTH_MAX} characters"))
    if not any(_shows(one) for one in line):
        raise Invalid(FieldError(pointer, "has a letter, a digit or a sign that one sees"))
    return line


def _shows(one: str) -> bool:
    return unicodedata.category(one)[0] not in "CZM" and one not in _BLANK


def blocks(given: Sequence[Mapping[str, Any]], *, pointer: str = "/blocks") -> tuple[Block, ...]:
    """Return the blocks of a message as they are kept. Raises Invalid."""
    found: list[FieldError] = []
    if not 1 <= len(given) <= BLOCKS_MAX:
        raise Invalid(FieldError(pointer, f"1 to {BLOCKS_MAX} blocks"))
    kept = tuple(_block(found, f"{pointer}/{n}", block) for n, block in enumerate(given))
    ids = [block["id"] for block in kept if block.get("type") == "ask"]
    if len(set(ids)) < len(ids):
        found.append(FieldError(pointer, "two questions have the same id"))
    if not found and (size := len(json.dumps(kept).encode())) > BLOCKS_BYTES_MAX:
        found.append(FieldError(pointer, f"are {size} bytes; {BLOCKS_BYTES_MAX} are allowed"))
    if found:
        raise Invalid(*found)
    return kept


def _block(found: list[FieldError], pointer: str, block: Mapping[str, Any]) -> Block:
    match block.get("type"):
        case "text":
            _only(found, pointer, block, {"type", "text"})
            return {"type": "text", "text": _text(found, f"{pointer}/text", block.get("text"))}
        case "ask":
            _only(found, pointer, block, {"type", "id", "question", "options"})
            return {
                "type": "ask",
                "id": _text(found, f"{pointer}/id", block.get("id"), length_max=64),
                "question": _text(found, f"{pointer}/question", block.get("question"), length_max=16_384),
                "options": _options(found, f"{pointer}/options", block.get("options", [])),
            }
        case _:
            found.append(FieldError(f"{pointer}/type", "is text or ask"))
            return {}


def _only(found: list[FieldError], pointer: str, block: Mapping[str, Any], names: set[str]) -> None:
    found.extend(
        FieldError(f"{pointer}/{name}", "is no field of this block") for name in sorted(set(block) - names)
    )


def _text(found: list[FieldError], pointer: str, value: object, *, length_max: int = BLOCKS_BYTES_MAX) -> str:
    if not isinstance(value, str) or not value.strip():
        found.append(FieldError(pointer, "is a text that is not empty"))
        return ""
    if "\0" in value or any("\ud800" <= one <= "\udfff" for one in value):
        found.append(FieldError(pointer, "holds a character that is no text"))
    if len(value) > length_max:
        found.append(FieldError(pointer, f"is {len(value)} characters long; {length_max} are allowed"))
    return value


def _options(found: list[FieldError], pointer: str, value: object) -> list[str]:
    if not isinstance(value, list) or len(value) > OPTIONS_MAX:
        found.append(
            FieldError(pointer, f"is a list of at most {OPTIONS_MAX} texts; leave it out for any answer")
        )
        return []
    options = [
        _text(found, f"{pointer}/{n}", one, length_max=OPTION_LENGTH_MAX).strip()
        for n, one in enumerate(value)
    ]
    if len({option.casefold() for option in options}) < len(options):
        found.append(FieldError(pointer, "names an option twice; case and outer space do not matter"))
    return options


def new_message(
    *,
    topic: str | None,
    given: Sequence[Mapping[str, Any]],
    named: Sequence[str],
    request_id: str,
    final: bool,
    author_kind: AccountKind,
    may_broadcast: bool,
) -> NewMessage:
    """Return a message that is about to be posted. Raises Invalid, and Forbidden for a call to everybody that is not the author's to make."""
    if not 1 <= len(request_id) <= REQUEST_LENGTH_MAX or "\0" in request_id:
        raise Invalid(FieldError("/request_id", f"1 to {REQUEST_LENGTH_MAX} characters"))
    if request_id.startswith(ENGINES_REQUESTS):
        raise Invalid(
            FieldError("/request_id", f"does not begin with {ENGINES_REQUESTS}, as the server's own do")
        )
    kept = blocks(given)
    means = _means(named, kept, author_kind)
    whom = _called(means, named, author_kind, may_broadcast=may_broadcast)
    name = topic_name(DEFAULT_TOPIC if topic is None else topic)
    told = [name.casefold(), kept, sorted(means), final]
    return NewMessage(
        topic=name,
        blocks=kept,
        mentions=whom.mentions,
        named=whom.named,
        broadcast=whom.broadcast,
        request_id=request_id,
        sent=hashlib.sha256(json.dumps(told, sort_keys=True).encode()).digest(),
        final=final,
    )


def called(
    named: Sequence[str], kept: Sequence[Block], *, author_kind: AccountKind, may_broadcast: bool
) -> Called:
    """Return whom a message calls. Raises Invalid, and Forbidden for a call to everybody that is not the author's to make.

    A person calls by `@` in the text, or by name; an agent by name alone: its `@` is a letter.
    """
    return _called(_means(named, kept, author_kind), named, author_kind, may_broadcast=may_broadcast)


def _means(named: Sequence[str], kept: Sequence[Block], author_kind: AccountKind) -> set[str]:
    if len(named) > MENTIONS_MAX:
        raise Invalid(FieldError("/mentions", f"at most {MENTIONS_MAX}"))
    means = {_handle(name) for name in named}
    if author_kind == "human":
        means |= {
            name for block in kept if block["type"] == "text" for name in mentions.called(block["text"])
        }
    return means


def _handle(name: str) -> str:
    return name.strip().lstrip("@").lower()


def _called(
    means: set[str], named: Sequence[str], author_kind: AccountKind, *, may_broadcast: bool
) -> Called:
    everybody = _everybody(means)
    if everybody is not None and not (author_kind == "human" or may_broadcast):
        raise Forbidden(f"@{everybody} asks for a person, or a token with the extra broadcast")
    return Called(
        mentions=frozenset(means - set(_BROADCASTS)),
        named=[_handle(name) for name in named],
        broadcast=everybody,
    )


def _everybody(means: set[str]) -> Broadcast | None:
    """Return the widest call of those that were made."""
    return next(
        (_BROADCASTS[name] for name in (mentions.EVERYONE, mentions.ALL_AGENTS) if name in means), None
    )
