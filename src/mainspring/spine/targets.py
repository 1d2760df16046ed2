"""Outcomes to breakers. Takes what came of effects, leaves the breakers of their targets as they are then, and hands the effects on:
those that failed because their target is down are put off instead, and spend nothing.

It is asked before a settlement is written. If it dies in between, a failure has been counted whose row is claimed still: the row is
claimed again when its lease has run out, and a probe that never answers leaves its breaker half-open by then.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic

from mainspring.spine.breaker import Breaker, Evidence, Report, Ruling, is_worth_telling, rule
from mainspring.spine.effects import Effect, Settlement
from mainspring.spine.ports import BreakerChange, H, Store, Target

log = logging.getLogger("mainspring.spine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """An effect that its executor has answered for.

    Args:
        settlement: what is still to be written; None when it was written with the work.
        evidence: what its outcome says of its target.
        put_off: what is written instead when its target is to blame; None when that makes no difference.
    """

    effect: Effect
    settlement: Settlement | None
    evidence: Evidence = Evidence.NONE
    put_off: Settlement | None = None

    @property
    def target(self) -> Target:
        """The target that it depends on."""
        return self.effect.tenant_id, self.effect.target

    @property
    def report(self) -> Report:
        """What it says of its target."""
        return Report(self.evidence, probe=self.effect.probe)

    @property
    def error(self) -> str | None:
        """What failed."""
        return self.settlement.error if self.settlement and self.evidence is Evidence.FAILED else None


class Targets(Generic[H]):
    """Keeps the breakers.

    Args:
        reopened: called when a target that was down works again: effects have waited for it.
    """

    def __init__(self, store: Store[H], reopened: Callable[[], None]) -> None:
        self._store = store
        self._reopened = reopened
        self._doubted: set[Target] = set()  # where something failed here since it last worked

    async def judge(self, batch: Sequence[Finished]) -> list[Finished]:
        """Note what a batch says of its targets; return it with what was put off. A batch of which all worked costs nothing."""
        groups: dict[Target, list[Finished]] = {}
        for one in batch:
            if one.effect.target:
                groups.setdefault(one.target, []).append(one)
        told = {target: group for target, group in groups.items() if self._is_worth_telling(target, group)}
        if not told:
            return list(batch)
        put_off: dict[int, Finished] = {}
        for target, ruling in (await self._write(told)).items():
            for one, free in zip(told[target], ruling.free, strict=True):
                if free and one.put_off is not None:
                    put_off[id(one)] = replace(one, settlement=one.put_off)
        return [put_off.get(id(one), one) for one in batch]

    def _is_worth_telling(self, target: Target, group: Sequence[Finished]) -> bool:
        doubted = target in self._doubted or any(one.effect.doubted for one in group)
        return is_worth_telling([one.report for one in group], doubted=doubted)

    async def _write(self, told: Mapping[Target, Sequence[Finished]]) -> Mapping[Target, Ruling]:
        async with self._store.system("breakers") as tx:
            before = await self._store.lock_breakers(tx, list(told))
            rulings = {
                target: rule(before[target], [one.report for one in group], random=random.random())  # noqa: S311 - spreads
                for target, group in told.items()
            }
            await self._store.write_breakers(
                tx,
                [
                    BreakerChange(
                        target=target,
                        breaker=ruling.breaker,
                        open_seconds=ruling.open_seconds,
                        error=next((one.error for one in reversed(told[target]) if one.error), None),
                    )
                    for target, ruling in rulings.items()
                ],
            )
        for target, ruling in rulings.items():
            self._note(target, before[target], ruling)
        return rulings

    def _note(self, target: Target, before: Breaker, ruling: Ruling) -> None:
        after = ruling.breaker
        if after.is_clean:
            self._doubted.discard(target)
        else:
            self._doubted.add(target)
        if before.is_closed and not after.is_closed:
            log.warning(
                "target %s of tenant %s is taken to be down: what it is owed waits", target[1], target[0]
            )
        elif after.is_closed and not before.is_closed:
            log.warning("target %s of tenant %s works again", target[1], target[0])
        if ruling.open_seconds == 0.0:
            self._reopened()
