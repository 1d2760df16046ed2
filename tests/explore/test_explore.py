"""Every state of the tables of effects, runs and cursors, with two workers, crashes, expiries, replays and operators' edits.

What a bounded model holds is then known, not sampled; and each fence that is taken away is missed, by name.
"""

from __future__ import annotations

import pytest

from mainspring.agents.model import TRANSITIONS as RUN_TRANSITIONS
from mainspring.spine.effects import FINAL, TRANSITIONS, EffectState
from tests.explore import cursors, effects, runs
from tests.explore.search import Broken, explore

pytestmark = pytest.mark.slow


def moves(seen):
    """Every change of state that was seen."""
    return {
        (before.state, after.state)
        for before, behind in seen.behind.items()
        for _, after in behind
        if before.state is not after.state
    }


# as they are --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", effects.KINDS.values(), ids=effects.KINDS)
def test_in_every_state_an_effect_keeps_what_is_promised_and_none_is_stuck(kind):
    model = effects.Model(kind)
    seen = explore(effects.World(), model.steps, model.broken)
    assert moves(seen) == {
        (before, after) for (before, _), after in TRANSITIONS.items() if before is not after
    }
    ended = FINAL | {EffectState.DEAD}
    by_itself = seen.stuck(
        lambda world: world.state in ended,
        by=lambda step: step == "operator: resume" or not step.startswith("operator"),
    )
    assert by_itself == []


def test_in_every_state_a_run_keeps_what_is_promised_and_none_is_stuck():
    model = runs.Model()
    seen = explore(runs.World(), model.steps, model.broken)
    table = RUN_TRANSITIONS.items()
    missing = {(before, after) for (before, _), after in table if before is not after} - moves(seen)
    assert missing == set()
    ended = runs.FINAL | runs.DEAD
    assert (
        seen.stuck(lambda world: world.state in ended, by=lambda step: not step.startswith("operator")) == []
    )


def test_in_every_state_of_log_and_cursor_each_event_owes_one_row_of_its_version():
    model = cursors.Model()
    seen = explore(cursors.World(), model.steps, model.broken)
    drained = seen.stuck(
        lambda world: world.position == len(world.log), by=lambda step: not step.startswith("append")
    )
    assert drained == []


# mutants: each fence is there for a reason --------------------------------------------------------------------


class NotCompared(effects.Store):
    """Settles whatever is claimed, by whomever."""

    forgets = False

    def holds(self, world, hand):
        return world.state is EffectState.CLAIMED


class Unfenced(NotCompared):
    """Settles whatever there is."""

    def holds(self, world, hand):
        return True


class Impatient(effects.Store):
    """Reclaims from the living."""

    def may_reclaim(self, world):
        return world.state is EffectState.CLAIMED


class Generous(effects.Store):
    """Replays what is done."""

    def may_replay(self, world):
        return world.state in (EffectState.DEAD, EffectState.DONE)


@pytest.mark.parametrize(
    ("store", "kind", "promise"),
    [
        (NotCompared(), "external", "I-5: an accepted settle carries the last claim"),
        (Unfenced(), "external", "I-5: an accepted settle carries the last claim"),
        (Unfenced(), "transactional", "I-5: an accepted settle carries the last claim"),
        (Generous(), "external", "I-5: a final state is left by nobody"),
    ],
)
def test_a_store_that_fences_less_is_caught(store, kind, promise):
    model = effects.Model(effects.KINDS[kind], store)
    with pytest.raises(Broken) as caught:
        explore(effects.World(), model.steps, model.broken)
    assert caught.value.promise == promise, caught.value


@pytest.mark.parametrize(
    ("store", "kind", "promises"),
    [
        (NotCompared(), "external", {"I-7: an attempt that was spent stays spent"}),
        (Unfenced(), "external", {"I-5: a final state is left by nobody"}),
        (Unfenced(), "transactional", {"I-6: what a transactional executor does is done once", "I-5: a final state is left by nobody"}),
    ],
)  # fmt: skip
def test_without_the_claim_fence_what_it_is_for_breaks_too(store, kind, promises):
    """The promise that names the claim is not asked: what follows from it is."""
    model = effects.Model(effects.KINDS[kind], store)
    with pytest.raises(Broken) as caught:
        explore(
            effects.World(),
            model.steps,
            lambda before, step, after: model.broken(before, step.replace(effects.OVER, ""), after),
        )
    assert caught.value.promise in promises, caught.value


def test_a_worker_that_shuts_down_before_it_looks_would_have_it_run_twice():
    class HandsBackUnseen(effects.Model):
        def _handed_back(self, hand):
            said = "unknown" if hand.began and not self.kind.idempotent else "deferred"
            return effects.settlements(self.kind, hand, said)[:1]

    model = HandsBackUnseen(effects.KINDS["not idempotent"])
    with pytest.raises(Broken) as caught:
        explore(effects.World(), model.steps, model.broken)
    assert caught.value.promise == "I-6: what must not happen twice is not begun again"
    assert "shut down" in caught.value.way


def test_a_store_that_reclaims_early_does_the_work_of_the_living_twice_and_loses_none():
    """An idempotent effect's promises hold all the same, since the fence is another's: leases are for speed, fences for truth."""
    model = effects.Model(effects.KINDS["transactional"], Impatient())
    explore(effects.World(), model.steps, model.broken)


def test_a_run_without_the_claim_fence_is_caught():
    class Unchecked(runs.Store):
        def is_last(self, hand):
            return True

    model = runs.Model(Unchecked())
    with pytest.raises(Broken) as caught:
        explore(runs.World(), model.steps, model.broken)
    assert caught.value.promise == "I-5: a word that is accepted is the last claim's"


class Neither(cursors.Store):
    locks = compares = False


class OnlyLocks(cursors.Store):
    compares = False


class OnlyCompares(cursors.Store):
    locks = False


class RulesFirst(cursors.Store):
    events_first = False


@pytest.mark.parametrize(
    ("store", "promise"),
    [
        (Neither, "I-4: a cursor only grows, and never beyond its log"),
        (RulesFirst, "I-1: each event is judged by the version in force at its seq"),
    ],
)
def test_a_drain_that_minds_less_is_caught(store, promise):
    model = cursors.Model(store)
    with pytest.raises(Broken) as caught:
        explore(cursors.World(), model.steps, model.broken)
    assert caught.value.promise == promise


@pytest.mark.parametrize("store", [OnlyLocks, OnlyCompares])
def test_the_lock_and_the_comparison_of_a_cursor_each_suffice(store):
    model = cursors.Model(store)
    explore(cursors.World(), model.steps, model.broken)
