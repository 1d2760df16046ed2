"""The examples run as printed, and say what happened."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


async def run(example: str, *arguments: str) -> list[str]:
    """Run an example as its reader would, and return what it printed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-W",
        "error",
        str(EXAMPLES / example),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, err.decode()
    assert err == b""
    return out.decode().splitlines()


@pytest.mark.slow
async def test_an_order_that_is_paid_gets_its_receipt_and_its_parcel(fresh_database):
    database = await fresh_database("empty")
    said = await run("orders.py", database.url)
    assert said[-3:] == [
        "in the end, order 1001: shipped",
        "in the end, order 1003: not shipped",
        "in the end: 2 receipts sent, 4 clocks left",
    ]
    # the two kinds of effects run side by side, so that their lines may come in any order
    assert sorted(said[:-3]) == [
        "order 1001: paid, event 1",
        "order 1002: card declined, so nothing happened and nothing is owed",
        *sorted(line for line in said if line.startswith("order 1003: paid, event ")),
        "parcel 1001: shipped",
        "parcel 1003: out of stock",
        *sorted(line for line in said if line.startswith("receipt ")),
    ]
    [down] = [line for line in said if line.endswith("mail server is down, again soon")]
    refused = down.split()[1].rstrip(":")
    assert f"receipt {refused}: sent at attempt 2" in said

    again = await run("orders.py", database.url)
    assert again[-1] == "in the end: 2 receipts sent, 3 clocks left"


@pytest.mark.slow
async def test_without_an_address_the_shop_has_a_database_of_its_own():
    assert (await run("orders.py"))[-1] == "in the end: 2 receipts sent, 4 clocks left"
