"""The story of a card, event, effect, run, rule or message: takes the rows that were found, leaves sentences that skip nothing. Pure.

One assembly serves everybody: `Story.as_json()` for programs, its `tree` for people. Every row has a `standing`: what it came to,
or what it is waiting for; every event has a verdict of each rule that was in force.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

from mainspring.agents.model import LIVE, having
from mainspring.chat.model import OFFERED
from mainspring.chat.receipts import Absent, Receipt, Receipts, ReceiptState
from mainspring.operators.model import Noun, RuleVerdict
from mainspring.spine.events import Event

Tone: TypeAlias = Literal["plain", "good", "bad", "wait", "quiet"]
Row: TypeAlias = Mapping[str, Any]
UNMATCHED_SHOWN_MAX: Final = 25
NAMES_SHOWN_MAX: Final = 8
ABSENT_SHOWN_MAX: Final = 2
TEXT_SHOWN_MAX: Final = 80
_NOTHING: Final = "nothing is owed and nothing is dead"
# what somebody does to a card and waits
_DONE_TO_CARDS: Final = ("card.created", "card.moved", "card.labeled")
_DISPATCH: Final = "dispatch:"  # how the key of a launch begins that a pinned card owes, and no rule
# what an obligation's term means to somebody who does not know the obligation
_TERMS: Final[Mapping[tuple[str, str], str]] = {
    ("dispatch", "eligible"): "the card is not both pinned to an agent and in an eligible state",
    ("dispatch", "dispatched before"): "the card has been eligible since before this event",
    ("dispatch", "depth"): "the chain of causes is too long",
    ("dispatch", "min_trust"): "what happened is not trusted far enough",
    ("deliveries", "recipients"): "no agent that may read it subscribes to the channel or is mentioned",
    ("reflect", "card"): "the run has no card",
    ("reflect", "reflect"): "the board has no card state for this run state",
}
_OTHER_KIND: Final = "kinds"  # the term that fails of rules that look at other kinds of event
_NOT_IN_FORCE: Final = "not in force"  # in the place of a term: the rule was off, or younger than the event
_LABEL_SPENT: Final = "dropped(label spent)"


@dataclass(frozen=True, slots=True)
class Node:
    """A line of the story, and what follows from it."""

    text: str
    tone: Tone = "plain"
    children: tuple[Node, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the branch as it is sent."""
        return {
            "text": self.text,
            "tone": self.tone,
            "children": [child.as_json() for child in self.children],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What everything that judges events said of one: each rule in force, and each obligation of the engine's own."""

    rules: Sequence[RuleVerdict] = ()
    left_out: int = 0  # rules that did not match, and are not told of one by one
    others: Sequence[tuple[str, str | None]] = ()  # (obligation, the term that failed; None when it owes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Everything that was read for a story. `history` maps an effect's or run's id to its attempts."""

    noun: Noun
    title: str
    now: Row
    position: int
    events: Sequence[Event] = ()
    judged: Mapping[int, Judged] = field(default_factory=dict)
    effects: Sequence[Row] = ()
    runs: Sequence[Row] = ()
    history: Mapping[Any, Sequence[Row]] = field(default_factory=dict)
    caused: Sequence[Row] = ()
    rule_names: Mapping[Any, str] = field(default_factory=dict)
    more: bool = False  # older events were left out
    deliveries: Mapping[Any, Receipt] = field(default_factory=dict)
    receipts: Receipts | None = None  # of the message that was asked about


@dataclass(frozen=True, slots=True)
class Story:
    """The story, told."""

    found: Found

    def as_json(self) -> dict[str, Any]:
        """Return the story as it is sent."""
        found = self.found
        return {
            "noun": found.noun,
            "title": found.title,
            "summary": summary(found),
            "now": dict(found.now),
            "events": [self._event(event) for event in found.events],
            "effects": [self._effect(row) for row in found.effects],
            "runs": [self._run(row) for row in found.runs],
            "older_events_left_out": found.more,
            "tree": self.tree().as_json(),
        }

    def tree(self) -> Node:
        """Return the story for people: what happened, in order, and what followed from each."""
        found = self.found
        told: set[Any] = set()
        whom = receipt_nodes(found.receipts) if found.receipts else ()
        nodes = [Node("older events are left out: ask with a larger limit", "quiet")] if found.more else []
        nodes += [self._event_node(event, told) for event in found.events]
        loose = [self._effect_node(row, told) for row in found.effects if row["id"] not in told]
        loose += [self._run_node(row) for row in found.runs if row["id"] not in told]
        return Node(f"{found.title}: {summary(found)}", children=(*whom, *nodes, *loose))

    # programs -----------------------------------------------------------------------------------------------

    def _event(self, event: Event) -> dict[str, Any]:
        judged = self.found.judged.get(event.seq, Judged())
        shown, hidden = nearest(judged.rules)
        return {
            "seq": event.seq,
            "kind": event.kind,
            "subject": event.subject,
            "occurred_at": event.occurred_at.isoformat(),
            "actor": _handle(event),
            "what": what_happened(event),
            "cause_seq": event.cause_seq,
            "depth": event.depth,
            "via": [str(rule) for rule in event.via],
            "trust": str(event.trust),
            "drained": event.seq <= self.found.position,
            "owed": [str(row["id"]) for row in self.found.effects if row["event_seq"] == event.seq],
            "verdicts": [verdict.as_json() for verdict in shown],
            "verdicts_left_out": hidden + judged.left_out,
            "obligations": [
                {"name": name, "owes": term is None, "term": term} for name, term in judged.others
            ],
            "caused": [row["seq"] for row in self.found.caused if row["cause_seq"] == event.seq],
        }

    def _effect(self, row: Row) -> dict[str, Any]:
        plain = {
            name: _plain(value) for name, value in row.items() if name not in ("later", "lease_over", "held")
        }
        return {
            **plain,
            "rule": self.found.rule_names.get(row["rule_id"]),
            "standing": standing_of(self.found, row)[0],
            "history": self._history(row),
            "runs": [str(run["id"]) for run in self._runs_of(row)],
        }

    def _run(self, row: Row) -> dict[str, Any]:
        left_out = ("later", "lease_over", "held", "slots", "paused", "runners_seen")
        plain = {name: _plain(value) for name, value in row.items() if name not in left_out}
        return {
            **plain,
            "rule": self.found.rule_names.get(row["rule_id"]),
            "standing": run_standing(row)[0],
            "history": self._history(row),
        }

    def _history(self, row: Row) -> list[dict[str, Any]]:
        attempts = self.found.history.get(row["id"], ())
        return [{name: _plain(value) for name, value in one.items() if name != "of"} for one in attempts]

    def _runs_of(self, effect: Row) -> list[Row]:
        named = (effect["kind"], effect["key"])
        return [run for run in self.found.runs if (run["effect_kind"], run["effect_key"]) == named]

    # people -------------------------------------------------------------------------------------------------

    def _event_node(self, event: Event, told: set[Any]) -> Node:
        children: list[Node] = []
        if event.cause_seq is not None:
            children.append(Node(f"because of event {event.cause_seq} (depth {event.depth})", "quiet"))
        if event.seq > self.found.position:
            children.append(Node("not drained yet: what it owes is not known", "wait"))
        mine = [row for row in self.found.effects if row["event_seq"] == event.seq]
        children += [self._effect_node(row, told) for row in mine]
        judged = self.found.judged.get(event.seq, Judged())
        children += verdict_nodes(judged, brief=self.found.noun not in ("event", "rule"))
        for row in self.found.caused:
            if row["cause_seq"] == event.seq:
                children.append(Node(f"led to event {row['seq']} {row['kind']}", "quiet"))
        text = (
            f"{event.seq} {clock(event.occurred_at)} {event.kind}: {what_happened(event, by=_handle(event))}"
        )
        return Node(text, children=tuple(children))

    def _effect_node(self, row: Row, told: set[Any]) -> Node:
        told.add(row["id"])
        standing, tone = standing_of(self.found, row)
        runs = self._runs_of(row)
        told.update(run["id"] for run in runs)
        children = [attempt_node(one) for one in self.found.history.get(row["id"], ())]
        children += [self._run_node(run) for run in runs]
        receipt = self.found.deliveries.get(row["id"])
        to = "" if receipt is None else f" to {receipt.handle}"
        return Node(f"owes {row['kind']}{to}{self._because(row)}: {standing}", tone, tuple(children))

    def _because(self, row: Row) -> str:
        """Return, in brackets, what an effect is owed by, where its kind alone does not say it."""
        if rule := self.found.rule_names.get(row["rule_id"]):
            return f" (rule {rule!r} v{row['rule_version']})"
        if not row["key"].startswith(_DISPATCH):
            return ""
        event = next((one for one in self.found.events if one.seq == row["event_seq"]), None)
        agent = _part(event.data, "card").get("agent") if event else None
        return f" (no rule: the card is pinned to {agent or 'its agent'})"

    def _run_node(self, row: Row) -> Node:
        standing, tone = run_standing(row)
        children = tuple(attempt_node(one) for one in self.found.history.get(row["id"], ()))
        on = f" on {row['card_key']}" if row["card_key"] else ""
        return Node(f"run {row['id']} of {row['agent']}{on}: {standing}", tone, children)


# Sentences ----------------------------------------------------------------------------------------------------


def summary(found: Found) -> str:
    """Return how things stand, in one sentence."""
    if found.receipts is not None:
        return receipts_in_words(found.receipts)
    if found.noun == "effect" and found.effects and found.effects[0]["kind"] in OFFERED:
        return standing_of(found, found.effects[0])[0]
    live = [row for row in found.effects if row["state"] in ("pending", "claimed")]
    dead = [row for row in found.effects if row["state"] == "dead"]
    dead_runs = [row for row in found.runs if row["state"] in ("failed", "lost")]
    waiting = [row for row in found.runs if row["state"] in ("queued", "claimed", "running", "needs_input")]
    undrained = [event for event in found.events if event.seq > found.position]
    parts = []
    if undrained:
        parts.append(f"{_n(undrained, 'event')} not drained yet")
    if live:
        held = f", {effect_standing(live[-1])[0]}" if all(row["held"] for row in live) else ""
        parts.append(f"{_n(live, 'effect')} owed{held}")
    if waiting:
        parts.append("; ".join(f"run of {row['agent']} {run_standing(row)[0]}" for row in waiting))
    if dead or dead_runs:
        parts.append(f"{_n([*dead, *dead_runs], 'dead letter')} on the desk")
    if not parts and found.noun == "card" and (why := why_nothing(found)):
        return why
    return ", ".join(parts) or _NOTHING


def why_nothing(found: Found) -> str | None:
    """Return why nothing came of the last that was done to a card; None where something came of it, or no rule was near.

    Looked at are that event and what followed from it, the latest first: of what followed, only what gave way or stopped for its depth.
    """
    for event in reversed(found.events):
        mine = [row for row in found.effects if row["event_seq"] == event.seq and _is_of_rules(row)]
        if mine:
            return _gave_way(found, event, mine)
        judged = found.judged.get(event.seq, Judged())
        near = next(iter(nearest(judged.rules)[0]), None)
        if (near and near.matched) or ("dispatch", None) in judged.others:
            return None  # it was done, so long ago that its effects are not kept any more
        last = event.kind in _DONE_TO_CARDS and event.actor_id is not None
        if near and near.missed_term != _OTHER_KIND and (last or _stopped(event, near)):
            return f"nothing came of event {event.seq} ({event.kind}): {_missed(near)}"
        if last:
            return None
    return None


def _stopped(event: Event, near: RuleVerdict) -> bool:
    """Tell whether a rule would have carried on what the engine did itself."""
    return near.failed_term == "depth" or (event.kind in _DONE_TO_CARDS and near.missed_term is None)


def _is_of_rules(row: Row) -> bool:
    return row["rule_id"] is not None or str(row["key"]).startswith(_DISPATCH)


def _gave_way(found: Found, event: Event, effects: Sequence[Row]) -> str | None:
    dropped = [row for row in effects if row["state"] != "done"]
    if not dropped:
        return None
    row = dropped[-1]
    name = found.rule_names.get(row["rule_id"])
    by = f"rule {name!r} v{row['rule_version']}" if name else f"{row['kind']} of its agent"
    first = f"nothing came of event {event.seq} ({event.kind})" if dropped == list(effects) else _NOTHING
    return f"{first}: {by}: {standing_of(found, row)[0]}"


def _missed(verdict: RuleVerdict) -> str:
    """Return a sentence about a rule that did not match."""
    named = f"rule {verdict.name!r}" + (f" v{verdict.version}" if verdict.version else "")
    if verdict.missed_term is None and verdict.failed_term == _NOT_IN_FORCE:
        return f"{named} would have matched, and is {verdict.why_text}"
    return f"{named}: no: {verdict.why_text}"


def standing_of(found: Found, row: Row) -> tuple[str, Tone]:
    """Return an effect's standing, and what else of the story tells of it: who took the label that it came for."""
    if (receipt := found.deliveries.get(row["id"])) is not None:
        return receipt_in_words(receipt)
    if row["kind"] in OFFERED and row["state"] in ("pending", "claimed"):
        return (
            f"{'offered' if row['state'] == 'claimed' else 'owed'}, in a channel that you do not see",
            "wait",
        )
    standing, tone = effect_standing(row)
    if standing == _LABEL_SPENT:
        taken = [one for one in found.events if _took_label(one, row)]
        # of several labels that were taken it is not told which one was missed
        if len(taken) == 1 and (name := found.rule_names.get(taken[0].via[-1])):
            standing = f"dropped(label spent by rule {name!r}, event {taken[0].seq})"
    return standing, tone


def _took_label(event: Event, row: Row) -> bool:
    return event.kind == "card.unlabeled" and event.cause_seq == row["event_seq"] and bool(event.via)


def what_happened(event: Event, *, by: str | None = None) -> str:
    """Return an event's delta in words, and who did it; what was said at length comes last."""
    what, tail = _delta(event)
    return f"{what}{'' if by is None else f' by {by}'}{tail}"


def _delta(event: Event) -> tuple[str, str]:
    data = event.data
    if event.kind.startswith("message.") and (message := _part(data, "message")):
        text = " ".join(str(message.get("text")).split())
        said = text if len(text) <= TEXT_SHOWN_MAX else f"{text[:TEXT_SHOWN_MAX]}…"
        return f"#{message.get('channel')}/{message.get('topic')} {message.get('channel_seq')}", f": {said}"
    if (channel := _part(data, "channel")) and (member := _part(data, "member")):
        return f"{member.get('handle')} in #{channel.get('name')}", ""
    card, run = _part(data, "card"), _part(data, "run")
    named = str(card.get("key") or event.subject)
    if ask := _part(data, "ask"):
        asker = f"{run.get('agent')} on {named if card else 'no card'}"
        said = f" is answered: {ask['answer']}" if ask.get("answer") is not None else ""
        return f"{asker} asks: {ask.get('question')}{said}", ""
    if run:
        # what an earlier attempt came to is told where that attempt is
        ended = run.get("error") or run.get("outcome")
        why = (
            ("replayed" if data.get("replay") else data.get("reason")) if run.get("state") in LIVE else ended
        )
        about = f"{run.get('agent')} on {named if card else 'no card'} is {run.get('state')}"
        return about, f": {why}" if why else ""
    if "from" in data and "to" in data:
        return f"{named} {data['from']} → {data['to']}", ""
    if added := data.get("added"):
        return f"{named} +{', +'.join(map(str, added))}", ""
    if removed := data.get("removed"):
        return f"{named} -{', -'.join(map(str, removed))}", ""
    if changed := data.get("changed"):
        return f"{named} changed {', '.join(_changes(changed))}", ""
    return named, ""


def _changes(changed: Mapping[str, Any]) -> Iterable[str]:
    """Yield what changed by name; of an agent, from whom to whom. An id is not told beside the handle."""
    for name, delta in changed.items():
        if name == "agent":
            yield f"agent {delta['from'] or 'nobody'} → {delta['to'] or 'nobody'}"
        elif name != "agent_id" or "agent" not in changed:
            yield str(name)


def effect_standing(row: Row) -> tuple[str, Tone]:
    """Return what an effect came to, or what it is waiting for."""
    tried = f" after {_n(row['attempts'], 'failed attempt')}" if row["attempts"] else ""
    match row["state"]:
        case "pending" if row["held"]:
            return f"held until its rule is resumed: {row['error'] or 'no reason was given'}", "wait"
        case "pending" if row["down_until"]:
            return _waits_for_target(row), "wait"
        case "pending" if row["later"]:
            why = f": {row['error'] or row['outcome']}" if row["error"] or row["outcome"] else ""
            return f"owed, tried again at {clock(row['not_before'])}{tried}{why}", "wait"
        case "pending":
            return f"owed, waiting for a worker{tried}", "wait"
        case "claimed" if row["lease_over"]:
            return f"its worker {row['worker']} has gone silent; any other will take it over", "wait"
        case "claimed":
            return f"being done by {row['worker']}{tried}", "wait"
        case "done":
            return f"done{tried}" if row["outcome"] in (
                None,
                "done",
            ) else f"done: {row['outcome']}{tried}", "good"
        case "dead":
            return f"dead ({row['outcome']}){tried}: {row['error'] or 'no error was given'}", "bad"
        case state:
            return str(row["outcome"] or state), "quiet"


# what a receipt's state is called, and how it is meant
_RECEIPTS: Final[Mapping[ReceiptState, tuple[str, Tone]]] = {
    ReceiptState.STORED: ("stored", "wait"),
    ReceiptState.HELD: ("held", "wait"),
    ReceiptState.OWED: ("owed", "wait"),
    ReceiptState.WAITING: ("waiting for a session", "wait"),
    ReceiptState.OFFERED: ("offered", "wait"),
    ReceiptState.ACKED: ("acked", "good"),
    ReceiptState.DEAD: ("dead", "bad"),
    ReceiptState.DROPPED: ("dropped", "quiet"),
    ReceiptState.DISCARDED: ("discarded", "quiet"),
    ReceiptState.UNREAD: ("unread", "wait"),
    ReceiptState.READ: ("read", "good"),
    ReceiptState.NOT_KEPT: ("not kept", "quiet"),
}


def receipt_in_words(receipt: Receipt) -> tuple[str, Tone]:
    """Return how far a message has come with one recipient."""
    word, tone = _RECEIPTS[receipt.state]
    since = f" since {clock(receipt.since)}" if receipt.since else ""
    again = f", again at {clock(receipt.next_try_at)}" if receipt.next_try_at else ""
    return f"{word}{since}{again}{f': {receipt.because}' if receipt.because else ''}", tone


def receipts_in_words(receipts: Receipts) -> str:
    """Return, in one sentence, who has not got a message, and why not; then who has."""
    if receipts.held_because is not None:
        return f"held since {clock(receipts.message.posted_at)}: {receipts.held_because}"
    got = [one for one in receipts.data if _RECEIPTS[one.state][1] == "good"]
    lacking = [one for one in receipts.data if one not in got]
    said = [f"{one.handle}: {receipt_in_words(one)[0]}" for one in lacking[:NAMES_SHOWN_MAX]]
    if (more := len(lacking) - NAMES_SHOWN_MAX) > 0:
        said.append(f"{more} more have not got it")
    if got:
        named = ", ".join(one.handle for one in got[:NAMES_SHOWN_MAX])
        said.append(f"{named}{' and more' if len(got) > NAMES_SHOWN_MAX else ''} got it")
    if not said:
        said.append("owed to nobody")
    said += [f"not owed to {one.handle}: {one.because}" for one in _worth_saying(receipts)]
    if (more := len(receipts.absent) - len(_worth_saying(receipts))) > 0:
        said.append(f"not owed to {more} more agents of the channel")
    return "; ".join(said)


def receipt_nodes(receipts: Receipts) -> Iterable[Node]:
    """Yield a line for each recipient of a message, and for each who might be thought to be one."""
    for receipt in receipts.data:
        words, tone = receipt_in_words(receipt)
        yield Node(f"{receipt.handle} ({receipt.how}): {words}", tone)
    for one in receipts.absent:
        yield Node(f"{one.handle}: not owed: {one.because}", "quiet")


def _worth_saying(receipts: Receipts) -> Sequence[Absent]:
    """Return those of whom a first line says that they are not owed a message: who is mentioned, then a few; the tree has all."""
    mentioned = [one for one in receipts.absent if one.mentioned][:NAMES_SHOWN_MAX]
    return mentioned + [one for one in receipts.absent if not one.mentioned][:ABSENT_SHOWN_MAX]


def _waits_for_target(row: Row) -> str:
    """Return what an effect waits for whose target is down: that one row tries again, and it may be another."""
    why = f": {row['down_because']}" if row["down_because"] else ""
    if row["is_down"]:
        return f"waiting: target {row['target']} is down until {clock(row['down_until'])}{why}"
    return f"waiting: target {row['target']} was down, and is being tried again{why}"


def run_standing(row: Row) -> tuple[str, Tone]:
    """Return what a run came to, or what it is waiting for."""
    match row["state"]:
        case "queued" if row["paused"]:
            return f"is waiting: {row['agent']} is paused", "wait"
        case "queued" if row["later"]:
            why = f" after: {row['error']}" if row["error"] else ""
            return f"is waiting for its next attempt at {clock(row['not_before'])}{why}", "wait"
        case "queued" if not row["runners_seen"]:
            return f"is waiting for a runner{having(row['runner_labels'])}", "wait"
        case "queued" if row["held"] >= row["slots"]:
            return f"is waiting for a slot: {row['agent']} works on {row['held']} of {row['slots']}", "wait"
        case "queued":
            return "is queued for the next free runner", "wait"
        case "claimed" | "running" if row["lease_over"]:
            return f"is {row['state']}, but its runner {row['runner'] or ''} has gone silent", "wait"
        case "claimed" | "running":
            stop = ", asked to stop" if row["cancel_requested"] else ""
            asks = f", waiting for an answer since {clock(since)}" if (since := row["asking_since"]) else ""
            return (
                f"is {row['state']} on {row['runner'] or 'a runner'} (attempt {max(row['attempts'], 1)}){asks}{stop}",
                "wait",
            )
        case "needs_input":
            since = row["asking_since"]
            return f"is waiting for an answer{f' since {clock(since)}' if since else ''}", "wait"
        case "failed" | "lost" as state:
            return (
                f"{state} after {_n(row['attempts'], 'attempt')}: {row['error'] or row['outcome'] or 'no reason'}",
                "bad",
            )
        case state:
            return f"{state}: {row['outcome']}" if row["outcome"] else str(
                state
            ), "good" if state == "done" else "quiet"


def attempt_node(row: Row) -> Node:
    """Return the line of one attempt."""
    by = row.get("worker") or row.get("runner") or "?"
    tail = f": {row['error']}" if row["error"] else ""
    ended = row["outcome"] or "not over yet"
    return Node(f"attempt {row['n']} {clock(row['started_at'])} by {by}: {ended}{tail}", "quiet")


def verdict_nodes(judged: Judged, *, brief: bool) -> Iterable[Node]:
    """Yield a line for each verdict: those that owe nothing say why. In brief, rules for other events share one line."""
    others = [one.name for one in judged.rules if brief and one.failed_term == one.missed_term == _OTHER_KIND]
    shown, hidden = nearest([one for one in judged.rules if not (brief and one.missed_term == _OTHER_KIND)])
    for verdict in shown:
        if verdict.matched:
            yield Node(f"rule {verdict.name!r} v{verdict.version}: matched", "good")
        else:
            yield Node(_missed(verdict), "quiet")
    if left := hidden + judged.left_out:
        yield Node(f"{_n(left, 'more rule')} did not match", "quiet")
    if others:
        named = ", ".join(repr(name) for name in others[:NAMES_SHOWN_MAX])
        more = f" and {len(others) - NAMES_SHOWN_MAX} more" if len(others) > NAMES_SHOWN_MAX else ""
        yield Node(f"for other kinds of event: rule {named}{more}", "quiet")
    for name, term in judged.others:
        if term is not None:
            yield Node(f"{name}: owes nothing: {_TERMS.get((name, term), term)}", "quiet")


def nearest(verdicts: Sequence[RuleVerdict]) -> tuple[list[RuleVerdict], int]:
    """Return all that matched, then those that missed by least, and how many are left out."""
    matched = [one for one in verdicts if one.matched]
    others = sorted((one for one in verdicts if not one.matched), key=lambda one: one.near)
    return matched + others[:UNMATCHED_SHOWN_MAX], max(0, len(others) - UNMATCHED_SHOWN_MAX)


def clock(moment: datetime) -> str:
    """Return a moment as people read it in a log, in UTC."""
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def _handle(event: Event) -> str:
    return str(_part(event.data, "actor").get("handle") or "mainspring")


def _part(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = data.get(name)
    return part if isinstance(part, Mapping) else {}


def _n(things: Sequence[Any] | int, noun: str) -> str:
    count = things if isinstance(things, int) else len(things)
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _plain(value: Any) -> Any:
    """Return a column's value as JSON has it."""
    match value:
        case datetime():
            return value.isoformat()
        case None | bool() | int() | float() | str() | Mapping() | list():
            return value
        case _:
            return str(value)
