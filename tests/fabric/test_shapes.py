"""What is decided about a stream that is found, without a server."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mainspring.fabric.settings import FabricSettings
from mainspring.fabric.shapes import Fits, Older, Shape, Unfit, dlq_stream, durable, events_stream, judge
from mainspring.spine.errors import Misuse

SETTINGS = FabricSettings()
SHAPES = [events_stream(SETTINGS), dlq_stream(SETTINGS), durable(SETTINGS, SETTINGS.names.all_events)]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_each_verdict(shape: Shape) -> None:
    other = dict.fromkeys(shape.fields, "other")
    assert judge(shape, shape.metadata, shape.fields) == Fits()
    assert (
        judge(shape, shape.metadata | {"_nats.level": "1"}, dict(shape.fields) | {"num_replicas": 3})
        == Fits()
    )
    assert judge(replace(shape, generation=2), shape.metadata, other) == Older(1)
    for metadata, found, why in (
        ({}, shape.fields, "was not made by Mainspring"),
        ({"mainspring-generation": "²"}, shape.fields, "was not made by Mainspring"),
        (replace(shape, generation=9).metadata, shape.fields, "newer release"),
        (shape.metadata | {"mainspring-hash": "0"}, shape.fields, "another configuration"),
        (shape.metadata, other, "was changed"),
        (shape.metadata, {}, "was changed"),
    ):
        verdict = judge(shape, metadata, found)
        assert isinstance(verdict, Unfit)
        assert why in verdict.reason
        assert shape.name in verdict.reason


def test_each_field_is_part_of_the_hash() -> None:
    for shape in SHAPES:
        for name in shape.fields:
            assert replace(shape, fields={**shape.fields, name: "other"}).hash != shape.hash


# A shape that differs from what a release has made needs a higher generation: change both of these together.
RELEASED = {
    "MAINSPRING_EVENTS": (1, "ced73eeac0ef89d15f351fe865713df4"),
    "MAINSPRING_DLQ": (1, "b11045d81694f2ef0363c6c20e8c0697"),
    "events-a5bf7901f6445b9f7d5462d3c51abb00": (1, "ce8ad09fa7c1a2a3b72bc1b492fd3902"),
}


def test_a_changed_shape_has_a_higher_generation() -> None:
    assert {shape.name: (shape.generation, shape.hash) for shape in SHAPES} == RELEASED


def test_durables_of_different_filters_never_share_a_name() -> None:
    names = SETTINGS.names
    assert (
        durable(SETTINGS, names.events_of_kind("a.b")).name
        != durable(SETTINGS, names.events_of_kind("a_b")).name
    )


@pytest.mark.parametrize(
    "wrong",
    [{"deliver_max": 1}, {"batch": 0}, {"batch": 1001}, {"nak_delays_seconds": ()}, {"nak_delays_seconds": (2.0, 1.0)},
     {"beat_seconds": 20.0}],
)  # fmt: skip
def test_settings_that_do_not_go_together_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(Misuse):
        FabricSettings(**wrong)  # type: ignore[arg-type]


def test_delays_grow_with_the_deliveries_and_end() -> None:
    assert [SETTINGS.nak_delay(n) for n in (0, 1, 2, 3, 4, 5, 99)] == [1, 1, 5, 15, 30, 30, 30]
