"""How much of everything: what fits into `make bench`, and the full sizes of `make bench-long`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of all scenes; a scene takes its own and says them."""

    name: str
    items: int  # noop, way: effects a round
    rounds: int  # noop: rounds at most
    seconds: float  # noop: no further round begins after so long
    commits: int  # way: commits of the latency measurement
    idle_tenants: int
    idle_seconds: float
    rules: int
    judged: int  # rules: events
    backlog: int  # fairness: due rows of the one tenant
    neighbours: int  # fairness: tenants with one row each
    appends: int  # appenders: commits of each of them in a round
    runners: int
    queued: int  # runners: runs that are queued one by one
    finished: int  # finished: rows
    due: int  # finished: rows that are carried out beside them
    members: int  # talk: agents of one channel
    posts: int  # talk: messages posted at a steady pace
    unread: int  # talk: messages that one reader is behind


SHORT = Sizes(
    name="short",
    items=6_000,
    rounds=5,
    seconds=15.0,
    commits=600,
    idle_tenants=2_000,
    idle_seconds=30.0,
    rules=10_000,
    judged=2_000,
    backlog=20_000,
    neighbours=1_000,
    appends=10,
    runners=500,
    queued=40,
    finished=100_000,
    due=6_000,
    members=1_000,
    posts=250,
    unread=1_000,
)
LONG = Sizes(
    name="long",
    items=20_000,
    rounds=7,
    seconds=240.0,
    commits=3_000,
    idle_tenants=10_000,
    idle_seconds=120.0,
    rules=10_000,
    judged=40_000,
    backlog=100_000,
    neighbours=1_000,
    appends=100,
    runners=2_000,
    queued=150,
    finished=10_000_000,
    due=20_000,
    members=1_000,
    posts=3_000,
    unread=10_000,
)
