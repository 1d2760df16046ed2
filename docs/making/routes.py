"""The page of routes, each with its verb and who may, and of problem codes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from mainspring.server.app import create_app
from mainspring.server.auth import PUBLIC, VERBS, Requirement
from mainspring.server.pages import LIMIT_DEFAULT, LIMIT_MAX
from mainspring.server.problems import CODES
from making.markdown import code, table

if TYPE_CHECKING:
    from fastapi import FastAPI
    from fastapi.dependencies.models import Dependant


def _verbs(app: FastAPI) -> Mapping[tuple[str, str], str]:
    """The verb of each route, by method and path."""
    found: dict[tuple[str, str], str] = {}
    todo: list[tuple[str, Any]] = [("", route) for route in app.routes]
    while todo:
        prefix, route = todo.pop()
        inside = getattr(getattr(route, "original_router", None), "routes", ())
        todo += [(prefix + route.include_context.prefix, inner) for inner in inside]
        dependant = getattr(route, "dependant", None)
        for verb in _required(dependant) if dependant is not None else ():
            found.update({(method, prefix + route.path_format): verb for method in route.methods})
    return found


def _required(dependant: Dependant) -> Iterator[str]:
    for one in dependant.dependencies:
        if isinstance(one.call, Requirement):
            yield one.call.verb
        yield from _required(one)


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return "object"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(one) for one in schema["anyOf"]))
    if "enum" in schema:
        return "one of " + ", ".join(map(code, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    limits = [f"{sign} {schema[name]:g}" for name, sign in _BOUNDS.items() if name in schema]
    if "maxLength" in schema:
        limits.append(f"≤ {schema['maxLength']} characters")
    return " ".join([str(schema.get("format") or schema.get("type") or "any"), ", ".join(limits)]).strip()


_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def _body(operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    for one in schema.get("anyOf", ()):
        if "$ref" in one:
            schema = one
    return cast(
        "Mapping[str, Any]", schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    )


def _operation(
    method: str, path: str, operation: Mapping[str, Any], verb: str | None, schemas: Mapping[str, Any]
) -> str:
    lines = [f"### `{method} {path}`", "", " ".join(operation.get("description", "").split()), ""]
    if verb is None:
        assert path in PUBLIC, path
        lines.append("No token.")
    else:
        access = VERBS[verb]
        own = (
            f"; a run's token for its own {access.own} alone" if access.own and "run" in access.kinds else ""
        )
        lines.append(
            f"`{verb}`: role {access.least.name.lower()} or higher, tokens of kind {', '.join(sorted(access.kinds))}{own}."
        )
    rows = [
        [code(one["name"]), one["in"], "yes" if one.get("required") else "", _type(one["schema"])]
        for one in operation.get("parameters", ())
        if one["in"] != "path"
    ]
    body = _body(operation, schemas)
    needed = body.get("required", ())
    rows += [
        [code(name), "body", "yes" if name in needed else "", _type(schema)]
        for name, schema in body.get("properties", {}).items()
    ]
    if rows:
        lines += ["", table(["parameter", "in", "needed", "type"], rows).rstrip()]
    return "\n".join(lines) + "\n"


def http() -> str:
    """Every route with its verb, and every problem code."""
    app = create_app(cast("Any", None))  # described, and never served
    spec, verbs = app.openapi(), _verbs(app)
    by_tag: dict[str, list[str]] = {}
    for path, operations in spec["paths"].items():
        for method, operation in operations.items():
            verb = verbs.get((method.upper(), path))
            page = _operation(method.upper(), path, operation, verb, spec["components"]["schemas"])
            by_tag.setdefault(operation["tags"][0], []).append(page)
    problems = [
        [
            f'<a id="problem-{name}"></a>`{name}`',
            one.status,
            one.title,
            one.way_out,
            "yes" if one.retryable else "",
        ]
        for name, one in CODES.items()
    ]
    parts = [f"## {tag.capitalize()}\n\n" + "\n".join(pages) for tag, pages in sorted(by_tag.items())]
    return f"""# HTTP

A server describes itself: `/docs` for people, `/api/v1/openapi.json` for programs. This page is the short of it.

- **Tokens.** `Authorization: Bearer <token>`. A token has a kind (user, agent, runner, run) and a role (viewer, member, operator); each
  route asks for one verb, and each verb for a least role. What you may not see is answered as what is not there: 404.
- **Versions.** Boards, cards, rules and agents carry an `ETag`. Cards, rules and agents take `If-Match: "<version>"` or `expected_version` in
  the body; a version that is not the present one answers 412 with `current`.
- **Pages.** Lists take `limit` ({LIMIT_DEFAULT} by default, {LIMIT_MAX} at most unless said otherwise) and `after`, and answer `{{"data": [...], "next": ...}}`. `next` is
  null at the end; what is in it is the server's business.
- **Limits.** A body is at most 1 MiB of JSON. Text with NUL or half a character is refused, and so is an object in which a member stands twice. A query
  parameter that a route does not know, or that is given twice where one counts, is refused, not ignored.
- **Errors** are problem documents (RFC 9457): `type`, `title`, `status`, `code`, `detail`, `retryable`, `request_id`, and `errors[]` with a
  JSON pointer for each field at fault. `type` is a path on the server itself that says what the code means.

## Problems

{table(["code", "status", "title", "way out", "worth sending again"], problems)}
{chr(10).join(parts)}"""
