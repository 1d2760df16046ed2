"""A fresh database becomes one that a newcomer can use, and stays as he left it."""

from __future__ import annotations

import asyncio

import pytest

from mainspring import bootstrap, demo_data, wiring
from mainspring.boards.model import CardQuery
from mainspring.config import Settings
from mainspring.db import create_pool
from mainspring.rooms import NotFound


@pytest.fixture
async def parts(fresh_database):
    database = await fresh_database("server")
    pool = await create_pool(max_size=6, **database.dsn)
    services = wiring.join(Settings(database_url=database.url), pool)
    yield services
    await pool.close()


async def test_the_first_operator_is_made_once(parts):
    assert not await parts.tokens.demo_token_lives()
    made = await asyncio.gather(*(bootstrap.first_operator(parts) for _ in range(4)))
    [secret] = [one for one in made if one is not None]
    holder = await parts.tokens.authenticate(secret)
    assert (holder.role, holder.actor.handle, holder.actor.tenant_id) == (
        "operator",
        "admin",
        bootstrap.TENANT,
    )
    assert await bootstrap.first_operator(parts) is None
    assert not await parts.tokens.demo_token_lives()
    [token] = await parts.tokens.list_tokens(bootstrap.TENANT)
    await parts.tokens.revoke(bootstrap.TENANT, token.id)
    assert await bootstrap.first_operator(parts) is not None


async def test_dev_makes_the_demo_once_and_keeps_tokens_that_are_valid(parts):
    first = await bootstrap.ensure_dev(parts)
    again = await bootstrap.ensure_dev(parts, operator=first.operator, runner=first.runner)
    assert again == first
    assert first.operator not in repr(first)
    assert await parts.tokens.demo_token_lives()
    tenant = bootstrap.TENANT
    cards = await parts.boards.list_cards(tenant, CardQuery(board="DEMO"))
    assert [(card.key, sorted(card.labels)) for card in cards] == [("DEMO-1", []), ("DEMO-2", ["poison"])]
    assert [view.agent.handle for view in await parts.agents.list_agents(tenant)] == ["echo", "flaky"]
    assert [rule.definition.name for rule in await parts.rules.list(tenant)] == [
        "doing → echo",
        "poison → flaky",
    ]
    members = await parts.talk.chat.list_members(
        (await parts.tokens.authenticate(first.operator)).actor, "general"
    )
    assert {(member.handle, member.subscribed) for member in members} == {("admin", True), ("echo", False)}
    runner = await parts.tokens.authenticate(first.runner)
    assert len(runner.agents) == 2
    lost = await bootstrap.ensure_dev(parts, operator="gone", runner=first.operator)
    assert lost.operator != first.operator
    assert (await parts.tokens.authenticate(lost.runner)).kind == "runner"
    # the demo's token is no reason to refuse a real one
    assert await bootstrap.first_operator(parts) is not None


async def test_dev_without_the_demo_has_its_agents_alone(parts):
    await bootstrap.ensure_dev(parts, demo=False)
    with pytest.raises(NotFound):
        await parts.boards.get_board(bootstrap.TENANT, demo_data.BOARD)


async def test_a_demo_card_that_is_moved_to_doing_launches_its_agent_once_and_comes_to_review(parts):
    from mainspring.agents.model import Completion
    from mainspring.agents.runners import ClaimRequest
    from mainspring.ids import new_id

    tokens = await bootstrap.ensure_dev(parts)
    admin = (await parts.tokens.authenticate(tokens.operator)).actor
    runner = await parts.tokens.authenticate(tokens.runner)
    await parts.spine.run_once()
    for key, handle in (("DEMO-1", "echo"), ("DEMO-2", "flaky")):
        await parts.boards.move_card(admin, key, "doing")
        await parts.spine.run_once()
        [run] = await parts.runs.list_runs(admin.tenant_id, card_key=key)
        assert (run.agent_handle, run.state) == (handle, "queued")
        ask = ClaimRequest(
            tenant_id=admin.tenant_id,
            token_id=runner.token_id,
            runner="dev",
            incarnation=new_id(),
            agents=frozenset(),
            slots=(0,),
        )
        work = (await parts.runners.claim(ask)).work
        assert work is not None
        assert key in work.run.prompt
        assert key in work.run.trigger["summary"]
        await parts.runners.complete(
            admin.tenant_id, run.id, work.run.claim_id, Completion(outcome="done"), agents=runner.agents
        )
        await parts.spine.run_once()
        assert (await parts.boards.get_card(admin.tenant_id, key)).state == "review"
        assert len(await parts.runs.list_runs(admin.tenant_id, card_key=key)) == 1
