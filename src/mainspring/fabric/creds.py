"""A NATS credentials file: the user's JWT, and the seed that signs what the server asks. Takes a path, leaves what the client calls back.

The client's own reader needs a package that is no wheel. The file is read anew at each connection, so that new credentials need no restart;
one that cannot be read at a reconnect leaves those of before in use, since the client ends its reconnecting for good when it is told of it.
"""

from __future__ import annotations

import base64
import binascii
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from mainspring.fabric.errors import Refused

log = logging.getLogger("mainspring.fabric")

_BLOCK: Final = r"-+BEGIN {0}-+\s*(?P<text>[A-Za-z0-9][\w.=-]*)\s+-+END {0}-+"
_JWT: Final = re.compile(_BLOCK.format("NATS USER JWT"))
_SEED: Final = re.compile(_BLOCK.format("USER NKEY SEED"))
_SEED_BYTES: Final = 36  # two of prefix, the seed's 32, two of checksum
_USER_SEED: Final = "SU"


def callbacks(path: Path) -> tuple[Callable[[], bytes], Callable[[str], bytes]]:
    """Return what gives the JWT, and what signs a nonce. Raises Refused for what is no credentials file."""
    found = read(path)

    def now() -> tuple[bytes, bytes]:
        nonlocal found
        try:
            found = read(path)
        except Refused as error:
            log.warning("fabric: the credentials of before are used: %s", error)
        return found

    return lambda: now()[0], lambda nonce: sign(now()[1], nonce)


def read(path: Path) -> tuple[bytes, bytes]:
    """Return a file's JWT and its key's seed. Raises Refused."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"cannot read {path}: {type(error).__name__}") from error
    jwt, seed = _JWT.search(text), _SEED.search(text)
    if jwt is None or seed is None:
        raise Refused(f"{path} is no credentials file of a NATS user: it has no JWT, or no seed")
    try:
        return jwt["text"].encode(), decoded(seed["text"])
    except ValueError as error:
        raise Refused(f"the seed in {path} is damaged") from error


def decoded(seed: str) -> bytes:
    """Return the 32 bytes of a user's seed. Raises ValueError when it is none, or damaged."""
    raw = base64.b32decode(seed + "=" * (-len(seed) % 8))
    if len(raw) != _SEED_BYTES or not seed.startswith(_USER_SEED):
        raise ValueError("no seed of a user")
    if binascii.crc_hqx(raw[:-2], 0) != int.from_bytes(raw[-2:], "little"):
        raise ValueError("the checksum is wrong")
    return raw[2:-2]


def sign(seed: bytes, nonce: str) -> bytes:
    """Return the signature that the server asks for."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return base64.b64encode(Ed25519PrivateKey.from_private_bytes(seed).sign(nonce.encode()))
