"""The fabrics under test: how an instance is made, how what is behind it goes down, and how something foreign gets in."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Protocol
from uuid import uuid4

import nats
import nats.errors

from mainspring.embedded.nats import EmbeddedNats
from mainspring.fabric.jetstream import JetStreamFabric
from mainspring.fabric.link import Address
from mainspring.fabric.memory import Broker, MemoryFabric
from mainspring.fabric.port import EventFabric
from mainspring.fabric.settings import FabricSettings
from mainspring.fabric.subjects import Names
from mainspring.fabric.tasks import ended

QUICK = FabricSettings(
    ack_wait_seconds=0.9,
    nak_delays_seconds=(0.02, 0.04, 0.06, 0.08),
    beat_seconds=0.2,
    expires_seconds=1.0,
    hold_seconds=(0.02, 0.1),
    jitter_seconds=0.02,
    close_seconds=1.0,
)


def quick(**changes: Any) -> FabricSettings:
    """Settings with short times, under a root that no other test has."""
    return replace(QUICK, names=Names(f"t{uuid4().hex[:16]}"), **changes)


class Subject(Protocol):
    """One fabric, and what may happen to it."""

    settings: FabricSettings

    async def instance(self) -> EventFabric: ...
    async def put(self, subject: str, data: bytes) -> None: ...
    async def freeze(self, instance: EventFabric) -> None: ...
    async def outage(self, meanwhile: Callable[[], Awaitable[None]]) -> None: ...
    async def close(self) -> None: ...


class MemorySubject:
    """Within this process."""

    def __init__(self, settings: FabricSettings) -> None:
        self.settings = settings
        self.broker = Broker(settings)
        self.instances: list[MemoryFabric] = []

    async def instance(self) -> MemoryFabric:
        self.instances.append(MemoryFabric(self.broker))
        return self.instances[-1]

    async def put(self, subject: str, data: bytes) -> None:
        self.broker.put(subject, data)

    async def freeze(self, instance: EventFabric) -> None:
        assert isinstance(instance, MemoryFabric)
        for share in instance._shares:
            share._durable.shares.remove(share)
            await ended(*share.hand._tasks)

    async def outage(self, meanwhile: Callable[[], Awaitable[None]]) -> None:
        self.broker.down()
        await meanwhile()
        self.broker.up()

    async def close(self) -> None:
        for instance in self.instances:
            await instance.close()


class JetStreamSubject:
    """On a real server. Roots are of one test each, so that tests share it."""

    def __init__(self, server: EmbeddedNats, settings: FabricSettings) -> None:
        self.server = server
        self.settings = settings
        self.instances: list[JetStreamFabric] = []

    async def instance(self) -> JetStreamFabric:
        self.instances.append(await JetStreamFabric.open(Address(url=self.server.url()), self.settings))
        return self.instances[-1]

    async def put(self, subject: str, data: bytes) -> None:
        client = await nats.connect(self.server.url())
        try:
            await client.jetstream().publish(subject, data, stream=self.settings.names.stream)
        finally:
            await client.close()

    async def freeze(self, instance: EventFabric) -> None:
        assert isinstance(instance, JetStreamFabric)
        for share in instance._shares:
            await share._pull.stop()
            await ended(*share._hand._tasks)

    async def outage(self, meanwhile: Callable[[], Awaitable[None]]) -> None:
        os.kill(self.server.pid, signal.SIGKILL)
        while self.server.poll() is None:
            pass
        try:
            await meanwhile()
        finally:
            self.server.start()

    async def close(self) -> None:
        for instance in self.instances:
            names = self.settings.names
            try:
                for stream in (names.stream, names.dlq_stream):
                    await instance._link.jetstream.delete_stream(stream)
            except Exception:
                pass
            await instance.close()
