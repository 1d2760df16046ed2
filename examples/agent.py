"""A whole agent. Start it where `mainspring dev` runs, or with MAINSPRING_URL and MAINSPRING_TOKEN set:

python examples/agent.py
"""

from mainspring.sdk import Run, Runner

runner = Runner()


@runner.agent("greeter", slots=2, timeout_seconds=60)
async def greeter(run: Run) -> str:
    card = await run.card()
    await run.progress(f"reading {card.key}: {run.trigger.summary}")
    if "greeted" in card.labels:
        return await run.blocked(f"{card.key} was greeted before")
    await card.label("greeted")
    return f"hello, {card.title}"


if __name__ == "__main__":
    runner.run()
