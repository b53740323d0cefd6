"""Answers that come when the store is away, or when another owner has the key: nobody hears what is not theirs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import asyncpg

from idemproxy.service import Service
from tests.conftest import StartProxy
from tests.support.orders import Orders, orders_api
from tests.support.process import until

KEYED = {"Authorization": "Bearer ada", "Idempotency-Key": "order-1"}


@dataclass(frozen=True)
class Heard:
    status: int
    headers: dict[str, str]
    body: bytes


async def post(service: Service) -> Heard:
    url = f"http://127.0.0.1:{service.port}/orders"
    async with aiohttp.ClientSession() as client, client.post(url, json={"item": "tea"}, headers=KEYED) as got:
        return Heard(got.status, dict(got.headers), await got.read())


@asynccontextmanager
async def held(service: Service, orders: Orders) -> AsyncIterator[asyncio.Task[Heard]]:
    """A write that has reached the upstream; its answer comes when the gate is opened."""
    orders.gate.clear()
    orders.arrived.clear()
    task = asyncio.create_task(post(service))
    await orders.arrived.wait()
    try:
        yield task
    finally:
        orders.gate.set()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def table_away(rows: asyncpg.Connection) -> AsyncIterator[None]:
    await rows.execute("ALTER TABLE idemproxy.records RENAME TO elsewhere")
    try:
        yield
    finally:
        await rows.execute("ALTER TABLE idemproxy.elsewhere RENAME TO records")


async def states(rows: asyncpg.Connection) -> list[str]:
    return [row["state"] for row in await rows.fetch("SELECT state FROM idemproxy.records")]


# The store is away


async def test_an_answer_that_cannot_be_stored_says_so_and_is_stored_later(
    proxy: StartProxy, rows: asyncpg.Connection
) -> None:
    async with orders_api() as orders, proxy(orders.url) as service, held(service, orders) as writing:
        async with table_away(rows):
            orders.gate.set()
            first = await writing
            assert (first.status, first.headers["Idempotency-Stored"]) == (201, "false")
            assert len(service.exchange.settler.unsettled) == 1
        await until(lambda: not service.exchange.settler.unsettled, "the outcome is settled after all", 20)
        again = await post(service)
        assert (again.status, again.headers["Idempotency-Replay"], again.body) == (200, "true", first.body)
        assert orders.executions == 1


async def test_a_drain_waits_for_outcomes_that_are_not_stored_yet(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    async with orders_api() as orders, proxy(orders.url) as service, held(service, orders) as writing:
        async with table_away(rows):
            orders.gate.set()
            await writing
            draining = asyncio.create_task(service.drain())
            await asyncio.sleep(0.1)
            assert not draining.done()
        assert await draining is True
        assert await states(rows) == ["completed"]


async def test_a_drain_that_ends_before_an_outcome_is_stored_says_so(
    proxy: StartProxy, rows: asyncpg.Connection
) -> None:
    async with (
        orders_api() as orders,
        proxy(orders.url, drain_seconds="0.2") as service,
        held(service, orders) as writing,
        table_away(rows),
    ):
        orders.gate.set()
        await writing
        assert await service.drain() is False


# Another owner has the key

TAKE = "UPDATE idemproxy.records SET token = $1, attempt = 2"
ANSWER_AS_OTHER = """
    UPDATE idemproxy.records SET state = 'completed', settled_at = now(), status = 201, headers = '', body = 'theirs'
"""


async def test_a_late_finisher_tells_its_client_the_answer_on_record(
    proxy: StartProxy, rows: asyncpg.Connection
) -> None:
    async with orders_api() as orders, proxy(orders.url) as service, held(service, orders) as writing:
        await rows.execute(TAKE, os.urandom(16))
        await rows.execute(ANSWER_AS_OTHER)
        orders.gate.set()
        heard = await writing
        assert (heard.status, heard.headers["Idempotency-Replay"], heard.body) == (200, "true", b"theirs")


async def test_a_late_finisher_never_tells_the_answer_to_another_request(
    proxy: StartProxy, rows: asyncpg.Connection
) -> None:
    """Whoever took over released the key, and it was used again: for something else."""
    async with orders_api() as orders, proxy(orders.url) as service, held(service, orders) as writing:
        await rows.execute(TAKE, os.urandom(16))
        await rows.execute(ANSWER_AS_OTHER)
        await rows.execute("UPDATE idemproxy.records SET fingerprint = $1", b"\1" + bytes(32))
        before = await rows.fetch("SELECT * FROM idemproxy.records")
        orders.gate.set()
        heard = await writing
        assert (heard.status, heard.body) == (201, b'{"order": 1}')
        assert (heard.headers["Idempotency-Replay"], heard.headers["Idempotency-Stored"]) == ("false", "false")
        assert await rows.fetch("SELECT * FROM idemproxy.records") == before


async def test_a_late_finisher_whose_key_was_released_keeps_its_own_answer(
    proxy: StartProxy, rows: asyncpg.Connection
) -> None:
    async with orders_api() as orders, proxy(orders.url) as service, held(service, orders) as writing:
        await rows.execute("DELETE FROM idemproxy.records")
        orders.gate.set()
        heard = await writing
        assert (heard.status, heard.headers["Idempotency-Replay"]) == (201, "false")
        assert "Idempotency-Stored" not in heard.headers
        assert (await post(service)).body == heard.body
        assert orders.executions == 1


async def test_a_late_finisher_is_told_to_come_back_while_the_other_owner_is_at_work(
    proxy: StartProxy, rows: asyncpg.Connection
) -> None:
    async with orders_api() as orders, proxy(orders.url) as service, held(service, orders) as writing:
        await rows.execute(TAKE, os.urandom(16))
        orders.gate.set()
        heard = await writing
        assert (heard.status, heard.headers["Idempotency-Conflict"]) == (409, "in-flight")
        assert await states(rows) == ["claimed"]
