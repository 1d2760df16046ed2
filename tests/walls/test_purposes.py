"""Who looks over the walls: every place that opens a transaction which sees all tenants, and why it must.

A place that is added, or a purpose that changes, is added here knowingly, with its reason.
"""

from __future__ import annotations

import ast
import importlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import mainspring

SOURCES = Path(mainspring.__file__).parent

# (module, purpose) → how many places, and what is done there that one tenant's view could not do
REASONS: dict[tuple[str, str], tuple[int, str]] = {
    # the engine: whose turn it is, is what it asks first
    ("spine.drain", "drain"): (1, "locks the cursors of all tenants that lag, and owes what their events owe"),
    ("stores.postgres.store", "claim"): (1, "takes due effects of all tenants in turn, so that none waits for another"),
    ("stores.postgres.store", "renew"): (1, "renews all claims of a worker, whosoever they are, in one statement"),
    ("stores.postgres.store", "tick"): (1, "asks whether anything is due anywhere"),
    ("spine.settler", "settle"): (1, "settles a batch of outcomes that append nothing, of any tenants"),
    ("spine.targets", "breakers"): (1, "writes the breakers of a batch's targets, of any tenants"),
    ("spine.worker", "traces"): (1, "reads from which traces the events of a batch came, of any tenants"),
    ("spine.janitor", "due sweep"): (1, "rebuilds where claims look first"),
    ("spine.janitor", "retention"): (1, "trims final rows that were kept long enough"),
    ("spine.engine", "create tenant"): (1, "a tenant that is not there yet can open no scope"),
    # the rooms' sweeps: which tenants have something to repair; what they repair is done a tenant at a time
    ("agents.silence", "silent runs"): (2, "the database's time; which tenants have runs that nobody renews or takes"),
    ("triggers.dispatch", "dispatch sweep"): (1, "which cards' dispatches were never owed"),
    ("triggers.effects", "trim firings"): (1, "trims what limits have counted and count no more"),
    ("triggers.limits", "later launches"): (1, "one tenant's, by what payloads say: behind the walls no index of that is used"),
    ("triggers.stray", "held rows"): (1, "which rules that are not paused hold rows"),
    ("commands.keys", "trim keys"): (1, "trims answers that were kept long enough"),
    ("chat.nets", "delivery nets"): (4, "whether sessions are lost, messages held past theirs, or agents to be woken, and in which tenants; lets go of what nobody holds any more"),
    # waiting on behalf of many: one question a round for all who wait
    ("agents.polls", "run polls"): (1, "for which of the waiting runners there is work"),
    ("agents.polls", "run calls"): (1, "the same, of the tenants alone in which something has just happened to a run"),
    ("chat.waits", "inboxes"): (1, "which of the waiting sessions have something to read"),
    ("operators.tails", "event tails"): (2, "reads on in the logs of all tenants that somebody follows, whether they still may, and what they see"),
    # before it is known who asks
    ("agents.tokens", "authenticate"): (1, "a secret says whose it is only once it is found"),
    ("agents.tokens", "check exposure"): (1, "whether a demo's token opens this server, before it listens"),
    # of the server, not of a tenant
    ("wiring", "readiness"): (2, "the schema's version and what it lacks"),
    ("wiring", "check schema"): (1, "the same, before it starts"),
    ("wiring", "fabric migration"): (1, "holds a lock of the database while streams of an older release are migrated; no tenant's rows"),
    ("operators.doctor", "doctor"): (3, "the server's time, schema and walls; no tenant's rows"),
    ("operators.metrics", "metrics"): (2, "gauges over all tenants, counted and without a name"),
    ("agents.service", "metrics"): (1, "the same, of runs and runners"),
}  # fmt: skip
# hands on the purpose that the engine names
HANDED_ON = {("stores.postgres.store", "purpose")}


def places() -> Iterator[tuple[str, str]]:
    """Every call of `system(purpose)` and `as_system(purpose)`, by module and purpose."""
    for path in sorted(SOURCES.rglob("*.py")):
        module = ".".join(path.relative_to(SOURCES).with_suffix("").parts)
        text = path.read_text(encoding="utf-8")
        if "system(" not in text:
            continue
        for call in ast.walk(ast.parse(text)):
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and call.func.attr in ("system", "as_system")
                and (module, ast.unparse(call.args[0]) if call.args else "") not in HANDED_ON
            ):
                yield module, purpose_of(module, call)


def purpose_of(module: str, call: ast.Call) -> str:
    """The purpose as it is written, or as the constant of the module says."""
    match call.args:
        case [ast.Constant(value=str(purpose))]:
            return purpose
        case [ast.Name(id=name)]:
            return str(getattr(importlib.import_module(f"mainspring.{module}"), name))
        case _:
            raise AssertionError(f"{module}:{call.lineno}: a purpose is a word, or a constant of its module")


def test_every_place_that_sees_all_tenants_has_its_reason() -> None:
    assert Counter(places()) == {place: count for place, (count, _) in REASONS.items()}


def test_nobody_takes_the_role_that_sees_all_tenants_in_another_way() -> None:
    naming = {
        ".".join(path.relative_to(SOURCES).with_suffix("").parts)
        for path in SOURCES.rglob("*.py")
        if "mainspring_system" in path.read_text(encoding="utf-8")
    }
    assert naming == {"db", "roles"}
