"""The sweep: expired records leave in small batches, one replica at a time. A live claim is never touched."""

from __future__ import annotations

import asyncio
import logging

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from idemproxy.store import queries
from idemproxy.store.postgres import ACQUIRE_SECONDS

log = logging.getLogger("idemproxy")

SWEEP_BATCH = 1000
"""Small enough that a batch ends within milliseconds and no write waits for it."""


async def sweep_once(connection: PoolConnectionProxy, tombstone_seconds: float) -> int | None:
    """Delete one batch; how many records went, or None when another replica is sweeping."""
    sql = queries.load()
    async with connection.transaction():
        if not await connection.fetchval(sql["sweep_lock"]):
            return None
        if tombstone_seconds > 0:
            await connection.execute(sql["strip"], SWEEP_BATCH)
        status = await connection.execute(sql["sweep"], tombstone_seconds, SWEEP_BATCH)
    return int(status.rpartition(" ")[2])


async def sweep(pool: asyncpg.Pool, tombstone_seconds: float) -> int:
    """Batch after batch, until nothing expired is left."""
    total = 0
    while True:
        async with pool.acquire(timeout=ACQUIRE_SECONDS) as connection:
            count = await sweep_once(connection, tombstone_seconds)
        total += count or 0
        if count is None or count < SWEEP_BATCH:
            return total


async def sweep_forever(pool: asyncpg.Pool, tombstone_seconds: float, interval: float) -> None:
    while True:
        await asyncio.sleep(interval)
        try:
            swept = await sweep(pool, tombstone_seconds)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as failure:
            log.warning("sweep put off: %s", type(failure).__name__)
        else:
            if swept:
                log.info("swept %d expired records", swept)
