"""What the runner protocol says, as values; and the requests of it that an event loop sends.

The other one, the heartbeat that keeps a run while the loop is busy, is sent by `liveness` from its own thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mainspring.sdk.client import ANSWER_SECONDS, FOR_EVER, Client
from mainspring.sdk.wire import segment

DEFAULT_LEASE_SECONDS = 60.0
GOODBYE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Trigger:
    """Why the run exists: the event that triggered it, in one line, and the rule that matched.

    `data` is all that the launch kept about it.
    """

    kind: str | None
    seq: int | None
    summary: str
    rule: str | None
    data: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Answered:
    """What the run has asked in an earlier attempt, and the answer."""

    question: str
    options: tuple[str, ...]
    answer: str
    answered_by: str


@dataclass(frozen=True, slots=True)
class AskNow:
    """How a question stands: open, answered, expired, or closed for a reason."""

    id: str
    state: str
    answer: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Claimed:
    """A run that is ours while its lease is renewed."""

    run_id: str
    claim_id: str
    slot: int
    agent: str
    attempt: int
    max_attempts: int | None
    prompt: str
    trigger: Trigger
    event: Mapping[str, Any] | None
    card: Mapping[str, Any] | None
    token: str = field(repr=False)
    lease_seconds: float
    heartbeat_seconds: float
    answers: tuple[Answered, ...] = ()

    @property
    def what(self) -> str:
        """What it is, for the log."""
        return f"run {self.run_id}"

    def beat_request(self, asks: Sequence[str]) -> tuple[str, dict[str, Any]]:
        """Return path and body of its heartbeat."""
        return heartbeat_request(self.run_id, self.claim_id, asks)


@dataclass(frozen=True, slots=True)
class Polled:
    """The answer to a claim: perhaps a run, whether the server asks this runner to drain, and how many slots its agents have there."""

    run: Claimed | None
    drain: bool
    slots: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Beat:
    """The answer to a heartbeat. `answers` are those of the questions that it named which are over."""

    cancel: bool
    drain: bool
    answers: tuple[AskNow, ...] = ()


@dataclass(frozen=True, slots=True)
class Identity:
    """Who polls: the runner's name, and an id that is fresh at every start of the process."""

    name: str
    incarnation: str
    capacity: int
    labels: tuple[str, ...] = ()


async def claim(
    client: Client,
    identity: Identity,
    agents: Sequence[str],
    slots: Sequence[int],
    *,
    wait_seconds: int,
    patience_seconds: float = FOR_EVER,
) -> Polled:
    """Ask for a run for one of `slots`; asked again after a lost answer, the server returns the same run."""
    body: dict[str, Any] = {
        "runner": identity.name,
        "incarnation": identity.incarnation,
        "agents": list(agents),
        "slots": list(slots),
        "capacity": identity.capacity,
    }
    if identity.labels:  # a server that is older than labels refuses what it does not know
        body["labels"] = list(identity.labels)
    answer = await client.call(
        "POST",
        "/runner/claim",
        body=body,
        params={"wait": wait_seconds},
        answer_seconds=wait_seconds + ANSWER_SECONDS,
        patience_seconds=patience_seconds,
    )
    run = answer.get("run")
    return Polled(
        run=_claimed(run) if run else None,
        drain=bool(answer.get("drain")),
        slots=answer.get("slots") or {},
    )


async def leave(client: Client, identity: Identity) -> None:
    """Say that this process ends. Nothing depends on it: who says nothing is missed after a lease."""
    body = {"runner": identity.name, "incarnation": identity.incarnation}
    await client.call(
        "POST", "/runner/leave", body=body, answer_seconds=GOODBYE_SECONDS, patience_seconds=GOODBYE_SECONDS
    )


async def heartbeat(client: Client, claimed: Claimed) -> Beat:
    """Say that the run is being worked on. The first one is what counts as an attempt. Raises ClaimLost."""
    path, body = heartbeat_request(claimed.run_id, claimed.claim_id)
    return beat(await client.call("POST", path, body=body, patience_seconds=FOR_EVER))


async def ask(
    client: Client,
    claimed: Claimed,
    request_id: str,
    question: str,
    options: Sequence[str],
    *,
    timeout_seconds: float | None,
) -> AskNow:
    """Ask people something; sent again with the same request id, it is the same question. Raises ClaimLost."""
    body = {
        "claim_id": claimed.claim_id,
        "request_id": request_id,
        "question": question,
        "options": list(options),
        "timeout_seconds": timeout_seconds,
    }
    path = f"/runs/{segment(claimed.run_id)}/ask"
    return _ask_now(await client.call("POST", path, body=body, patience_seconds=FOR_EVER))


async def log(client: Client, claimed: Claimed, offset: int, lines: Sequence[str]) -> bool:
    """Send lines that follow the `offset` lines sent before; return whether the log takes more."""
    body = {"claim_id": claimed.claim_id, "lines": list(lines), "offset": offset}
    answer = await client.call(
        "POST", f"/runs/{segment(claimed.run_id)}/log", body=body, patience_seconds=FOR_EVER
    )
    return not answer.get("truncated")


async def complete(
    client: Client, run_id: str, claim_id: str, body: Mapping[str, Any], *, patience_seconds: float = FOR_EVER
) -> dict[str, Any]:
    """Say how the attempt ended. May be sent any number of times. Raises ClaimLost when another claim superseded it."""
    return await client.call(
        "POST",
        f"/runs/{segment(run_id)}/complete",
        body={"claim_id": claim_id, **body},
        patience_seconds=patience_seconds,
    )


def heartbeat_request(run_id: str, claim_id: str, asks: Sequence[str] = ()) -> tuple[str, dict[str, Any]]:
    """Return path and body of a heartbeat. `asks`: the questions whose answers are waited for."""
    body: dict[str, Any] = {"claim_id": claim_id}
    if asks:
        body["asks"] = list(asks)
    return f"/runs/{segment(run_id)}/heartbeat", body


def beat(answer: Mapping[str, Any]) -> Beat:
    """Read the answer to a heartbeat."""
    return Beat(
        cancel=bool(answer.get("cancel")),
        drain=bool(answer.get("drain")),
        answers=tuple(_ask_now(one) for one in answer.get("answers") or ()),
    )


def _ask_now(said: Mapping[str, Any]) -> AskNow:
    return AskNow(id=said["id"], state=said["state"], answer=said.get("answer"), reason=said.get("reason"))


def _claimed(run: Mapping[str, Any]) -> Claimed:
    lease = float(run.get("lease_seconds") or DEFAULT_LEASE_SECONDS)
    return Claimed(
        run_id=run["id"],
        claim_id=run["claim_id"],
        slot=int(run.get("slot") or 0),
        agent=run["agent"]["handle"],
        attempt=int(run.get("attempt") or 1),
        max_attempts=run.get("max_attempts"),
        prompt=run.get("prompt") or "",
        trigger=_trigger(run.get("trigger") or {}),
        event=run.get("event"),
        card=run.get("card"),
        token=run["token"],
        lease_seconds=lease,
        heartbeat_seconds=float(run.get("heartbeat_seconds") or lease / 3),
        answers=tuple(
            Answered(
                question=one["question"],
                options=tuple(one.get("options") or ()),
                answer=one["answer"],
                answered_by=one.get("answered_by") or "",
            )
            for one in run.get("answers") or ()
        ),
    )


def _trigger(said: Mapping[str, Any]) -> Trigger:
    rule = said.get("rule")
    return Trigger(
        kind=said.get("kind"),
        seq=said.get("seq"),
        summary=said.get("summary") or said.get("kind") or "",
        rule=rule.get("name") if isinstance(rule, Mapping) else None,
        data=said,
    )
