"""A round over tenants: batch after batch, and what stands in the way of one tenant holds up no other."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from mainspring import telemetry
from mainspring.sweeps import Sweep

log = logging.getLogger("mainspring.tested")
SWEEP = Sweep(loop="tested sweep", log=log, told="tested: of tenant %s")
FIRST, BROKEN, LAST = (UUID(int=n) for n in (1, 2, 3))


class Missed:
    """What is still to be repaired, by tenant; the broken ones cannot be."""

    def __init__(self, *broken: UUID) -> None:
        self.left = Counter({FIRST: 3, BROKEN: 3, LAST: 1})
        self.broken = set(broken)
        self.tried = Counter[UUID]()
        self.asked = 0

    async def find(self, but: Sequence[UUID]) -> list[Any]:
        self.asked += 1
        assert self.asked < 20, "it does not end"
        return [{"tenant_id": one} for one in sorted(self.left.elements()) if one not in but][:2]

    async def repair(self, tenant: UUID, rows: Sequence[Any]) -> int:
        self.tried[tenant] += 1
        if tenant in self.broken:
            raise LookupError("it is broken")
        self.left[tenant] -= len(rows)
        return len(rows)


async def test_it_goes_on_until_a_batch_comes_back_short() -> None:
    missed = Missed()
    assert await SWEEP.over_tenants(missed.find, missed.repair, batch=2) == 7
    assert (missed.left.total(), missed.asked) == (0, 4)


async def test_a_tenant_that_fails_is_counted_and_told_and_left_out_until_the_next_round(
    caplog: pytest.LogCaptureFixture,
) -> None:
    missed = Missed(BROKEN)
    failures = telemetry.loop_failures.labels("tested sweep", "LookupError")
    before = failures._value.get()
    assert await SWEEP.over_tenants(missed.find, missed.repair, batch=2) == 4
    assert (missed.left[FIRST], missed.left[BROKEN], missed.left[LAST]) == (0, 3, 0)
    assert (missed.tried[BROKEN], failures._value.get()) == (1, before + 1)
    [told] = caplog.records
    assert told.getMessage() == f"tested: of tenant {BROKEN}: LookupError: it is broken"

    missed.broken.clear()
    assert await SWEEP.over_tenants(missed.find, missed.repair, batch=2) == 3


async def test_when_nothing_can_be_found_the_round_fails_and_no_tenant_is_blamed() -> None:
    async def find(_but: Sequence[UUID]) -> list[Any]:
        raise LookupError("there is no database")

    failures = telemetry.loop_failures.labels("tested sweep", "LookupError")
    before = failures._value.get()
    with pytest.raises(LookupError):
        await SWEEP.over_tenants(find, Missed().repair, batch=2)
    assert failures._value.get() == before
