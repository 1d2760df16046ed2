"""What the doctor makes of what he finds: values to findings. Pure: no await, no I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from mainspring.agents.model import having

if TYPE_CHECKING:
    from mainspring.spine.service import Health

State: TypeAlias = Literal["ok", "warning", "bad"]
_RANK: Final[Mapping[State, int]] = {"bad": 0, "warning": 1, "ok": 2}

LAG_WARNING_SECONDS: Final = 10.0
LAG_BAD_SECONDS: Final = 60.0
OVERDUE_WARNING_SECONDS: Final = 60.0
SKEW_WARNING_SECONDS: Final = 2.0
TRANSACTION_WARNING_SECONDS: Final = 30.0
FAILURES_BAD: Final = 3
REFUSED_SHOWN_MAX: Final = 3
POSTGRES_MIN: Final = 150_000


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: how it is, and what to do about it if it is not well."""

    check: str
    state: State
    said: str
    way_out: str = ""

    @property
    def rank(self) -> tuple[int, str]:
        """What is worst comes first."""
        return _RANK[self.state], self.check

    def as_json(self) -> dict[str, str]:
        """Return the finding as it is shown."""
        return {"check": self.check, "state": self.state, "said": self.said, "way_out": self.way_out}


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The whole of it. `ok`: nothing is bad; warnings are for reading."""

    sentence: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is bad."""
        return all(finding.state != "bad" for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """Return the diagnosis as it is shown."""
        return {
            "ok": self.ok,
            "sentence": self.sentence,
            "findings": [finding.as_json() for finding in self.findings],
        }


def ok(check: str, said: str) -> Finding:
    """Return that a thing is well."""
    return Finding(check, "ok", said)


def warning(check: str, said: str, way_out: str) -> Finding:
    """Return that a thing wants looking at."""
    return Finding(check, "warning", said, way_out)


def bad(check: str, said: str, way_out: str) -> Finding:
    """Return that a thing is broken."""
    return Finding(check, "bad", said, way_out)


# What is owed ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """A tenant's log: its head, how far it is drained, how old the first event is that is not, and whether that is missing."""

    head: int
    position: int
    lag_seconds: float
    is_broken: bool = False

    @property
    def undrained(self) -> int:
        """How many events no drain has looked at."""
        return self.head - self.position


@dataclass(frozen=True, slots=True, kw_only=True)
class Owed:
    """The live effects of one kind. `overdue_seconds`: how long the first has been due and not taken; `offered`: no worker takes it, but an agent."""

    kind: str
    owed: int
    oldest_seconds: float
    overdue_seconds: float
    offered: bool = False


def sentence(log: Log, owed: Sequence[Owed]) -> str:
    """Return, in one plain sentence, whether anything is lost or late."""
    events = f"{log.head:,} event{'s are' if log.head != 1 else ' is'}"
    if log.head == 0:
        first = "Nothing has happened yet"
    elif log.undrained:
        first = f"{log.undrained:,} of {log.head:,} events are not drained yet, the oldest for {span(log.lag_seconds)}"
    else:
        first = f"All {events} drained" if log.head != 1 else "The one event is drained"
    count = sum(kind.owed for kind in owed)
    if not count:
        return f"{first}; nothing is owed."
    oldest = max(kind.oldest_seconds for kind in owed)
    return f"{first}; {count:,} effect{'s' if count != 1 else ''} owed, oldest {span(oldest)}."


def span(seconds: float) -> str:
    """Return a length of time as people say it."""
    if seconds < 1:
        return "less than a second"
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def drained(log: Log) -> Finding:
    """Say whether the drain keeps up."""
    if log.is_broken:
        said = (
            f"event {log.position + 1} of {log.head} is missing: this tenant's log is not drained behind it"
        )
        return bad("drain", said, "restore the event from a backup, or give it up: `mainspring event skip`")
    if not log.undrained or log.lag_seconds < LAG_WARNING_SECONDS:
        return ok("drain", f"at event {log.position} of {log.head}")
    said = f"{log.undrained} events behind, the oldest for {span(log.lag_seconds)}"
    way_out = "look at the loop `drain`, and whether a process of the schema's engine version runs"
    return (bad if log.lag_seconds >= LAG_BAD_SECONDS else warning)("drain", said, way_out)


def overdue(owed: Sequence[Owed]) -> Finding:
    """Say whether workers keep up with what is due."""
    late = [kind for kind in owed if kind.overdue_seconds >= OVERDUE_WARNING_SECONDS and not kind.offered]
    if late:
        said = "; ".join(f"{one.kind}: due for {span(one.overdue_seconds)}" for one in late)
        return warning(
            "effects", said, "look at the loop `worker`; `mainspring effect list --state pending` names them"
        )
    return ok("effects", ", ".join(f"{one.owed} {one.kind}" for one in owed) or "none owed")


def unread(agents: Sequence[Mapping[str, Any]]) -> Finding:
    """Say whose messages wait, and for what: agents fetch these themselves."""
    if not agents:
        return ok("messages", "no agent's wait for long")
    ways = [
        "messages are fetched by the agents' own programs: start the one that is missing, mend the one that refuses"
    ]
    refused = [one["refused_id"] for one in agents if one["refused_id"] is not None]
    ways += [f"`mainspring explain {ref}`" for ref in refused[:REFUSED_SHOWN_MAX]]
    return warning("messages", "; ".join(_unread(one) for one in agents), "; ".join(ways))


def _unread(one: Mapping[str, Any]) -> str:
    wait = "message waits" if one["waiting"] == 1 else "messages wait"
    said = f"{one['waiting']} {wait} for {one['handle']}, the oldest for {span(one['oldest_seconds'])}"
    if one["refused_id"] is not None:
        times = "once" if one["refused"] == 1 else f"{one['refused']} times"
        again = f"again at {one['refused_until']:%Y-%m-%d %H:%M:%S}"
        return (
            f"{said}: it refused delivery {one['refused_id']} {times}, {again}, and what is behind that waits"
        )
    if one["reads"]:
        return f"{said}: its session is live, and has not asked for them or is in a turn"
    return f"{said}: {'it is paused' if one['paused'] else 'no session is live'}"


def dead(*, effects: int, runs: int) -> Finding:
    """Say what lies on the desk."""
    if not effects + runs:
        return ok("desk", "no dead letters")
    said = f"{effects} dead effect{'s' if effects != 1 else ''}, {runs} failed or lost run{'s' if runs != 1 else ''}"
    return warning("desk", said, "`mainspring desk list --group-by cause`")


# The ground it stands on ----------------------------------------------------------------------------------------


def server(*, version: int, standby: bool, seconds: float) -> Finding:
    """Say whether the database is one to write to."""
    name = f"PostgreSQL {version // 10_000}.{version % 10_000}"
    if standby:
        return bad(
            "database",
            f"{name} is a standby: it takes no writes",
            "point MAINSPRING_DATABASE_URL at the primary",
        )
    if version < POSTGRES_MIN:
        return bad("database", f"{name} is too old", "use PostgreSQL 15 or newer")
    return ok("database", f"{name}, answers in {seconds * 1_000:.0f} ms")


def clocks(skew_seconds: float) -> Finding:
    """Say whether this process and the database agree on the time. Nothing is decided by ours: only what people read differs."""
    if abs(skew_seconds) < SKEW_WARNING_SECONDS:
        return ok("clock", f"within {abs(skew_seconds):.2f} s of the database's")
    word = "behind" if skew_seconds > 0 else "ahead of"
    said = f"{span(abs(skew_seconds))} {word} the database's"
    return warning(
        "clock", said, "set this machine's clock: leases hold all the same, but its logs do not line up"
    )


def schema(missing: Sequence[str], *, ours: int, theirs: int) -> Finding:
    """Say whether the schema is what this process needs."""
    if missing:
        return bad("schema", f"lacks {', '.join(missing)}", "`mainspring server migrate`")
    if theirs > ours:
        said = f"of engine version {theirs}, and this process of {ours}: it serves, and leaves the draining to newer ones"
        return warning("schema", said, "upgrade this process")
    return ok("schema", f"engine version {theirs}")


def walls(without: Sequence[str], *, refused: bool) -> Finding:
    """Say whether tenants are kept apart."""
    if not refused:
        said = "the login of this process reads rows without saying whose"
        return bad("walls", said, "use a login that is no superuser and holds the roles by SET ROLE alone")
    if without:
        return bad(
            "walls",
            f"no row security on {', '.join(without)}",
            "`mainspring server migrate` on a whole schema",
        )
    return ok("walls", "every table is behind row security, and the login alone reads nothing")


def pool(*, size: int, idle: int, most: int) -> Finding:
    """Say whether there are connections to spare."""
    said = f"{size - idle} of {most} connections in use"
    if size == most and not idle:
        return warning("pool", said, "raise MAINSPRING_POOL_SIZE if it stays so")
    return ok("pool", said)


def transactions(open_: int, oldest_seconds: float) -> Finding:
    """Say whether a transaction of this login stays open: it would hold a tenant's log, or keep dead rows from being cleared."""
    if oldest_seconds < TRANSACTION_WARNING_SECONDS:
        return ok("transactions", f"{open_} open, none for long")
    return warning(
        "transactions", f"one is open for {span(oldest_seconds)}", "`select * from pg_stat_activity` names it"
    )


def loops(health: Sequence[Health]) -> list[Finding]:
    """Say which loops of this process fail."""
    failing = [one for one in health if one.failures]
    if not failing:
        return [ok("loops", f"{len(health)} turn")]
    return [
        (bad if one.failures >= FAILURES_BAD else warning)(
            f"loop {one.name}",
            f"failed {one.failures} times in a row; last: {one.error}",
            "it tries on by itself; the server's log tells since when",
        )
        for one in failing
    ]


# What a tenant runs ---------------------------------------------------------------------------------------------


def runners(silent: Sequence[Mapping[str, Any]], unserved: Sequence[Mapping[str, Any]]) -> Finding:
    """Say which runs wait for a runner that is not there or an agent that is paused, and which runners have gone silent."""
    said = [
        f"{one['queued']} queued for {one['handle']} and {_lacks(one)}, oldest {span(one['oldest_seconds'])}"
        for one in unserved
    ]
    said += [
        f"{one['name']} is silent for {span(one['silent_seconds'])}" + (f" and holds {one['held']}" if one["held"] else "")
        for one in silent
        if unserved or one["held"]
    ]  # fmt: skip
    if said:
        return warning(
            "runners",
            "; ".join(said),
            "`mainspring runner start` on any machine; `mainspring runner list`; `mainspring agent resume`",
        )
    return ok("runners", "no run waits for one")


def _lacks(unserved: Mapping[str, Any]) -> str:
    return "it is paused" if unserved["paused"] else f"no runner{having(unserved['labels'])}"


def rules(paused: Sequence[Mapping[str, Any]]) -> Finding:
    """Say which rules are paused, and why."""
    if not paused:
        return ok("rules", "none is paused")
    said = "; ".join(f"{one['name']!r}: {one['paused_because']}" for one in paused)
    return warning("rules", f"paused: {said}", "`mainspring rule resume`, running or discarding what waits")


def targets(down: Sequence[Mapping[str, Any]]) -> Finding:
    """Say which things outside are taken to be down: what is owed to them waits, and costs no attempts."""
    if not down:
        return ok("targets", "none is down")
    said = "; ".join(
        f"{one['target']} for {span(one['down_seconds'])}: {one['error'] or 'no reason given'}"
        for one in down
    )
    return warning("targets", said, "nothing is lost: they are tried again by themselves")
