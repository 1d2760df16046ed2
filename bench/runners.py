"""Thousands of runners that wait at one server process: what it holds and asks meanwhile, and how soon a queued run is claimed.

A server process of its own, so that its memory is its own; the runners are connections of this one, and wait as the SDK does.
A run is queued as a person would: a pinned card is made over HTTP, and the engine launches it.
"""

from __future__ import annotations

import asyncio
import random
import re
import resource
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, Self

import asyncpg
import figures
from product import Product, product
from served import Served, serving, spread, until
from sizes import Sizes
from wire import Refused, Wire

from mainspring.boards.model import BoardState
from mainspring.embedded import EmbeddedPostgres
from mainspring.ids import new_id

TITLE = "Waiting runners"
TENANTS = 20
AGENTS = 5  # of each tenant
FEW = 20
WAIT_SECONDS = 30  # a claim's own default, and the SDK's
QUEUED_A_SECOND = 10
BUSY = 503
_COMMITS = "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()"
_QUEUED_AT = "select id, card_id, extract(epoch from created_at)::double precision as at from mainspring.runs"


async def measure(postgres: EmbeddedPostgres, sizes: Sizes) -> dict[str, Any]:
    """Queue runs at a steady pace for few runners; let the others come and wait; count for a while; queue as many again."""
    _allow_files(2 * sizes.runners + 500)
    async with product(postgres, "runners") as made:
        tenants = [await _tenant(made, n) for n in range(TENANTS)]
        async with serving(made.url) as served, _Runners(sizes.runners, tenants, served.port) as runners:
            empty = served.megabytes
            await runners.wait_for(served, FEW)
            few = await _claims(made, served, tenants, runners, sizes.queued, agents=1)
            before = time.perf_counter()
            await runners.wait_for(served, sizes.runners)
            arrived = time.perf_counter() - before
            idle = await _idle(made, served, min(sizes.idle_seconds, 2.0 * WAIT_SECONDS))
            full = served.megabytes
            many = await _claims(made, served, tenants, runners, sizes.queued, agents=AGENTS)
        await _check(made, 2 * sizes.queued)
    return {
        "runners": sizes.runners,
        "turned away, to come again": runners.turned_away,
        "seconds until all waited": arrived,
        "MiB with none": empty,
        "KiB a waiting runner": (full - empty) * 1024 / sizes.runners,
        "idle": idle,
        "claimed by runners waiting": {str(FEW): few, str(sizes.runners): many},
    }


@dataclass
class _Tenant:
    """A tenant with agents and a board; its operator's and its runners' tokens."""

    operator: str
    runner: str


async def _tenant(made: Product, n: int) -> _Tenant:
    services = made.services
    actor = await made.new_person(f"tenant {n}")
    handles = [f"agent{k}" for k in range(AGENTS)]
    for handle in handles:
        await services.agents.create(actor, handle=handle, slots=100)
    states = [BoardState(name="ready", eligible=True), BoardState(name="done", terminal=True)]
    await services.boards.create_board(actor, key="OPS", name="Operations", states=states, reflect={})
    _, operator = await services.tokens.create(actor, kind="user", role="operator")
    _, runner = await services.tokens.create(actor, kind="runner", agents=handles)
    return _Tenant(operator, runner)


class _Runner:
    """A runner process as the server sees it: it claims, ends what it was given, claims again."""

    def __init__(self, name: str, wire: Wire, agent: str) -> None:
        self._wire = wire
        self._asked = {"runner": name, "incarnation": str(new_id()), "slots": [0], "agents": [agent]}

    async def work(self, all_: _Runners) -> None:
        """Work for ever; note when each run was given to it. A server that has too much to do is asked again later."""
        while True:
            try:
                answer = await self._wire.post(f"/runner/claim?wait={WAIT_SECONDS}", self._asked)
            except Refused as refused:
                if refused.status != BUSY:
                    raise
                all_.turned_away += 1
                await asyncio.sleep(random.uniform(0.5, 1.5))
                continue
            run = answer["run"]
            if run is None:
                continue
            all_.claimed[run["id"]] = time.time()
            done = {"claim_id": run["claim_id"], "outcome": "done", "result": "ok"}
            await self._wire.post(f"/runs/{run['id']}/complete", done)

    def close(self) -> None:
        """Leave."""
        self._wire.close()


class _Runners:
    """All of them, of the tenants in turn; the first ones each serve their tenant's first agent."""

    def __init__(self, n: int, tenants: list[_Tenant], port: int) -> None:
        self.claimed: dict[str, float] = {}
        self.turned_away = 0  # how often anybody was told that there is too much to do
        self._tasks: list[asyncio.Task[None]] = []
        self._runners = [
            _Runner(
                f"runner-{k}",
                Wire("127.0.0.1", port, tenants[k % TENANTS].runner),
                f"agent{k // TENANTS % AGENTS}",
            )
            for k in range(n)
        ]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for runner in self._runners:
            runner.close()

    async def wait_for(self, served: Served, n: int) -> None:
        """Let them come until so many wait."""
        wire = Wire("127.0.0.1", served.port, "")
        for runner in self._runners[len(self._tasks) : n]:
            self._tasks.append(asyncio.create_task(runner.work(self)))

        async def wait() -> bool:
            self.raise_if_ended()
            found = re.search(r'requests_in_hand\{state="waiting"\} ([\d.]+)', await wire.get("/metrics"))
            return found is not None and float(found[1]) >= n

        await until(wait, f"{n} runners waited")
        wire.close()
        await asyncio.sleep(2.0)  # the last of them have come in, but not yet looked

    def raise_if_ended(self) -> None:
        """Raise Lost when one of them has ended: they work for ever."""
        for task in self._tasks:
            if task.done():
                raise figures.Lost(f"a runner ended: {task.exception()!r}")


async def _idle(made: Product, served: Served, seconds: float) -> dict[str, Any]:
    """Count what the server asks for a while. Each scope is one transaction, and one of its statements sets it."""
    conn = await asyncpg.connect(**made.admin)
    before, commits, cpu = await _asked(served), await conn.fetchval(_COMMITS), served.cpu_seconds
    begun = time.perf_counter()
    await asyncio.sleep(seconds)
    after, cpu = await _asked(served), served.cpu_seconds - cpu
    passed = time.perf_counter() - begun
    await asyncio.sleep(1.5)  # backends tell their counts when they have been idle for a second
    await conn.execute("select pg_stat_clear_snapshot()")
    scopes = await conn.fetchval(_COMMITS) - commits
    await conn.close()
    by_purpose = after - before
    return {
        "statements a second": (by_purpose.total() - scopes) / passed,
        "transactions a second": scopes / passed,
        "statements a second by purpose, setting the scope included": {
            purpose: n / passed for purpose, n in by_purpose.most_common()
        },
        "CPU of the server, ms a second": 1e3 * cpu / passed,
    }


async def _asked(served: Served) -> Counter[str]:
    wire = Wire("127.0.0.1", served.port, "")
    told = await wire.get("/metrics")
    wire.close()
    found = re.findall(
        r'^mainspring_db_statements_total\{purpose="([^"]+)"\} ([\d.e+]+)$', told, re.MULTILINE
    )
    return Counter({purpose: round(float(value)) for purpose, value in found})


async def _claims(
    made: Product, served: Served, tenants: list[_Tenant], runners: _Runners, n: int, *, agents: int
) -> dict[str, Any]:
    """Make pinned cards at a steady pace; return how long each one's run waited to be claimed."""
    before = len(runners.claimed)
    made_at: dict[str, float] = {}

    async def make(card: dict[str, str], operator: str) -> None:
        wire = Wire("127.0.0.1", served.port, operator)
        while True:
            try:
                answer = await wire.post("/cards", card)
                break
            except Refused as refused:
                if refused.status != BUSY:
                    raise
                runners.turned_away += 1
                await asyncio.sleep(random.uniform(0.5, 1.5))
        made_at[answer["id"]] = time.time()
        wire.close()

    begun, making = time.perf_counter(), []
    for k in range(n):
        await asyncio.sleep(max(0.0, begun + k / QUEUED_A_SECOND - time.perf_counter()))
        card = {"board": "OPS", "title": f"card {k}", "agent": f"agent{k // TENANTS % agents}"}
        # against the plan, not the last answer: a slow one must not thin out the load that follows it
        making.append(asyncio.create_task(make(card, tenants[k % TENANTS].operator)))
    await asyncio.gather(*making)

    def all_claimed() -> bool:
        runners.raise_if_ended()
        return len(runners.claimed) >= before + n

    await until(all_claimed, "every queued run was claimed")
    await asyncio.sleep(1.0)  # and completed
    conn = await asyncpg.connect(**made.admin)
    rows = [row for row in await conn.fetch(_QUEUED_AT) if str(row["card_id"]) in made_at]
    await conn.close()
    if len(rows) != n:
        raise figures.Lost(f"{len(rows)} runs of {n} cards")
    at = runners.claimed
    return {
        "runs": n,
        "queued to claimed, ms": spread([at[str(row["id"])] - row["at"] for row in rows]),
        "card's answer to claimed, ms": spread(
            [at[str(row["id"])] - made_at[str(row["card_id"])] for row in rows]
        ),
    }


async def _check(made: Product, n: int) -> None:
    conn = await asyncpg.connect(**made.admin)
    done = await conn.fetchval("select count(*) from mainspring.runs where state = 'done' and attempts = 1")
    rows = await conn.fetchval("select count(*) from mainspring.runs")
    await conn.close()
    if (rows, done) != (n, n):
        raise figures.Lost(f"of {n} runs: {rows} rows, {done} done at their first attempt")


def _allow_files(n: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < n:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(n, hard), hard))


def judge(measured: dict[str, Any]) -> list[figures.Goal]:
    """A run is queued and claimed as soon, whoever else waits."""
    few, many = measured["claimed by runners waiting"].values()
    return [
        figures.at_most(
            f"{name}, p50, {measured['runners']} runners / {FEW}", many[name]["p50"] / few[name]["p50"], 2.0
        )
        for name in ("queued to claimed, ms", "card's answer to claimed, ms")
    ]


def show(measured: dict[str, Any]) -> list[tuple[str, ...]]:
    """What they cost, and how long a run waits."""
    idle, by_runners = measured["idle"], measured["claimed by runners waiting"]
    rows = [
        (f"{measured['runners']:,} runners wait at one process", ""),
        ("until all waited", f"{measured['seconds until all waited']:.1f} s"),
        ("turned away, to come again", f"{measured['turned away, to come again']:,}"),
        (
            "memory",
            f"{measured['KiB a waiting runner']:.0f} KiB each, {measured['MiB with none']:.0f} MiB without",
        ),
        ("statements a second while idle", f"{idle['statements a second']:.0f}"),
        ("begin, commit, set a second", f"{3 * idle['transactions a second']:.0f}"),
        ("the server's CPU while idle", f"{idle['CPU of the server, ms a second']:.0f} ms/s"),
    ]
    for runners, said in by_runners.items():
        for name in ("queued to claimed, ms", "card's answer to claimed, ms"):
            one = said[name]
            rows.append(
                (
                    f"{runners} wait: {name}",
                    f"p50 {one['p50']:.0f}, p99 {one['p99']:.0f}, worst of {said['runs']} {one['worst']:.0f}",
                )
            )
    return rows
