"""Explain: takes a reference, leaves the story of what it names. Reads only, in one transaction of its tenant.

The verdicts are not records: they are asked again, of the same pure judges that the drain asks, about the same events. What names a
channel that whoever asks does not see is no part of any story told to them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, assert_never
from uuid import UUID

from mainspring.chat import reads, receipts, sight
from mainspring.chat.model import OFFERED
from mainspring.chat.receipts import Receipt, Receipts
from mainspring.chat.sight import Reader
from mainspring.db import Database, Scope
from mainspring.operators import letters
from mainspring.operators.model import CardKey, Id, Judges, Noun, ReadRules, Ref, RuleName, Seq, parse_ref
from mainspring.operators.story import Found, Judged, Row, Story
from mainspring.rooms import FieldError, Invalid, NotFound
from mainspring.spine.errors import OutcomeUnknown, Transient
from mainspring.spine.events import Event
from mainspring.spine.ports import NotOwed, Obligation
from mainspring.sql import Queries
from mainspring.stores.postgres.rows import event_of

SQL = Queries("mainspring.operators.sql")
EVENTS_DEFAULT: Final = 50
EVENTS_MAX: Final = 500
RUNS_MAX: Final = 100
ASKS_MAX: Final = 100
CAUSED_MAX: Final = 500
_NOUNS: Final = "card, event, effect, run, rule or message"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What was found for a reference, before what hangs on it is read."""

    noun: Noun
    title: str
    now: Row
    events: Sequence[Event]
    effects: Sequence[UUID] = ()
    runs: Sequence[UUID] = ()
    more: bool = False
    only_rule: UUID | None = None
    caused: bool = False
    receipts: Receipts | None = None


class ExplainService:
    """Tells what happened to a thing, what was owed for it, and why nothing was."""

    def __init__(
        self,
        db: Database,
        rules: ReadRules,
        obligations: Sequence[Obligation[Scope]],
        *,
        runner_silence_seconds: float,
    ) -> None:
        """`obligations` are those whose verdict is not already among the rules'."""
        self._db = db
        self._rules = rules
        self._obligations = obligations
        self._silence = runner_silence_seconds

    async def explain(self, reader: Reader, ref: str, *, limit: int = EVENTS_DEFAULT) -> Story:
        """Return the story of what a reference names, with at most `limit` events. Raises Invalid and NotFound."""
        tenant = reader.tenant_id
        parsed = parse_ref(ref)
        if parsed is None:
            raise Invalid(
                FieldError(
                    "/ref",
                    "a card's key or id, event:SEQ, the id of an effect, run or message, a rule's id or name",
                )
            )
        async with self._db.snapshot(tenant, purpose="explain") as scope:
            asked = await self._asked(scope, reader, parsed, ref, limit)
            rules = await self._rules(scope, tenant, asked.events, rule_id=asked.only_rule)
            others = await self._others(scope, asked)
            found = await self._found(scope, reader, asked)
        # many rules on many events take a while: nothing is held open meanwhile
        return Story(replace(found, judged=await _judged(asked.events, rules, others)))

    async def _asked(self, scope: Scope, reader: Reader, ref: Ref, text: str, limit: int) -> _Asked:
        noun: Noun | None
        tenant = reader.tenant_id
        match ref:
            case Seq(seq):
                return await self._event(scope, reader, seq)
            case CardKey(board, number):
                noun, found = "card", await scope.fetchval(SQL["card_by_key"], tenant, board, number)
            case RuleName(name):
                noun, found = "rule", await scope.fetchval(SQL["rule_by_name"], tenant, name)
            case Id(found, named):
                noun = await scope.fetchval(SQL["noun_of_id"], tenant, found)
                if named is not None and noun != named:
                    noun = None
            case _:
                assert_never(ref)
        if found is None or noun is None:
            raise NotFound(_NOUNS, text)
        tell = {
            "card": self._card,
            "run": self._run,
            "effect": self._effect,
            "rule": self._rule,
            "message": self._message,
        }
        return await tell[noun](scope, reader, found, limit)

    # by noun ------------------------------------------------------------------------------------------------

    async def _event(self, scope: Scope, reader: Reader, seq: int) -> _Asked:
        events = await _events(scope, reader, "events_by_seq", [seq])
        if not events:
            raise NotFound("event", seq)
        now = {"seq": seq, "kind": events[0].kind, "subject": events[0].subject, "data": dict(events[0].data)}
        return _Asked(noun="event", title=f"event {seq}", now=now, events=events, caused=True)

    async def _card(self, scope: Scope, reader: Reader, card_id: UUID, limit: int) -> _Asked:
        tenant = reader.tenant_id
        [row] = await _rows(scope, "card_now", tenant, card_id)
        runs = [r["id"] for r in await scope.fetch(SQL["runs_of_card"], tenant, card_id, RUNS_MAX)]
        asks = await _asks(scope, tenant, runs)
        events, more = await _about(scope, reader, [card_id, *runs, *asks], limit)
        gone = " (deleted)" if row["deleted_at"] else ""
        now = _json(
            row, "key", "title", "state", "version", "agent", "eligible_version", "dispatched_version"
        )
        return _Asked(
            noun="card",
            title=f"{row['key']} {row['title']!r} in {row['state']}{gone}",
            now={"id": str(card_id), **now, "deleted": row["deleted_at"] is not None},
            events=events,
            runs=runs,
            more=more,
        )

    async def _run(self, scope: Scope, reader: Reader, run_id: UUID, limit: int) -> _Asked:
        tenant = reader.tenant_id
        [row] = await _rows(scope, "runs_by_id", tenant, [run_id], self._silence)
        asks = await _asks(scope, tenant, [run_id])
        events, more = await _about(scope, reader, [run_id, *asks], limit)
        why = await _events(scope, reader, "events_by_seq", [row["event_seq"]] if row["event_seq"] else [])
        return _Asked(
            noun="run",
            title=f"run {run_id} of {row['agent']}",
            now={
                "id": str(run_id),
                **_json(row, "state", "agent", "card_key", "attempts", "outcome", "error"),
            },
            events=_merged(why, events),
            runs=[run_id],
            more=more,
        )

    async def _effect(self, scope: Scope, reader: Reader, effect_id: UUID, limit: int) -> _Asked:
        tenant = reader.tenant_id
        seen, whole = await _seen(scope, reader, await _rows(scope, "effects_by_id", tenant, [effect_id]))
        if not seen:
            raise NotFound(_NOUNS, effect_id)
        [row] = seen
        events, more = await _about(scope, reader, [effect_id], limit)
        why = await _events(scope, reader, "events_by_seq", [row["event_seq"]] if row["event_seq"] else [])
        carried = {}
        if effect_id in whole and row["kind"] in OFFERED:
            carried = await letters.deliveries_of(scope, tenant, [effect_id])
        what = carried[effect_id].subject if carried else row["key"]
        return _Asked(
            noun="effect",
            title=f"{row['kind']} {what}",
            now={"id": str(effect_id), **_json(row, "kind", "key", "state", "attempts", "outcome", "error")},
            events=_merged(why, events),
            effects=[effect_id],
            more=more,
        )

    async def _rule(self, scope: Scope, reader: Reader, rule_id: UUID, limit: int) -> _Asked:
        tenant = reader.tenant_id
        [row] = await _rows(scope, "rule_now", tenant, rule_id)
        changes, more = await _about(scope, reader, [rule_id], limit)
        recent = await _events(scope, reader, "events_of_rooms", limit)
        fired = await scope.fetch(SQL["effects_of_rule"], tenant, rule_id, limit)
        causes = await _events(
            scope, reader, "events_by_seq", [r["event_seq"] for r in fired if r["event_seq"]]
        )
        word = "deleted" if row["deleted_at"] else "enabled" if row["enabled"] else "disabled"
        if row["paused_because"]:
            word = f"paused: {row['paused_because']}"
        now = _json(
            row, "name", "enabled", "paused_because", "version", "terms", "action", "options", "from_seq"
        )
        return _Asked(
            noun="rule",
            title=f"rule {row['name']!r} v{row['version']} ({word})",
            now={"id": str(rule_id), **now, "deleted": row["deleted_at"] is not None},
            events=_merged(changes, recent, causes),
            effects=[r["id"] for r in fired],
            more=more,
            only_rule=rule_id,
        )

    async def _message(self, scope: Scope, reader: Reader, message_id: UUID, limit: int) -> _Asked:
        tenant, account = reader.tenant_id, reader.account_id
        message = None if account is None else await reads.find_message(scope, tenant, account, message_id)
        if message is None:
            raise NotFound(_NOUNS, message_id)
        events, more = await _about(scope, reader, [message_id], limit)
        now = {
            "channel": message.channel_name,
            "topic": message.topic_name,
            "author": message.author_handle,
            "revision": message.revision,
            "settled_by": message.settled_by,
            "settled_at": None if message.settled_at is None else message.settled_at.isoformat(),
        }
        return _Asked(
            noun="message",
            title=f"#{message.channel_name}/{message.topic_name} {message.channel_seq} of {message.author_handle}",
            now={"id": str(message_id), **now},
            events=events,
            more=more,
            receipts=await receipts.of_message(scope, tenant, message, self._silence),
        )

    # what hangs on it ---------------------------------------------------------------------------------------

    async def _found(self, scope: Scope, reader: Reader, asked: _Asked) -> Found:
        tenant = reader.tenant_id
        seqs = [event.seq for event in asked.events]
        ends = await scope.fetchrow(SQL["log_ends"], tenant)
        effects, whole = await _seen(scope, reader, await self._effects(scope, tenant, asked, seqs))
        deliveries = await self._deliveries(scope, tenant, effects, whole)
        launches = [(row["kind"], row["key"]) for row in effects]
        made = await scope.fetch(
            SQL["runs_of_launches"], tenant, [kind for kind, _ in launches], [key for _, key in launches]
        )
        ids = list(dict.fromkeys([*asked.runs, *(row["id"] for row in made)]))
        runs = await _rows(scope, "runs_by_id", tenant, ids, self._silence)
        caused = await _events(scope, reader, "events_caused_by", seqs, CAUSED_MAX) if asked.caused else []
        ruled = {row["rule_id"] for row in (*effects, *runs) if row["rule_id"]}
        names = await scope.fetch(SQL["rule_names"], tenant, list(ruled))
        return Found(
            noun=asked.noun,
            title=asked.title,
            now=asked.now,
            position=ends["position"] if ends is not None else 0,
            events=asked.events,
            effects=effects,
            runs=runs,
            history=await _history(scope, tenant, effects, runs, whole),
            caused=[{"seq": one.seq, "kind": one.kind, "cause_seq": one.cause_seq} for one in caused],
            rule_names={row["id"]: row["name"] for row in names},
            more=asked.more,
            deliveries=deliveries,
            receipts=asked.receipts,
        )

    async def _deliveries(
        self, scope: Scope, tenant: UUID, effects: Sequence[Row], whole: frozenset[UUID]
    ) -> dict[UUID, Receipt]:
        """Return how far those of these effects are that are deliveries, and the reader's to see."""
        seqs = {row["event_seq"] for row in effects if row["kind"] in OFFERED and row["id"] in whole}
        found = await receipts.of_events(scope, tenant, seqs, self._silence)
        return {one.effect_id: one for one in found if one.effect_id is not None}

    async def _effects(self, scope: Scope, tenant: UUID, asked: _Asked, seqs: list[int]) -> list[Row]:
        if asked.noun in ("effect", "rule"):  # of their events, what others owed is another story
            return await _rows(scope, "effects_by_id", tenant, list(asked.effects))
        return await _rows(scope, "effects_of_events", tenant, seqs)

    async def _others(self, scope: Scope, asked: _Asked) -> dict[int, list[tuple[str, str | None]]]:
        """Return, by event, what the obligations that are no rules said: the term that failed, or None where they owe."""
        others: dict[int, list[tuple[str, str | None]]] = defaultdict(list)
        for obligation in self._obligations if asked.only_rule is None else ():
            for seq, term in (await _terms(scope, obligation, asked.events)).items():
                others[seq].append((obligation.name, term))
        return others


async def _judged(
    events: Sequence[Event], rules: Judges, others: Mapping[int, Sequence[tuple[str, str | None]]]
) -> dict[int, Judged]:
    judged: dict[int, Judged] = {}
    for event in events:
        told = await rules.judge(event)
        judged[event.seq] = Judged(
            rules=told.verdicts, left_out=told.left_out, others=others.get(event.seq, ())
        )
    return judged


async def _terms(
    scope: Scope, obligation: Obligation[Scope], events: Sequence[Event]
) -> dict[int, str | None]:
    """Return, of the events that an obligation looks at, the term that failed, or None where it owes."""
    mine = [event for event in events if obligation.kinds is None or event.kind in obligation.kinds]
    if not mine:
        return {}
    try:
        async with scope.savepoint():
            context = await obligation.load(scope, mine)
            verdicts = {event.seq: obligation.judge(event, context) for event in mine}
    except (Transient, OutcomeUnknown):
        raise
    except Exception as error:  # noqa: BLE001 - a story is told to its end: this is a part of it
        return {event.seq: f"it cannot judge: {type(error).__name__}: {error}" for event in mine}
    return {seq: verdict.term if isinstance(verdict, NotOwed) else None for seq, verdict in verdicts.items()}


async def _rows(scope: Scope, name: str, *args: Any) -> list[Row]:
    return [dict(row) for row in await scope.fetch(SQL[name], *args)]


async def _events(scope: Scope, reader: Reader, name: str, *args: Any) -> list[Event]:
    rows = await scope.fetch(SQL[name], reader.tenant_id, *args)
    return await sight.told(scope, reader, [event_of(row) for row in rows])


async def _seen(scope: Scope, reader: Reader, effects: Sequence[Row]) -> tuple[list[Row], frozenset[UUID]]:
    """Return the effects that there are for a reader, and of which of them they may read what attempts say."""
    names = {row["id"]: sight.named_by_delivery(reader.tenant_id, row["kind"], row["key"]) for row in effects}
    seen = await sight.seen_by(scope, names.values(), [reader.account_id])
    whole = frozenset(one for one, name in names.items() if seen.sees(reader.account_id, name))
    return [row for row in effects if row["id"] in whole or reader.operates], whole


async def _asks(scope: Scope, tenant: UUID, runs: Sequence[UUID]) -> list[UUID]:
    """Return what these runs have asked people: what became of it is part of their story."""
    return [row["id"] for row in await scope.fetch(SQL["asks_of_runs"], tenant, list(runs), ASKS_MAX)]


async def _about(scope: Scope, reader: Reader, ids: Sequence[UUID], limit: int) -> tuple[list[Event], bool]:
    """Return the latest events about these things, oldest first, and whether there are older ones."""
    rows = await scope.fetch(
        SQL["events_of_subjects"], reader.tenant_id, [str(one) for one in ids], limit + 1
    )
    found = await sight.told(scope, reader, [event_of(row) for row in rows[:limit]])
    return found[::-1], len(rows) > limit


async def _history(
    scope: Scope, tenant: UUID, effects: Iterable[Row], runs: Iterable[Row], whole: frozenset[UUID]
) -> dict[UUID, list[Row]]:
    """Return attempts by effect and run; of an effect that is not in `whole`, without what they say."""
    history: dict[UUID, list[Row]] = defaultdict(list)
    for name, things in (("effect_attempts", effects), ("run_attempts", runs)):
        for row in await _rows(scope, name, tenant, [thing["id"] for thing in things]):
            tells = name != "effect_attempts" or row["of"] in whole
            history[row["of"]].append(row if tells else {**row, "error": None})
    return history


def _merged(*parts: Sequence[Event]) -> list[Event]:
    """Return events of several readings in their order, each once."""
    return sorted(
        {event.seq: event for part in parts for event in part}.values(), key=lambda event: event.seq
    )


def _json(row: Row, *names: str) -> dict[str, Any]:
    return {name: row[name] for name in names}
