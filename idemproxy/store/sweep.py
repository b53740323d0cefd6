"""The sweep: expired records leave in small batches, one replica at a time. A live claim is never touched."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from idemproxy.core.record import RecordId
from idemproxy.store import queries
from idemproxy.store.postgres import ACQUIRE_SECONDS

log = logging.getLogger("idemproxy")

SWEEP_BATCH = 1000
"""Small enough that a batch ends within milliseconds and no write waits for it."""


Swept = Callable[[Sequence[RecordId]], None]
"""Told of each batch of records that has been deleted."""


async def sweep(pool: asyncpg.Pool, tombstone_seconds: float, swept: Swept | None = None) -> int:
    """Batch after batch, until nothing expired is left; how many records went. Tombstones then lose their answers."""
    count = await _in_batches(pool, "sweep", tombstone_seconds, swept=swept)
    if tombstone_seconds > 0:
        await _in_batches(pool, "strip")
    return count


async def _in_batches(pool: asyncpg.Pool, statement: str, *arguments: float, swept: Swept | None = None) -> int:
    total = 0
    while True:
        async with pool.acquire(timeout=ACQUIRE_SECONDS) as connection:
            count = await run_batch(connection, statement, *arguments, swept=swept)
        total += count or 0
        if count is None or count < SWEEP_BATCH:
            return total


async def run_batch(
    connection: PoolConnectionProxy, statement: str, *arguments: float, swept: Swept | None = None
) -> int | None:
    """Run `sweep` or `strip` once; how many records it changed, or None when another replica is sweeping."""
    sql = queries.load()
    async with connection.transaction():
        if not await connection.fetchval(sql["sweep_lock"]):
            return None
        rows = await connection.fetch(sql[statement], *arguments, SWEEP_BATCH)
    if swept is not None:
        swept([RecordId(row["key"], row["scope"], row["route"]) for row in rows])
    return len(rows)


async def sweep_forever(
    pool: asyncpg.Pool,
    tombstone_seconds: float,
    interval: float,
    swept: Swept | None = None,
    ended: Callable[[int], None] | None = None,
) -> None:
    while True:
        await asyncio.sleep(interval)
        try:
            count = await sweep(pool, tombstone_seconds, swept)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as failure:
            log.warning("sweep put off: %s", type(failure).__name__)
        else:
            if ended is not None:
                ended(count)
            if count:
                log.info("swept %d expired records", count)
