"""Takes ports on this machine's loopback, in a row when several servers stand side by side, and holds them for its caller.

A port that was merely found free may be another's a moment later, and a port is anybody's while its server is started again.
So whoever starts servers listens himself, and hands the socket down: who calls meanwhile waits, and nobody else moves in.
"""

from __future__ import annotations

import socket

from mainspring.embedded.problems import EmbeddedError

HOST = "127.0.0.1"
_BACKLOG = 1024
_SEARCHED = 200


def hold(port: int) -> socket.socket | None:
    """Return a socket that listens on this port, or None if it is another's."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((HOST, port))
        sock.listen(_BACKLOG)  # two may have bound it; one of them listens
    except OSError:
        sock.close()
        return None
    return sock


def hold_row(first: int, count: int, *, search: bool = True) -> list[socket.socket]:
    """Hold `count` ports in a row, at `first` or, if it may `search`, the next place after it. Raises EmbeddedError."""
    starts = range(first, min(first + _SEARCHED, 65536 - count)) if search else (first,)
    for start in starts:
        held: list[socket.socket] = []
        for port in range(start, start + count):
            if (sock := hold(port)) is None:
                break
            held.append(sock)
        if len(held) == count:
            return held
        for sock in held:
            sock.close()
        if not search:
            raise EmbeddedError(
                f"port {start + len(held)} is taken; leave --port out to use the next free one"
            )
    raise EmbeddedError(f"no {count} free ports in a row from {first} on")
