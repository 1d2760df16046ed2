"""How tasks here are ended: by asking until they are.

The NATS client takes a cancellation that meets it while it writes for its own, and says nothing: whoever waits for a task that was
cancelled once may wait for ever.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

_AGAIN_SECONDS: Final = 0.05


async def ended(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks and wait until they have ended, with whatever came of them."""
    left = {task for task in tasks if task is not None and not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_AGAIN_SECONDS)
