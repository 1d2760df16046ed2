"""The page of states: the tables of moves as diagrams, and what decides a move, asked of the code that decides it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast
from uuid import UUID

from mainspring.agents import model as runs
from mainspring.boards.effects import REFLECT
from mainspring.spine import effects
from mainspring.spine.judging import EVENT_KIND
from mainspring.spine.retry import DEFAULT_BACKOFF, Backoff
from mainspring.triggers.launch import LAUNCH
from making.markdown import code, table

NOBODY = UUID(int=0)


EFFECT_STATES: Mapping[str, str] = {
    "pending": "It is owed, and waits until it is due and a worker has room.",
    "claimed": "A worker holds it under a lease.",
    "done": "It happened.",
    "dropped": "It need not happen any more; the reason is kept with it.",
    "dead": "It gave up. It lies on the desk until a person replays or discards it.",
    "discarded": "A person gave it up; the reason is kept with it.",
}
EFFECT_MOVES: Mapping[tuple[str, str], str] = {
    ("pending", "claim"): "a worker takes it",
    ("pending", "cancel"): "an operator cancels it",
    ("claimed", "reclaim"): "its lease ran out and another claim takes it over; that is counted as a crash",
    ("claimed", "finish"): "the executor answered Done",
    ("claimed", "drop"): "the executor answered Dropped",
    ("claimed", "wait"): "Retry with attempts left, Deferred, or Held",
    ("claimed", "bury"): "Failed, attempts spent, unknown, deferred for too long, or too many crashes",
    (
        "claimed",
        "cancel",
    ): "an operator asks; whoever holds it decides by its outcome, and a further attempt is dropped",
    ("dead", "replay"): "an operator replays it, with fresh attempts",
    ("dead", "discard"): "an operator gives it up, with a reason",
}
RUN_STATES: Mapping[str, str] = {
    "queued": "It waits for a runner, or for its pause to end.",
    "claimed": "A runner has it and has not said yet that it began.",
    "running": "A runner works on it, and renews its lease by heartbeats.",
    "needs_input": "It waits for a person's answer, and holds neither runner nor slot. It waits as long as it takes.",
    "done": "The agent finished it.",
    "blocked": "The agent ended it: nothing can be done until somebody acts.",
    "failed": "The agent failed. A dead letter: it lies on the desk.",
    "cancelled": "It was cancelled.",
    "lost": "Its attempts are spent without a result, or its runners end before they begin. A dead letter: it lies on the desk.",
    "discarded": "A person gave the dead letter up.",
}
RUN_MOVES: Mapping[str, str] = {
    "claim": "a runner claims it",
    "start": "the first heartbeat; from here on an attempt counts",
    "finish": "the runner completes it with `done`",
    "block": "the runner completes it with `blocked`",
    "fail": "the runner completes it with `failed`",
    "stop": "the runner completes it with `cancelled`, or a cancelled run falls silent",
    "ask": "the runner completes it with `needs_input`: no attempt is spent",
    "answer": "somebody answers its question",
    "requeue": "the lease ran out, or the runner completed it with `retry`, and attempts are left; or the runner hands it back",
    "resume": "a heartbeat of its last claim, after its lease ran out: its runner lives after all",
    "lose": "the lease ran out, or `retry`, and the attempts are spent",
    "cancel": "somebody cancels it",
    "replay": "an operator replays it: the same run, attempts 0",
    "discard": "an operator gives it up, with a reason",
}


def diagram(transitions: Mapping[tuple[Any, Any], Any], first: str, final: Iterable[str]) -> str:
    """Return a table of moves as a Mermaid state diagram."""
    edges: dict[tuple[str, str], list[str]] = {}
    for (state, move), target in transitions.items():
        edges.setdefault((str(state), str(target)), []).append(str(move))
    lines = [f"    {a} --> {b}: {', '.join(moves)}" for (a, b), moves in edges.items()]
    ends = [f"    {state} --> [*]" for state in sorted(map(str, final))]
    return "\n".join(["```mermaid", "stateDiagram-v2", f"    [*] --> {first}", *lines, *ends, "```", ""])


def anchored(state: object, meaning: str) -> tuple[str, str]:
    """Return a state's row, which links may name as `#effect-dead`."""
    noun, _, name = str(state).partition("-")
    return f'<a id="{noun}-{name}"></a>`{name}`', meaning


def _effect(**more: Any) -> effects.Effect:
    given: dict[str, Any] = {
        "tenant_id": NOBODY, "id": NOBODY, "kind": "any", "key": "any", "payload": {}, "event_seq": None, "rule_id": None,
        "rule_version": None, "target": "", "attempts": 0, "crashes": 0, "epoch": 0, "claim_id": NOBODY,
        "deferred_seconds": 0.0, "waited_seconds": 0.0, "reclaimed": False,
    }  # fmt: skip
    return effects.Effect(**given | more)


ANSWERS: Sequence[effects.Outcome] = (
    effects.Done(), effects.Dropped("reason"), effects.Retry("error"), effects.Deferred("reason", after_seconds=60.0),
    effects.Held("reason"), effects.Failed("error"), effects.Unknown("error"),
)  # fmt: skip


def _became(effect: effects.Effect, outcome: effects.Outcome, kind: effects.EffectKind) -> str:
    settled = effects.resolve(effect, outcome, kind, random=0.5)
    spent = settled.attempts - effect.attempts
    return f"{code(settled.state)} ({settled.outcome}){', attempt spent' if spent else ''}"


def outcomes() -> str:
    """What each answer of an executor makes of its row, asked of the code that decides it."""
    careful = effects.EffectKind(name="any", idempotent=False)
    kind = effects.EffectKind(name="any")
    last = _effect(attempts=kind.max_attempts - 1)
    rows = []
    for outcome in ANSWERS:
        row = [type(outcome).__name__, _became(_effect(), outcome, kind), _became(last, outcome, kind)]
        rows.append([*row, _became(_effect(), outcome, careful)])
    return table(["answer", "attempts left", "last attempt", "kind declared not idempotent"], rows)


def after_crashes() -> str:
    """What becomes of a row whose workers ended, asked of the code that decides it."""
    lines = []
    for crashes in range(1, effects.CRASHES_MAX + 1):
        row = _effect(crashes=crashes, reclaimed=True)
        buried = effects.bury_crashed(row, effects.EffectKind(name="any"))
        alone = "run again, with nothing else in flight" if crashes >= effects.CRASHES_ALONE else "run again"
        careful = effects.bury_crashed(row, effects.EffectKind(name="any", idempotent=False))
        lines.append(
            [
                crashes,
                alone if buried is None else f"`dead` ({buried.outcome})",
                "-" if careful is None else f"`dead` ({careful.outcome})",
            ]
        )
    return table(["crashes", "idempotent or transactional", "not idempotent"], lines)


def kinds() -> str:
    """The kinds of effect that the server has."""
    what = {
        "launch": "queues the run of an agent, for a rule or for a pinned card",
        "reflect": "moves a card to where its board says that its run's state belongs",
        "event": "asks one obligation again about an event that it could not judge",
    }
    rows = [
        [
            code(kind.name),
            what[kind.name],
            "transactional" if kind.transactional else "external",
            kind.max_attempts,
        ]
        for kind in (LAUNCH, REFLECT, EVENT_KIND)
    ]
    return table(["kind", "what it does", "executor", "attempts"], rows)


def _waits(backoff: Backoff, attempts: int) -> str:
    return ", ".join(f"{backoff.delay_seconds(n, random=0.5):g}" for n in range(attempts - 1))


def completions() -> str:
    """What each outcome of a runner makes of a running run, asked of the code that decides it."""
    policy, rows = runs.RunPolicy(), []
    for outcome in sorted(runs.OUTCOMES):
        line = [code(outcome)]
        for attempts in (1, policy.attempts_max):
            run = cast(
                "runs.Run",
                _Given(
                    state=runs.RunState.RUNNING,
                    claim_id=NOBODY,
                    attempts=attempts,
                    cancel_requested=False,
                ),
            )
            done = runs.conclude(
                run, NOBODY, runs.Completion(outcome=cast("Any", outcome)), policy, random=0.5
            )
            assert isinstance(done, runs.Conclusion)
            line.append(code(done.state))
        rows.append(line)
    return table(["outcome", "attempts left", "last attempt"], rows)


class _Given:
    """As much of a run as a decision looks at."""

    def __init__(self, **given: Any) -> None:
        self.__dict__.update(given)


def states() -> str:
    """The two tables of states, and what decides the moves."""
    policy = runs.RunPolicy()
    deferred_days = effects.DEFER_LIMIT_SECONDS / 86_400
    return f"""# States

Two things have a table of states: what is owed (an effect), and an agent's work (a run). Each table is a literal in the code
(`spine/effects.py`, `agents/model.py`); a move that it does not have raises and changes nothing. A card's states are its board's
own: any card may be moved to any of them.

## Effects

{diagram(effects.TRANSITIONS, "pending", effects.FINAL)}
{table(["state", "meaning"], (anchored(f"effect-{one}", EFFECT_STATES[one]) for one in effects.EffectState))}
{table(["from", "move", "to", "when"], ([code(a), m, code(b), EFFECT_MOVES[a, m]] for (a, m), b in effects.TRANSITIONS.items()))}
### What an executor's answer makes of its row

{outcomes()}
`Deferred` spends no attempt, however often; an effect that has been deferred for {deferred_days:g} days without a break is dead
(`target_down`, or `exhausted` when it depends on no target). An exception is read as an answer: `Definitive` and `Misuse` as Failed, `OutcomeUnknown` and `TimeoutError` as
Unknown, any other as Retry. A transactional executor that answers anything but Done, Dropped or Held has its writes undone. `Held` is
the answer for a paused rule: the row waits, however long, until somebody resumes the rule.

Waits between the attempts of a kind with {effects.EffectKind(name="any").max_attempts} attempts, in seconds, each ± {DEFAULT_BACKOFF.jitter:.0%}:
{_waits(DEFAULT_BACKOFF, effects.EffectKind(name="any").max_attempts)}.

### What becomes of a row whose worker ended

{after_crashes()}
A crash is a claim that ran out: the worker was killed, or could not renew. A row that must run
alone is claimed when its worker has nothing else in hand.

### Kinds

{kinds()}
In a library every kind is your own: `@spine.effect` declares an external one, `@spine.transactional_effect` a transactional one.

## Runs

{diagram(runs.TRANSITIONS, "queued", runs.FINAL)}
{table(["state", "event", "meaning"], (_run_state(one) for one in runs.RunState))}
{table(["from", "move", "to", "when"], ([code(a), m, code(b), _run_move(a, m)] for (a, m), b in runs.TRANSITIONS.items()))}
### What a runner's outcome makes of a running run

{completions()}
A run has {policy.attempts_max} attempts and a lease of {policy.lease_seconds:g} s unless the settings say otherwise; a runner sends a heartbeat every third of the
lease. A claim that never had a heartbeat costs no attempt; a run that has {policy.unbegun_max} of them in a row is lost. Waits after `retry` without a time of its own, in seconds, each
± {policy.backoff.jitter:.0%}: {_waits(policy.backoff, policy.attempts_max)}; at most {policy.backoff.cap_seconds:g}.
"""


def _run_state(state: runs.RunState) -> Sequence[object]:
    anchor, meaning = anchored(f"run-{state}", RUN_STATES[state])
    return anchor, code(runs.EVENT_KINDS[state]) if state in runs.EVENT_KINDS else "-", meaning


def _run_move(state: runs.RunState, move: runs.RunMove) -> str:
    late = state in (S.QUEUED, S.LOST) and move in LATE
    if late:
        outcome = LATE[move]
        return f"the last claim's result, later than its lease: `{outcome}`; nobody has claimed it since"
    return SPECIAL_MOVES.get((state, move)) or RUN_MOVES[move]


S, M = runs.RunState, runs.RunMove
LATE = {M.FINISH: "done", M.BLOCK: "blocked", M.FAIL: "failed", M.STOP: "cancelled", M.ASK: "needs_input"}
SPECIAL_MOVES: Mapping[tuple[runs.RunState, runs.RunMove], str] = {
    (S.QUEUED, M.REQUEUE): "its last claim hands it back, later than its lease: that attempt is not spent",
    (S.LOST, M.REQUEUE): "its last claim hands it back, later than its lease: that attempt is not spent",
    (S.QUEUED, M.LOSE): "no runner came in time (nothing in this release asks for it)",
    (S.CLAIMED, M.REQUEUE): "no heartbeat came within the lease: free of charge",
    (
        S.CLAIMED,
        M.LOSE,
    ): f"the same, {runs.RunPolicy().unbegun_max} times in a row: it may be what ends its runners",
    (S.CLAIMED, M.CANCEL): "somebody cancels it: the runner will be told, and decides",
    (S.RUNNING, M.CANCEL): "somebody cancels it: the runner is told by its next heartbeat, and decides",
    (S.CLAIMED, M.STOP): "it was to be cancelled, and no heartbeat came within the lease",
}
