"""Documents: boards, agents and rules as YAML text that is the same for the same thing, byte by byte. No request is sent here.

Takes what the API shows, leaves text; takes text, leaves what the API takes, or says in which document and where it is wrong.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast

import yaml  # type: ignore[import-untyped]

from mainspring.cli.exits import CliError, ExitCode

Kind: TypeAlias = Literal["agent", "board", "rule"]

# in the order in which they are applied: rules name boards and agents
FIELDS: Final[Mapping[Kind, tuple[str, ...]]] = {
    "agent": ("handle", "name", "slots", "wake"),
    "board": ("key", "name", "states", "reflect"),
    "rule": ("name", "enabled", "when", "do", "options"),
}
NAMED_BY: Final[Mapping[Kind, str]] = {"agent": "handle", "board": "key", "rule": "name"}
CARD_FIELDS: Final = ("title", "body", "state", "labels", "agent", "assignee", "priority", "fields")
_LEFT_OUT: Final[Mapping[str, Any]] = {
    "eligible": False, "terminal": False, "body": "", "labels": [], "agent": None, "assignee": None, "priority": 0,
    "fields": {}, "reflect": {}, "options": {},
}  # fmt: skip
# what a document means by leaving it out; what stands nowhere here is then left alone
_BY_DEFAULT: Final[Mapping[Kind, Mapping[str, Any]]] = {
    "agent": {},
    "board": {"reflect": {}},
    "rule": {"enabled": True, "when": {}, "options": {}},
}
_ODD_LINE_END: Final = re.compile("[\r\x85\u2028\u2029]")
_SUFFIXES: Final = frozenset({".yaml", ".yml"})


@dataclass(frozen=True, slots=True)
class Document:
    """One thing, and where it was read."""

    kind: Kind
    body: Mapping[str, Any]
    where: str

    @property
    def name(self) -> str:
        """What it is known by; names are the same whatever their case."""
        return str(self.body[NAMED_BY[self.kind]])

    @property
    def known_as(self) -> tuple[Kind, str]:
        """What no two documents may share."""
        return self.kind, self.name.strip().lower()


# Writing ------------------------------------------------------------------------------------------------------


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, False)


def _string(dumper: _Dumper, text: str) -> Any:
    # other line ends than ours are read back as ours, unless they are written as escapes
    style = '"' if _ODD_LINE_END.search(text) else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _string)


def dumped(document: Mapping[str, Any]) -> str:
    """Return a document as text: fields in the order given, prompts as blocks, nothing folded."""
    text = yaml.dump(
        document,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=False,
        width=sys.maxsize,
    )
    return cast(str, text)


def document_of(kind: Kind, shown: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a thing that the API shows belongs into its document; what is as by default is left out."""
    body = {name: shown[name] for name in FIELDS[kind] if name in shown}
    if kind == "board":
        body["states"] = [tidy(state) for state in body["states"]]
    ordered = {
        name: _ordered(value) if name in ("reflect", "when", "options") else value
        for name, value in body.items()
    }
    return {"kind": kind, **tidy(ordered)}


def card_of(shown: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a card belongs into its board's document."""
    return tidy({name: _ordered(shown[name]) if name == "fields" else shown[name] for name in CARD_FIELDS})


def tidy(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body without what says nothing."""
    return {name: value for name, value in body.items() if name not in _LEFT_OUT or value != _LEFT_OUT[name]}


def _ordered(value: Any) -> Any:
    return {name: value[name] for name in sorted(value)} if isinstance(value, Mapping) else value


def file_names(kind: Kind, names: Sequence[str]) -> list[str]:
    """Return a file for each name, always the same for the same names; those that look alike get a mark each."""
    slugs = [re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:80] for name in names]
    alike = Counter(slugs)
    marked = (
        f"{slug}-{hashlib.sha256(name.encode()).hexdigest()[:8]}" if alike[slug] > 1 or not slug else slug
        for slug, name in zip(slugs, names, strict=True)
    )
    return [f"{kind}s/{slug.strip('-')}.yaml" for slug in marked]


# Reading ------------------------------------------------------------------------------------------------------


def read_all(source: str) -> list[Document]:
    """Return the documents of a folder, a file, or stdin (-), in the order in which they are applied. Raises CliError."""
    documents = [document for where, text in _texts(source) for document in read(where, text)]
    seen: dict[tuple[Kind, str], str] = {}
    for document in documents:
        before = seen.setdefault(document.known_as, document.where)
        if before is not document.where:
            raise _wrong(document.where, f"{document.kind} {document.name!r} stands in {before} already")
    kinds = list(FIELDS)
    return sorted(documents, key=lambda one: (kinds.index(one.kind), one.known_as))


def read(where: str, text: str) -> Iterator[Document]:
    """Yield the documents of a text; raise CliError for the first that is none."""
    try:
        found = list(yaml.safe_load_all(text))
    except (yaml.YAMLError, ValueError) as error:
        raise _wrong(where, f"is no YAML: {' '.join(str(error).split())}") from error
    for n, body in enumerate(found, 1):
        if body is not None:
            yield _checked(f"{where}, document {n}" if len(found) > 1 else where, body)


def _checked(where: str, body: Any) -> Document:
    if not isinstance(body, dict):
        raise _wrong(where, "must be a mapping with a kind")
    kind = next((known for known in FIELDS if known == body.get("kind")), None)
    if kind is None:
        raise _wrong(where, f"kind is one of {', '.join(FIELDS)}, not {body.get('kind')!r}")
    named = {name: value for name, value in body.items() if name != "kind"}
    allowed = {*FIELDS[kind], *(["cards"] if kind == "board" else [])}
    if unknown := [str(name) for name in named if name not in allowed]:
        raise _wrong(where, f"a {kind} has no {', '.join(unknown)}; it has {', '.join(FIELDS[kind])}")
    if not isinstance(named.get(NAMED_BY[kind]), str):
        raise _wrong(where, f"a {kind} has a {NAMED_BY[kind]}, which is text")
    return Document(kind, {**_BY_DEFAULT[kind], **named}, where)


def _texts(source: str) -> Iterator[tuple[str, str]]:
    if source == "-":
        yield "stdin", sys.stdin.read()
        return
    path = Path(source)
    files = sorted(one for one in path.rglob("*") if one.suffix in _SUFFIXES) if path.is_dir() else [path]
    if not files:
        raise CliError(f"{source}: there is no *.yaml in it", code=ExitCode.NOT_FOUND)
    for file in files:
        try:
            yield str(file), file.read_text(encoding="utf-8")
        except OSError as error:
            raise CliError(f"{file}: {error.strerror or error}", code=ExitCode.NOT_FOUND) from error
        except UnicodeDecodeError as error:
            raise _wrong(str(file), f"is no UTF-8: {error}") from error


def _wrong(where: str, what: str) -> CliError:
    return CliError(f"{where}: {what}", code=ExitCode.USAGE)
