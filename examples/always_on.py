"""A whole agent that is always on: say `@helper …` in a channel. Start it where `mainspring dev` runs:

python examples/always_on.py
"""

from mainspring.sdk import Message, Reply, Runner

runner = Runner()


@runner.on_message("helper")
async def helper(message: Message, reply: Reply) -> None:
    said = await reply("let me count …")
    words = len(message.text.replace("@helper", "").split())
    await said.edit(f"{message.author}, that was {words} word{'s' * (words != 1)}")


if __name__ == "__main__":
    runner.run()
