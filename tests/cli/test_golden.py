"""The golden paths of the operators' commands, as real processes against a real server."""

from __future__ import annotations

import json
import re
import stat
from typing import Any

import httpx
import pytest

from mainspring.cli.output import printable, table
from tests.cli.conftest import Cli, Ran

pytestmark = [pytest.mark.processes, pytest.mark.slow]


async def moved(cli, title="mend it"):
    key = (await cli.ok("card", "create", "OPS", title, "--json")).json()["key"]
    await cli.ok("card", "move", key, "doing")
    return key


async def until(cli, *argv, what):
    """Ask again until the server, which works on its own, has got there."""
    for _ in range(100):
        ran = await cli(*argv)
        if what(ran):
            return ran
    raise AssertionError(ran)


async def test_login_is_remembered_for_its_owner_alone_and_forgotten(cli):
    said = await cli.ok("login", "--url", cli.url, who=None, stdin=cli.tokens["member"] + "\n")
    assert said.out.startswith("member (member) at http://127.0.0.1")
    profile = cli.home / "config" / "mainspring" / "profile.json"
    assert stat.S_IMODE(profile.stat().st_mode) == 0o600
    assert cli.tokens["member"] not in said.out + said.err
    who = (await cli.ok("whoami", "--json", who=None)).json()
    assert (who["handle"], who["role"], who["url"]) == ("member", "member", cli.url)
    assert (await cli.ok("whoami", "--json", who="viewer")).json()["handle"] == "viewer"
    assert (await cli.ok("logout", who=None)).out == "logged out\n"
    again = await cli("whoami", who=None)
    assert again.code == 4
    assert "mainspring login" in again.err


async def test_a_token_that_is_not_valid_is_not_kept(cli):
    said = await cli("login", "--url", cli.url, who=None, stdin="ms_user_nobody")
    assert said.code == 4
    assert not (cli.home / "config").exists()
    assert (await cli("login", "--url", cli.url, who=None, stdin="")).code == 2
    assert (await cli("login", "--url", "ftp://x", who=None, stdin="x")).code == 2


async def test_the_api_as_it_is(furnished):
    shown = await furnished.ok("api", "GET", "boards")
    assert json.loads(shown.out)["data"][0]["key"] == "OPS"
    assert shown.err == "200\n"
    made = await furnished.ok("api", "post", "/api/v1/cards", '{"board": "OPS", "title": "x"}', "--json")
    assert made.json()["title"] == "x"
    refused = await furnished("api", "POST", "cards", "-", stdin="{", who="operator")
    assert (refused.code, json.loads(refused.out)["code"]) == (1, "invalid")
    assert (await furnished("api", "GET", "cards/OPS-999")).code == 3
    assert (await furnished("api", "GET", "tokens", who="member")).code == 4
    assert (await furnished("api", "BREW", "tea")).code == 2
    stale = await furnished(
        "api", "PATCH", f"cards/{made.json()['key']}", '{"title": "y"}', "-H", 'If-Match: "9"'
    )
    assert stale.code == 5
    assert (await furnished.ok("api", "GET", "/livez", "--json")).json() == {"status": "alive"}


async def test_explain_draws_the_story(furnished):
    key = await moved(furnished)
    # other tests change the rule: its version is what it is
    launched = re.compile(r"owes launch \(rule 'doing to echo' v\d+\): done: launched echo")
    ran = await until(furnished, "explain", key, what=lambda ran: launched.search(ran.out))
    assert f"card.moved: {key} todo → doing by operator" in ran.out
    assert "waiting for a runner" in ran.out
    assert "\x1b" not in ran.out
    story = (await furnished.ok("explain", key, "--json")).json()
    assert story["noun"] == "card"
    missing = await furnished("explain", "OPS-999", "--json")
    assert (missing.code, missing.json()["code"]) == (3, "not_found")


async def test_a_letter_is_named_by_its_id(furnished):
    asked = await furnished("desk", "show", "OPS-1")
    assert (asked.code, "`mainspring desk list` shows them" in asked.err) == (2, True)


async def test_a_dead_letter_is_read_planned_mended_and_replayed(furnished):
    key = await moved(furnished)
    await until(furnished, "desk", "list", "--kind", "launch", what=lambda ran: key in ran.out)
    letters = (await furnished.ok("desk", "list", "--kind", "launch", "--json")).rows()
    letter = next(one for one in letters if one["subject"] == key)
    groups = (await furnished.ok("desk", "list", "--group-by", "cause", "--json")).rows()
    assert letter["cause"] in [one["cause"] for one in groups]
    assert "card.fields.who" in (await furnished.ok("desk", "show", letter["id"])).out
    planned = await furnished.ok("desk", "plan", letter["id"])
    assert "1 to replay, oldest event first" in planned.out
    assert "new idempotency key" in planned.out
    await furnished.ok("card", "edit", key, "--field", "who=ana")
    done = await furnished.ok("desk", "replay", letter["id"])
    assert (letter["id"] in done.out, done.err) == (True, "replayed 1\n")
    ran = await until(furnished, "explain", key, what=lambda ran: "done: launched scribe" in ran.out)
    assert "attempt 1" in ran.out
    again = await furnished("desk", "replay", letter["id"], "--json")
    assert (again.code, again.json()["code"]) == (5, "not_dead")


async def test_a_discard_says_why(furnished):
    key = await moved(furnished)
    await until(furnished, "desk", "list", what=lambda ran: key in ran.out)
    letters = (await furnished.ok("desk", "list", "--json")).rows()
    letter = next(one for one in letters if one["subject"] == key)
    assert (await furnished("desk", "discard", letter["id"])).code == 2
    done = await furnished.ok("desk", "discard", letter["id"], "--reason", "a test", "--json")
    assert [one["id"] for one in done.json()["discarded"]] == [letter["id"]]
    assert (await furnished("desk", "replay")).code == 2
    assert (await furnished("desk", "replay", "--all", who="member")).code == 4


async def test_fifty_letters_of_three_causes_are_sorted_out_by_commands(furnished):
    dying = {
        label: (count, {"agent": "scribe", "prompt": f"{{{{card.fields.{label}}}}}"})
        for label, count in {"whom": 20, "stamp": 20, "when": 10}.items()
    }
    headers = {"Authorization": f"Bearer {furnished.tokens['operator']}"}
    async with httpx.AsyncClient(base_url=f"{furnished.url}/api/v1/", headers=headers) as http:
        for label, (_, launch) in dying.items():
            when = {"kinds": ["card.created"], "labels_all": [label]}
            made = await http.post("rules", json={"name": label, "when": when, "do": {"launch": launch}})
            assert made.status_code == 201, made.text
        for label, (count, _) in dying.items():
            for n in range(count):
                card = {"board": "OPS", "title": f"{label} {n}", "labels": [label]}
                assert (await http.post("cards", json=card)).status_code == 201
        causes = {}

        def all_are_dead(ran):
            named = [(label, one) for one in ran.rows() for label in dying if label in one["cause"]]
            causes.update({label: one["cause"] for label, one in named})
            return {label: one["count"] for label, one in named} == {"whom": 20, "stamp": 20, "when": 10}

        await until(furnished, "desk", "list", "--group-by", "cause", "--json", what=all_are_dead)
        # what nobody wants is given up; the cause of the others is mended, and they are replayed
        stamped = (await http.get("cards", params={"label": "stamp"})).json()["data"]
        mended = {"fields": {"stamp": "red"}}
        for card in stamped:
            assert (await http.patch(f"cards/{card['key']}", json=mended)).status_code == 200
    given_up = await furnished.ok("desk", "discard", "--cause", causes["when"], "--reason", "too late")
    assert given_up.out.startswith("discarded 10 of 10; operation ")
    planned = await furnished.ok("desk", "plan", "--cause", causes["stamp"])
    assert "20 to replay, oldest event first" in planned.out
    stamped = await furnished.ok("desk", "replay", "--cause", causes["stamp"], "--rate", "400", "--json")
    assert (stamped.json()["state"], stamped.json()["done"]) == ("done", 20)
    begun = (await furnished.ok("desk", "replay", "--cause", causes["whom"], "--no-wait", "--json")).json()
    assert begun["total"] == 20
    watched = await furnished.ok("operation", "watch", begun["id"])
    assert watched.out.startswith("replayed 20 of 20")
    assert begun["id"] in (await furnished.ok("operation", "list")).out
    assert (await furnished("operation", "stop", begun["id"])).code == 5
    # they lack the same as before
    await until(
        furnished, "desk", "list", "--group-by", "cause", "--json",
        what=lambda ran: (20, causes["whom"]) in [(one["count"], one["cause"]) for one in ran.rows()],
    )  # fmt: skip
    exported = furnished.home / "letters.ndjson"
    said = await furnished.ok("desk", "export", "--cause", causes["whom"], "-o", str(exported))
    lines = [json.loads(line) for line in exported.read_text().splitlines()]
    assert (len(lines), said.err) == (20, f"20 letters in {exported}\n")
    assert {one["payload"]["agent"] for one in lines} == {"scribe"}
    await furnished.ok("desk", "discard", *[one["id"] for one in lines], "--reason", "tidy")
    assert (await furnished("desk", "replay", "--all", "--new-key", "--same-key")).code == 2


async def test_events_and_effects_are_listed_and_shown(furnished):
    key = await moved(furnished)
    events = (await furnished.ok("event", "list", "--kind", "card.*", "--json")).rows()
    seq = next(one["seq"] for one in events if one["data"]["card"]["key"] == key)
    assert (await furnished.ok("event", "show", str(seq), "--json")).json()["kind"] == "card.created"
    table = (await furnished.ok("event", "tail", "--last", "3")).out.splitlines()
    assert (table[0].split(), len(table)) == (["SEQ", "AT", "KIND", "ABOUT", "BY"], 4)
    behind = (await furnished.ok("event", "tail", "--after", str(seq), "--json")).rows()
    assert [one["seq"] for one in behind] == list(range(seq + 1, seq + 1 + len(behind)))

    def own(ran: Ran) -> list[dict[str, Any]]:
        """What this test's own events owed: another's may have been replayed."""
        return [one for one in ran.rows() if (one["event_seq"] or 0) >= seq]

    effect = own(await until(furnished, "effect", "list", "--state", "done", "--json", what=own))[0]
    assert (await furnished.ok("effect", "show", effect["id"], "--json")).json()["history"] == []
    assert (await furnished("effect", "cancel", effect["id"])).code == 5


async def test_verify_is_clean_and_says_what_it_looked_at(furnished):
    await moved(furnished)
    ran = await furnished.ok("verify")
    assert ran.out.splitlines()[-1].startswith("clean, through event ")
    report = (await furnished.ok("verify", "--json", "--since", "2")).json()
    assert report["ok"]
    assert {"I-1", "I-2", "I-3", "I-4", "I-5", "I-7", "I-8", "I-10", "I-13", "I-15", "I-17", "shape"} == {
        one["invariant"] for one in report["checks"]
    }


async def test_nobody_answering_is_try_again(cli):
    cli.url = "http://127.0.0.1:9"
    ran = await cli("card", "list", "--json")
    assert (ran.code, ran.json()["retryable"]) == (75, True)


async def test_usage_is_2_and_help_is_0(cli):
    for argv in (["desk", "nothing"], ["explain"], ["effect", "list", "--state", "odd"], ["nonsense"]):
        assert (await cli(*argv)).code == 2, argv
    for argv in (["desk", "--help"], ["explain", "--help"], ["--help"]):
        assert (await cli(*argv)).code == 0, argv


def test_what_others_wrote_is_not_obeyed_by_a_terminal():
    assert printable("\x1b[2Jgone\x07\n\tü→") == "\ufffd[2Jgone\ufffd\n\tü→"
    assert "\x1b" not in table(["a"], [[printable("\x1b[31mred")]])


async def test_the_doctor_says_in_one_sentence_whether_anything_is_late(furnished, cli):
    ran = await furnished.ok("doctor")
    assert ran.out.splitlines()[-1].startswith("All ")
    assert "✓  walls" in ran.out
    report = (await furnished.ok("doctor", "--json")).json()
    assert report["ok"]
    (furnished.home / ".mainspring").mkdir(exist_ok=True)
    (furnished.home / ".mainspring" / "token").write_text("secret")
    (furnished.home / ".mainspring" / "token").chmod(0o644)
    exposed = await furnished("doctor")
    assert (exposed.code, "chmod 600" in exposed.out) == (1, True)
    (furnished.home / ".mainspring" / "token").unlink()
    assert (await furnished("doctor", who="member")).code == 4
    nobody = await cli("doctor", "--json", who=None)
    assert nobody.code == 4
    away = Cli("http://127.0.0.1:9", cli.tokens, cli.home)
    lost = await away("doctor", "--json")
    assert (lost.code, lost.json()["ok"], lost.json()["findings"][0]["check"]) == (75, False, "server")
