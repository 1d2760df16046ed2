"""What only a real NATS can do to us: other configurations, deletions under us, refusals, silence."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from mainspring.embedded import processes
from mainspring.embedded.nats import EmbeddedNats, binary
from mainspring.embedded.ports import hold
from mainspring.fabric import shapes
from mainspring.fabric.errors import Refused, Unreachable
from mainspring.fabric.jetstream import JetStreamFabric
from mainspring.fabric.link import Address
from tests.fabric.subjects import JetStreamSubject, quick
from tests.fabric.test_conformance import Took, _parked, ref, shared, some, until


@pytest.fixture
async def subject(nats_server: EmbeddedNats) -> AsyncIterator[JetStreamSubject]:
    one = JetStreamSubject(nats_server, quick())
    yield one
    await one.close()


def free_port() -> int:
    sock = hold(0)
    assert sock is not None
    with sock:
        return int(sock.getsockname()[1])


async def hooked(fabric: JetStreamFabric) -> list[int]:
    """Return what grows by one with each pass that is asked for from now on."""
    await asyncio.sleep(0.1)  # the pass of the beginning
    passes: list[int] = []
    fabric.on_reconnect(lambda: passes.append(1))
    return passes


# what is deleted under us ------------------------------------------------------------------------------------------


async def test_a_deleted_consumer_is_made_again_and_a_pass_follows(subject: JetStreamSubject) -> None:
    fabric = await subject.instance()
    took = await shared(subject, fabric, Took())
    passes = await hooked(fabric)
    names = subject.settings.names
    await fabric._link.jetstream.delete_consumer(
        names.stream, shapes.durable(subject.settings, names.all_events).name
    )
    await until(lambda: bool(passes))
    await fabric.publish(ref(1))
    await until(lambda: took.seqs == [1])


async def test_a_deleted_stream_is_made_again_and_a_pass_follows(subject: JetStreamSubject) -> None:
    fabric = await subject.instance()
    took = await shared(subject, fabric, Took())
    passes = await hooked(fabric)
    await fabric._link.jetstream.delete_stream(subject.settings.names.stream)
    await until(lambda: bool(passes))
    await fabric.publish(ref(1))
    await until(lambda: took.seqs == [1])


async def test_a_deleted_stream_of_the_parked_is_made_again_and_nothing_is_let_go_before(
    subject: JetStreamSubject,
) -> None:
    fabric = await subject.instance()
    await shared(subject, fabric, Took())
    await fabric._link.jetstream.delete_stream(subject.settings.names.dlq_stream)
    await subject.put(subject.settings.names.events(ref().tenant, "card.moved"), b"nothing of ours")
    await until_parked(fabric)


async def until_parked(fabric: JetStreamFabric) -> None:
    while True:
        try:
            return await _parked(fabric)
        except Unreachable:  # the stream is not there yet
            await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_a_store_that_is_wiped_is_filled_again(tmp_path: Path) -> None:
    with EmbeddedNats(tmp_path / "state") as server:
        subject = JetStreamSubject(server, quick())
        fabric = await subject.instance()
        took = await shared(subject, fabric, Took())
        passes = await hooked(fabric)

        async def wiped() -> None:
            await asyncio.to_thread(_remove, server.state / "nats" / "store")

        await subject.outage(wiped)
        await until(lambda: bool(passes))
        await until_taken(fabric, took)
        await subject.close()


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder)


async def until_published(fabric: JetStreamFabric, one: Any) -> None:
    while True:
        try:
            return await fabric.publish(one)
        except Unreachable:
            await asyncio.sleep(0.02)


async def until_taken(fabric: JetStreamFabric, took: Took) -> None:
    """Publish until something comes: what is published before the consumer is made again is found by the pass alone."""
    for seq in count(1):
        await until_published(fabric, ref(seq))
        await asyncio.sleep(0.02)
        if took.seqs:
            return
        assert seq < 500


# what is silent, or will not have us --------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_request_that_has_gone_silent_is_made_anew(subject: JetStreamSubject) -> None:
    fabric = await subject.instance()
    took = await shared(subject, fabric, Took())
    [share] = fabric._shares
    await until(lambda: share._pull._left > 0)
    # as a server that lost the request: it is over there, and nobody has said so here
    share._pull._left = 10**6
    await fabric._link.jetstream.pause_consumer(
        subject.settings.names.stream, share._shape.name, "2100-01-01T00:00:00Z"
    )
    before = share._pull._round
    await until(lambda: share._pull._round > before)
    await fabric._link.jetstream.resume_consumer(subject.settings.names.stream, share._shape.name)
    await fabric.publish(ref(1))
    await until(lambda: took.seqs == [1])


def stands_still(pid: int) -> bool:
    """Whether every thread of a process has been stopped: being told to is not yet that."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return all((one / "stat").read_text().rpartition(")")[2].split()[0] == "T" for one in threads)


@pytest.mark.slow
async def test_a_server_that_stands_still_is_waited_for(subject: JetStreamSubject) -> None:
    fabric = await subject.instance()
    took = await shared(subject, fabric, Took())
    os.kill(subject.server.pid, signal.SIGSTOP)
    try:
        await until(lambda: stands_still(subject.server.pid))
        with pytest.raises(Unreachable):
            await fabric.publish(ref(1))
    finally:
        os.kill(subject.server.pid, signal.SIGCONT)
    await until_published(fabric, ref(2))
    await until(lambda: 2 in took.seqs)
    assert (
        took.seqs.count(1) <= 1
    )  # the one that was sent into the silence may still have come, and came once


async def test_a_client_that_has_given_up_is_replaced(subject: JetStreamSubject) -> None:
    fabric = await subject.instance()
    took = await shared(subject, fabric, Took())
    heard: list[bytes] = []
    await fabric.listen("heads", lambda _tenant, data: heard.append(data))
    passes = await hooked(fabric)
    await fabric._link.client.close()
    await until(lambda: bool(passes))
    assert fabric.health.outages == 1
    await fabric.publish(ref(1))
    await fabric.broadcast(ref().tenant, "heads", b"again")
    await until(lambda: took.seqs == [1] and heard == [b"again"])


@pytest.mark.slow
async def test_an_outage_is_logged_although_hooks_were_added(
    subject: JetStreamSubject, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mainspring.fabric")
    fabric = await subject.instance()
    passes = await hooked(fabric)

    async def meanwhile() -> None:
        await until(lambda: fabric.health.state == "broken")

    await subject.outage(meanwhile)
    await until(lambda: bool(passes))
    said = " ".join(record.getMessage() for record in caplog.records)
    assert "NATS is gone" in said
    assert "connected again to NATS 2." in said


# the start ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_an_unreachable_fabric_is_waited_for_and_then_gone_without(tmp_path: Path) -> None:
    server = EmbeddedNats(tmp_path / "state")
    with server:
        url = server.url()
    settings = quick()
    fabric = await JetStreamFabric.open(Address(url=url), settings, wait_seconds=0.2)
    try:
        assert fabric.health.state == "waiting"
        assert "refused" in fabric.health.reason.lower()
        with pytest.raises(Unreachable):
            await fabric.publish(ref(1))
        took = Took()
        await fabric.subscribe(settings.names.all_events, took)
        passes: list[int] = []
        fabric.on_reconnect(lambda: passes.append(1))
        with server:
            await until(lambda: bool(passes))
            assert fabric.health.state == "connected"
            await until_taken(fabric, took)
    finally:
        await fabric.close()


async def refused(address: Address, settings: Any = None) -> str:
    with pytest.raises(Refused) as error:
        await JetStreamFabric.open(address, settings or quick(), wait_seconds=10)
    return str(error.value)


async def test_a_wrong_token_is_refused(nats_server: EmbeddedNats) -> None:
    said = await refused(Address(url=f"nats://wrong@127.0.0.1:{nats_server.port}"))
    assert said.count("refuses us") == 1


async def test_missing_files_are_refused(nats_server: EmbeddedNats, tmp_path: Path) -> None:
    nothing = tmp_path / "nothing"
    for name in ("creds", "tls_ca", "tls_cert", "tls_key"):
        assert str(nothing) in await refused(Address(url=nats_server.url(), **{name: nothing}))
    nothing.write_text("no certificate")
    assert "TLS" in await refused(Address(url=nats_server.url(), tls_ca=nothing))


@asynccontextmanager
async def old_server(version: str) -> AsyncIterator[str]:
    """Something that answers as a NATS of that version would, as far as a client needs to know the version."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = {"server_id": "X", "version": version, "max_payload": 65536, "proto": 1, "headers": True}
        writer.write(f"INFO {json.dumps(said)}\r\n".encode())
        try:
            while line := await reader.readline():
                if line.startswith(b"PING"):
                    writer.write(b"PONG\r\n")
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_an_older_nats_is_refused_by_name() -> None:
    async with old_server("2.9.25") as url:
        assert (
            await refused(Address(url=url)) == "this is NATS 2.9.25, and Mainspring needs NATS 2.10 or newer"
        )


@pytest.fixture
def without_jetstream(tmp_path: Path) -> Iterator[str]:
    port = free_port()
    child = processes.spawn(
        [binary(), "-a", "127.0.0.1", "-p", str(port)],
        env=processes.PLAIN_ENVIRONMENT,
        stdout=-3,
        death_signal=signal.SIGTERM,
    )
    yield f"nats://127.0.0.1:{port}"
    processes.stop(child, [(signal.SIGKILL, 5.0)])


async def test_a_nats_without_jetstream_is_refused(without_jetstream: str) -> None:
    assert "no JetStream" in await refused(Address(url=without_jetstream))


# configurations -----------------------------------------------------------------------------------------------------


async def changed(subject: JetStreamSubject, change: Callable[[Any], None]) -> None:
    """Change the stream's configuration behind our back."""
    fabric = await subject.instance()
    js = fabric._link.jetstream
    config = (await js.stream_info(subject.settings.names.stream)).config
    change(config)
    await js.update_stream(config)
    await fabric.close()


async def test_a_stream_that_was_changed_by_hand_is_refused_by_the_field(subject: JetStreamSubject) -> None:
    await changed(subject, lambda config: setattr(config, "max_age", 3600.0))
    said = await refused(Address(url=subject.server.url()), subject.settings)
    assert "max_age is 3600.0 and must be 86400.0" in said
    assert "delete" in said


async def test_a_changed_consumer_is_refused_to_who_comes_later(subject: JetStreamSubject) -> None:
    fabric = await subject.instance()
    await shared(subject, fabric, Took())
    js, names = fabric._link.jetstream, subject.settings.names
    durable = shapes.durable(subject.settings, names.all_events).name
    config = (await js.consumer_info(names.stream, durable)).config
    config.max_deliver = 77
    await js.add_consumer(names.stream, config)
    late = await subject.instance()
    with pytest.raises(Refused, match="max_deliver is 77 and must be 5"):
        await shared(subject, late, Took())


async def test_another_configuration_of_the_same_generation_is_refused(subject: JetStreamSubject) -> None:
    await subject.instance()
    other = replace(subject.settings, max_age_seconds=7200.0)
    assert "another configuration" in await refused(Address(url=subject.server.url()), other)


async def test_a_stream_of_somebody_elses_is_refused(subject: JetStreamSubject) -> None:
    await changed(subject, lambda config: setattr(config, "metadata", {"theirs": "yes"}))
    assert "was not made by Mainspring" in await refused(Address(url=subject.server.url()), subject.settings)


async def test_a_newer_releases_stream_is_refused(
    subject: JetStreamSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as newer:
        _generation(newer, 2)
        await subject.instance()
    assert "newer release" in await refused(Address(url=subject.server.url()), subject.settings)


def _generation(monkeypatch: pytest.MonkeyPatch, generation: int) -> None:
    for name in ("events_stream", "dlq_stream", "durable"):
        made = getattr(shapes, name)
        monkeypatch.setattr(
            shapes, name, lambda *args, made=made: replace(made(*args), generation=generation)
        )


async def test_a_higher_generation_migrates_under_the_lock(
    subject: JetStreamSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = await subject.instance()
    await shared(subject, old, Took())
    await old.close()
    locked: list[str] = []

    @asynccontextmanager
    async def lock() -> AsyncIterator[None]:
        locked.append("held")
        yield
        locked.append("released")

    _generation(monkeypatch, 2)
    newer = replace(subject.settings, max_age_seconds=7200.0, deliver_max=4)
    fabric = await JetStreamFabric.open(Address(url=subject.server.url()), newer, lock=lock)
    subject.instances.append(fabric)
    took = await shared(subject, fabric, Took())
    js, names = fabric._link.jetstream, newer.names
    config = (await js.stream_info(names.stream)).config
    assert (config.max_age, config.metadata["mainspring-generation"]) == (7200.0, "2")
    consumer = (await js.consumer_info(names.stream, shapes.durable(newer, names.all_events).name)).config
    assert consumer.max_deliver == 4
    assert locked[:2] == ["held", "released"]
    await some(fabric, ref(1))
    await until(lambda: took.seqs == [1])
    later = await JetStreamFabric.open(Address(url=subject.server.url()), newer, lock=lock)
    await later.close()
    assert len(locked) == 6  # the two streams and the consumer, once


async def test_two_first_starters_agree(subject: JetStreamSubject) -> None:
    one, two = await asyncio.gather(subject.instance(), subject.instance())
    tooks = await asyncio.gather(shared(subject, one, Took()), shared(subject, two, Took()))
    await some(one, *(ref(seq) for seq in range(1, 11)))
    await until(lambda: sum(len(took.seqs) for took in tooks) == 10)


async def test_of_two_first_starters_with_different_configurations_one_is_refused(
    subject: JetStreamSubject,
) -> None:
    address, other = Address(url=subject.server.url()), replace(subject.settings, max_age_seconds=7200.0)
    ended = await asyncio.gather(
        JetStreamFabric.open(address, subject.settings),
        JetStreamFabric.open(address, other),
        return_exceptions=True,
    )
    subject.instances += [one for one in ended if isinstance(one, JetStreamFabric)]
    assert sorted(type(one).__name__ for one in ended) == ["JetStreamFabric", "Refused"]
