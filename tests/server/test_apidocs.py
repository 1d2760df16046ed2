"""The page that describes the API, where there is no internet."""

from __future__ import annotations

import re

_LOADED = re.compile(r"""(?:src|href|url)\s*[=:]\s*["']([^"']+)["']""")


async def test_it_is_made_of_nothing_that_another_server_has(world):
    page = await world.client.get("/docs")
    assert page.status_code == 200
    loaded = _LOADED.findall(page.text)
    assert [one for one in loaded if one.startswith(("http", "//"))] == []
    assert len([one for one in loaded if one.startswith("/")]) == 3
    for address in loaded:
        if address.startswith("/"):
            answer = await world.client.get(address)
            assert answer.status_code == 200, address
            assert "@import" not in answer.text
            assert not re.search(r"url\(['\"]?(https?:)?//", answer.text)
    assert "validatorUrl" in page.text


async def test_what_is_not_there_is_a_problem_as_everywhere(world):
    answer = await world.client.get("/docs/assets/none.js")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
