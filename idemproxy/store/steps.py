"""What became of a key: its state on every route, for the callers who may know."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import asyncpg

from idemproxy.core.record import Step
from idemproxy.ports import StoreUnavailable
from idemproxy.store import queries
from idemproxy.store.batch import CALL_SECONDS
from idemproxy.store.errors import FAULTS
from idemproxy.store.pool import ACQUIRE_SECONDS

AT_ONCE = 2
"""Connections that such reads may hold: the pool is there for the claims."""


class Steps:
    def __init__(self, pool: asyncpg.Pool, tombstone_seconds: float) -> None:
        self._pool = pool
        self._tombstone_seconds = tombstone_seconds
        self._sql = queries.load()["steps"]
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def __call__(self, key: str, scopes: Sequence[bytes]) -> list[Step]:
        try:
            async with (
                asyncio.timeout(CALL_SECONDS),
                self._turn,
                self._pool.acquire(timeout=ACQUIRE_SECONDS) as connection,
            ):
                rows = await connection.fetch(self._sql, key, list(scopes), self._tombstone_seconds)
        except FAULTS as failure:
            raise StoreUnavailable(type(failure).__name__) from failure
        return [Step(*row) for row in rows]
