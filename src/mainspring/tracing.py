"""Traces: where a request came from goes onto its events, and what is done for an event is told as a span of the same trace.

A leaf, and nothing where nobody traces: OpenTelemetry is not imported here. Whoever has set a tracer provider has imported it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, Final

TRACEPARENT_LENGTH_MAX: Final = 55
_TRACEPARENT: Final = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")
_LINKS_MAX: Final = 100
_NOTHING: Final = nullcontext()
_given: ContextVar[str | None] = ContextVar("mainspring_traceparent", default=None)


@contextmanager
def arrived_with(traceparent: str) -> Iterator[None]:
    """Take what a caller said of where it comes from; what is no traceparent is not taken."""
    token = _given.set(traceparent if _TRACEPARENT.fullmatch(traceparent) else None)
    try:
        yield
    finally:
        _given.reset(token)


def current() -> str | None:
    """Return the traceparent that an event which happens now carries: of the span around it, or of who caused it."""
    if (trace := _api()) is not None and (context := trace.get_current_span().get_span_context()).is_valid:
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
    return _given.get()


def is_on() -> bool:
    """Tell whether anybody traces."""
    return _tracer() is not None


def span(
    name: str, *, parent: str | None = None, links: Sequence[str | None] = (), **attributes: Any
) -> AbstractContextManager[object]:
    """Tell a block as a span: below `parent`, else below the one around it. Nothing happens where nobody traces."""
    tracer = _tracer()
    if tracer is None:
        return _NOTHING
    trace: Any = _api()
    contexts = [_context(trace, one) for one in list(dict.fromkeys(filter(None, links)))[:_LINKS_MAX]]
    above = _context(trace, parent) if parent else None
    return tracer.start_as_current_span(  # type: ignore[no-any-return]
        f"mainspring {name}",
        context=None if above is None else trace.set_span_in_context(trace.NonRecordingSpan(above)),
        links=[trace.Link(one) for one in contexts if one is not None],
        attributes={f"mainspring.{key}": value for key, value in attributes.items() if value is not None},
    )


class Begun:
    """A span that is told only if it comes to something."""

    def __init__(self, name: str) -> None:
        """It begins now."""
        tracer = _tracer()
        self._span = None if tracer is None else tracer.start_span(f"mainspring {name}")

    def end(self, **attributes: Any) -> None:
        """It was worth telling."""
        if self._span is not None:
            self._span.set_attributes({f"mainspring.{key}": value for key, value in attributes.items()})
            self._span.end()


def _api() -> Any | None:
    return sys.modules.get("opentelemetry.trace")


def _tracer() -> Any | None:
    trace = _api()
    if trace is None:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider)):
        return None
    return provider.get_tracer("mainspring")


def _context(trace: Any, traceparent: str) -> Any | None:
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None:
        return None
    return trace.SpanContext(
        trace_id=int(found[1], 16),
        span_id=int(found[2], 16),
        is_remote=True,
        trace_flags=trace.TraceFlags(int(found[3], 16)),
    )
