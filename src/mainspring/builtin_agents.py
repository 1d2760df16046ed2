"""The agents that come with Mainspring, so that a newcomer needs no key and no code: `echo` and `flaky`.

They are written against the SDK like anybody's, and run by a runner process like anybody's.
"""

from __future__ import annotations

from mainspring.sdk import Message, Reply, Run, Runner

HANDLES = ("echo", "flaky")
_SLOTS = 4


def add_to(runner: Runner) -> None:
    """Let `runner` do the runs of the built-in agents, and read what is said to echo."""
    runner.agent("echo", slots=_SLOTS, timeout_seconds=60)(echo)
    runner.on_message("echo", timeout_seconds=60)(answer)
    runner.agent("flaky", slots=_SLOTS, timeout_seconds=60)(flaky)


async def echo(run: Run) -> str:
    """Say what it was asked."""
    await run.progress(f"attempt {run.attempt} of run {run.id}")
    await run.progress(f"because: {run.trigger.summary or 'somebody asked'}")
    await run.progress(f"card: {await _about(run)}")
    return f"echo: {run.prompt}"


async def answer(message: Message, reply: Reply) -> None:
    """Say what it was told."""
    await reply(f"echo: {message.text.replace('@echo', '').strip() or 'nothing'}")


async def flaky(run: Run) -> str:
    """Fail until the card's field `fixed` is true: a poison card, to see what a dead letter is."""
    if run.card_key is None:
        return await run.failed("there is no card whose field `fixed` could be true")
    card = await run.card()
    await run.progress(f"{card.key}: fixed = {card.fields.get('fixed')!r}")
    if card.fields.get("fixed") is not True:
        return await run.failed(
            f"{card.key} is poisoned: set its field `fixed` to true, then replay this run"
        )
    return f"{card.key} is fixed"


async def _about(run: Run) -> str:
    if run.card_key is None:
        return "none"
    card = await run.card()
    return f"{card.key} {card.title!r} in {card.state}"
