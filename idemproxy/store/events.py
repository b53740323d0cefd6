"""Audit events in Postgres: written in batches, looked through for duplicates, deleted when their time is over.

They may be lost where records may not (a crash within the last second), so their commits wait for no disk.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg

from idemproxy.core.record import RecordId
from idemproxy.store import queries
from idemproxy.store.event import Event, event_columns, write_columns
from idemproxy.store.records import ACQUIRE_SECONDS

WRITE_BATCH = 250
"""Made ready within a millisecond: longer, and every request that comes meanwhile would wait for it."""
SWEEP_BATCH = 1000


@dataclass(frozen=True, slots=True)
class Pair:
    """Two first writes of one caller with the same route and fingerprint under different keys."""

    event: Event
    other_key: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Seen:
    """A write that shadow mode saw and whose answer would have been kept, on this process's monotonic clock."""

    fingerprint: bytes
    at: float
    ended: float


class Events:
    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool
        self._number = secrets.randbits(62)
        """Of the next event: random at first, so that no two writers use the same ones."""
        self._sql = {**queries.load(), **queries.load("operator.sql")}

    async def write(self, events: Sequence[Event]) -> None:
        number = self._number
        self._number += len(events)
        async with self._pool.acquire(timeout=ACQUIRE_SECONDS) as connection:
            # Ages are of this process's clock, times are the database's: the same for the search that comes later.
            now = await connection.fetchval(self._sql["clock"]) - int(time.monotonic() * 1_000_000)
            for event in events:
                event.recorded = now + int(event.at * 1_000_000)
            await connection.execute(self._sql["write_events"], *event_columns(events, number))

    async def same_writes(self, writes: Sequence[Event], window: float) -> list[Pair]:
        """For each of these written first writes of one mode the nearest earlier one under another key, where there is
        one."""
        columns = write_columns(writes)
        async with self._pool.acquire(timeout=ACQUIRE_SECONDS) as connection:
            rows = await connection.fetch(self._sql["find_same_writes"], *columns, window, writes[0].shadow)
        found = [(writes[row["n"] - 1], row["key"], row["at"]) for row in rows]
        return [Pair(write, key, round((write.recorded - at) / 1_000_000, 3)) for write, key, at in found]

    async def shadow_writes(self, wishes: Sequence[tuple[Event, float]]) -> dict[RecordId, list[Seen]]:
        """What shadow mode has seen under the ids of these events, each within its time to live."""
        now = time.monotonic()
        async with self._pool.acquire(timeout=ACQUIRE_SECONDS) as connection:
            rows = await connection.fetch(
                self._sql["find_shadow_writes"],
                list(range(len(wishes))),
                *_ids([event for event, _ in wishes]),
                [ttl for _, ttl in wishes],
            )
        found: dict[RecordId, list[Seen]] = {}
        for row in rows:
            at = now - row["age"]
            seen = Seen(row["fingerprint"], at, at + row["seconds"])
            found.setdefault(wishes[row["n"]][0].id, []).append(seen)
        return found

    async def sweep(self, keep_seconds: float) -> int | None:
        """Delete one batch; how many events went, or None when another replica is sweeping."""
        async with self._pool.acquire(timeout=ACQUIRE_SECONDS) as connection, connection.transaction():
            if not await connection.fetchval(self._sql["sweep_lock"]):
                return None
            status = await connection.execute(self._sql["sweep_events"], keep_seconds, SWEEP_BATCH)
        return int(status.rpartition(" ")[2])


def _ids(events: Sequence[Event]) -> list[list[Any]]:
    return [
        [event.id.key for event in events],
        [event.id.scope for event in events],
        [event.id.route for event in events],
    ]
