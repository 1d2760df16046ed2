"""Prompts: `{{card.title}}`-style names, filled in from what the event said. Pure.

Takes a template and an event; leaves a text, or the first name that it could not find. A template that could not be
filled for a kind of event that its rule fires on is refused when the rule is written, so that only a card's own fields
can be missing later.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from mainspring.boards.model import Card
from mainspring.spine.events import Event
from mainspring.triggers.matcher import card_of
from mainspring.triggers.terms import (
    ASK_KINDS,
    CARD_KINDS,
    EFFECT_KINDS,
    MEMBER_KINDS,
    MESSAGE_KINDS,
    RULE_CHANGED,
    RULE_KINDS,
    RUN_KINDS,
    is_custom,
)

DEFAULT: Final = "{{card.title}}\n\n{{card.body}}"
DEFAULT_WITHOUT_CARD: Final = "{{event.kind}} {{event.subject}}"
DEFAULT_OF_MESSAGES: Final = (
    "{{message.author}} in {{message.channel}}, {{message.topic}}:\n\n{{message.text}}"
)
LENGTH_MAX: Final = 262_144  # of a filled-in prompt, as the runs table has it
_TAG: Final = re.compile(r"\{\{([^{}]*+)\}\}")  # no brace within: else each {{ would look for a }} to the end
_NAME: Final = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)*")

# root → (the names under it, the kinds that carry it, whether custom events do); no names: the root itself is the value
_CARD: Final = frozenset(
    {"id", "key", "board_id", "board", "number", "title", "body", "state", "labels", "agent_id", "agent", "assignee_id",
     "priority", "fields", "version", "state_version", "eligible_version"}
)  # fmt: skip
_RUN: Final = frozenset(
    {"id", "agent_id", "agent", "card_id", "state", "attempts", "outcome", "error", "rule_id", "rule_version", "event_seq"}
)  # fmt: skip
_EFFECT: Final = frozenset({"id", "kind", "key", "event_seq", "outcome", "error"})
_MESSAGE: Final = frozenset(
    {"id", "channel", "channel_id", "topic", "topic_id", "card_id", "channel_seq", "author", "author_id", "author_kind", "text",
     "revision"}
)  # fmt: skip
_NOBODY: Final = frozenset[str]()
_EVERY: Final = RULE_KINDS
NAMES: Final[Mapping[str, tuple[frozenset[str], frozenset[str]]]] = {
    "card": (_CARD, CARD_KINDS | RUN_KINDS),
    "run": (_RUN, RUN_KINDS),
    "effect": (_EFFECT, EFFECT_KINDS),
    "message": (_MESSAGE, MESSAGE_KINDS),
    "channel": (frozenset({"id", "name"}), MEMBER_KINDS),
    "member": (frozenset({"id", "kind", "handle"}), MEMBER_KINDS),
    "ask": (frozenset({"id", "question", "options", "state", "answer"}), ASK_KINDS),
    "rule": (frozenset({"id", "name", "version", "enabled"}), frozenset({RULE_CHANGED})),
    "event": (frozenset({"kind", "seq", "subject", "occurred_at"}), _EVERY),
    "actor": (frozenset({"id", "kind", "handle"}), _EVERY - {"effect.dead"}),  # nobody gives an effect up
    "from": (_NOBODY, frozenset({"card.moved"})),
    "to": (_NOBODY, frozenset({"card.moved"})),
    "added": (_NOBODY, frozenset({"card.labeled"})),
    "removed": (_NOBODY, frozenset({"card.unlabeled"})),
    "change": (_NOBODY, frozenset({RULE_CHANGED})),
    "reason": (_NOBODY, frozenset({"effect.discarded"})),
    "data": (_NOBODY, _NOBODY),
}
_CUSTOM: Final = frozenset({"card", "event", "actor", "data"})  # the roots that a custom event may have
_OPEN: Final = frozenset({"card.fields", "data"})  # what stands below is the user's own


# When the rule is written ---------------------------------------------------------------------------------------


def default_for(kinds: Iterable[str]) -> str:
    """Return what is told when a rule says nothing: the card, where its events have one; else the message."""
    kinds = frozenset(kinds)
    if kinds and kinds <= MESSAGE_KINDS:
        return DEFAULT_OF_MESSAGES
    return DEFAULT if any(kind in CARD_KINDS or kind in RUN_KINDS for kind in kinds) else DEFAULT_WITHOUT_CARD


def defects(template: str, kinds: Iterable[str]) -> Iterator[str]:
    """Yield why a template could not be filled for every one of these kinds of event."""
    rest = _TAG.sub(" ", template)
    if "{{" in rest or "}}" in rest:
        yield "has a {{ without its }}, or the other way round"
    for name in names(template):
        if not _NAME.fullmatch(name):
            yield f"{{{{{name}}}}} is no name: a name is words joined by dots, as in card.title"
        elif (defect := _defect(name, frozenset(kinds))) is not None:
            yield defect


def names(template: str) -> list[str]:
    """Return the names in a template, in order, each once."""
    return list(dict.fromkeys(tag.strip() for tag in _TAG.findall(template)))


def _defect(name: str, kinds: frozenset[str]) -> str | None:
    root, *path = name.split(".")
    if root not in NAMES:
        return f"knows no name {name}{_meant(root, NAMES)}"
    below, carriers = NAMES[root]
    if root in _OPEN:
        pass
    elif not below:
        if path:
            return f"knows no name {name}: {root} has nothing below it"
    elif not path:
        return f"{{{{{root}}}}} is not one value: say {root}.{min(below)} or the like"
    elif path[0] not in below:
        return f"knows no name {name}{_meant(path[0], below, prefix=root + '.')}"
    elif len(path) > 1 and f"{root}.{path[0]}" not in _OPEN:
        return f"knows no name {name}: {root}.{path[0]} has nothing below it"
    if lacking := sorted(kind for kind in kinds if not _carries(kind, root, carriers)):
        return f"{{{{{name}}}}} would be missing in {', '.join(lacking)}: every launch by it would die"
    return None


def _carries(kind: str, root: str, carriers: frozenset[str]) -> bool:
    return root in _CUSTOM if is_custom(kind) else kind in carriers


def _meant(word: str, known: Iterable[str], *, prefix: str = "") -> str:
    every = sorted(known)
    close = get_close_matches(word, every, n=1)
    return (
        f"; did you mean {prefix}{close[0]}?"
        if close
        else f"; known: {', '.join(prefix + one for one in every)}"
    )


# When the launch is executed ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Filled:
    """The prompt."""

    text: str


@dataclass(frozen=True, slots=True)
class Missing:
    """Nothing was found under this name."""

    name: str


@dataclass(frozen=True, slots=True)
class TooLong:
    """It would be longer than a prompt may be."""

    length: int


# parts of an event's data that are names by themselves
_SAID: Final = (
    "run",
    "message",
    "channel",
    "member",
    "ask",
    "actor",
    "effect",
    "rule",
    "from",
    "to",
    "added",
    "removed",
    "change",
    "reason",
    "data",
)


def values_of(event: Event, card_now: Mapping[str, Any] | None) -> Sequence[Mapping[str, Any]]:
    """Return where names are looked up: in what the event said, and then on the card as it is now.

    The event goes first, since it is why the agent runs. What it lacks may have been added to the card since: that is how
    a launch that died of a missing field is mended and replayed.
    """
    said = {
        "card": card_of(event),
        **{name: event.data[name] for name in _SAID if name in event.data},
        "event": {
            "kind": event.kind,
            "seq": event.seq,
            "subject": event.subject,
            "occurred_at": event.occurred_at.isoformat(),
        },
    }
    return (said, {"card": card_now})


def render(template: str, values: Sequence[Mapping[str, Any]]) -> Filled | Missing | TooLong:
    """Fill in a template. What is filled in is text, never template: a card's title cannot name anything."""
    found: dict[str, str] = {}
    for name in names(template):
        text = next((text for place in values if (text := _looked_up(place, name)) is not None), None)
        if text is None:
            return Missing(name)
        found[name] = text
    text = _TAG.sub(lambda tag: found[tag[1].strip()], template)
    return Filled(text) if len(text) <= LENGTH_MAX else TooLong(len(text))


def of_dispatch(card: Card) -> Filled | TooLong:
    """Return what a dispatched agent is told: its card, as it is now."""
    text = f"{card.title}\n\n{card.body}".rstrip()
    return Filled(text) if len(text) <= LENGTH_MAX else TooLong(len(text))


def _looked_up(place: Any, name: str) -> str | None:
    for part in name.split("."):
        if not isinstance(place, Mapping) or part not in place:
            return None
        place = place[part]
    return _as_text(place)


def _as_text(value: Any) -> str:
    match value:
        case str():
            return value
        case None:
            return ""  # known to be nothing, as the pin of a card that nobody has
        case list() if all(isinstance(one, str) for one in value):
            return ", ".join(value)
        case _:
            return json.dumps(value, ensure_ascii=False)
