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


async def sweep(pool: asyncpg.Pool, tombstone_seconds: float) -> int:
    """Batch after batch, until nothing expired is left; how many records went. Tombstones then lose their answers."""
    swept = await _in_batches(pool, "sweep", tombstone_seconds)
    if tombstone_seconds > 0:
        await _in_batches(pool, "strip")
    return swept


async def _in_batches(pool: asyncpg.Pool, statement: str, *arguments: float) -> int:
    total = 0
    while True:
        async with pool.acquire(timeout=ACQUIRE_SECONDS) as connection:
            count = await run_batch(connection, statement, *arguments)
        total += count or 0
        if count is None or count < SWEEP_BATCH:
            return total


async def run_batch(connection: PoolConnectionProxy, statement: str, *arguments: float) -> int | None:
    """Run `sweep` or `strip` once; how many records it changed, or None when another replica is sweeping."""
    sql = queries.load()
    async with connection.transaction():
        if not await connection.fetchval(sql["sweep_lock"]):
            return None
        status = await connection.execute(sql[statement], *arguments, SWEEP_BATCH)
    return int(status.rpartition(" ")[2])


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
