"""What watches a server asks, without a token: is it alive, is it ready, its metrics, its version, and what a problem means."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from importlib.metadata import version
from typing import Annotated, Any

import asyncpg
from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel

from mainspring import telemetry, wiring
from mainspring.rooms import NotFound
from mainspring.server.problems import CODES, DOCS
from mainspring.spine.drain import ENGINE_VERSION
from mainspring.spine.errors import SpineError
from mainspring.spine.service import Health

router = APIRouter(tags=["system"])
READY_SECONDS = 5.0


class Alive(BaseModel):
    """The process answers."""

    status: str


class Version(BaseModel):
    """Which version answers."""

    version: str
    engine_version: int


class Ready(BaseModel):
    """Whether this process can serve, and (verbose) each thing that it needs."""

    ready: bool
    checks: dict[str, Any] | None = None


@router.get("/", include_in_schema=False)
async def root() -> RedirectResponse:
    """Lead whoever opens the address to the API's description."""
    return RedirectResponse("/docs")


@router.get("/livez", response_model=Alive)
async def livez() -> dict[str, str]:
    """Say that the loop turns."""
    return {"status": "alive"}


@router.get(
    "/readyz", response_model=Ready, response_model_exclude_none=True, responses={503: {"model": Ready}}
)
async def readyz(request: Request, verbose: Annotated[str | None, Query(max_length=10)] = None) -> Any:
    """Say whether this process can serve: the database answers, and its schema is one that we know.

    A fabric that is down makes it slower and not unready: what it would have told is found by the tick.
    """
    database, schema = await _database(request)
    checks = {"database": database, "accepting": not request.app.state.closing.is_set()}
    ready = checks["database"] == "ok" and bool(checks["accepting"])
    shown: dict[str, Any] = {"ready": ready}
    if verbose is not None and verbose.lower() not in ("false", "0", "no"):
        shown["checks"] = {
            **checks,
            **(await _log_and_schema(request) if database == "ok" else {}),
            "fabric": _fabric(request),
            "pool": _pool(request),
            "engine_version": {"ours": ENGINE_VERSION, "schema": schema},
            "loops": {one.name: _loop(one) for one in request.app.state.services.spine.health},
        }
    return shown if ready else JSONResponse(shown, 503, headers={"Retry-After": "1"})


async def _database(request: Request) -> tuple[str, int | None]:
    """Return how the database is, and its schema's engine version: a newer one is served, and drained by newer processes."""
    try:
        async with asyncio.timeout(READY_SECONDS):
            found = await wiring.engine_version(request.app.state.services.pool)
    except (
        wiring.CannotStart,
        SpineError,
        asyncpg.PostgresError,
        asyncpg.InterfaceError,
        OSError,
        TimeoutError,
    ) as error:
        return f"{type(error).__name__}: {error}", None
    return "ok", found


async def _log_and_schema(request: Request) -> dict[str, Any]:
    """Return how far the drain is behind, over all tenants, and what of the schema is missing."""
    try:
        async with asyncio.timeout(READY_SECONDS):
            found: dict[str, Any] = await request.app.state.services.behind()
            return found
    except (SpineError, asyncpg.PostgresError, OSError, TimeoutError) as error:
        return {"lag": f"{type(error).__name__}: {error}"}


def _loop(health: Health) -> dict[str, Any]:
    ago = health.succeeded_seconds_ago
    return {
        "succeeded_seconds_ago": None if ago is None else round(ago, 3),
        "failures": health.failures,
        "error": health.error,
    }


def _pool(request: Request) -> dict[str, int]:
    pool = request.app.state.services.pool
    return {"connections": pool.get_size(), "idle": pool.get_idle_size(), "most": pool.get_max_size()}


def _fabric(request: Request) -> dict[str, Any]:
    fabric = request.app.state.services.fabric
    if fabric is None:
        return {"state": "none", "reason": "this process is alone: no NATS is named"}
    return asdict(fabric.health)


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Give the counters of this process, and the gauges of what is owed, for Prometheus."""
    await request.app.state.services.measure()
    return Response(generate_latest(telemetry.REGISTRY), media_type=CONTENT_TYPE_LATEST)


@router.get("/version", response_model=Version)
async def show_version() -> dict[str, Any]:
    """Say which version this is."""
    return {"version": version("mainspring"), "engine_version": ENGINE_VERSION}


@router.get(DOCS + "{code}", response_class=PlainTextResponse)
async def explain_problem(code: Annotated[str, Path(max_length=100)]) -> str:
    """Say what a problem's code means, and the way out: where `type` points."""
    meaning = CODES.get(code)
    if meaning is None:
        raise NotFound("problem", code)
    again = "Sending it again may help." if meaning.retryable else "Sending it again changes nothing."
    return f"{meaning.status} {code}: {meaning.title}\n\n{meaning.way_out}\n{again}\n"
