"""What a rule may say. Pure: takes what a caller sent, leaves a definition, or all that is wrong with it at once.

A rule that can never fire is refused with the reason; one that can, though a name in it stands for nothing, is accepted
with a remark. Everything here is decided before anything is written.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final

from mainspring.boards.model import fold
from mainspring.rooms import FieldError, Invalid
from mainspring.triggers import prompts
from mainspring.triggers.model import (
    ACTOR_CLASSES,
    CARRIED,
    EVERYONE,
    RULE_KINDS,
    TERMS,
    Definition,
    Known,
    Launch,
    Options,
    Remark,
    TermName,
    Terms,
)

NAME_LENGTH_MAX: Final = 200
VALUES_MAX: Final = 64
VALUE_LENGTH_MAX: Final = 64
TEMPLATE_LENGTH_MAX: Final = 65_536

NOT_YET: Final = "not_available_yet"
# known to the language of rules, and not to this release
_LATER: Final[Mapping[str, frozenset[str]]] = {
    "/when": frozenset({"min_trust", "fields", "channels", "sources", "ref", "branches"}),
    "/do": frozenset({"promote", "webhook"}),
    "/options": frozenset(
        {
            "max_event_age_seconds",
            "cooldown_seconds",
            "max_per_hour",
            "while_running",
            "queued_timeout_seconds",
        }
    ),
}
_KINDS_LATER: Final = re.compile(
    r"(message|ask|member|session|schedule|forge|effect|rule|custom)\.[a-z0-9_.-]+"
)
_OPTIONS: Final = ("consume_label", "recheck", "self_trigger")
_HANDLE: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_BOARD_KEY: Final = re.compile(r"[A-Z][A-Z0-9]{0,9}")


class _Findings:
    """What is wrong, field by field."""

    def __init__(self) -> None:
        self.errors: list[FieldError] = []
        self._later = False

    def add(self, pointer: str, detail: str) -> None:
        self.errors.append(FieldError(pointer, detail))

    def later(self, pointer: str, name: str) -> None:
        self.add(pointer, f"{name} is not available yet")
        self._later = True

    def refuse(self) -> None:
        if self.errors:
            raise Invalid(*self.errors, code=NOT_YET if self._later else "invalid")


def definition_of(body: Mapping[str, Any]) -> Definition:
    """Read a rule as a caller sent it; raise Invalid, naming every field at fault."""
    found = _Findings()
    _only(found, "", body, ("name", "when", "do", "options"))
    name = _line(found, "/name", body.get("name"))
    terms = _terms(found, _object(found, "/when", body.get("when", {})))
    action = _action(found, _object(found, "/do", body.get("do")))
    options = _options(found, _object(found, "/options", body.get("options", {})))
    found.refuse()
    assert action is not None
    definition = Definition(name=name, terms=terms, action=action, options=options)
    _fires(found, definition)
    found.refuse()
    return definition


# The shape ------------------------------------------------------------------------------------------------------


def _object(found: _Findings, pointer: str, value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    found.add(pointer, "must be an object" if value is not None else "is missing")
    return {}


def _only(found: _Findings, pointer: str, value: Mapping[str, Any], known: Iterable[str]) -> None:
    known = tuple(known)
    for name in value:
        if name in known:
            continue
        where = _below(pointer, name)
        if name in _LATER.get(pointer, ()):
            found.later(where, name)
        elif home := next(
            (place for place, names in _HOMES.items() if name in names and place != pointer), None
        ):
            found.add(where, f"belongs under {home}")
        else:
            close = get_close_matches(name, known, n=1)
            found.add(
                where,
                f"is no field; did you mean {close[0]}?"
                if close
                else f"is no field; known: {', '.join(known)}",
            )


_HOMES: Final[Mapping[str, frozenset[str]]] = {
    "/when": frozenset(TERMS) | _LATER["/when"],
    "/do": frozenset({"launch"}) | _LATER["/do"],
    "/options": frozenset(_OPTIONS) | _LATER["/options"],
}


def _below(pointer: str, name: str) -> str:
    shown = name.encode(errors="replace").decode()[:NAME_LENGTH_MAX]
    return pointer + "/" + shown.replace("~", "~0").replace("/", "~1")


def _line(found: _Findings, pointer: str, value: Any, *, length_max: int = NAME_LENGTH_MAX) -> str:
    if not isinstance(value, str):
        found.add(pointer, "must be text" if value is not None else "is missing")
        return ""
    text = value.strip()
    if not text:
        found.add(pointer, "must not be empty")
    elif len(text) > length_max:
        found.add(pointer, f"is {len(text)} characters long; {length_max} are allowed")
    elif any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in text):
        found.add(pointer, "must be one line, without control characters")
    return text


def _terms(found: _Findings, when: Mapping[str, Any]) -> Terms:
    _only(found, "/when", when, TERMS)
    return Terms(**{term: _values(found, term, when[term]) for term in TERMS if term in when})


def _values(found: _Findings, term: TermName, values: Any) -> frozenset[str]:
    pointer = f"/when/{term}"
    if not isinstance(values, list | tuple):
        found.add(pointer, "must be a list")
        return frozenset()
    if not values:
        found.add(pointer, "is empty, and so could never hold; leave it out to ask nothing")
    elif len(values) > VALUES_MAX:
        found.add(pointer, f"has {len(values)} values; {VALUES_MAX} are allowed")
        return frozenset()
    return frozenset(_value(found, term, f"{pointer}/{n}", value) for n, value in enumerate(values))


def _value(found: _Findings, term: TermName, pointer: str, value: Any) -> str:
    before = len(found.errors)
    text = fold(_line(found, pointer, value, length_max=VALUE_LENGTH_MAX))
    if len(found.errors) > before:
        return text
    match term:
        case "kinds" if text not in RULE_KINDS:
            if _KINDS_LATER.fullmatch(text):
                found.later(pointer, f"a rule on {text}")
            else:
                found.add(pointer, f"no kind of event: {text}{_meant(text, RULE_KINDS)}")
        case "boards":
            text = text.upper()
            if not _BOARD_KEY.fullmatch(text):
                found.add(pointer, f"no board key: {text}; one is like OPS")
        case "actors" | "agents":
            text = text.removeprefix("@")
            if not _HANDLE.fullmatch(text):
                found.add(pointer, f"no handle: {text}; one is like ada or build-bot")
        case _:
            pass
    return text


def _action(found: _Findings, do: Mapping[str, Any]) -> Launch | None:
    _only(found, "/do", do, ("launch",))
    if "launch" not in do:
        if not found.errors:
            found.add("/do/launch", "is missing: what shall the rule do?")
        return None
    launch = _object(found, "/do/launch", do["launch"])
    _only(found, "/do/launch", launch, ("agent", "prompt"))
    agent = fold(
        _line(found, "/do/launch/agent", launch.get("agent"), length_max=VALUE_LENGTH_MAX)
    ).removeprefix("@")
    if agent and not _HANDLE.fullmatch(agent):
        found.add("/do/launch/agent", f"no handle: {agent}; one is like build-bot")
    return Launch(agent=agent, prompt=_template(found, launch.get("prompt", prompts.DEFAULT)))


def _template(found: _Findings, value: Any) -> str:
    pointer = "/do/launch/prompt"
    if not isinstance(value, str) or not value.strip():
        found.add(pointer, "must be text, and not empty")
        return ""
    if len(value) > TEMPLATE_LENGTH_MAX:
        found.add(pointer, f"is {len(value)} characters long; {TEMPLATE_LENGTH_MAX} are allowed")
    elif "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        found.add(pointer, "must be valid Unicode, without NUL")
    return value


def _options(found: _Findings, options: Mapping[str, Any]) -> Options:
    _only(found, "/options", options, _OPTIONS)
    for name in _OPTIONS:
        if name in options and not isinstance(options[name], bool):
            found.add(f"/options/{name}", "must be true or false")
    return Options(**{name: options.get(name) is True for name in _OPTIONS})


# Can it ever fire? ----------------------------------------------------------------------------------------------


def _fires(found: _Findings, definition: Definition) -> None:
    terms, options = definition.terms, definition.options
    if not terms.firing_kinds:
        found.add(*_no_kind(terms))
    else:
        for term, reason in _contradictions(terms):
            found.add(f"/when/{term}", f"can never fire: {reason}")
        for defect in prompts.defects(definition.action.prompt, terms.firing_kinds):
            found.add("/do/launch/prompt", defect)
    if options.consume_label and not terms.labels_all:
        found.add("/options/consume_label", "takes the labels of labels_all off, and there are none")
    if terms.firing_kinds == {"card.deleted"}:
        for name in ("consume_label", "recheck"):
            if getattr(options, name):
                found.add(f"/options/{name}", "can never fire: a deleted card is not there to look at")


def _no_kind(terms: Terms) -> tuple[str, str]:
    kinds = terms.kinds or RULE_KINDS
    for term in terms.asked:
        if not any(term in CARRIED[kind] for kind in kinds):
            carriers = sorted(kind for kind in RULE_KINDS if term in CARRIED[kind])
            named = ", ".join(sorted(kinds))
            return f"/when/{term}", f"can never fire: {named} carries no {term}; {_listed(carriers)} does"
    picky = [term for term in terms.asked if any(term not in CARRIED[kind] for kind in kinds)]
    return f"/when/{picky[-1]}", f"can never fire: no kind of event carries {' and '.join(picky)} at once"


def _listed(kinds: list[str]) -> str:
    return ", ".join(kinds) if len(kinds) < 4 else ", ".join(kinds[:3]) + ", …"


# The terms that meet, when they cannot hold together, and why. A snapshot shows the card after its change.
_NEVER: Final[tuple[tuple[tuple[TermName, TermName], Callable[[Terms], bool], str], ...]] = (
    (
        ("from_states", "to_states"),
        lambda t: len(t.from_states | t.to_states) == 1,
        "a move ends in another state than it began in",
    ),
    (
        ("to_states", "states"),
        lambda t: t.states.isdisjoint(t.to_states),
        "a card that has moved is in one of to_states",
    ),
    (
        ("labels_all", "labels_none"),
        lambda t: bool(t.labels_all & t.labels_none),
        "labels_all asks for a label that it forbids",
    ),
    (
        ("labels_any", "labels_none"),
        lambda t: t.labels_any <= t.labels_none,
        "it forbids every label of labels_any",
    ),
    (
        ("labels_added", "labels_none"),
        lambda t: t.labels_added <= t.labels_none,
        "it forbids every label of labels_added",
    ),
)


def _contradictions(terms: Terms) -> Iterable[tuple[TermName, str]]:
    for pair, never, reason in _NEVER:
        if all(terms.values(term) for term in pair) and never(terms):
            yield pair[-1], reason


# Do its names stand for anything? -------------------------------------------------------------------------------


def handles_of(definition: Definition) -> frozenset[str]:
    """Return the handles that a rule names."""
    actors = definition.terms.actors - ACTOR_CLASSES.keys() - {EVERYONE}
    return actors | definition.terms.agents | {definition.action.agent}


def remarks_on(definition: Definition, known: Known) -> list[Remark]:
    """Look a rule's names up. Raise Invalid when it could not fire, or only to die; return what else is unknown."""
    found, remarks = _Findings(), list[Remark]()
    if known.accounts.get(definition.action.agent) != "agent":
        found.add(
            "/do/launch/agent", f"no agent {definition.action.agent}{_meant_account(definition, known)}"
        )
    for term, unknown, every in _unknown(definition.terms, known):
        listed = ", ".join(sorted(unknown))
        if every:
            found.add(f"/when/{term}", f"can never fire: there is no {_NOUNS[term]} {listed}")
        else:
            remarks.append(Remark(f"/when/{term}", f"there is no {_NOUNS[term]} {listed}"))
    found.refuse()
    if not definition.terms.asked:
        remarks.append(Remark("/when", "asks nothing: every change of every card and run launches"))
    return remarks


_NOUNS: Final[Mapping[str, str]] = {
    "boards": "board",
    "from_states": "such state on its boards:",
    "to_states": "such state on its boards:",
    "states": "such state on its boards:",
    "actors": "account",
    "agents": "agent",
}


def _unknown(terms: Terms, known: Known) -> Iterable[tuple[TermName, frozenset[str], bool]]:
    """Yield each term with the values that stand for nothing, and whether that leaves it none."""
    boards = terms.boards or frozenset(known.boards)
    states = frozenset[str]().union(*(known.boards.get(board, frozenset()) for board in boards))
    agents = frozenset(handle for handle, kind in known.accounts.items() if kind == "agent")
    there: Mapping[TermName, frozenset[str]] = {
        "boards": frozenset(known.boards),
        "from_states": states,
        "to_states": states,
        "states": states,
        "actors": frozenset(known.accounts) | ACTOR_CLASSES.keys() | {EVERYONE},
        "agents": agents,
    }
    if terms.boards and terms.boards.isdisjoint(known.boards):
        there = {
            term: values for term, values in there.items() if "states" not in term
        }  # said once, of the board
    for term, values in there.items():
        if unknown := terms.values(term) - values:
            yield term, unknown, unknown == terms.values(term)


def _meant_account(definition: Definition, known: Known) -> str:
    return ": that is no agent's handle" if definition.action.agent in known.accounts else ""


def _meant(word: str, every: Iterable[str]) -> str:
    close = get_close_matches(word, sorted(every), n=1)
    return f"; did you mean {close[0]}?" if close else f"; known: {', '.join(sorted(every))}"
