"""The counters and gauges of the whole program, in one registry of our own. A leaf: imports nothing of ours."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY = CollectorRegistry()

events_appended = Counter("mainspring_events_appended", "Events committed.", ["kind"], registry=REGISTRY)
_CUSTOM = "custom."


def count_appended(kinds: Iterable[str]) -> None:
    """Count events that are committed. What tenants name is one kind: their names make no series, and are told to nobody."""
    for kind in kinds:
        events_appended.labels("custom" if kind.startswith(_CUSTOM) else kind).inc()


effects_owed_inserted = Counter(
    "mainspring_effects_inserted", "Effects owed by a drain or by owe().", ["kind"], registry=REGISTRY
)
effect_attempts = Counter(
    "mainspring_effect_attempts", "Executions by kind and outcome.", ["kind", "outcome"], registry=REGISTRY
)
settles_refused = Counter(
    "mainspring_settles_refused",
    "Settles refused because the claim was no longer the last.",
    registry=REGISTRY,
)
claims_reclaimed = Counter(
    "mainspring_claims_reclaimed", "Claims taken over after their lease ran out.", registry=REGISTRY
)
claims_lost = Counter(
    "mainspring_claims_lost",
    "Claims that renewal found gone; their work was cancelled here.",
    registry=REGISTRY,
)
offers = Counter("mainspring_offers", "Messages handed to an agent's session.", registry=REGISTRY)
acks = Counter(
    "mainspring_acks", "Messages that a session has put into its agent's context.", registry=REGISTRY
)
sweep_repaired = Counter(
    "mainspring_sweep_repaired",
    "Rows that a net found and a fast path had missed.",
    ["sweep"],
    registry=REGISTRY,
)
loop_failures = Counter(
    "mainspring_loop_failures",
    "Rounds of a loop that ended in an error.",
    ["loop", "error"],
    registry=REGISTRY,
)
drain_poisoned = Counter(
    "mainspring_drain_poisoned",
    "Events that an obligation could not judge; owed as kind event.",
    ["obligation"],
    registry=REGISTRY,
)
log_holes = Counter(
    "mainspring_log_holes", "Times a log was found with a hole; its tenant is stopped.", registry=REGISTRY
)
rules_paused = Counter(
    "mainspring_rules_paused", "Rules that paused themselves for firing too often.", registry=REGISTRY
)
requests_failed = Counter(
    "mainspring_requests_failed",
    "HTTP requests that ended in a defect of ours.",
    ["error"],
    registry=REGISTRY,
)
requests_in_hand = Gauge(
    "mainspring_requests_in_hand", "HTTP requests by what they do now.", ["state"], registry=REGISTRY
)
requests_turned_away = Counter(
    "mainspring_requests_turned_away",
    "HTTP requests refused for too much at once.",
    ["code"],
    registry=REGISTRY,
)
requests = Counter(
    "mainspring_requests",
    "HTTP requests answered, by verb (or path, where no token is asked for) and status.",
    ["verb", "status"],
    registry=REGISTRY,
)
request_seconds = Histogram(
    "mainspring_request_seconds",
    "From a request's first byte to its answer's last; not of long polls and streams.",
    ["verb"],
    registry=REGISTRY,
    buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
connections = Gauge(
    "mainspring_db_connections", "Connections of this process's pool.", ["state"], registry=REGISTRY
)
loop_succeeded = Gauge(
    "mainspring_loop_succeeded_seconds",
    "Since a loop's last round that did not fail.",
    ["loop"],
    registry=REGISTRY,
)
streams = Gauge("mainspring_streams", "Event streams that are open.", registry=REGISTRY)
streams_ended = Counter(
    "mainspring_streams_ended", "Event streams that this process ended.", ["reason"], registry=REGISTRY
)
commands_replayed = Counter(
    "mainspring_commands_replayed",
    "Commands that were answered by what their Idempotency-Key had come to before.",
    ["verb"],
    registry=REGISTRY,
)
statements = Counter(
    "mainspring_db_statements", "Statements sent to the database.", ["purpose"], registry=REGISTRY
)
effect_latency = Histogram(
    "mainspring_effect_latency_seconds",
    "From owed to execution start.",
    ["kind"],
    registry=REGISTRY,
    buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60, 300, 1800),
)
effects_owed = Gauge("mainspring_effects_owed", "Live effects.", ["kind"], registry=REGISTRY)
effects_oldest_owed = Gauge(
    "mainspring_effects_oldest_owed_seconds", "Age of the oldest live effect.", ["kind"], registry=REGISTRY
)
effects_dead = Gauge("mainspring_effects_dead", "Dead effects.", ["kind"], registry=REGISTRY)
dead_letters = Gauge(
    "mainspring_dead_letters",
    "What stands on the desk: dead effects by their kind, and failed or lost runs as kind run.",
    ["kind"],
    registry=REGISTRY,
)
breaker_open = Gauge(
    "mainspring_breaker_open",
    "Targets that are taken to be down, those of all tenants; which they are, the doctor says to their operators.",
    registry=REGISTRY,
)
event_head = Gauge("mainspring_event_head", "Sum of the heads of all logs.", registry=REGISTRY)
drained_position = Gauge(
    "mainspring_drained_position", "Sum of the positions of all cursors.", registry=REGISTRY
)
drain_lag = Gauge(
    "mainspring_drain_lag_seconds", "Age of the oldest event that no drain has looked at.", registry=REGISTRY
)
fabric_published = Counter(
    "mainspring_fabric_published", "References handed to the fabric, confirmed.", registry=REGISTRY
)
fabric_publish_failures = Counter(
    "mainspring_fabric_publish_failures",
    "References given up after their retries, or for want of room; the floor tick finds what they stood for.",
    ["reason"],
    registry=REGISTRY,
)
fabric_references = Counter(
    "mainspring_fabric_references",
    "References that came to this process, by what became of them: ack, nak, park, returned.",
    ["outcome"],
    registry=REGISTRY,
)
fabric_redeliveries = Counter(
    "mainspring_fabric_redeliveries", "References that came to this process again.", registry=REGISTRY
)
fabric_answers_lost = Counter(
    "mainspring_fabric_answers_lost",
    "Answers that did not reach the fabric: each costs one delivery more.",
    registry=REGISTRY,
)
fabric_parked = Counter(
    "mainspring_fabric_parked", "References that nobody could take, by cause.", ["cause"], registry=REGISTRY
)
fabric_outages = Counter(
    "mainspring_fabric_outages", "Times that the connection to the fabric was lost.", registry=REGISTRY
)
fabric_rebuilt = Counter(
    "mainspring_fabric_rebuilt",
    "Streams and consumers of the fabric that were made, and requests that had gone silent and were made anew.",
    ["what"],
    registry=REGISTRY,
)
fabric_connected = Gauge(
    "mainspring_fabric_connected", "Whether this process is connected to its fabric.", registry=REGISTRY
)
message_ack = Histogram(
    "mainspring_message_ack_seconds",
    "From a message's settling until an agent's session has put it into the agent's context.",
    registry=REGISTRY,
    buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60, 300, 1800, 7200, 86_400),
)
sessions = Gauge("mainspring_sessions", "Live sessions of agents by state.", ["state"], registry=REGISTRY)
runs = Gauge("mainspring_runs", "Runs by state.", ["state"], registry=REGISTRY)
runner_slots = Gauge("mainspring_runner_slots", "Slots of live runners.", ["state"], registry=REGISTRY)
build_info = Gauge("mainspring_build_info", "Constant 1, with the version.", ["version"], registry=REGISTRY)
