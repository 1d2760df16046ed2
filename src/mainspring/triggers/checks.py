"""What a rule may say. Pure: takes what a caller sent, leaves a definition, or all that is wrong with it at once.

Here its shape is looked at; whether it can ever fire is asked of `sense`. All is decided before anything is written.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any, Final

from mainspring.boards.model import fold
from mainspring.spine.events import Trust
from mainspring.triggers import prompts, sense
from mainspring.triggers.findings import Findings, meant
from mainspring.triggers.model import (
    OPTIONS,
    WHILE_RUNNING,
    Action,
    Definition,
    Launch,
    Options,
    Promote,
    Webhook,
)
from mainspring.triggers.terms import (
    CHANGES,
    LISTED,
    RULE_KINDS,
    TERMS,
    FieldTerm,
    Scalar,
    TermName,
    Terms,
    is_custom,
)
from mainspring.triggers.webhooks import model as webhooks

NAME_LENGTH_MAX: Final = 200
VALUES_MAX: Final = 64
RUNNER_LABELS_MAX: Final = 20
RUNNER_LABELS_BYTES_MAX: Final = 1_000  # an index walks them: a longer one takes no row
VALUE_LENGTH_MAX: Final = 64
TEMPLATE_LENGTH_MAX: Final = 65_536
FIELD_VALUE_LENGTH_MAX: Final = 1_000
SECONDS_MAX: Final = 30 * 86_400
COOLDOWN_SECONDS_MAX: Final = 7 * 86_400  # what fired is noted no longer
PER_HOUR_MAX: Final = 10_000

# known to the language of rules, and not to this release
_LATER: Final[Mapping[str, frozenset[str]]] = {
    "/when": frozenset({"channels", "sources", "ref", "branches"}),
    "/do": frozenset[str](),
    "/options": frozenset[str](),
}
_KINDS_LATER: Final = re.compile(r"(session|schedule|forge)\.[a-z0-9_.-]+")
_ACTIONS: Final = ("launch", "promote", "webhook")
NUMBER_MAX: Final = 2**63
_CHANNEL: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,79}")
_HANDLE: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_BOARD_KEY: Final = re.compile(r"[A-Z][A-Z0-9]{0,9}")


def definition_of(body: Mapping[str, Any]) -> Definition:
    """Read a rule as a caller sent it; raise Invalid, naming every field at fault."""
    found = Findings()
    _only(found, "", body, ("name", "when", "do", "options"))
    name = _line(found, "/name", body.get("name"))
    terms = _terms(found, _object(found, "/when", body.get("when", {})))
    action = _action(found, _object(found, "/do", body.get("do")), terms)
    options = _options(found, _object(found, "/options", body.get("options", {})))
    found.refuse()
    assert action is not None
    definition = Definition(name=name, terms=terms, action=action, options=options)
    sense.fires(found, definition)
    found.refuse()
    return definition


# The shape ------------------------------------------------------------------------------------------------------


def _object(found: Findings, pointer: str, value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    found.add(pointer, "must be an object" if value is not None else "is missing")
    return {}


def _only(found: Findings, pointer: str, value: Mapping[str, Any], known: Iterable[str]) -> None:
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
            found.add(where, f"is no field{meant(name, known)}")


_HOMES: Final[Mapping[str, frozenset[str]]] = {
    "/when": frozenset(TERMS) | _LATER["/when"],
    "/do": frozenset(_ACTIONS) | _LATER["/do"],
    "/options": frozenset(OPTIONS) | _LATER["/options"],
}


def _below(pointer: str, name: str) -> str:
    shown = name.encode(errors="replace").decode()[:NAME_LENGTH_MAX]
    return pointer + "/" + shown.replace("~", "~0").replace("/", "~1")


def _line(found: Findings, pointer: str, value: Any, *, length_max: int = NAME_LENGTH_MAX) -> str:
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


def _terms(found: Findings, when: Mapping[str, Any]) -> Terms:
    _only(found, "/when", when, TERMS)
    listed = {term: _values(found, term, when[term]) for term in LISTED if term in when}
    fields = _fields(found, when["fields"]) if "fields" in when else ()
    return Terms(**listed, fields=fields, min_trust=_trust(found, when.get("min_trust")))


def _trust(found: Findings, value: Any) -> Trust | None:
    if value is None:
        return None
    if isinstance(value, str) and fold(value) in list(Trust):
        return Trust(fold(value))
    found.add("/when/min_trust", f"must be one of {', '.join(Trust)}")
    return None


def _fields(found: Findings, asked: Any) -> tuple[FieldTerm, ...]:
    pointer = "/when/fields"
    if not isinstance(asked, Mapping):
        found.add(pointer, "must be an object: the name of a card's field, and its value or a list of values")
        return ()
    if not asked:
        found.add(pointer, "is empty; leave it out to ask nothing")
    elif len(asked) > VALUES_MAX:
        found.add(pointer, f"has {len(asked)} fields; {VALUES_MAX} are allowed")
        return ()
    for name in asked:
        _line(found, _below(pointer, name), name)
    return tuple(
        FieldTerm(name, _field_values(found, _below(pointer, name), value))
        for name, value in sorted(asked.items())
    )


def _field_values(found: Findings, pointer: str, value: Any) -> tuple[Scalar, ...]:
    given = value if isinstance(value, list) else [value]
    if not given:
        found.add(pointer, "is empty, and so could never hold")
    elif len(given) > VALUES_MAX:
        found.add(pointer, f"has {len(given)} values; {VALUES_MAX} are allowed")
        return ()
    for one in given:
        if isinstance(one, Mapping | list):
            found.add(pointer, "must be a text, number, true, false or null, or a list of these")
            return ()
        if isinstance(one, str) and (len(one) > FIELD_VALUE_LENGTH_MAX or not _storable(one)):
            found.add(
                pointer, f"must be valid Unicode without NUL, of at most {FIELD_VALUE_LENGTH_MAX} characters"
            )
            return ()
        if isinstance(one, int | float) and not abs(one) < NUMBER_MAX:
            found.add(pointer, "must be a number within 64 bits")
            return ()
    distinct = {(isinstance(one, bool), one): one for one in given}
    return tuple(sorted(distinct.values(), key=lambda one: (type(one).__name__, str(one))))


def _storable(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def _values(found: Findings, term: TermName, values: Any) -> frozenset[str]:
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


def _value(found: Findings, term: TermName, pointer: str, value: Any) -> str:
    before = len(found.errors)
    text = fold(_line(found, pointer, value, length_max=VALUE_LENGTH_MAX))
    if len(found.errors) > before:
        return text
    match term:
        case "kinds" if text not in RULE_KINDS and not is_custom(text):
            if _KINDS_LATER.fullmatch(text):
                found.later(pointer, f"a rule on {text}")
            else:
                found.add(pointer, f"no kind of event: {text}{meant(text, sorted(RULE_KINDS))}")
        case "changes" if text not in CHANGES:
            found.add(pointer, f"no change of a rule: {text}{meant(text, sorted(CHANGES))}")
        case "boards":
            text = text.upper()
            if not _BOARD_KEY.fullmatch(text):
                found.add(pointer, f"no board key: {text}; one is like OPS")
        case "channels":
            text = text.removeprefix("#")
            if not _CHANNEL.fullmatch(text):
                found.add(pointer, f"no channel's name: {text}; one is like general")
        case "actors" | "agents":
            text = text.removeprefix("@")
            if not _HANDLE.fullmatch(text):
                found.add(pointer, f"no handle: {text}; one is like ada or build-bot")
        case _:
            pass
    return text


def _action(found: Findings, do: Mapping[str, Any], terms: Terms) -> Action | None:
    _only(found, "/do", do, _ACTIONS)
    asked = [name for name in _ACTIONS if name in do]
    if not asked:
        if not found.errors:
            found.add("/do/launch", "is missing: what shall the rule do?")
        return None
    if len(asked) > 1:
        found.add("/do", f"does one thing, and here are {' and '.join(asked)}: make a rule of each")
        return None
    if asked == ["webhook"]:
        hook = _object(found, "/do/webhook", do["webhook"])
        _only(found, "/do/webhook", hook, ("url",))
        return Webhook(url=_url(found, "/do/webhook/url", hook.get("url")))
    if asked == ["promote"]:
        promote = _object(found, "/do/promote", do["promote"])
        _only(found, "/do/promote", promote, ("agent",))
        return Promote(agent=_agent(found, "/do/promote/agent", promote.get("agent")))
    launch = _object(found, "/do/launch", do["launch"])
    _only(found, "/do/launch", launch, ("agent", "prompt", "runner_labels"))
    agent = _agent(found, "/do/launch/agent", launch.get("agent"))
    told = launch["prompt"] if "prompt" in launch else prompts.default_for(terms.looked_at)
    labels = _runner_labels(found, launch.get("runner_labels", []))
    return Launch(agent=agent, prompt=_template(found, told), runner_labels=labels)


def _runner_labels(found: Findings, given: Any) -> frozenset[str]:
    pointer = "/do/launch/runner_labels"
    if not isinstance(given, list | tuple):
        found.add(pointer, "must be a list")
        return frozenset()
    if len(given) > RUNNER_LABELS_MAX:
        found.add(pointer, f"has {len(given)} labels; {RUNNER_LABELS_MAX} are allowed")
        return frozenset()
    labels = frozenset(
        fold(_line(found, f"{pointer}/{n}", one, length_max=VALUE_LENGTH_MAX)) for n, one in enumerate(given)
    )
    if sum(len(label.encode("utf-8", "replace")) + 1 for label in labels) > RUNNER_LABELS_BYTES_MAX:
        found.add(pointer, f"are together longer than {RUNNER_LABELS_BYTES_MAX} bytes")
    return labels


def _url(found: Findings, pointer: str, value: Any) -> str:
    before = len(found.errors)
    url = _line(found, pointer, value, length_max=webhooks.URL_LENGTH_MAX)
    if len(found.errors) == before and isinstance(wrong := webhooks.place_of(url), str):
        found.add(pointer, wrong)
    return url


def _agent(found: Findings, pointer: str, value: Any) -> str:
    agent = fold(_line(found, pointer, value, length_max=VALUE_LENGTH_MAX)).removeprefix("@")
    if agent and not _HANDLE.fullmatch(agent):
        found.add(pointer, f"no handle: {agent}; one is like build-bot")
    return agent


def _template(found: Findings, value: Any) -> str:
    pointer = "/do/launch/prompt"
    if not isinstance(value, str) or not value.strip():
        found.add(pointer, "must be text, and not empty")
        return ""
    if len(value) > TEMPLATE_LENGTH_MAX:
        found.add(pointer, f"is {len(value)} characters long; {TEMPLATE_LENGTH_MAX} are allowed")
    elif "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        found.add(pointer, "must be valid Unicode, without NUL")
    return value


_SWITCHES: Final = ("consume_label", "recheck", "self_trigger")
_SECONDS: Final[Mapping[str, int]] = {
    "max_event_age_seconds": SECONDS_MAX,
    "cooldown_seconds": COOLDOWN_SECONDS_MAX,
    "queued_timeout_seconds": SECONDS_MAX,
}


def _options(found: Findings, options: Mapping[str, Any]) -> Options:
    _only(found, "/options", options, OPTIONS)
    given = {name: value for name, value in options.items() if name in OPTIONS and value is not None}
    for name in _SWITCHES:
        if name in given and not isinstance(given[name], bool):
            found.add(f"/options/{name}", "must be true or false")
    for name, most in _SECONDS.items():
        if name in given and not _is_number(given[name], most):
            found.add(f"/options/{name}", f"must be a number of seconds, more than 0 and at most {most}")
    if "max_per_hour" in given and not (
        isinstance(given["max_per_hour"], int) and _is_number(given["max_per_hour"], PER_HOUR_MAX)
    ):
        found.add("/options/max_per_hour", f"must be a whole number from 1 to {PER_HOUR_MAX}")
    if given.get("while_running", "allow") not in WHILE_RUNNING:
        found.add("/options/while_running", f"must be one of {', '.join(WHILE_RUNNING)}")
    return Options(**given)


def _is_number(value: Any, most: int) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= most
