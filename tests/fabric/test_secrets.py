"""Credentials files and TLS, against NATS servers that ask for them."""

from __future__ import annotations

import base64
import binascii
import datetime
import hashlib
import ipaddress
import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

from mainspring.embedded import processes
from mainspring.embedded.nats import binary
from mainspring.fabric import creds
from mainspring.fabric.errors import Refused
from mainspring.fabric.jetstream import JetStreamFabric
from mainspring.fabric.link import Address
from tests.fabric.subjects import quick
from tests.fabric.test_conformance import Took, ref, until
from tests.fabric.test_jetstream import free_port, refused

# what a key begins with, for whom it is: the first byte, which becomes the first letter
OPERATOR, ACCOUNT, USER, SEED = 14 << 3, 0 << 3, 20 << 3, 18 << 3


def _checked(raw: bytes) -> str:
    return base64.b32encode(raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")).decode().rstrip("=")


class Key:
    """A key as NATS has it."""

    def __init__(self, prefix: int) -> None:
        self._key = Ed25519PrivateKey.generate()
        raw = serialization.Encoding.Raw
        public = self._key.public_key().public_bytes(raw, serialization.PublicFormat.Raw)
        private = self._key.private_bytes(raw, serialization.PrivateFormat.Raw, serialization.NoEncryption())
        self.public = _checked(bytes([prefix]) + public)
        self.seed = _checked(bytes([SEED | (prefix >> 5), (prefix & 31) << 3]) + private)

    def says(self, subject: str, name: str, claims: dict[str, Any]) -> str:
        """A JWT about somebody, signed with this key."""
        body: dict[str, Any] = {
            "iat": int(time.time()), "iss": self.public, "sub": subject, "name": name, "nats": {"version": 2, **claims},
        }  # fmt: skip
        body["jti"] = (
            base64.b32encode(hashlib.sha256(json.dumps(body).encode()).digest()).decode().rstrip("=")
        )
        parts = [_part({"typ": "JWT", "alg": "ed25519-nkey"}), _part(body)]
        signature = self._key.sign(".".join(parts).encode())
        return ".".join([*parts, base64.urlsafe_b64encode(signature).decode().rstrip("=")])


def _part(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """`started(configuration)` → the address of a NATS with JetStream that runs with it."""
    children = []

    def start(configuration: str) -> str:
        port = free_port()
        config = tmp_path / "nats.conf"
        store = json.dumps(str(tmp_path / "store"))
        config.write_text(f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: {store} }}\n{configuration}')
        log = (tmp_path / "nats.log").open("wb")
        with log:
            children.append(
                processes.spawn(
                    [binary(), "-c", config],
                    env=processes.PLAIN_ENVIRONMENT,
                    stdout=log,
                    death_signal=signal.SIGTERM,
                )
            )
        return f"127.0.0.1:{port}"

    yield start
    for child in children:
        processes.stop(child, [(signal.SIGKILL, 5.0)])


async def works(address: Address) -> None:
    settings = quick()
    fabric = await JetStreamFabric.open(address, settings, wait_seconds=10)
    try:
        assert fabric.health.state == "connected", fabric.health
        took = Took()
        await fabric.subscribe(settings.names.all_events, took)
        await fabric.publish(ref(1))
        await until(lambda: took.seqs == [1])
    finally:
        await fabric.close()


def written(path: Path, jwt: str, seed: str) -> Path:
    path.write_text(
        f"-----BEGIN NATS USER JWT-----\r\n{jwt}\r\n------END NATS USER JWT------\r\n\r\nkeep it secret\r\n\r\n"
        f"-----BEGIN USER NKEY SEED-----\r\n{seed}\r\n------END USER NKEY SEED------\r\n"
    )
    return path


async def test_a_credentials_file_opens_a_nats_that_asks_for_one(
    tmp_path: Path, started: Callable[[str], str]
) -> None:
    operator, system, account, user = Key(OPERATOR), Key(ACCOUNT), Key(ACCOUNT), Key(USER)
    everything = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1) | {
        "wildcards": True
    }
    streams = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)
    nobody = {"type": "account", "limits": everything}
    ours = operator.says(account.public, "ours", nobody | {"limits": everything | streams})
    theirs = operator.says(system.public, "system", nobody)
    itself = operator.says(operator.public, "operator", {"type": "operator"})
    limits = {"subs": -1, "data": -1, "payload": -1}
    jwt = account.says(user.public, "mainspring", {"type": "user", **limits})
    where = started(
        f'operator: "{itself}"\nsystem_account: {system.public}\nresolver: MEMORY\n'
        f'resolver_preload: {{ {account.public}: "{ours}", {system.public}: "{theirs}" }}\n'
    )
    await works(Address(url=f"nats://{where}", creds=written(tmp_path / "user.creds", jwt, user.seed)))
    strangers = written(tmp_path / "strangers.creds", jwt, Key(USER).seed)
    assert "refuses us" in await refused(Address(url=f"nats://{where}", creds=strangers))
    assert "refuses us" in await refused(Address(url=f"nats://{where}"))


def test_what_is_no_credentials_file_is_refused_and_its_seed_not_told(tmp_path: Path) -> None:
    user = Key(USER)
    for jwt, seed, why in (
        ("", user.seed, "no JWT"),
        ("x.y.z", "", "no JWT, or no seed"),
        ("x.y.z", Key(ACCOUNT).seed, "damaged"),
        ("x.y.z", user.public, "damaged"),
        ("x.y.z", "SU1", "damaged"),
        ("x.y.z", user.seed[:20] + ("A" if user.seed[20] != "A" else "B") + user.seed[21:], "damaged"),
    ):
        with pytest.raises(Refused, match=why) as error:
            creds.callbacks(written(tmp_path / "creds", jwt, seed))
        assert not seed or seed not in str(error.value)
    assert creds.read(written(tmp_path / "creds", "x.y.z", user.seed))[0] == b"x.y.z"


def test_credentials_are_read_anew_and_those_of_before_are_kept_when_they_cannot_be(tmp_path: Path) -> None:
    path = written(tmp_path / "creds", "x.y.one", Key(USER).seed)
    jwt, sign = creds.callbacks(path)
    written(path, "x.y.two", Key(USER).seed)
    assert jwt() == b"x.y.two"
    signed = sign("nonce")
    path.unlink()
    assert jwt() == b"x.y.two"
    assert sign("nonce") == signed


class Authority:
    """Makes certificates."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key, self._name = ec.generate_private_key(ec.SECP256R1()), _named("test authority")
        self.ca = folder / "ca.pem"
        self.ca.write_bytes(
            self._made(self._name, self._key, authority=True).public_bytes(serialization.Encoding.PEM)
        )

    def _made(self, name: x509.Name, key: Any, *, authority: bool = False) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        day = datetime.timedelta(days=1)
        builder = x509.CertificateBuilder(
            self._name, name, key.public_key(), x509.random_serial_number(), now - day, now + day
        )
        builder = builder.add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        if not authority:
            local = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
            builder = builder.add_extension(x509.SubjectAlternativeName([local]), critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def certificate(self, name: str) -> tuple[Path, Path]:
        """A certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        cert_path, key_path = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        cert_path.write_bytes(self._made(_named(name), key).public_bytes(serialization.Encoding.PEM))
        key_path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return cert_path, key_path


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


async def test_certificates_are_checked_on_both_sides(tmp_path: Path, started: Callable[[str], str]) -> None:
    folder, elsewhere = tmp_path / "ours", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    ours, others = Authority(folder), Authority(elsewhere)
    cert, key = ours.certificate("server")
    where = started(f'tls {{ cert_file: "{cert}", key_file: "{key}", ca_file: "{ours.ca}", verify: true }}\n')
    cert, key = ours.certificate("client")
    await works(Address(url=f"tls://{where}", tls_ca=ours.ca, tls_cert=cert, tls_key=key))
    said = await refused(Address(url=f"tls://{where}", tls_ca=others.ca, tls_cert=cert, tls_key=key))
    assert "certificate" in said.lower()
    stolen = others.certificate("client")
    with pytest.raises(Refused):
        await JetStreamFabric.open(
            Address(url=f"tls://{where}", tls_ca=ours.ca, tls_cert=stolen[0], tls_key=stolen[1]), quick()
        )
