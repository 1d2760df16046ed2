"""Makes the streams and consumers that are missing, migrates those of an older release, and refuses what does not fit.

Takes a connection, leaves it fit to be used. Repeatable at any time: it is also how something that was deleted under us comes back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import asdict
from enum import Enum
from typing import Any, Final, TypeAlias

import nats.js.errors
from nats.js import JetStreamContext, api

from mainspring import telemetry
from mainspring.fabric.errors import Refused, Unreachable
from mainspring.fabric.link import reaching
from mainspring.fabric.settings import FabricSettings
from mainspring.fabric.shapes import Fits, Older, Shape, Unfit, judge

log = logging.getLogger("mainspring.fabric")

# Held while something is migrated: by default by nobody, in a server by the database.
Lock: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]
no_lock: Final[Lock] = nullcontext
_NOT_ENABLED: Final = (10039, 10076)  # for the account, for the server
# Said with a 500, and no better when asked again: no room for the stream, a configuration that cannot be, replicas without a cluster.
_NEVER: Final = (10047, 10052, 10074)
_NO_PEERS: Final = 10005  # said with a 400, and a cluster that is starting may have them later


async def refuse_without_jetstream(js: JetStreamContext) -> None:
    """Raise Refused where there is no JetStream."""
    try:
        async with reaching():
            await js.account_info()
    except Unreachable as error:
        cause = error.__cause__
        unserved = (
            type(cause) is nats.js.errors.ServiceUnavailableError and not cause.err_code
        )  # nobody listens there
        if unserved or (isinstance(cause, nats.js.errors.APIError) and cause.err_code in _NOT_ENABLED):
            raise Refused(
                "this NATS has no JetStream: start it with -js, or enable it for this account"
            ) from error
        raise


class Streams:
    """The streams and consumers of one installation."""

    def __init__(self, settings: FabricSettings, *, lock: Lock = no_lock) -> None:
        self._settings = settings
        self._lock = lock

    async def ensure_stream(self, js: JetStreamContext, shape: Shape) -> bool:
        """Have a stream as it must be; tell whether it was made here. Raises Refused, Unreachable."""
        found = await self._stream(js, shape)
        if found is None:
            try:
                async with reaching():
                    await js.add_stream(self._stream_config(shape))
            except Unreachable as error:
                found = await self._stream(
                    js, shape
                )  # another instance was faster, with whatever it makes of it
                if found is None:
                    raise _explained(error) from error
            else:
                telemetry.fabric_rebuilt.labels("stream").inc()
                log.debug("fabric: stream %s is made", shape.name)
                return True
        if await self._is_older(shape, found):
            async with self._lock():
                again = await self._stream(js, shape)
                if again is not None and await self._is_older(shape, again):
                    async with reaching():
                        await js.update_stream(self._stream_config(shape, base=again))
                    log.info("fabric: stream %s is migrated to generation %d", shape.name, shape.generation)
        return False

    async def ensure_consumer(self, js: JetStreamContext, stream: str, shape: Shape) -> bool:
        """Have a consumer as it must be; tell whether it was made here. Raises Refused, Unreachable."""
        found = await self._consumer(js, stream, shape)
        if found is None:
            async with reaching():
                await js.add_consumer(stream, _consumer_config(shape))
            telemetry.fabric_rebuilt.labels("consumer").inc()
            log.debug("fabric: consumer %s is made", shape.name)
            return True
        if await self._is_older(shape, found):
            async with self._lock():
                again = await self._consumer(js, stream, shape)
                if again is not None and await self._is_older(shape, again):
                    # some of it cannot be changed in place; what it had not handed out is found by the pass that follows
                    async with reaching():
                        await js.delete_consumer(stream, shape.name)
                        await js.add_consumer(stream, _consumer_config(shape))
                    log.info("fabric: consumer %s is migrated to generation %d", shape.name, shape.generation)
                    return True
        return False

    async def _is_older(self, shape: Shape, found: api.StreamConfig | api.ConsumerConfig) -> bool:
        match judge(shape, found.metadata or {}, _plain(found)):
            case Fits():
                return False
            case Older():
                return True
            case Unfit(reason):
                raise Refused(reason)

    async def _stream(self, js: JetStreamContext, shape: Shape) -> api.StreamConfig | None:
        try:
            async with reaching():
                return (await js.stream_info(shape.name)).config
        except Unreachable as error:
            if isinstance(error.__cause__, nats.js.errors.NotFoundError):
                return None
            raise

    async def _consumer(self, js: JetStreamContext, stream: str, shape: Shape) -> api.ConsumerConfig | None:
        try:
            async with reaching():
                info: api.ConsumerInfo = await js.consumer_info(stream, shape.name)
                return info.config
        except Unreachable as error:
            if isinstance(error.__cause__, nats.js.errors.NotFoundError):
                return None
            raise

    def _stream_config(self, shape: Shape, *, base: api.StreamConfig | None = None) -> api.StreamConfig:
        start = base or api.StreamConfig(num_replicas=self._settings.replicas)
        return start.evolve(name=shape.name, metadata=shape.metadata, **shape.fields)


def _consumer_config(shape: Shape) -> api.ConsumerConfig:
    return api.ConsumerConfig(
        name=shape.name, durable_name=shape.name, metadata=shape.metadata, **shape.fields
    )


def _plain(config: api.StreamConfig | api.ConsumerConfig) -> Mapping[str, Any]:
    """Return a configuration as values that can be compared: the client's enums are texts, its numbers may be whole."""
    return {name: value.value if isinstance(value, Enum) else value for name, value in asdict(config).items()}


def _explained(error: Unreachable) -> Exception:
    """Say of what was refused, and not merely late, that it was."""
    cause = error.__cause__
    if not isinstance(cause, nats.js.errors.APIError) or cause.err_code == _NO_PEERS:
        return error
    if cause.err_code in _NEVER or 400 <= (cause.code or 0) < 500:
        return Refused(f"NATS refuses to make a stream: {cause.description}")
    return error
