"""The one place that joins the parts: takes settings, leaves `Services` that a server serves, or says what is missing.

Rooms do not know each other's verbs; here they are handed in. Nothing starts half-joined: a schema that is not there, that is newer
than we are, or a login that sees past its tenant is refused before a port answers. If it dies here, nothing has begun.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import UUID

import asyncpg

from mainspring import config, migrate, telemetry
from mainspring.agents import build as agents_room
from mainspring.agents import service as agents_service
from mainspring.agents.asks import AskService
from mainspring.agents.model import RunPolicy
from mainspring.agents.runners import RunnerService
from mainspring.agents.service import AgentService, RunService
from mainspring.agents.tokens import TokenService
from mainspring.agents.verbs import RunVerbs
from mainspring.boards import build as boards_room
from mainspring.boards import verbs as board_verbs
from mainspring.boards.service import BoardService
from mainspring.chat import build as chat_room
from mainspring.chat.build import ChatRoom
from mainspring.chat.model import SessionPolicy
from mainspring.chat.receipts import ReceiptService
from mainspring.commands.keys import KeyService
from mainspring.config import Settings
from mainspring.db import (
    Database,
    Pool,
    Scope,
    create_pool,
    end_frozen,
    gather_closed,
    unscoped_read_is_refused,
)
from mainspring.fabric.errors import Refused
from mainspring.fabric.jetstream import JetStreamFabric
from mainspring.fabric.link import Address
from mainspring.fabric.listener import Listener
from mainspring.fabric.port import EventFabric
from mainspring.fabric.relay import Relay
from mainspring.fabric.settings import FabricSettings
from mainspring.fabric.subjects import Names
from mainspring.ids import new_id
from mainspring.operators import build as operators_room
from mainspring.operators import metrics
from mainspring.operators.build import OperatorsRoom
from mainspring.operators.custom import CustomEvents
from mainspring.operators.deeds import DeedService
from mainspring.operators.desk import DeskService
from mainspring.operators.doctor import DoctorService
from mainspring.operators.explain import ExplainService
from mainspring.operators.log import LogService
from mainspring.operators.operations import OperationService
from mainspring.operators.parked import ParkedService
from mainspring.operators.tails import Tails
from mainspring.operators.verify import VerifyService
from mainspring.spine.drain import ENGINE_VERSION
from mainspring.spine.effects import EffectKind
from mainspring.spine.engine import Spine, SpineSettings
from mainspring.spine.errors import SpineError
from mainspring.spine.executors import Executor
from mainspring.spine.ports import Obligation
from mainspring.spine.service import Health
from mainspring.spine.transaction import Transaction
from mainspring.stores.postgres import PostgresStore
from mainspring.triggers import build as triggers_room
from mainspring.triggers import history as triggers_history
from mainspring.triggers.build import TriggersRoom
from mainspring.triggers.preview import PreviewService
from mainspring.triggers.service import RuleService

POOL_CLOSES_SECONDS = 5.0
KEYS_TRIMMED_SECONDS = 60.0
FROZEN_LOOKED_FOR_SECONDS = (
    4.0  # and FROZEN_SECONDS before that: a frozen process frees what it holds within six
)
FABRIC_LOCK = 7_226_117_001  # the database's lock on the fabric's streams while they are migrated; the number means nothing


class CannotStart(Exception):
    """Something that a server needs is missing or not as it must be."""


class Engine(Spine[Scope]):
    """The engine with the leases that the settings say, and a memory of what was declared to it."""

    def __init__(
        self, store: PostgresStore, settings: SpineSettings, *, leases: Mapping[bool, float]
    ) -> None:
        """`leases` are the seconds of transactional (True) and external (False) kinds."""
        self.db = store.db
        self.obligations: list[Obligation[Scope]] = []
        self.kinds: dict[str, EffectKind] = {}
        self._leases = leases
        self.offered: dict[str, EffectKind] = {}
        super().__init__(store, settings)

    def register_obligation(self, obligation: Obligation[Scope]) -> None:
        """Add an obligation; its name is its own."""
        super().register_obligation(obligation)
        self.obligations.append(obligation)

    def register_executor(self, executor: Executor[Scope]) -> None:
        """Add how a kind is done, with the lease that the settings give such kinds."""
        kind = replace(executor.kind, lease_seconds=self._leases[executor.kind.transactional])
        super().register_executor(replace(executor, kind=kind))
        self.kinds[kind.name] = kind

    def register_offered(self, kind: EffectKind) -> None:
        """Add a kind that is offered."""
        super().register_offered(kind)
        self.offered[kind.name] = kind

    @property
    def health(self) -> Sequence[Health]:
        """How every loop of this process does."""
        loops = [*self._loops, *([] if self._renew_loop is None else [self._renew_loop])]
        return [loop.health for loop in loops]

    def _committed(self, tx: Transaction[Scope]) -> None:
        # a transaction that has joined a unit is committed with it, and only then is there anything to wake others for
        self.db.when_committed(partial(super()._committed, tx))


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Everything that a server process serves. Built once; `start` sets the engine going, `stop` ends everything."""

    settings: Settings
    policy: RunPolicy
    pool: Pool
    db: Database
    spine: Engine
    boards: BoardService
    preview: PreviewService
    agents: AgentService
    runs: RunService
    asks: AskService
    runners: RunnerService
    talk: ChatRoom
    receipts: ReceiptService
    rules: RuleService
    tokens: TokenService
    keys: KeyService
    log: LogService
    tails: Tails
    custom: CustomEvents
    doctor: DoctorService
    desk: DeskService
    operations: OperationService
    audit: DeedService
    explain: ExplainService
    verify: VerifyService
    parked: ParkedService
    fabric: EventFabric | None
    relay: Relay | None
    listener: Listener | None

    async def start(self) -> None:
        """Listen to the other instances, then start the engine's loops and the rooms' own. Raises CannotStart."""
        if self.listener is not None:
            try:
                await self.listener.start()
            except Refused as error:
                raise CannotStart(
                    f"NATS at {config.blotted_nats(self.settings.nats_url)}: {error}"
                ) from error
        await self.spine.start()

    async def stop(self) -> None:
        """Take no more, hand back what is held, tell the others what has come of it, then close the connections."""
        if self.listener is not None:
            await self.listener.stop()
        await self.spine.stop()
        if self.relay is not None:
            await self.relay.run_once()
        if self.fabric is not None:
            await self.fabric.close()
        await gather_closed(self.pool, timeout_seconds=POOL_CLOSES_SECONDS)

    async def measure(self) -> None:
        """Set the gauges that are asked of the database."""
        await metrics.measure(self.db)
        await agents_service.measure(self.db, self.policy)
        telemetry.connections.labels("busy").set(self.pool.get_size() - self.pool.get_idle_size())
        telemetry.connections.labels("idle").set(self.pool.get_idle_size())
        for loop in self.spine.health:
            if loop.succeeded_seconds_ago is not None:
                telemetry.loop_succeeded.labels(loop.name).set(loop.succeeded_seconds_ago)

    async def behind(self) -> dict[str, Any]:
        """Return how far the drain is behind, over all tenants, and which migrations the schema lacks, or why they are refused."""
        async with self.db.system("readiness") as scope:
            schema: dict[str, Any]
            try:
                missing = await migrate.pending(scope.conn, migrate.SERVER_SETS)
                schema = {"missing": [str(one) for one in missing]}
            except migrate.MigrationRefused as refused:  # during a rolling upgrade the older servers serve on
                schema = {"missing": [], "refused": str(refused)}
        return {"lag": await metrics.lag(self.db), "schema": schema}


async def assemble(settings: Settings) -> Services:
    """Join everything that a server process needs, its fabric included. Raises CannotStart.

    A fabric that is not named, or refuses us, is refused here. One that does not answer is waited for, and then gone without: it only
    wakes, and the tick finds what it would have told. Readiness says so.
    """
    if not settings.nats_url:
        raise CannotStart(
            "nats_url is not set: a server needs NATS with JetStream (set MAINSPRING_NATS_URL, or use `mainspring dev`)"
        )
    pool = await _pool(settings)
    try:
        await check(pool)
        fabric = await _fabric(settings, Database(pool, roles=True))
        try:
            return join(settings, pool, fabric=fabric)
        except BaseException:
            await fabric.close()
            raise
    except BaseException:
        await gather_closed(pool, timeout_seconds=POOL_CLOSES_SECONDS)
        raise


async def build(settings: Settings) -> Services:
    """Join everything but the fabric on a checked database: for commands, and for a process that is alone. Raises CannotStart."""
    pool = await _pool(settings)
    try:
        await check(pool)
        return join(settings, pool)
    except BaseException:
        await gather_closed(pool, timeout_seconds=POOL_CLOSES_SECONDS)
        raise


def join(settings: Settings, pool: Pool, *, fabric: EventFabric | None = None) -> Services:
    """Join the parts on a pool. Takes no connection and starts nothing.

    A room is built on the engine with the verbs that it asks of others, and declares there what it owes, does and repeats.
    The operators' is the last: it looks at what all the others have declared.
    """
    spine = _engine(settings, pool)
    db = spine.db
    policy = _policy(settings)
    runs = RunVerbs(board_verbs)  # boards and agents ask verbs of each other
    boards = boards_room.build(spine, db, runs)
    triggers = _triggers(spine, settings, policy, runs, boards)
    agents = agents_room.build(spine, db, runs, board_verbs, policy, tick_seconds=settings.floor_tick_seconds)
    talk = _talk(spine, settings, runs)
    keys = _keys(spine)
    _thaw(spine, pool)
    operators = _operators(spine, policy, runs)
    relay, listener = _waking(settings, spine, fabric)
    _say_version()
    return Services(
        settings=settings,
        policy=policy,
        pool=pool,
        db=db,
        spine=spine,
        boards=boards,
        preview=triggers.preview,
        agents=agents.agents,
        runs=agents.runs,
        asks=agents.asks,
        runners=agents.runners,
        talk=talk,
        receipts=ReceiptService(db, runner_silence_seconds=policy.lease_seconds),
        rules=triggers.rules,
        tokens=agents.tokens,
        keys=keys,
        log=operators.log,
        tails=operators.tails,
        custom=operators.custom,
        doctor=operators.doctor,
        desk=operators.desk,
        operations=operators.operations,
        audit=operators.audit,
        explain=operators.explain,
        verify=operators.verify,
        parked=ParkedService(fabric, Names(settings.nats_root)),
        fabric=fabric,
        relay=relay,
        listener=listener,
    )


def _waking(
    settings: Settings, spine: Engine, fabric: EventFabric | None
) -> tuple[Relay, Listener] | tuple[None, None]:
    """Join the engine to its fabric: what it commits and drains is told to the others, and what they tell to it."""
    if fabric is None:
        return None, None
    instance = new_id()
    relay = Relay(fabric, instance=instance)
    relay.poke = spine.register_loop("relay", relay.run_once, every_seconds=settings.floor_tick_seconds).poke
    store = spine.store

    async def position(tenant: UUID) -> int | None:
        async with store.tenant(tenant) as scope:
            return await store.position(scope, tenant)

    listener = Listener(fabric, Names(settings.nats_root), spine, instance=instance, position=position)
    spine.on_written(relay.committed)
    spine.on_drained(relay.drained)
    spine.on_drained(listener.drained)
    return relay, listener


async def _fabric(settings: Settings, db: Database) -> JetStreamFabric:
    address = Address(
        url=settings.nats_url,
        creds=settings.nats_creds,
        tls_ca=settings.nats_tls_ca,
        tls_cert=settings.nats_tls_cert,
        tls_key=settings.nats_tls_key,
    )
    wanted = FabricSettings(names=Names(settings.nats_root), replicas=settings.nats_replicas)

    @asynccontextmanager
    async def lock() -> AsyncIterator[None]:
        async with db.system("fabric migration") as scope:
            await scope.execute("select pg_advisory_xact_lock($1)", FABRIC_LOCK)
            yield

    try:
        return await JetStreamFabric.open(address, wanted, lock=lock, wait_seconds=settings.nats_wait_seconds)
    except Refused as error:
        raise CannotStart(f"NATS at {config.blotted_nats(settings.nats_url)}: {error}") from error


def _engine(settings: Settings, pool: Pool) -> Engine:
    store = PostgresStore(pool, roles=True, for_requests=_for_requests(settings))
    return Engine(store, _spine_settings(settings), leases=_leases(settings))


def _triggers(
    spine: Engine, settings: Settings, policy: RunPolicy, runs: RunVerbs, boards: BoardService
) -> TriggersRoom:
    return triggers_room.build(
        spine,
        spine.db,
        board_verbs,
        runs,
        boards,
        launches_per_hour_max=settings.agent_launches_per_hour_max,
        webhook_allow_private=settings.webhook_allow_private,
        runner_silence_seconds=policy.lease_seconds,
    )


def _talk(spine: Engine, settings: Settings, runs: RunVerbs) -> ChatRoom:
    return chat_room.build(
        spine,
        spine.db,
        board_verbs,
        runs,
        SessionPolicy(lease_seconds=settings.session_lease_seconds),
        tick_seconds=settings.floor_tick_seconds,
    )


def _keys(spine: Engine) -> KeyService:
    keys = KeyService(spine.db)
    spine.register_loop("keys", keys.trim, every_seconds=KEYS_TRIMMED_SECONDS)
    return keys


def _thaw(spine: Engine, pool: Pool) -> None:
    """Free what a frozen process holds where no time-out of the database does."""

    async def look() -> bool:
        return await end_frozen(pool) > 0

    spine.register_loop("frozen clients", look, every_seconds=FROZEN_LOOKED_FOR_SECONDS)


def _operators(spine: Engine, policy: RunPolicy, runs: RunVerbs) -> OperatorsRoom:
    return operators_room.build(
        spine,
        spine.db,
        runs,
        board_verbs,
        triggers_history.rules_over,
        policy,
        obligations=spine.obligations,
        kinds=ChainMap(spine.kinds, spine.offered),
        health=lambda: spine.health,
    )


# What has to be true of a database before anybody is served from it -----------------------------------------------


async def check(pool: Pool) -> None:
    """Refuse a database that is not migrated, is newer than we are, or whose walls do not hold. Raises CannotStart."""
    db = Database(pool, roles=True)
    try:
        async with db.system("check schema") as scope:
            missing = await _missing(scope)
            if not missing:
                version = await scope.fetchval("select engine_version from mainspring.engine")
        walled = not missing and await unscoped_read_is_refused(pool)
    except (SpineError, asyncpg.PostgresError) as error:
        raise CannotStart(
            f"the database is not prepared ({error}): run `mainspring server migrate`"
        ) from error
    if missing:
        raise CannotStart(f"the database lacks {', '.join(missing)}: run `mainspring server migrate`")
    if version > ENGINE_VERSION:
        raise CannotStart(
            f"the database is of engine version {version}, and this server of {ENGINE_VERSION}: upgrade this server"
        )
    if not walled:
        raise CannotStart(
            "the database login sees rows without saying whose: the walls between tenants would not hold. Use an ordinary "
            "login that holds Mainspring's roles by SET ROLE alone (`mainspring server migrate` makes or prints it)"
        )


async def engine_version(pool: Pool) -> int:
    """Return the schema's engine version: what readiness asks, at every probe. Raises CannotStart when the walls are down.

    A newer schema is no reason to be unready: during a rolling upgrade the older processes serve on, and only leave the
    draining to the newer ones.
    """
    async with Database(pool, roles=True).system("readiness") as scope:
        version: int = await scope.fetchval("select engine_version from mainspring.engine")
    if not await unscoped_read_is_refused(pool):
        raise CannotStart("the database login sees rows without saying whose")
    return version


async def _missing(scope: Scope) -> Sequence[str]:
    try:
        return [str(one) for one in await migrate.pending(scope.conn, migrate.SERVER_SETS)]
    except migrate.MigrationRefused as refused:
        raise CannotStart(str(refused)) from refused


async def _pool(settings: Settings) -> Pool:
    try:
        return await create_pool(
            dsn=settings.database_url,
            max_size=settings.pool_size,
            statement_cache_size=settings.statement_cache_size,
        )
    except (
        SpineError,
        OSError,
        TimeoutError,
        ValueError,
        asyncpg.PostgresError,
        asyncpg.InterfaceError,
    ) as error:
        where = config.blotted(settings.database_url)
        raise CannotStart(f"cannot connect to {where}: {type(error).__name__}: {error}") from error


# Settings, as the parts take them ---------------------------------------------------------------------------------


def _spine_settings(settings: Settings) -> SpineSettings:
    return SpineSettings(
        slots=settings.worker_slots,
        # commands, the drain and renewals need connections while executors hold theirs
        transactions_max=_transactions_max(settings),
        tick_seconds=settings.floor_tick_seconds,
        done_days=settings.retention_done_days,
        grace_seconds=settings.shutdown_grace_seconds,
    )


def _transactions_max(settings: Settings) -> int:
    return max(1, min(settings.worker_slots, settings.pool_size // 2 - 1))


def _for_requests(settings: Settings) -> int:
    """What executors leave, but for one: claims, renewals and settles find that at least."""
    return max(1, settings.pool_size - _transactions_max(settings) - 1)


def _policy(settings: Settings) -> RunPolicy:
    return RunPolicy(lease_seconds=settings.run_lease_seconds, attempts_max=settings.run_attempts_max)


def _leases(settings: Settings) -> Mapping[bool, float]:
    return {True: settings.lease_seconds_transactional, False: settings.lease_seconds_external}


def _say_version() -> None:
    from importlib.metadata import version

    telemetry.build_info.labels(version("mainspring")).set(1)
