"""The page of metrics."""

from __future__ import annotations

from mainspring import telemetry
from making.markdown import code, table


def metrics() -> str:
    """What /metrics shows."""
    labels = {
        one._name: one._labelnames  # noqa: SLF001 - the client library has no public way to ask
        for one in vars(telemetry).values()
        if hasattr(one, "_labelnames")
    }
    rows = [
        [
            code(family.name + ("_total" if family.type == "counter" else "")),
            family.type,
            ", ".join(map(code, labels[family.name])) or "-",
            family.documentation,
        ]
        for family in telemetry.REGISTRY.collect()
    ]
    return f"""# Metrics

`GET /metrics`, for Prometheus, without a token. Counters and histograms are this process's own; gauges are asked of the database when the
page is read, over all tenants, so every process shows the same. No label names a card, a person or a tenant.

{table(["metric", "type", "labels", "what it is"], rows)}
Worth an alert: `mainspring_drain_lag_seconds` and `mainspring_effects_oldest_owed_seconds` that grow (nobody carries on),
`mainspring_dead_letters` above zero (somebody has to decide), `mainspring_log_holes_total` and `mainspring_drain_poisoned_total` that move (data is not what it should be). `mainspring_sweep_repaired_total` counts what a net found that the fast path had missed.
"""
