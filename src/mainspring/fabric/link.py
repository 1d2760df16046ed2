"""One connection to NATS that outlives everything but its own closing. Takes an address, leaves a client whenever there is one.

Losing it is an outage: logged, counted, and followed by the hooks of whoever may have missed something. The client's own handler stays
the first in that chain, so a hook replaces nothing. If the server refuses us for good the client gives up; then a new one takes its place.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.js import JetStreamContext

from mainspring import telemetry
from mainspring.fabric import creds
from mainspring.fabric.errors import Refused, Unreachable
from mainspring.fabric.port import Hook
from mainspring.fabric.settings import FabricSettings
from mainspring.fabric.tasks import ended
from mainspring.spine.errors import Transient

log = logging.getLogger("mainspring.fabric")

OLDEST_SERVER: Final = (2, 10)  # metadata of streams
_REFUSALS = (
    nats.errors.AuthorizationError,
    nats.errors.InvalidUserCredentialsError,
    nats.errors.SecureConnRequiredError,
    nats.errors.SecureConnWantedError,
    ssl.SSLError,
)
_REFUSED_IN_WORDS = ("authorization violation", "authentication expired", "tls required")
_REOPEN_SECONDS = (0.25, 5.0)
_CLOSE_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where NATS is, and who we are there. `url` may list several servers, separated by commas."""

    url: str
    creds: Path | None = None
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    name: str = "mainspring"

    def options(self) -> dict[str, Any]:
        """Return what the client needs. Raises Refused for a file that is missing or is not what it should be."""
        for path in (self.creds, self.tls_ca, self.tls_cert, self.tls_key):
            if path is not None and not path.is_file():
                raise Refused(f"there is no file {path}")
        options: dict[str, Any] = {"servers": [one.strip() for one in self.url.split(",")], "name": self.name}
        if self.creds is not None:
            options["user_jwt_cb"], options["signature_cb"] = creds.callbacks(self.creds)
        if self.tls_ca is not None or self.tls_cert is not None:
            try:
                context = ssl.create_default_context(cafile=None if self.tls_ca is None else str(self.tls_ca))
                if self.tls_cert is not None:
                    context.load_cert_chain(
                        str(self.tls_cert), None if self.tls_key is None else str(self.tls_key)
                    )
            except (ssl.SSLError, OSError) as error:
                raise Refused(f"the TLS files cannot be used: {error}") from error
            options["tls"] = context
        return options


@asynccontextmanager
async def reaching() -> AsyncIterator[None]:
    """Turn what the client raises when it does not get through into Unreachable."""
    try:
        yield
    except (nats.errors.Error, TimeoutError, OSError) as error:
        raise Unreachable(f"{type(error).__name__}: {error}") from error


@dataclass(slots=True)
class _Listener:
    subject: str
    heard: Callable[[str, bytes], None]
    queue: str = ""


@dataclass(slots=True, kw_only=True)
class Link:
    """`open` it once; `client` is the connection now, `serving` waits for one."""

    address: Address
    settings: FabricSettings
    outages: int = 0
    _client: Client | None = None
    _connected: asyncio.Event = field(default_factory=asyncio.Event)
    _hooks: list[Hook] = field(default_factory=list)
    _at_once: list[Hook] = field(default_factory=list)
    _listeners: list[_Listener] = field(default_factory=list)
    _opening: asyncio.Task[None] | None = None
    _calling: asyncio.Task[None] | None = None
    _ready: Callable[[Client], Awaitable[None]] | None = None
    _last_error: str = ""
    _refusal: str = ""
    _broken_at: float | None = None
    _was_up: bool = False
    _closing: bool = False
    _patient: bool = False  # the caller waits no more: what is refused from now on may be mended

    # life ---------------------------------------------------------------------------------------------------

    async def open(self, ready: Callable[[Client], Awaitable[None]], *, wait_seconds: float) -> bool:
        """Connect, and make `ready`; False when nobody has answered in time, and it is tried on. Raises Refused."""
        self._ready = ready
        self.address.options()
        self._opening = asyncio.create_task(self._open(), name="mainspring fabric connect")
        await asyncio.wait({self._opening}, timeout=wait_seconds)
        self._patient = True
        if self._opening.done() and (error := self._opening.exception()) is not None:
            raise error
        return self._connected.is_set()

    async def _open(self) -> None:
        """Try until there is a connection that can be used. What is refused at the start is raised; later it is waited for."""
        pause, longest = _REOPEN_SECONDS
        while not self._closing:
            client = Client()
            try:
                async with reaching():
                    await self._connect(client)
                assert self._ready is not None
                await self._ready(client)
                await self._listen_again(client)
            except (Refused, Transient) as error:
                # Transient and not only Unreachable: the lock under which a stream is migrated is the database's
                await _dispose(client)
                self._refusal = str(error) if isinstance(error, Refused) else ""
                self._last_error = str(error)
                if isinstance(error, Refused):
                    if not self._patient:
                        raise
                    log.error("fabric: refused, and waited for: %s", error)
                await asyncio.sleep(pause)
                pause = min(longest, pause * 2)
            except BaseException:
                await _dispose(client)
                raise
            else:
                self._up(client)
                return

    async def _connect(self, client: Client) -> None:
        refused: list[Exception] = []

        async def failed(error: Exception) -> None:
            self._last_error = f"{type(error).__name__}: {error}"
            if _is_refusal(error):
                refused.append(error)
                refusal.set()
            log.debug("fabric: %s", self._last_error)

        refusal = asyncio.Event()
        connecting = asyncio.create_task(
            client.connect(
                **self.address.options(),
                allow_reconnect=True,
                max_reconnect_attempts=-1,
                reconnect_time_wait=0.25,  # type: ignore[arg-type]  # seconds, and fractions are
                connect_timeout=2,
                ping_interval=10,
                max_outstanding_pings=2,
                error_cb=failed,
                disconnected_cb=partial(self._disconnected, client),
                reconnected_cb=partial(self._reconnected, client),
                closed_cb=partial(self._closed, client),
            )
        )
        waiting = asyncio.create_task(refusal.wait())
        try:
            await asyncio.wait({connecting, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if refused:
                raise Refused(f"NATS refuses us: {type(refused[0]).__name__}: {refused[0]}")
            await connecting
        except Refused:
            raise
        except Exception as error:
            if _is_refusal(error):
                raise Refused(f"NATS refuses us: {type(error).__name__}: {error}") from error
            raise
        finally:
            await ended(connecting, waiting)
        version = client.connected_server_version
        if (version.major, version.minor) < OLDEST_SERVER:
            raise Refused(
                f"this is {_called(client)}, and Mainspring needs NATS {'.'.join(map(str, OLDEST_SERVER))} or newer"
            )

    async def close(self) -> None:
        """End the connection, within the bound."""
        self._closing = True
        await ended(self._opening, self._calling)
        self._connected.clear()
        telemetry.fabric_connected.set(0)
        if self._client is not None:
            if self._client.is_connected:
                with suppress(nats.errors.Error, TimeoutError, OSError):
                    await asyncio.wait_for(self._client.flush(), _CLOSE_SECONDS)
            await _dispose(self._client)

    # what it is ---------------------------------------------------------------------------------------------

    @property
    def client(self) -> Client:
        """The connection. Raises Unreachable while there is none."""
        if self._client is None or not self._client.is_connected or self._closing:
            raise Unreachable(self._last_error or "not connected")
        return self._client

    @property
    def jetstream(self) -> JetStreamContext:
        """JetStream on it. Raises Unreachable while there is none."""
        return jetstream(self.client, self.settings)

    @property
    def state(self) -> str:
        """What to say of it: connected, waiting, broken, refused or closed."""
        if self._closing:
            return "closed"
        if self._refusal:
            return "refused"
        if self._client is not None and self._client.is_connected:
            return "connected"
        return "broken" if self._was_up else "waiting"

    @property
    def reason(self) -> str:
        """Why it is not connected."""
        return "" if self.state == "connected" else self._refusal or self._last_error

    @property
    def server(self) -> str:
        """Which NATS answers."""
        return "" if self._client is None else _called(self._client)

    async def serving(self) -> Client:
        """Wait for a connection and return it."""
        while True:
            await self._connected.wait()
            with suppress(Unreachable):
                return self.client
            await asyncio.sleep(_REOPEN_SECONDS[0])

    # who is told --------------------------------------------------------------------------------------------

    def on_reconnect(self, hook: Hook) -> None:
        """Call `hook` some jitter after each time that something may have been missed."""
        self._hooks.append(hook)

    def at_once(self, hook: Hook) -> None:
        """Call `hook` the moment the connection is back."""
        self._at_once.append(hook)

    async def listen(self, subject: str, heard: Callable[[str, bytes], None], *, queue: str = "") -> None:
        """Listen for as long as this lives, on every connection that there will be."""
        self._listeners.append(_Listener(subject, heard, queue))
        if self._connected.is_set() and self._client is not None:
            async with reaching():
                await _subscribe(self._client, self._listeners[-1])

    async def _listen_again(self, client: Client) -> None:
        async with reaching():
            for listener in self._listeners:
                await _subscribe(client, listener)

    def missed(self) -> None:
        """Something may have been missed: the hooks run, once for all that is missed until then."""
        if not self._closing and (self._calling is None or self._calling.done()):
            self._calling = asyncio.create_task(self._call_hooks(), name="mainspring fabric hooks")

    async def _call_hooks(self) -> None:
        await asyncio.sleep(random.uniform(0, self.settings.jitter_seconds))  # noqa: S311 - so that instances do not all look at once
        for hook in list(self._hooks):
            try:
                hook()
            except Exception as error:
                telemetry.loop_failures.labels("fabric hook", type(error).__name__).inc()
                log.exception("fabric: a hook failed")

    # what happens to it -------------------------------------------------------------------------------------

    def _up(self, client: Client) -> None:
        again, self._was_up = self._was_up, True
        self._client, self._refusal, self._last_error = client, "", ""
        self._connected.set()
        telemetry.fabric_connected.set(1)
        self._back(client, again=again)

    def _back(self, client: Client, *, again: bool) -> None:
        seconds = 0.0 if self._broken_at is None else asyncio.get_running_loop().time() - self._broken_at
        self._broken_at = None
        log.log(
            logging.INFO if again else logging.DEBUG,
            "fabric: connected %sto %s%s",
            "again " if again else "",
            _called(client),
            f" after {seconds:.1f} s" if again else "",
        )
        for hook in self._at_once:
            hook()
        self.missed()

    async def _disconnected(self, client: Client) -> None:
        if client is not self._client or self._closing or self._broken_at is not None:
            return
        self._broken_at = asyncio.get_running_loop().time()
        self.outages += 1
        telemetry.fabric_outages.inc()
        telemetry.fabric_connected.set(0)
        log.warning("fabric: NATS is gone; work goes on by the tick until it is back")

    async def _reconnected(self, client: Client) -> None:
        if client is self._client and not self._closing:
            telemetry.fabric_connected.set(1)
            self._back(client, again=True)

    async def _closed(self, client: Client) -> None:
        """The client has given up, as when it is not let in any more: another one takes its place."""
        if client is not self._client or self._closing:
            return
        await self._disconnected(client)
        self._connected.clear()
        self._opening = asyncio.create_task(self._open(), name="mainspring fabric connect")


def jetstream(client: Client, settings: FabricSettings) -> JetStreamContext:
    """Return JetStream on a connection, with our time limit."""
    return client.jetstream(timeout=settings.request_seconds)


def _is_refusal(error: Exception) -> bool:
    """Tell whether the server has answered, and will not have us; of that the client makes an error with words."""
    return isinstance(error, _REFUSALS) or any(words in str(error).lower() for words in _REFUSED_IN_WORDS)


def _called(client: Client) -> str:
    version = client.connected_server_version
    return f"NATS {version.major}.{version.minor}.{version.patch}"


async def _subscribe(client: Client, listener: _Listener) -> None:
    async def came(message: Any) -> None:
        try:
            listener.heard(message.subject, message.data)
        except Exception as error:
            telemetry.loop_failures.labels("fabric listener", type(error).__name__).inc()
            log.exception("fabric: a listener failed")

    await client.subscribe(listener.subject, queue=listener.queue, cb=came)


async def _dispose(client: Client) -> None:
    with suppress(nats.errors.Error, TimeoutError, OSError):
        await asyncio.wait_for(client.close(), _CLOSE_SECONDS)
