"""`/runs`: list, show, log, cancel, retry, answer for people; heartbeat, log, ask and complete for the runner that holds the claim."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field, model_validator

from mainspring.agents.asking import (
    OPTION_LENGTH_MAX,
    OPTIONS_MAX,
    QUESTION_LENGTH_MAX,
    AskState,
    NewAsk,
    checked_question,
)
from mainspring.agents.model import Completion, RunState, clean
from mainspring.agents.runners import LOG_LINES_MAX, RunnerService
from mainspring.agents.service import RunService
from mainspring.agents.views import LogLine, shown_ask, shown_ended, shown_run
from mainspring.rooms import NotFound
from mainspring.server.auth import Caller, require
from mainspring.server.keyed import Route
from mainspring.server.pages import Paging, unseal
from mainspring.server.routes import asks

router = APIRouter(prefix="/runs", tags=["runs"], route_class=Route)

RunId = Annotated[UUID, Path(description="The run's id")]
Claim = Annotated[UUID, Field(strict=False, description="The claim that the runner was given with the run")]
AFTER_SECONDS_MAX = 7 * 86_400.0
ASK_SECONDS_MAX = 366 * 86_400.0
ASKS_MAX = 100

Options = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=OPTION_LENGTH_MAX)]],
    Field(max_length=OPTIONS_MAX, description="The answers that it takes; none for any text"),
]


class _Input(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


# For people ---------------------------------------------------------------------------------------------------


class RunOut(BaseModel):
    """A run. `runner`, `slot` and `lease_until` while a runner holds it; `not_before` while it is queued."""

    id: UUID
    agent_id: UUID
    agent: str
    card_id: UUID | None
    card: str | None
    state: RunState
    attempts: int
    outcome: str | None
    error: str | None
    rule_id: UUID | None
    rule_version: int | None
    event_seq: int | None
    trigger: dict[str, Any]
    runner: str | None
    slot: int | None
    cancel_requested: bool
    not_before: datetime | None
    lease_until: datetime | None
    log_bytes: int
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None


class AttemptOut(BaseModel):
    """One attempt of a run: who made it, and how it ended."""

    n: int
    claim_id: UUID
    runner: str
    started_at: datetime
    ended_at: datetime | None
    outcome: str | None
    error: str | None


class CauseOut(BaseModel):
    """What a run descends from: the event, the rule, the effect that launched it, and the rules that its chain passed."""

    event_seq: int | None
    rule_id: UUID | None
    rule_version: int | None
    effect_kind: str
    effect_key: str
    via: list[UUID]
    depth: int
    trust: str


class WholeRun(RunOut):
    """A run with its prompt, why it runs, every attempt, all that it asked, and what it waits for: a runner, or an answer."""

    waiting: str | None
    runner_labels: list[str]
    prompt: str
    cause: CauseOut
    attempt_list: list[AttemptOut]
    asks: list[asks.AskOut]


class RunPage(BaseModel):
    """A page of runs, the newest first."""

    data: list[RunOut]
    next: str | None


class LineOut(BaseModel):
    """One line of a run's log."""

    n: int
    at: datetime
    text: str


class LogPage(BaseModel):
    """Lines of a log, in order. `last` goes on behind them, also later; `next` is null when there are no more for now.

    `ended`: the run is over, and no more will come.
    """

    data: list[LineOut]
    next: str | None
    last: int
    ended: bool


class Cancel(_Input):
    """Why."""

    reason: str | None = Field(default=None, max_length=2_000)


def _runs(request: Request) -> RunService:
    service: RunService = request.app.state.services.runs
    return service


@router.get("", response_model=RunPage)
async def list_runs(
    request: Request,
    paging: Paging,
    caller: Annotated[Caller, require("run.list")],
    state: Annotated[list[RunState] | None, Query(max_length=10, description="Any of these")] = None,
    agent: Annotated[str | None, Query(max_length=100, description="Handle or id")] = None,
    card: Annotated[str | None, Query(max_length=100, description="Key or id")] = None,
) -> dict[str, Any]:
    """List runs, the newest first; every filter that is given must hold."""
    card_id, card_key = _card(card)
    rows = await _runs(request).list_runs(
        caller.tenant_id,
        states=state or (),
        agent=agent,
        card_id=card_id,
        card_key=card_key,
        after=paging.after_id(),
        limit=paging.limit + 1,
    )
    return paging.page(rows, shown_run, key=lambda run: (run.id,))


@router.get("/{run}", response_model=WholeRun)
async def show_run(
    request: Request, run: RunId, caller: Annotated[Caller, require("run.show")]
) -> dict[str, Any]:
    """Show one run with its attempts. A runner's token sees the runs of the agents that it names."""
    view = await _runs(request).get(caller.tenant_id, run)
    if caller.kind == "runner" and view.run.agent_id not in caller.agents:
        raise NotFound("run", run)
    return view.as_json()


@router.get("/{run}/log", response_model=LogPage)
async def read_log(
    request: Request,
    run: RunId,
    caller: Annotated[Caller, require("run.log")],
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    after: Annotated[
        str | None, Query(max_length=500, description="A `next`, or the number of a line")
    ] = None,
) -> dict[str, Any]:
    """Read a run's log, behind a line."""
    behind = _line(after)
    found, lines = await _runs(request).log(caller.tenant_id, run, after=behind, limit=limit + 1)
    kept, more = lines[:limit], len(lines) > limit
    last = kept[-1].n if kept else behind
    return {
        "data": [LogLine.as_json(line) for line in kept],
        "next": str(last) if more else None,
        "last": last,
        "ended": found.ended_at is not None,
    }


@router.post("/{run}/cancel", response_model=WholeRun)
async def cancel_run(
    request: Request,
    run: RunId,
    caller: Annotated[Caller, require("run.cancel")],
    body: Cancel | None = None,
) -> dict[str, Any]:
    """Cancel a queued run; ask the runner of a held one to stop. Twice is as good as once."""
    view = await _runs(request).cancel(caller.actor, run, reason=body.reason if body else None)
    return view.as_json()


@router.post("/{run}/retry", response_model=WholeRun)
async def retry_run(
    request: Request, run: RunId, caller: Annotated[Caller, require("run.retry")]
) -> dict[str, Any]:
    """Queue a failed or lost run again: the same run, with fresh attempts."""
    return (await _runs(request).retry(caller.actor, run)).as_json()


@router.post("/{run}/answer", response_model=asks.AskOut)
async def answer_run(
    request: Request, run: RunId, body: asks.Answer, caller: Annotated[Caller, require("run.answer")]
) -> dict[str, Any]:
    """Answer the one question that a run waits for; 409 `run_not_asking` or `run_asks_more` when there is none, or another."""
    return shown_ask(await asks.service_of(request).answer_run(caller.actor, run, body.answer))


# For the runner that holds it ---------------------------------------------------------------------------------


class Heartbeat(_Input):
    """The runner lives and works on it. `asks`: the questions whose answers it waits for."""

    claim_id: Claim
    asks: list[Annotated[UUID, Field(strict=False)]] = Field(default_factory=list, max_length=ASKS_MAX)


class EndedOut(BaseModel):
    """A question that is over: answered, expired, or closed for a reason."""

    id: UUID
    state: AskState
    answer: str | None
    reason: str | None


class BeatOut(BaseModel):
    """What the runner is told: `cancel` to stop this run, `drain` to finish and go; `answers` to what it waits for."""

    cancel: bool
    drain: bool
    steer: list[dict[str, Any]]
    answers: list[EndedOut]
    state: Literal["running"]
    attempt: int
    lease_seconds: float


class Lines(_Input):
    """Lines of output. `offset`: how many lines this claim has sent before; with it a batch may be sent again."""

    claim_id: Claim
    lines: list[str] = Field(max_length=LOG_LINES_MAX, description="Each is cut at 16 KiB")
    offset: int | None = Field(default=None, ge=0, le=2**53)


class Taken(BaseModel):
    """How many lines were taken of this claim so far, and whether the log is full (1 MiB a run)."""

    next: int
    truncated: bool


class Question(_Input):
    """What the run asks of people, and goes on. `request_id` is the runner's own: sent again, it is the same question."""

    claim_id: Claim
    request_id: Annotated[UUID, Field(strict=False)]
    question: str = Field(min_length=1, max_length=QUESTION_LENGTH_MAX)
    options: Options = Field(default_factory=list)
    timeout_seconds: float | None = Field(
        default=None, gt=0, le=ASK_SECONDS_MAX, allow_inf_nan=False, description="How long it waits"
    )


class Complete(_Input):
    """How the attempt ended: a `result` when it is done, a `reason` when blocked or cancelled, a `question` when it needs
    input, else an `error`."""

    claim_id: Claim
    outcome: Literal["done", "failed", "retry", "blocked", "needs_input", "cancelled"]
    result: str | None = None
    reason: str | None = None
    error: str | None = None
    after_seconds: float | None = Field(
        default=None, ge=0, le=AFTER_SECONDS_MAX, allow_inf_nan=False, description="retry only: not before"
    )
    handed_back: bool = Field(
        default=False,
        description="retry only: the runner goes away, and gives it back unfinished; no attempt is spent",
    )
    question: str | None = Field(default=None, min_length=1, max_length=QUESTION_LENGTH_MAX)
    options: Options = Field(default_factory=list)

    @model_validator(mode="after")
    def _asks_something(self) -> Complete:
        if (self.outcome == "needs_input") != (self.question is not None):
            raise ValueError("a question belongs to needs_input, and needs_input to a question")
        return self


class CompletedOut(BaseModel):
    """Where the run stands now. `recorded`: this claim had completed before, with `outcome`; nothing was written."""

    id: UUID
    state: RunState
    outcome: str
    recorded: bool


def _runners(request: Request) -> RunnerService:
    service: RunnerService = request.app.state.services.runners
    return service


@router.post("/{run}/heartbeat", response_model=BeatOut)
async def heartbeat(
    request: Request, run: RunId, body: Heartbeat, caller: Annotated[Caller, require("run.heartbeat")]
) -> dict[str, Any]:
    """Renew the claim. 409 `claim_lost`: the run is not this runner's any more."""
    service = _runners(request)
    beat = await service.heartbeat(caller.tenant_id, run, body.claim_id, agents=caller.agents, asks=body.asks)
    return {
        "cancel": beat.cancel,
        "drain": beat.drain,
        "steer": [],
        "answers": [shown_ended(one) for one in beat.answers],
        "state": "running",
        "attempt": beat.attempt,
        "lease_seconds": service.policy.lease_seconds,
    }


@router.post("/{run}/log", response_model=Taken)
async def append_log(
    request: Request, run: RunId, body: Lines, caller: Annotated[Caller, require("run.append_log")]
) -> dict[str, Any]:
    """Keep lines of the run's output."""
    following, truncated = await _runners(request).append_log(
        caller.tenant_id, run, body.claim_id, body.lines, agents=caller.agents, offset=body.offset
    )
    return {"next": following, "truncated": truncated}


@router.post("/{run}/ask", response_model=asks.AskOut)
async def ask(
    request: Request, run: RunId, body: Question, caller: Annotated[Caller, require("run.ask")]
) -> dict[str, Any]:
    """Ask people something while the run goes on; the heartbeats that name it carry the answer.

    What an earlier claim has asked in the same words is the same question: its answer may be there already.
    """
    question, options = checked_question(body.question, body.options)
    new = NewAsk(
        request_id=body.request_id,
        question=question,
        options=options,
        timeout_seconds=body.timeout_seconds,
    )
    return shown_ask(
        await _runners(request).ask(caller.tenant_id, run, body.claim_id, new, agents=caller.agents)
    )


@router.post("/{run}/complete", response_model=CompletedOut)
async def complete(
    request: Request, run: RunId, body: Complete, caller: Annotated[Caller, require("run.complete")]
) -> dict[str, Any]:
    """Say how the attempt ended; any number of times. 409 `claim_lost`: another has claimed the run."""
    text = clean(body.result if body.result is not None else body.reason)
    options: tuple[str, ...] = ()
    if body.question is not None:
        text, options = checked_question(body.question, body.options)
    said = Completion(
        outcome=body.outcome,
        text=text,
        options=options,
        error=clean(body.error),
        after_seconds=body.after_seconds,
        handed_back=body.handed_back,
    )
    completed = await _runners(request).complete(
        caller.tenant_id, run, body.claim_id, said, agents=caller.agents
    )
    return {
        "id": completed.run_id,
        "state": completed.state,
        "outcome": completed.outcome,
        "recorded": completed.recorded,
    }


def _card(ref: str | None) -> tuple[UUID | None, str | None]:
    if ref is None:
        return None, None
    try:
        return UUID(ref), None
    except ValueError:
        return None, ref


def _line(after: str | None) -> int:
    if after is None:
        return 0
    if after.isascii() and after.isdigit() and len(after) <= 15:
        return int(after)
    return unseal(after, int)[0]
