"""Whether a runner's slots are of use: takes what the server says of its agents, leaves a warning where it has more than they."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from mainspring.sdk.execution import Agent

_log = logging.getLogger("mainspring.sdk")


class Slots:
    """What a runner offers of each agent. Whoever hears from the server how many slots an agent has, tells it."""

    def __init__(self, agents: Iterable[Agent]) -> None:
        self._unheard = {agent.handle: agent.slots for agent in agents}

    def heard(self, slots: Mapping[str, int]) -> None:
        """Take how many slots agents have on the server; warn of each that has fewer than this runner offers, once."""
        for handle, most in slots.items():
            offered = self._unheard.pop(handle, 0)
            if offered > most:
                _log.warning(
                    "agent %s: this runner has %d slots for it, and no more than %d of its runs go on at once, on all runners "
                    "together; an operator raises that: mainspring agent edit %s --slots %d",
                    handle, offered, most, handle, offered,
                )  # fmt: skip
