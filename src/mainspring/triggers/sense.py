"""Whether a rule makes sense. Pure: takes a definition whose shape is right, leaves why it could never fire, and what is odd.

A rule that can never fire is refused with the reason; one that can, though a name in it stands for nothing, is accepted with a
remark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, assert_never

from mainspring.triggers import prompts
from mainspring.triggers.findings import Findings
from mainspring.triggers.model import Definition, Known, Launch, Options, Promote, Remark, Webhook, agent_of
from mainspring.triggers.terms import ACTOR_CLASSES, EVERYONE, RULE_KINDS, TermName, Terms, carried_by

# Can it ever fire? ----------------------------------------------------------------------------------------------


def fires(found: Findings, definition: Definition) -> None:
    terms, options = definition.terms, definition.options
    if not terms.firing_kinds:
        found.add(*_no_kind(terms))
    else:
        for term, reason in _contradictions(terms):
            found.add(f"/when/{term}", f"can never fire: {reason}")
        _does(found, definition)
    if options.consume_label and not terms.labels_all:
        found.add("/options/consume_label", "takes the labels of labels_all off, and there are none")
    if terms.firing_kinds == {"card.deleted"}:
        for name in ("consume_label", "recheck"):
            if getattr(options, name):
                found.add(f"/options/{name}", "can never fire: a deleted card is not there to look at")


def _does(found: Findings, definition: Definition) -> None:
    """Look at what the rule does in the light of the events that it can match."""
    action, options, kinds = definition.action, definition.options, definition.terms.firing_kinds
    match action:
        case Launch(prompt=prompt):
            for defect in prompts.defects(prompt, kinds):
                found.add("/do/launch/prompt", defect)
        case Promote():
            if not any("boards" in carried_by(kind) for kind in kinds):
                found.add("/do/promote", f"can never happen: {', '.join(sorted(kinds))} has no card")
            if kinds == {"card.deleted"}:
                found.add("/do/promote", "can never happen: a deleted card is not there to pin")
            _only_for_launches(found, options)
        case Webhook():
            _only_for_launches(found, options)
            if options.consume_label:
                found.add(
                    "/options/consume_label",
                    "is for a rule that launches or promotes: a label is taken off in one commit with what it is spent on, and "
                    "nothing that is sent can be undone with it",
                )
        case _:
            assert_never(action)


def _only_for_launches(found: Findings, options: Options) -> None:
    if options.while_running != "allow":
        found.add("/options/while_running", "is for a rule that launches")
    if options.queued_timeout_seconds is not None:
        found.add("/options/queued_timeout_seconds", "is for a rule that launches")


def _no_kind(terms: Terms) -> tuple[str, str]:
    kinds = terms.looked_at
    for term in terms.asked:
        if not any(term in carried_by(kind) for kind in kinds):
            carriers = sorted(kind for kind in RULE_KINDS if term in carried_by(kind))
            named = (
                ", ".join(sorted(kinds))
                if terms.kinds
                else "a rule that names no kinds looks at cards and runs, which"
            )
            return f"/when/{term}", f"can never fire: {named} carries no {term}; {_listed(carriers)} does"
    picky = [term for term in terms.asked if any(term not in carried_by(kind) for kind in kinds)]
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
    agent = agent_of(definition.action)
    return actors | definition.terms.agents | (frozenset() if agent is None else {agent})


_MADE_BY: Final = ": it is made by `mainspring agent create`, or by the first runner that has it"


def remarks_on(definition: Definition, known: Known) -> list[Remark]:
    """Look a rule's names up. Raise Invalid when it could not fire, or only to die; return what else is unknown."""
    found, remarks = Findings(), list[Remark]()
    agent = agent_of(definition.action)
    if agent is not None and known.accounts.get(agent) != "agent":
        meant = ": that is no agent's handle" if agent in known.accounts else None
        found.add(f"/do/{definition.action.kind}/agent", f"no agent {agent}{meant or _MADE_BY}")
    for term, unknown, every in _unknown(definition.terms, known):
        listed = ", ".join(sorted(unknown))
        if every:
            found.add(f"/when/{term}", f"can never fire: there is no {_NOUNS[term]} {listed}")
        else:
            remarks.append(Remark(f"/when/{term}", f"there is no {_NOUNS[term]} {listed}"))
    found.refuse()
    if not definition.terms.asked:
        remarks.append(Remark("/when", "asks nothing: every change of every card and run fires it"))
    if echoed := _reflected(definition, known):
        remarks.append(
            Remark(
                "/when/actors",
                f"runs move their cards to {echoed}, and fire it, too: `actors: [members]` leaves those out",
            )
        )
    return remarks


def _reflected(definition: Definition, known: Known) -> str:
    """Return the states that the rule waits for and its board's runs move cards to, if nobody in particular must do so."""
    terms = definition.terms
    if not isinstance(definition.action, Launch) or terms.actors or terms.from_states:
        return ""
    boards = [states for key, states in known.reflected.items() if not terms.boards or key in terms.boards]
    return ", ".join(sorted(terms.to_states & frozenset[str]().union(*boards)))


_NOUNS: Final[Mapping[str, str]] = {
    "boards": "board",
    "channels": "open channel",
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
        "channels": known.channels,
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
