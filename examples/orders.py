"""A shop on the engine: an order that is paid owes a receipt and a parcel, and gets each of them.

The tables `orders` and `stock` are the shop's own. Its change and the event commit in one transaction on its own
connection; what the event owes is found, claimed and carried out by the engine, in this process or in any other.

    python examples/orders.py                              # a PostgreSQL of its own, in a temporary folder
    python examples/orders.py postgresql://user@host/shop  # yours; makes its tables there
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from uuid import UUID

import asyncpg

from mainspring import (
    Connection,
    Done,
    Dropped,
    Effect,
    Event,
    NewEffect,
    NewEvent,
    Outcome,
    Owes,
    Pool,
    PostgresStore,
    Retry,
    Scope,
    Spine,
    Transaction,
    migrate,
)
from mainspring.embedded import EmbeddedPostgres

SHOP = UUID("5b0e4f06-6f3c-4f35-9d0a-6a3a5d9a7c11")  # one tenant; a shop system would have one for each shop
TABLES = """
create table if not exists orders (id text primary key, item text not null, shipped boolean not null default false);
create table if not exists stock (item text primary key, pieces integer not null check (pieces >= 0));
insert into stock values ('clock', 5), ('watch', 0) on conflict do nothing;
"""


class MailServer:
    """Stands for something out in the world: it is down at first, and forgets nothing that it was given."""

    def __init__(self) -> None:
        self.sent: dict[str, str] = {}
        self._down = True

    def send(self, order: str, idempotency_key: str) -> None:
        """Send a receipt; the same key twice is one mail."""
        if self._down:
            self._down = False
            raise ConnectionError("mail server is down")
        self.sent[idempotency_key] = order


def engine(pool: Pool, mail: MailServer) -> Spine[Scope]:
    """Declare what events owe and how it is done."""
    spine = Spine(PostgresStore(pool))

    @spine.owes("order.paid")
    def receipt_and_parcel(
        event: Event,
    ) -> Owes:  # a pure function: it may be asked again, by anyone, at any time
        order = {"order": event.subject, "item": event.data["item"]}
        return Owes(
            NewEffect("send_receipt", key=event.subject, payload=order),
            NewEffect("ship", key=event.subject, payload=order),
        )

    @spine.effect("send_receipt", target="smtp", max_attempts=8)
    async def send_receipt(effect: Effect) -> Outcome:  # out in the world: at least once, under one key
        try:
            mail.send(effect.payload["order"], idempotency_key=effect.idempotency_key)
        except ConnectionError as error:
            print(f"receipt {effect.key}: {error}, again soon")
            return Retry(str(error), after_seconds=0.1)
        print(f"receipt {effect.key}: sent at attempt {effect.attempts + 1}")
        return Done()

    @spine.transactional_effect("ship")
    async def ship(effect: Effect, tx: Transaction[Scope]) -> Outcome:  # in the database: exactly once
        taken = await tx.handle.execute(
            "update stock set pieces = pieces - 1 where item = $1 and pieces > 0", effect.payload["item"]
        )
        if not taken:
            print(f"parcel {effect.key}: out of stock")
            return Dropped("out of stock")
        await tx.handle.execute("update orders set shipped = true where id = $1", effect.payload["order"])
        tx.append(NewEvent("order.shipped", subject=effect.key))  # commits with the parcel, or not at all
        print(f"parcel {effect.key}: shipped")
        return Done()

    return spine


async def pay(spine: Spine[Scope], conn: Connection, order: str, item: str, *, card: str) -> None:
    """Take an order: the row and what it owes stand together, or neither does."""
    async with spine.transaction(conn, SHOP) as tx:
        await conn.execute("insert into orders (id, item) values ($1, $2)", order, item)
        tx.append(NewEvent("order.paid", subject=order, data={"item": item}))
        if card == "declined":
            raise ValueError("card declined")
    print(f"order {order}: paid, event {tx.appended[0]}")


async def all_done(spine: Spine[Scope]) -> None:
    """Return when nothing of the shop's is owed any more."""
    live = "select count(*) from mainspring.effects where tenant_id = $1 and state in ('pending', 'claimed')"
    lag = "select head - position from mainspring.log_heads join mainspring.cursors using (tenant_id) where tenant_id = $1"
    while True:
        async with spine.store.tenant(SHOP) as tx:
            if not await tx.fetchval(lag, SHOP) and not await tx.fetchval(live, SHOP):
                return
        await asyncio.sleep(0.05)


async def make_tables(url: str) -> int:
    """Make the engine's tables and the shop's, where they are missing; return the number of the next order."""
    conn = await asyncpg.connect(url)
    try:
        await migrate.apply(conn, [migrate.SPINE])
        await conn.execute(TABLES)
        return int(await conn.fetchval("select coalesce(max(id::integer), 1000) + 1 from orders"))
    finally:
        await conn.close()


async def main(url: str) -> None:
    """Open the shop, take three orders, wait until all that they owe is done, and count."""
    mail = MailServer()
    first = await make_tables(url)
    orders = [str(first + n) for n in range(3)]
    async with asyncpg.create_pool(url) as pool:
        spine = engine(pool, mail)
        await spine.create_tenant(SHOP, "The clock shop")
        async with spine.running():
            async with pool.acquire() as conn:
                await pay(spine, conn, orders[0], "clock", card="good")
                try:
                    await pay(spine, conn, orders[1], "clock", card="declined")
                except ValueError as error:
                    print(f"order {orders[1]}: {error}, so nothing happened and nothing is owed")
                await pay(spine, conn, orders[2], "watch", card="good")
            await all_done(spine)
        rows = await pool.fetch("select id, shipped from orders where id = any($1) order by id", orders)
        left = await pool.fetchval("select pieces from stock where item = 'clock'")
    for row in rows:
        print(f"in the end, order {row['id']}: {'shipped' if row['shipped'] else 'not shipped'}")
    print(f"in the end: {len(mail.sent)} receipts sent, {left} clocks left")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(main(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory(prefix="orders-") as folder:
            Path(folder).chmod(0o711)  # started as root, PostgreSQL runs as another user, who has to pass
            with EmbeddedPostgres(Path(folder) / "state") as postgres:
                asyncio.run(main(postgres.url()))
