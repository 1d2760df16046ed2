"""What boards and cards accept as input. Pure: takes what a caller sent, leaves it as it is stored, or all that is wrong with it.

The same limits stand as CHECKs in the schema; here they name the field.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mainspring.boards.model import (
    REFLECTED,
    Board,
    BoardState,
    CardEdit,
    NewBoard,
    NewCard,
    fold,
)
from mainspring.rooms import FieldError, Invalid

NAME_LENGTH_MAX = 200
BODY_BYTES_MAX = 256 * 1024
LABELS_MAX = 64
LABEL_LENGTH_MAX = 64
STATES_MAX = 64
STATE_LENGTH_MAX = 64
FIELDS_BYTES_MAX = 64 * 1024
FIELDS_DEPTH_MAX = 16
NUMBER_MAX = 2**63  # beyond it, jsonb and its readers no longer agree what a number is
PRIORITY_MAX = 1000

_BOARD_KEY = re.compile(r"[A-Z][A-Z0-9]{0,9}")


class Findings:
    """Collects what is wrong, field by field, so that one answer names it all."""

    def __init__(self) -> None:
        self._errors: list[FieldError] = []

    def add(self, pointer: str, detail: str) -> None:
        """Note what is wrong with one field."""
        self._errors.append(FieldError(pointer, detail))

    def refuse(self) -> None:
        """Raise Invalid when anything was found."""
        if self._errors:
            raise Invalid(*self._errors)

    # One kind of value each: return it as it is stored; what cannot be is noted and returned as it came ---------

    def line(self, pointer: str, value: str, *, length_max: int = NAME_LENGTH_MAX) -> str:
        """Check one line of text, not empty, outer space aside."""
        text = value.strip()
        if not text:
            self.add(pointer, "must not be empty")
        elif len(text) > length_max:
            self.add(pointer, f"is {len(text)} characters long; {length_max} are allowed")
        elif any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in text):
            self.add(pointer, "must be one line, without control characters")
        return text

    def text(self, pointer: str, value: str, *, bytes_max: int = BODY_BYTES_MAX) -> str:
        """Check text of any number of lines."""
        if (defect := _unstorable(value)) is not None:
            self.add(pointer, defect)
        elif (size := len(value.encode())) > bytes_max:
            self.add(pointer, f"is {size} bytes long; {bytes_max} are allowed")
        return value

    def labels(self, pointer: str, values: Iterable[str]) -> frozenset[str]:
        """Check a list of labels."""
        labels = [
            self.line(f"{pointer}/{n}", fold(value), length_max=LABEL_LENGTH_MAX)
            for n, value in enumerate(values)
        ]
        self.label_count(pointer, len(set(labels)))
        return frozenset(labels)

    def label_count(self, pointer: str, count: int) -> None:
        """Check how many labels a card is to have."""
        if count > LABELS_MAX:
            self.add(pointer, f"a card has at most {LABELS_MAX} labels, this would be {count}")

    def priority(self, pointer: str, value: int) -> int:
        """Check a priority."""
        if not -PRIORITY_MAX <= value <= PRIORITY_MAX:
            self.add(pointer, f"must be between -{PRIORITY_MAX} and {PRIORITY_MAX}")
        return value

    def fields(self, pointer: str, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """Check a card's fields: JSON that the database gives back as it was put in."""
        for name in value:
            self.line(_below(pointer, name), name)
        if (found := _json_defect(pointer, value, FIELDS_DEPTH_MAX)) is not None:
            self.add(*found)
        else:
            self.fields_size(pointer, value)
        return value

    def fields_size(self, pointer: str, value: Mapping[str, Any]) -> None:
        """Check how much a card's fields come to."""
        size = len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
        if size > FIELDS_BYTES_MAX:
            self.add(pointer, f"come to {size} bytes; {FIELDS_BYTES_MAX} are allowed")


def _unstorable(text: str) -> str | None:
    if "\0" in text:
        return "must not contain NUL"
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        return "must be valid Unicode: it contains half a surrogate pair"
    return None


def _below(pointer: str, name: str) -> str:
    shown = name.encode(errors="replace").decode()[:NAME_LENGTH_MAX]
    return pointer + "/" + shown.replace("~", "~0").replace("/", "~1")


def _json_defect(pointer: str, value: Any, depth_left: int) -> tuple[str, str] | None:
    if depth_left < 0:
        return pointer, f"is nested more than {FIELDS_DEPTH_MAX} deep"
    match value:
        case None | bool():
            return None
        case int() | float():
            if abs(value) >= NUMBER_MAX or not math.isfinite(value):
                return pointer, "must be a number within 64 bits"
            return None
        case str():
            defect = _unstorable(value)
            return (pointer, defect) if defect else None
        case list() | tuple():
            children: Iterable[tuple[str, Any]] = ((f"{pointer}/{n}", item) for n, item in enumerate(value))
        case dict():
            if (name := next((name for name in value if _unstorable(name)), None)) is not None:
                return _below(pointer, name), "has a name that cannot be stored"
            children = ((_below(pointer, name), item) for name, item in value.items())
        case _:
            return pointer, "is not JSON"
    found = (_json_defect(place, item, depth_left - 1) for place, item in children)
    return next(filter(None, found), None)


# Whole inputs -------------------------------------------------------------------------------------------------


def new_board(key: str, name: str, states: Sequence[BoardState], reflect: Mapping[str, str]) -> NewBoard:
    """Return a board as it is stored; raise Invalid with everything that is wrong with it."""
    found = Findings()
    board_key = key.strip().upper()
    if not _BOARD_KEY.fullmatch(board_key):
        found.add("/key", "must be a letter and up to 9 letters or digits, like OPS")
    board_name = found.line("/name", name)
    columns = _states(found, states)
    names = {state.name for state in columns}
    answers: dict[str, str] = {}
    for run_state, to_state in reflect.items():
        place = _below("/reflect", run_state)
        if fold(run_state) not in REFLECTED:
            found.add(place, f"is no run state that a board can reflect; these are: {', '.join(REFLECTED)}")
        elif fold(to_state) not in names:
            found.add(place, f"{fold(to_state)[:STATE_LENGTH_MAX]!r} is no state of this board")
        answers[fold(run_state)] = fold(to_state)
    found.refuse()
    return NewBoard(key=board_key, name=board_name, states=columns, reflect=answers)


def _states(found: Findings, states: Sequence[BoardState]) -> tuple[BoardState, ...]:
    if not 1 <= len(states) <= STATES_MAX:
        found.add("/states", f"a board has 1 to {STATES_MAX} states")
    columns: dict[str, BoardState] = {}
    for n, state in enumerate(states):
        place = f"/states/{n}/name"
        name = found.line(place, fold(state.name), length_max=STATE_LENGTH_MAX)
        if name in columns:
            found.add(place, f"{name!r} stands here twice")
        if state.eligible and state.terminal:
            found.add(
                f"/states/{n}", "a state that ends the work cannot start it: eligible or terminal, not both"
            )
        columns[name] = BoardState(name=name, eligible=state.eligible, terminal=state.terminal)
    return tuple(columns.values())


def card_edit(edit: CardEdit) -> CardEdit:
    """Return an edit as it is stored; raise Invalid with everything that is wrong with it."""
    found = Findings()
    checked = CardEdit(
        title=None if edit.title is None else found.line("/title", edit.title),
        body=None if edit.body is None else found.text("/body", edit.body),
        priority=None if edit.priority is None else found.priority("/priority", edit.priority),
        fields=None if edit.fields is None else found.fields("/fields", edit.fields),
    )
    found.refuse()
    return checked


def card_state(board: Board, name: str) -> str:
    """Return the name of one of the board's states; raise Invalid, naming them all, when it is none."""
    state = board.state(fold(name))
    if state is None:
        known = ", ".join(state.name for state in board.states)
        raise Invalid(FieldError("/state", f"board {board.key} has no such state; it has: {known}"))
    return state.name


def new_card(board: Board, new: NewCard) -> NewCard:
    """Return a card about to be made as it is stored; raise Invalid with everything that is wrong with it."""
    found = Findings()
    checked = NewCard(
        title=found.line("/title", new.title),
        body=found.text("/body", new.body),
        labels=found.labels("/labels", new.labels),
        priority=found.priority("/priority", new.priority),
        fields=found.fields("/fields", new.fields),
        state=board.initial if new.state is None else fold(new.state),
        agent=new.agent,
        assignee=new.assignee,
    )
    found.refuse()
    card_state(board, checked.state or "")
    return checked


def fields_fit(fields: Mapping[str, Any]) -> None:
    """Raise Invalid when a card's fields, merged, come to too much."""
    found = Findings()
    found.fields_size("/fields", fields)
    found.refuse()


def label_change(
    labels: frozenset[str], add: Iterable[str], remove: Iterable[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """Return the labels to put on and to take off a card that has these; raise Invalid with all that is wrong."""
    found = Findings()
    on, off = found.labels("/add", add), found.labels("/remove", remove)
    if both := sorted(on & off):
        found.add("/remove", f"{both[0]!r} is both added and removed")
    found.label_count("/add", len((labels | on) - off))
    found.refuse()
    return on, off
