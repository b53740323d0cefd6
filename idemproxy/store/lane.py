"""The connection of one series of batches: taken for its first statement, kept until the last one has been run.

Taking a connection from the pool and giving it back costs as much as a small statement does.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Final

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from idemproxy.ports import StoreUnavailable
from idemproxy.store.batch import BadItem
from idemproxy.store.errors import BAD_DATA, LOST_CONNECTION, REFUSED_OR_LOST, WORTH_ANOTHER_TRY
from idemproxy.store.pool import ACQUIRE_SECONDS, STATEMENT_SECONDS

RETRY_PAUSE_SECONDS: Final = 0.05
"""Between two tries: short enough that a restarted Postgres is found again at once, long enough not to spin."""

Timed = Callable[[str, float, int], None]
"""Told the name, seconds and batch size of each statement that succeeded."""


class Apart(Exception):
    """A statement that does two things was not carried out, or nobody knows: each of them can be run by itself."""

    def __init__(self, why: str, *, for_good: bool) -> None:
        super().__init__(why)
        self.for_good = for_good
        """The database will never take both at once."""


class Lane:
    def __init__(
        self, pool: asyncpg.Pool, statements: Mapping[str, str], timed: Timed, failed: Callable[[], None]
    ) -> None:
        self._pool = pool
        self._statements = statements
        self._timed = timed
        self._failed = failed
        self._connection: PoolConnectionProxy | None = None

    async def execute(self, name: str, items: int, *columns: str | bytes) -> list[asyncpg.Record]:
        """Run one statement for so many items, again on another connection while there is time. Its effects are the
        same twice."""
        give_up = time.monotonic() + STATEMENT_SECONDS
        while True:
            started = time.monotonic()
            try:
                rows = await self._once(self._statements[name], columns)
            except BAD_DATA as bad:
                self._failed()
                raise BadItem(f"{name}: {type(bad).__name__}") from bad
            except WORTH_ANOTHER_TRY as failure:
                self._failed()
                if time.monotonic() + RETRY_PAUSE_SECONDS >= give_up:
                    raise StoreUnavailable(f"{name}: {type(failure).__name__}") from failure
            except asyncpg.PostgresError as failure:
                self._failed()
                raise StoreUnavailable(f"{name}: {failure.sqlstate}") from failure
            else:
                self._timed(name, time.monotonic() - started, items)
                return rows
            await asyncio.sleep(RETRY_PAUSE_SECONDS)

    async def attempt(self, name: str, items: int, *columns: str | bytes) -> list[asyncpg.Record]:
        """Run one statement for so many items, once. Raises Apart."""
        started = time.monotonic()
        try:
            rows = await self._once(self._statements[name], columns)
        except REFUSED_OR_LOST as failure:
            self._failed()
            if time.monotonic() - started >= STATEMENT_SECONDS:  # it has had the time of all tries
                raise StoreUnavailable(f"{name}: {type(failure).__name__}") from failure
            unknown = isinstance(failure, asyncpg.FeatureNotSupportedError)
            raise Apart(f"{name}: {type(failure).__name__}", for_good=unknown) from failure
        self._timed(name, time.monotonic() - started, items)
        return rows

    async def _once(self, statement: str, columns: tuple[str | bytes, ...]) -> list[asyncpg.Record]:
        connection = self._connection
        if connection is None:
            connection = self._connection = await self._pool.acquire(timeout=ACQUIRE_SECONDS)
        try:
            return await connection.fetch(statement, *columns)
        except LOST_CONNECTION as failure:
            lost = failure
        if not isinstance(lost, ValueError):  # an argument that cannot be encoded leaves the connection sound
            with contextlib.suppress(asyncpg.InterfaceError):  # the pool may have taken the lost one back already
                connection.terminate()
        await self.close()
        if isinstance(lost, asyncpg.ReadOnlySQLTransactionError):
            await self._pool.expire_connections()  # a primary that was demoted: the others lead to it, too
        raise lost

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._pool.release(connection, timeout=ACQUIRE_SECONDS)
