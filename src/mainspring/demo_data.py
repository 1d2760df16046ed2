"""What a newcomer finds: a channel, a board, two cards, two agents, and the rules that launch them when a card is moved to doing.

Takes the services, leaves what is missing made through them, as any user would. Repeated starts change nothing, whatever
people have made of it meanwhile: what exists by its name is left alone, and cards come only with a fresh board.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mainspring.agents.service import AgentService
from mainspring.boards.model import BoardState, CardQuery, NewCard
from mainspring.boards.service import BoardService
from mainspring.chat.service import ChatService
from mainspring.rooms import Actor, Conflict, NotFound
from mainspring.triggers.service import RuleService

AGENTS: Final = ("echo", "flaky")
AGENT_SLOTS: Final = 4
BOARD: Final = "DEMO"
CHANNEL: Final = "general"
POISON: Final = "poison"

_NAMES: Final = {"echo": "Echo: says what it was asked", "flaky": "Flaky: fails until the card is fixed"}
_STATES: Final = (
    BoardState(name="backlog"),
    BoardState(name="ready", eligible=True),
    BoardState(name="doing"),
    BoardState(name="review"),
    BoardState(name="done", terminal=True),
)
_REFLECT: Final = {"running": "doing", "done": "review"}
_CARDS: Final[Sequence[NewCard]] = (
    NewCard(
        title="Say hello",
        body="Move this card to doing: the rule `doing → echo` launches the agent echo, and its run moves the card on to review.",
    ),
    NewCard(
        title="A poisoned card",
        body="Move this card to doing: its run fails and lies at the desk as a dead letter. Set the field `fixed` to true, "
        "plan, replay: the same run, now done.",
        labels=(POISON,),
    ),
)
_RULES: Final[Sequence[Mapping[str, Any]]] = (
    {
        "name": "doing → echo",
        "when": {
            "kinds": ["card.moved"],
            "boards": [BOARD],
            "to_states": ["doing"],
            "labels_none": [POISON],
            # the move that reflects a running run is nobody's wish for another
            "actors": ["members"],
        },
        "do": {"launch": {"agent": "echo", "prompt": "What is {{card.key}}? {{card.title}}"}},
    },
    {
        "name": "poison → flaky",
        "when": {
            "kinds": ["card.moved"],
            "boards": [BOARD],
            "to_states": ["doing"],
            "labels_all": [POISON],
            "actors": ["members"],
        },
        "do": {"launch": {"agent": "flaky", "prompt": "Work on {{card.key}}: {{card.title}}"}},
    },
)


async def ensure(
    admin: Actor, *, agents: AgentService, boards: BoardService, rules: RuleService, chat: ChatService
) -> None:
    """Make the demo's agents, channel, board, rules and cards, as far as they are not there."""
    await ensure_agents(admin, agents)
    await _ensure_channel(admin, chat)
    await _ensure_board(admin, boards)
    for rule in _RULES:
        await _ensure_rule(admin, rules, rule)
    # last, and only on a board that never had one: a demo card that somebody deleted stays deleted
    if not await boards.list_cards(admin.tenant_id, CardQuery(board=BOARD, limit=1)):
        for card in _CARDS:
            await boards.create_card(admin, BOARD, card)


async def ensure_agents(admin: Actor, agents: AgentService) -> None:
    """Make the built-in agents, as far as they are not there."""
    for handle in AGENTS:
        try:
            await agents.get(admin.tenant_id, handle)
        except NotFound:
            await agents.create(admin, handle=handle, name=_NAMES[handle], slots=AGENT_SLOTS)


async def _ensure_channel(admin: Actor, chat: ChatService) -> None:
    """Make the channel, with its person and echo, who reads what mentions it alone."""
    try:
        await chat.get_channel(admin, CHANNEL)
    except NotFound:
        try:
            await chat.create_channel(
                admin, name=CHANNEL, purpose="What is said to all", visibility="open", post_policy="members"
            )
        except Conflict:  # another start was quicker
            return
        await chat.join(admin, CHANNEL, "echo", subscribed=False)


async def _ensure_board(admin: Actor, boards: BoardService) -> None:
    try:
        await boards.get_board(admin.tenant_id, BOARD)
    except NotFound:
        await boards.create_board(admin, key=BOARD, name="Demo", states=_STATES, reflect=_REFLECT)


async def _ensure_rule(admin: Actor, rules: RuleService, rule: Mapping[str, Any]) -> None:
    try:
        await rules.show(admin.tenant_id, rule["name"])
    except NotFound:
        try:
            await rules.create(admin, rule)
        except Conflict:  # another start was quicker
            return
