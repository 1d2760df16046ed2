"""Events, effects, desk, explain and verify over HTTP, on work that the engine has really done."""

from __future__ import annotations


async def card(world, title="mend it", **more):
    return await world.post("cards", {"board": "OPS", "title": title, **more})


async def moved(world, to="doing", **more):
    made = await card(world, **more)
    await world.post(f"cards/{made['key']}/move", {"state": to})
    await world.settle()
    return made


async def test_a_moved_card_owes_a_launch_and_explain_tells_it(board):
    made = await moved(board)
    story = await board.get("explain", ref=made["key"])
    assert story["noun"] == "card"
    move = next(one for one in story["events"] if one["kind"] == "card.moved")
    assert [(one["name"], one["matched"]) for one in move["verdicts"]] == [("doing to echo", True)]
    assert len(move["owed"]) == 1
    [run] = story["runs"]
    assert run["standing"] == "is waiting for a runner"
    created = next(one for one in story["events"] if one["kind"] == "card.created")
    assert [one["failed_term"] for one in created["verdicts"]] == ["kinds"]
    assert "is waiting for a runner" in story["summary"]


async def test_verify_is_clean_after_work(board):
    await moved(board)
    report = await board.get("verify")
    assert report["ok"], report
    assert report["checks"][0]["invariant"] == "I-1"
    assert report["checks"][0]["examined"] == report["through_seq"] > 0
