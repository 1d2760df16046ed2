"""The HTTP application: takes what `wiring.py` joined, leaves an ASGI app that serves every route module.

It holds nothing of its own but `closing`, which ends long polls and streams when the process is asked to stop, and `load`.
"""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
from collections.abc import Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Depends, FastAPI
from fastapi.routing import APIRoute

from mainspring.server import apidocs, problems, routes
from mainspring.server.auth import known
from mainspring.server.load import Load
from mainspring.server.middleware import Edge, Guard
from mainspring.server.queries import all_are_known

if TYPE_CHECKING:
    from mainspring.wiring import Services

PREFIX = "/api/v1"
# Outside of the API's prefix, and without a token: what watches a server, not what uses it.
AT_ROOT = "system"

_PROBLEM_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["type", "title", "status", "code", "detail", "retryable", "request_id"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string"},
        "detail": {"type": "string"},
        "retryable": {"type": "boolean"},
        "request_id": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["pointer", "detail"],
                "properties": {
                    "in": {"type": "string"},
                    "pointer": {"type": "string"},
                    "detail": {"type": "string"},
                },
            },
        },
        "current": {"type": "object"},
    },
}
_ANY_PROBLEM: dict[int | str, dict[str, Any]] = {
    "default": {
        "description": "A problem: what went wrong, and the way out",
        "content": {problems.MEDIA_TYPE: {"schema": _PROBLEM_SCHEMA}},
    }
}


def create_app(services: Services, *, load: Load | None = None) -> FastAPI:
    """Return the application that serves these services. Starting and stopping them is the caller's."""
    app = FastAPI(
        title="Mainspring",
        version=version("mainspring"),
        summary="What commits is owed.",
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,  # apidocs serves it
        redoc_url=None,
        responses=_ANY_PROBLEM,
        generate_unique_id_function=_operation_id,
    )
    app.state.services = services
    app.state.closing = asyncio.Event()
    app.state.load = load or Load()
    problems.install(app)
    apidocs.install(app)
    for name, router in _routers():
        if name == AT_ROOT:
            app.include_router(router)
        else:
            app.include_router(router, prefix=PREFIX, dependencies=[Depends(known), Depends(all_are_known)])
    app.add_middleware(Guard)
    app.add_middleware(Edge, load=app.state.load)  # the last one added stands outermost
    return app


def _routers() -> Iterator[tuple[str, APIRouter]]:
    """Yield the router of every module in routes/: a noun is served because its file stands there."""
    for found in pkgutil.iter_modules(routes.__path__):
        module = importlib.import_module(f"{routes.__name__}.{found.name}")
        yield found.name, module.router


def _operation_id(route: APIRoute) -> str:
    return "_".join([*(str(tag) for tag in route.tags[:1]), route.name])
