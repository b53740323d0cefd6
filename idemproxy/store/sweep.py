"""The sweep: expired records leave in small batches, one replica at a time. A live claim is never touched."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from idemproxy.core.record import RecordId
from idemproxy.pace import at_half_speed
from idemproxy.store import queries
from idemproxy.store.errors import FAULTS
from idemproxy.store.pool import ACQUIRE_SECONDS

log = logging.getLogger("idemproxy")

SWEEP_BATCH = 100
"""Small enough that a batch ends within a few milliseconds and no write waits long for it."""


BEGINNING = datetime(2000, 1, 1, tzinfo=UTC)
"""Before every record."""
OVERLAP = timedelta(minutes=1)
"""A round looks so far back behind the last one: a commit may be this much younger than the times that it wrote."""

Swept = Callable[[Sequence[RecordId]], None]
"""Told of each batch of records that has been deleted."""


@dataclass
class Walk:
    """Along the times of expiry, batch after batch, each from where the last one ended."""

    find: str
    change: str
    """The statements for a batch: what is there, and what to do with it."""
    since: datetime = BEGINNING


def deletions() -> Walk:
    return Walk("expired", "sweep")


def deletions_of_open() -> Walk:
    return Walk("given_up", "sweep")


def strippings() -> Walk:
    """Worth keeping from round to round: tombstones may be many, and those that have lost their answers stay."""
    return Walk("answered", "strip")


async def sweep(
    pool: asyncpg.Pool, tombstone_seconds: float, swept: Swept | None = None, tombstones: Walk | None = None
) -> int:
    """Batch after batch, until nothing expired is left; how many records went. Tombstones then lose their answers."""
    count = 0
    for walk in (deletions(), deletions_of_open()):
        count += await _in_batches(pool, walk, tombstone_seconds, swept)
    if tombstone_seconds > 0:
        stripping = tombstones or strippings()
        await _in_batches(pool, stripping, 0)
        stripping.since = max(BEGINNING, stripping.since - OVERLAP)
    return count


async def _in_batches(pool: asyncpg.Pool, walk: Walk, seconds: float, swept: Swept | None = None) -> int:
    total = 0
    while True:
        async with at_half_speed(), pool.acquire(timeout=ACQUIRE_SECONDS) as connection:
            count = await run_batch(connection, walk, seconds, swept)
        total += count or 0
        if count is None or count < SWEEP_BATCH:
            return total


async def run_batch(
    connection: PoolConnectionProxy, walk: Walk, seconds: float, swept: Swept | None = None
) -> int | None:
    """One batch of what expired so many seconds ago; how many records changed, None when another replica sweeps."""
    sql = queries.load()
    async with connection.transaction():
        # What a crash brings back is swept again: no need to wait for the disk, beside those who have to.
        await connection.execute("SET LOCAL synchronous_commit = off")
        if not await connection.fetchval(sql["sweep_lock"]):
            return None
        found = await connection.fetch(sql[walk.find], walk.since, seconds, SWEEP_BATCH)
        if not found:
            return 0
        # In the order of all other statements, so that none of them waits for us while we wait for it.
        ids = sorted(_id(row) for row in found)
        columns = [id.key for id in ids], [id.scope for id in ids], [id.route for id in ids]
        changed = await connection.fetch(sql[walk.change], *columns, seconds)
    walk.since = found[-1]["expires_at"]
    if swept is not None:
        swept([_id(row) for row in changed])
    return len(changed)


def _id(row: asyncpg.Record) -> RecordId:
    return RecordId(row["key"], row["scope"], row["route"])


async def sweep_forever(
    pool: asyncpg.Pool,
    tombstone_seconds: float,
    interval: float,
    swept: Swept | None = None,
    ended: Callable[[int], None] | None = None,
) -> None:
    tombstones = strippings()
    while True:
        await asyncio.sleep(interval)
        try:
            count = await sweep(pool, tombstone_seconds, swept, tombstones)
        except FAULTS as failure:
            log.warning("sweep put off: %s", type(failure).__name__)
        else:
            if ended is not None:
                ended(count)
            if count:
                log.info("swept %d expired records", count)
