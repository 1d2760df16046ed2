"""Finds ports that are free on this machine's loopback, in a row when several servers want to stand side by side."""

from __future__ import annotations

import socket

from mainspring.embedded.problems import EmbeddedError

_SEARCHED = 200


def is_free(port: int) -> bool:
    """Whether a server could listen here now; somebody may still be faster."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def find_row(first: int, count: int) -> int:
    """The first of `count` free ports in a row, at `first` or the next place after it."""
    for start in range(first, min(first + _SEARCHED, 65536 - count)):
        if all(is_free(port) for port in range(start, start + count)):
            return start
    raise EmbeddedError(f"no {count} free ports in a row from {first} on")
