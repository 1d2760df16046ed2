"""One server process: takes settings, leaves a listening server, and at SIGTERM or SIGINT an orderly end.

The order of the end is ours, not the web server's: long polls answer empty; requests under way finish; the engine hands back
what it holds; connections close. If it dies anywhere in between, leases run out and any other process carries on.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import structlog
import uvicorn

from mainspring import config, wiring
from mainspring.server.app import create_app
from mainspring.server.load import Load

if TYPE_CHECKING:
    from fastapi import FastAPI

    from mainspring.config import Settings

BACKLOG = 1024
SILENT_CLIENT_MILLISECONDS = 60_000
FILES_MAX = 65_536
CANNOT_START = 1
PORT_TAKEN = 5  # the command line's word for a conflict


class PortTaken(wiring.CannotStart):
    """Another process listens where this one shall."""


class Server(uvicorn.Server):
    """The web server, as a part of our program: signals are the program's."""

    def __init__(self, settings: uvicorn.Config) -> None:
        """Serves what `settings` name; `listening` is set once connections are taken."""
        super().__init__(settings)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to take connections, and say so."""
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield


def run(settings: Settings) -> int:
    """Serve until asked to stop; return the exit code. What keeps it from starting is said on stderr."""
    _log_to_stderr(settings.log_level)
    _as_many_files_as_allowed()
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_serve(settings))
    except (wiring.CannotStart, config.ConfigError) as error:
        print(f"mainspring: cannot start: {error}", file=sys.stderr)
        return PORT_TAKEN if isinstance(error, PortTaken) else CANNOT_START


async def _serve(settings: Settings) -> int:
    sock = _socket(settings)
    try:
        services = await wiring.assemble(settings)
    except BaseException:
        sock.close()
        raise
    try:
        config.refuse_exposed_demo(settings, demo_token=await services.tokens.demo_token_lives())
        load = Load(working_max=settings.requests_max, waiting_max=settings.waits_max)
        app = create_app(services, load=load)
        server = Server(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                http="httptools",
                lifespan="off",
                server_header=False,
                backlog=BACKLOG,
                timeout_graceful_shutdown=max(1, round(settings.shutdown_grace_seconds)),
            )
        )
        _listen(sock)
        await services.start()
        await _until_stopped(settings, app, server, sock)
    finally:
        await services.stop()
    return 0


async def _until_stopped(settings: Settings, app: FastAPI, server: Server, sock: socket.socket) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _asked_to_stop, stop, number)
    web = asyncio.create_task(server.serve(sockets=[sock]), name="mainspring web")
    stopping = asyncio.create_task(stop.wait())
    try:
        heard = asyncio.create_task(server.listening.wait())
        await asyncio.wait({web, heard, stopping}, return_when=asyncio.FIRST_COMPLETED)
        heard.cancel()
        if server.listening.is_set():
            print(f"mainspring: ready at {settings.url} (process {os.getpid()})", flush=True)
        await asyncio.wait({web, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        app.state.closing.set()
        app.state.services.tails.close()
        server.should_exit = True
        stopping.cancel()
        await web


def _asked_to_stop(stop: asyncio.Event, number: int) -> None:
    """Stop in order at the first signal, at once at the second: whoever dies at any statement loses nothing."""
    if stop.is_set():
        os._exit(128 + number)
    stop.set()


def _socket(settings: Settings) -> socket.socket:
    """Return the socket to listen on: the one that was handed down, or one of our own."""
    fd = settings.listen_fd
    sock = (
        _bound(settings.host, settings.port) if fd is None else _inherited(fd, settings.host, settings.port)
    )
    if hasattr(
        socket, "TCP_USER_TIMEOUT"
    ):  # connections inherit it: whoever takes nothing for so long is cut off
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_CLIENT_MILLISECONDS)
    return sock


def _inherited(fd: int, host: str, port: int) -> socket.socket:
    """Return the socket that whoever started us has opened: it stays theirs when we end, so that nobody else gets the port.

    It is bound to what the settings say: what is refused to an address that others can reach is judged by them.
    """
    try:
        sock = socket.socket(fileno=fd)
    except OSError as error:
        raise wiring.CannotStart(f"listen_fd: {fd} is no open socket: {error.strerror or error}") from error
    bound = sock.getsockname()
    if not isinstance(bound, tuple) or bound[:2] not in _addresses(host, port):
        sock.close()
        raise wiring.CannotStart(f"listen_fd: {fd} is bound to {_shown(bound)}, and not to {host}:{port}")
    sock.set_inheritable(False)
    return sock


def _addresses(host: str, port: int) -> set[tuple[str, int]]:
    """Return what a socket may be bound to that listens on `host`, which may be a name."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise wiring.CannotStart(f"host: {host} is no address: {error.strerror or error}") from error
    return {(str(address[0]), int(address[1])) for *_, address in found}


def _shown(bound: object) -> str:
    return f"{bound[0]}:{bound[1]}" if isinstance(bound, tuple) and len(bound) > 1 else "no address"


def _bound(host: str, port: int) -> socket.socket:
    """Return a bound socket. Taken here, not by the web server: that one would end the process on a taken port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise _not_ours(host, port, error) from error
    return sock


def _listen(sock: socket.socket) -> None:
    """Take the port for good: until here another that has bound it in the same moment could be faster."""
    try:
        sock.listen(BACKLOG)
    except OSError as error:
        host, port = sock.getsockname()[:2]
        sock.close()
        raise _not_ours(host, port, error) from error


def _not_ours(host: str, port: int, error: OSError) -> wiring.CannotStart:
    kind = PortTaken if error.errno == errno.EADDRINUSE else wiring.CannotStart
    return kind(f"cannot listen on {host}:{port}: {error.strerror or error}")


def _as_many_files_as_allowed() -> None:
    """Every poll and stream that waits is an open file; the usual first limit is far below what the process may have."""
    try:
        import resource
    except ImportError:  # not on every platform
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, FILES_MAX), hard))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not on every platform
        return None
    return uvloop.Loop


def _log_to_stderr(level: str) -> None:
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "logger", "event"]),
            ],
        )
    )
    logging.basicConfig(level=number, handlers=[handler], force=True)
    # its comings and goings are ours to say
    logging.getLogger("uvicorn.error").setLevel(max(number, logging.WARNING))
