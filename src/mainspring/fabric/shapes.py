"""How streams and consumers must be, and what is to be done about one that is found. Pure.

A stream carries in its metadata the generation and the hash of the configuration that it was made with. A release with another
configuration has a higher generation. What two releases would not agree on is never silently set to the last one's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from mainspring.fabric.settings import FabricSettings

# Raised whenever a shape below changes.
GENERATION: Final = 1
_GENERATION_KEY: Final = "mainspring-generation"
_HASH_KEY: Final = "mainspring-hash"


@dataclass(frozen=True, slots=True)
class Shape:
    """What a stream or consumer must be: only what a promise rests on, so replicas and placement are the operator's."""

    name: str
    fields: Mapping[str, Any]
    generation: int = GENERATION

    @property
    def hash(self) -> str:
        """Return what two shapes differ in if they differ."""
        return hashlib.sha256(json.dumps(self.fields, sort_keys=True).encode()).hexdigest()[:32]

    @property
    def metadata(self) -> dict[str, str]:
        """Return what is kept with it."""
        return {_GENERATION_KEY: str(self.generation), _HASH_KEY: self.hash}


@dataclass(frozen=True, slots=True)
class Fits:
    """It is as it must be."""


@dataclass(frozen=True, slots=True)
class Older:
    """It is of an older release: to be migrated, under the lock."""

    generation: int


@dataclass(frozen=True, slots=True)
class Unfit:
    """It must not be used, and not be changed either."""

    reason: str


Verdict: TypeAlias = Fits | Older | Unfit


def judge(wanted: Shape, metadata: Mapping[str, str], found: Mapping[str, Any]) -> Verdict:
    """Say what is to be done about something that is there under the wanted name."""
    way_out = (
        f"delete {wanted.name} from NATS (nothing is owed by it: it is made again), or use another nats_root"
    )
    text = metadata.get(_GENERATION_KEY, "")
    if not (text.isascii() and text.isdigit()):
        return Unfit(f"{wanted.name} is there, and was not made by Mainspring: {way_out}")
    generation = int(text)
    if generation < wanted.generation:
        return Older(generation)
    if generation > wanted.generation:
        return Unfit(
            f"{wanted.name} is of a newer release (generation {generation}, and this one knows {wanted.generation}): "
            "upgrade this server"
        )
    if metadata.get(_HASH_KEY) != wanted.hash:
        return Unfit(
            f"{wanted.name} was made with another configuration by a release of the same generation: {way_out}"
        )
    drift = [
        f"{name} is {found.get(name)!r} and must be {value!r}"
        for name, value in sorted(wanted.fields.items())
        if found.get(name) != value
    ]
    return (
        Unfit(f"{wanted.name} was changed: {'; '.join(drift)}. Change it back, or {way_out}")
        if drift
        else Fits()
    )


def events_stream(settings: FabricSettings) -> Shape:
    """Return the stream of references."""
    return Shape(
        settings.names.stream,
        {
            "subjects": [settings.names.all_events],
            "storage": "file",
            "retention": "limits",
            "discard": "old",
            "max_age": settings.max_age_seconds,
            "duplicate_window": settings.duplicates_seconds,
        },
    )


def dlq_stream(settings: FabricSettings) -> Shape:
    """Return the stream of what nobody could take; it is kept until somebody looks, up to a bound."""
    return Shape(
        settings.names.dlq_stream,
        {
            "subjects": [settings.names.dlq_subject],
            "storage": "file",
            "retention": "limits",
            "discard": "old",
            "max_msgs": settings.parked_max,
            "duplicate_window": settings.duplicates_seconds,
        },
    )


def durable(settings: FabricSettings, subject: str) -> Shape:
    """Return the consumer that all instances share for a filter. Its name is the filter's digest: dots replaced would collide."""
    return Shape(
        f"events-{hashlib.sha256(subject.encode()).hexdigest()[:32]}",
        {
            "filter_subject": subject,
            "deliver_policy": "new",
            "ack_policy": "explicit",
            "replay_policy": "instant",
            "ack_wait": settings.ack_wait_seconds,
            "max_deliver": settings.deliver_max,
            "inactive_threshold": settings.inactive_seconds,
        },
    )
