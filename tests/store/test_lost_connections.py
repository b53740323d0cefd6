"""A connection that the server has given up while its end has not been heard of: told in our own words everywhere.

Of such a one, the driver says that another operation is in progress: an error of its own kind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from idemproxy.ports import StoreUnavailable
from idemproxy.store.pool import is_writable, open_pool
from idemproxy.store.records import Records
from idemproxy.store.steps import Steps
from idemproxy.store.sweep import sweep_forever
from tests.support.link import Link, far_end, through
from tests.support.process import until


@asynccontextmanager
async def given_up(database: str, rows: asyncpg.Connection) -> AsyncIterator[asyncpg.Pool]:
    """A pool whose one connection has heard from the server that it is over, and still stands."""
    async with Link(far_end(database)) as link:
        link.ends_are_told = False
        pool = await open_pool(through(database, link.port), 100, max_size=1)
        async with pool.acquire() as connection:
            await rows.execute("SELECT pg_terminate_backend($1)", connection.get_server_pid())
        await link.ended.wait()
        await asyncio.sleep(0.05)  # until the driver has read what was passed on; nothing of that can be seen
        try:
            yield pool
        finally:
            pool.terminate()


async def test_the_driver_has_an_error_of_its_own_for_it(database: str, rows: asyncpg.Connection) -> None:
    async with given_up(database, rows) as pool:
        with pytest.raises(asyncpg.InternalClientError):
            await pool.fetchval("SELECT 1")
        assert await pool.fetchval("SELECT 1") == 1, "once only: the connection is dropped"


async def test_the_store_is_not_ready_for_a_moment(database: str, rows: asyncpg.Connection) -> None:
    async with given_up(database, rows) as pool:
        assert not await is_writable(pool)
        assert await is_writable(pool)


async def test_operators_are_told_that_the_store_is_unavailable(database: str, rows: asyncpg.Connection) -> None:
    async with given_up(database, rows) as pool:
        with pytest.raises(StoreUnavailable):
            await Records(pool).counts()


async def test_so_are_clients_who_ask_for_their_key(database: str, rows: asyncpg.Connection) -> None:
    async with given_up(database, rows) as pool:
        with pytest.raises(StoreUnavailable):
            await Steps(pool, 0.0)("key", [bytes(32)])


async def test_the_sweep_is_put_off_and_goes_on(
    database: str, rows: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    ended: list[int] = []
    async with given_up(database, rows) as pool:
        with caplog.at_level(logging.WARNING, "idemproxy"):
            sweeping = asyncio.create_task(sweep_forever(pool, 0.0, 0.01, ended=ended.append))
            await until(lambda: bool(ended), "a sweep that ended")
            sweeping.cancel()
    assert "sweep put off: InternalClientError" in caplog.text
