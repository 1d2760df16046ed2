"""One trace leads from the request through its event to what was done for it; and where nobody traces, nothing is asked for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry import trace

from mainspring import tracing
from mainspring.ids import new_id
from mainspring.spine.effects import Done, NewEffect
from mainspring.spine.engine import Spine
from mainspring.spine.events import NewEvent
from mainspring.spine.ports import Owes
from mainspring.stores.memory import MemoryStore

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GIVEN = f"00-{TRACE}-{SPAN}-01"


class Told(trace.NonRecordingSpan):
    """A span as a program's own tracer would keep it."""

    def __init__(self, name: str, context: Any, parent: Any, links: Any, attributes: Any) -> None:
        super().__init__(context)
        self.name, self.parent, self.links = name, parent, [link.context.trace_id for link in links or ()]
        self.attributes = dict(attributes or {})
        self.ended = False

    def set_attributes(self, attributes: Any) -> None:
        self.attributes |= attributes

    def end(self, end_time: int | None = None) -> None:
        self.ended = True


class Recorder(trace.TracerProvider, trace.Tracer):
    """A tracer that remembers."""

    def __init__(self) -> None:
        self.spans: list[Told] = []

    def get_tracer(self, *_args: Any, **_named: Any) -> Recorder:
        return self

    def start_span(
        self, name: str, context: Any = None, *_: Any, links: Any = None, attributes: Any = None, **__: Any
    ) -> Told:
        parent = trace.get_current_span(context).get_span_context()
        own = trace.SpanContext(
            trace_id=parent.trace_id or len(self.spans) + 1,
            span_id=len(self.spans) + 1,
            is_remote=False,
            trace_flags=trace.TraceFlags(1),
        )
        self.spans.append(Told(name, own, parent, links, attributes))
        return self.spans[-1]

    @contextmanager
    def start_as_current_span(self, name: str, context: Any = None, **named: Any) -> Iterator[Told]:  # type: ignore[override]
        span = self.start_span(name, context, **named)
        with trace.use_span(span, end_on_exit=True):
            yield span

    def named(self, name: str) -> list[Told]:
        return [span for span in self.spans if span.name == f"mainspring {name}" and span.ended]


@pytest.fixture
def recorder(monkeypatch) -> Recorder:
    found = Recorder()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", found)
    return found


@pytest.fixture
def shop() -> Any:
    """An engine in memory whose orders are paid and then sent."""
    spine = Spine(MemoryStore())

    @spine.owes("order.paid")
    def send(event):
        return Owes(NewEffect("send", key=str(event.seq), event_seq=event.seq))

    @spine.transactional_effect("send")
    async def sent(effect, tx):
        tx.append(NewEvent("order.sent"))
        return Done()

    return spine


async def paid(spine: Any) -> Any:
    tenant = new_id()
    await spine.create_tenant(tenant, "acme")
    async with spine.open(tenant) as tx:
        tx.append(NewEvent("order.paid"))
    return tenant


async def origins(spine: Any, tenant: Any) -> list[str | None]:
    async with spine.store.tenant(tenant) as tx:
        return [event.traceparent for event in await spine.store.read(tx, tenant, after=0, limit=10)]


async def test_a_traceparent_that_was_given_goes_onto_the_event(shop):
    with tracing.arrived_with(GIVEN):
        tenant = await paid(shop)
    assert tracing.current() is None
    assert await origins(shop, tenant) == [GIVEN]


@pytest.mark.parametrize(
    "given", ["", "x", GIVEN[:-1], GIVEN + "0", GIVEN.upper(), f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"ff{GIVEN[2:]}"]
)  # fmt: skip
async def test_what_is_no_traceparent_is_not_taken(given):
    with tracing.arrived_with(given):
        assert tracing.current() is None


async def test_one_trace_leads_from_the_cause_to_what_was_done_for_it(shop, recorder):
    with tracing.arrived_with(GIVEN), tracing.span("request", parent=GIVEN):
        tenant = await paid(shop)
    await shop.run_once()
    [append, sent] = recorder.named("append")
    [execute] = recorder.named("execute send")
    drains = recorder.named("drain")
    [claim] = recorder.named("claim")
    assert {one.get_span_context().trace_id for one in (append, execute, sent)} == {int(TRACE, 16)}
    assert drains[0].links == [int(TRACE, 16)]
    assert claim.attributes["mainspring.effects"] == 1
    assert execute.attributes["mainspring.key"] == "1"
    assert sent.parent.span_id == execute.get_span_context().span_id
    # what it did carries it on
    first, second = await origins(shop, tenant)
    assert first.split("-")[1] == second.split("-")[1] == TRACE
    assert int(second.split("-")[2], 16) == execute.get_span_context().span_id


async def test_settling_is_told(recorder):
    spine = Spine(MemoryStore())
    spine.owes("order.paid", name="send")(lambda event: Owes(NewEffect("mail", key=str(event.seq))))

    @spine.effect("mail")
    async def mail(effect):
        return Done()

    await paid(spine)
    await spine.run_once()
    [settle] = recorder.named("settle")
    assert settle.attributes == {"mainspring.effects": 1}


async def test_claims_that_find_nothing_are_not_told(shop, recorder):
    await shop.run_once()
    assert recorder.named("claim") == []


async def test_where_nobody_traces_no_event_is_asked_where_it_came_from(shop, monkeypatch):
    async def never(*_args):
        raise AssertionError

    monkeypatch.setattr(shop.store, "traceparents", never)
    await paid(shop)
    await shop.run_once()
    assert not tracing.is_on()


def test_opentelemetry_is_not_imported_by_the_engine():
    code = "import sys, mainspring, mainspring.spine.engine, mainspring.tracing; print([m for m in sys.modules if m.startswith('opentelemetry')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
