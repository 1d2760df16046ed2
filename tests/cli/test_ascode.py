"""Boards, agents and rules as files: the same bytes for the same thing, applied once, and refused where they are wrong."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mainspring.cli.ascode import _says
from mainspring.cli.documents import document_of, dumped, file_names, read, read_all
from mainspring.cli.exits import CliError

RULE = {
    "name": "ready → coder",
    "enabled": False,
    "when": {"to_states": ["ready"], "kinds": ["card.moved"]},
    "do": {"launch": {"agent": "coder", "prompt": "Do it:\n\n  {{card.title}}\n"}},
    "options": {"recheck": True},
}
BOARD = {
    "key": "NO",  # which YAML would read as false
    "name": "on",
    "states": [{"name": "yes", "eligible": True, "terminal": False}, {"name": "1", "eligible": False, "terminal": True}],
    "reflect": {},
}  # fmt: skip


# Pure ---------------------------------------------------------------------------------------------------------


def test_a_document_reads_back_as_what_it_was_written_from():
    for kind, shown in (("rule", RULE), ("board", BOARD)):
        text = dumped(document_of(kind, {**shown, "id": "x", "version": 3}))
        [document] = read("x", text)
        assert document.kind == kind
        assert all(_says(document.body[name], value) for name, value in shown.items()), text
        assert (
            dumped(
                document_of(
                    kind,
                    {**document.body, "states": shown.get("states")} if kind == "board" else document.body,
                )
            )
            == text
        )


@example("\x85")
@example("a\u2028b\r\n c ")
@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=60))
def test_any_prompt_survives(prompt):
    rule = {**RULE, "do": {"launch": {"agent": "coder", "prompt": prompt}}}
    [document] = read("x", dumped(document_of("rule", rule)))
    assert document.body["do"]["launch"]["prompt"] == prompt


def test_names_that_look_alike_have_files_of_their_own():
    files = file_names("rule", ["Ready → Coder", "ready coder", "→", "other"])
    assert len(set(files)) == 4
    assert files[3] == "rules/other.yaml"
    assert file_names("rule", ["ready coder", "Ready → Coder", "→", "other"])[:2] == files[1::-1]


@pytest.mark.parametrize(
    ("asked", "now", "same"),
    [
        ({"kinds": ["b", "A "]}, {"kinds": ["a", "b"]}, True),
        ({"kinds": ["a"]}, {"kinds": ["a"], "boards": ["OPS"]}, False),
        ({"kinds": ["a"], "boards": ["OPS"]}, {"kinds": ["a"]}, False),
        ({"recheck": False}, {}, True),
        ({}, {"recheck": True}, False),
        ({"launch": {"agent": "a"}}, {"launch": {"agent": "a", "prompt": "filled in"}}, True),
        ({"launch": {"agent": "a", "prompt": "x"}}, {"launch": {"agent": "a", "prompt": "y"}}, False),
        ([{"name": "a"}], [{"name": "a", "eligible": False}], True),
        ([{"name": "a"}, {"name": "b"}], [{"name": "b"}, {"name": "a"}], False),
    ],
)
def test_what_says_the_same_is_the_same(asked, now, same):
    assert _says(asked, now) is same


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("kind: [", "is no YAML"),
        ("- 1", "must be a mapping"),
        ("name: x", "kind is one of"),
        ("{kind: rule, name: x, wen: {}}", "a rule has no wen"),
        ("{kind: board, key: NO}", "a board has a key, which is text"),
        ("kind: rule\nname: a\n---\nkind: rule\nname: A", "stands in"),
        ("!!python/object/apply:os.system ['x']", "is no YAML"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path, text, complaint):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(CliError, match=complaint):
        read_all(str(tmp_path))


def test_a_folder_without_documents_is_not_found(tmp_path):
    with pytest.raises(CliError, match=r"no \*\.yaml"):
        read_all(str(tmp_path))


# Against a server ---------------------------------------------------------------------------------------------


def files_of(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*.yaml")}


@pytest.mark.processes
@pytest.mark.slow
async def test_what_is_exported_is_applied_to_nothing_and_changed_where_it_differs(furnished, tmp_path):
    folder = tmp_path / "code"
    await furnished.ok("export", "-o", str(folder))
    first = files_of(folder)
    assert {"boards/ops.yaml", "agents/echo.yaml", "rules/doing-to-echo.yaml"} <= first.keys()
    again = await furnished.ok("apply", "-f", str(folder))
    assert again.err.startswith("0 created, 0 changed, ")
    rule = folder / "rules" / "doing-to-echo.yaml"
    rule.write_text(rule.read_text().replace("work on", "labour at"))
    (folder / "agents" / "fresh.yaml").write_text("kind: agent\nhandle: fresh\nslots: 3\n")
    (folder / "rules" / "fresh.yml").write_text(
        "kind: rule\nname: fresh\nenabled: false\nwhen: {kinds: [card.deleted]}\ndo: {launch: {agent: fresh}}\n"
    )
    dry = await furnished.ok("apply", "-f", str(folder), "--dry-run", "--json")
    rows = {(one["kind"], one["name"]): (one["action"], one["fields"]) for one in dry.rows()}
    assert rows["rule", "doing to echo"] == ("change", ["do"])
    assert rows["agent", "fresh"] == ("create", [])
    assert (await furnished("agent", "show", "fresh")).code == 3
    done = await furnished.ok("apply", "-f", str(folder))
    assert done.err.startswith("2 created, 1 changed, ")
    shown = (await furnished.ok("rule", "show", "doing to echo", "--json")).json()
    assert shown["do"]["launch"]["prompt"].startswith("labour at")
    assert (await furnished.ok("apply", "-f", str(folder))).err.startswith("0 created, 0 changed, ")
    # as it was, for the other tests
    rule.write_bytes(first["rules/doing-to-echo.yaml"])
    assert (await furnished.ok("apply", "-f", str(rule))).err == "0 created, 1 changed, 0 the same\n"
    await furnished.ok("rule", "delete", "fresh")
    said = await furnished.ok("export", "-o", str(folder))
    assert files_of(folder) | first == files_of(folder)
    assert "of nothing that is there" not in said.err  # fresh.yml is nobody's but its author's
    board = folder / "boards" / "ops.yaml"
    board.write_text(board.read_text().replace("name: Operations", "name: Others"))
    refused = await furnished("apply", "-f", str(folder))
    assert (refused.code, "boards cannot be changed yet" in refused.err) == (5, True)
    assert (await furnished("apply", "-f", str(folder), who="member")).code in (4, 5)


@pytest.mark.processes
@pytest.mark.slow
async def test_a_board_goes_with_its_cards_to_another_key_and_no_card_twice(furnished, tmp_path):
    await furnished.ok("board", "create", "SRC", "Source", "--state", "todo", "--state", "ready:eligible")
    for title, label in (("one", "a"), ("two", "b")):
        card = {
            "board": "SRC",
            "title": title,
            "labels": [label],
            "body": "x\ny\n",
            "fields": {"n": [1, None]},
        }
        await furnished.ok("api", "POST", "cards", "-", stdin=json.dumps(card))
    text = (await furnished.ok("board", "export", "SRC", "--cards")).out
    assert (await furnished.ok("board", "export", "SRC", "--cards")).out == text
    file = tmp_path / "board.yaml"
    file.write_text(text)
    for _ in range(2):  # the second import finds everything done
        made = await furnished.ok("board", "import", str(file), "--key", "DST")
        assert made.out.startswith("DST  Source")
    copied = (await furnished.ok("board", "export", "DST", "--cards")).out
    assert copied == text.replace("key: SRC", "key: DST")
    assert (await furnished("board", "import", str(file))).code == 5
    assert (await furnished("board", "import", str(tmp_path / "none.yaml"))).code == 3
