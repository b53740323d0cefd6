"""What an operator changes is changed everywhere: no process goes on answering from its memory."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import asyncpg

from tests.support.orders import Orders, orders_api
from tests.support.process import Proxy, fetch, running

ADA = {"Authorization": "Bearer ada", "Idempotency-Key": "order-1"}
ANSWER = {"status": 201, "headers": [["Content-Type", "application/json"]], "text": '{"order":7}'}


@asynccontextmanager
async def two_replicas(database: str, **settings: str) -> AsyncIterator[tuple[Proxy, Proxy, Orders]]:
    async with orders_api() as orders:
        both = {"upstream": orders.url, "database_url": database, **settings}
        async with running(**both) as one, running(**both) as other:
            yield one, other, orders


async def post(proxy: Proxy) -> tuple[int, str, bytes]:
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"{proxy.url}/orders", json={"item": "tea"}, headers=ADA) as got,
    ):
        return got.status, got.headers.get("Idempotency-Replay", ""), await got.read()


async def change(proxy: Proxy, what: str, **asked: Any) -> None:
    """Made at this replica, for the record that there is."""
    admin = f"http://127.0.0.1:{proxy.admin_port}/api/records"
    async with aiohttp.ClientSession() as client:
        async with client.get(admin, params={"key": "order-1"}) as got:
            [record] = (await got.json())["records"]
        wish = {"who": "ada", "reason": "ticket 17", "attempt": record["attempt"], **asked}
        async with client.post(f"{admin}/{record['id']}/{what}", json=wish) as got:
            assert got.status == 200, await got.text()


async def figure(proxy: Proxy, name: str) -> float:
    _, page = await fetch(proxy.admin_port, "/metrics")
    found = re.search(rf"^{name} (\S+)$", page, re.MULTILINE)
    assert found, name
    return float(found[1])


async def until_figure(proxy: Proxy, name: str, *, is_zero: bool) -> None:
    while (await figure(proxy, name) == 0) is not is_zero:
        pass


async def until_from_memory(proxy: Proxy) -> bytes:
    """Replay until the answer comes without a question to the store: the cache has to be trusted first."""
    while True:
        status, replayed, body = await post(proxy)
        assert (status, replayed) == (200, "true")
        if await figure(proxy, "idemproxy_cache_hits_total"):
            return body


async def test_a_purged_answer_is_forgotten_by_every_replica(database: str) -> None:
    async with two_replicas(database) as (one, other, orders):
        assert await post(one) == (201, "false", b'{"order": 1}')
        for replica in (one, other):
            assert await until_from_memory(replica) == b'{"order": 1}'
        await change(one, "purge")
        for replica in (one, other):
            await until_figure(replica, "idemproxy_cache_bytes", is_zero=True)
        assert await post(other) == (201, "false", b'{"order": 2}')
        for replica in (one, other):
            assert await post(replica) == (200, "true", b'{"order": 2}')
        assert orders.executions == 2


async def test_an_outcome_that_one_replica_lost_and_the_other_resolved_is_replayed_by_both(database: str) -> None:
    settings = {"on_unknown": "hold", "upstream_timeout_seconds": "0.3"}
    async with two_replicas(database, **settings) as (one, other, orders):
        orders.gate.clear()
        assert (await post(one))[0] == 504
        for replica in (one, other):
            assert (await post(replica))[0] == 409
        await change(other, "resolve", happened=True, answer=ANSWER)
        for replica in (one, other):
            assert await post(replica) == (200, "true", b'{"order":7}')
        assert orders.executions == 1


async def test_a_key_that_one_replica_lost_and_the_other_released_is_free_at_both(
    database: str, rows: asyncpg.Connection
) -> None:
    settings = {"on_unknown": "hold", "upstream_timeout_seconds": "0.3"}
    async with two_replicas(database, **settings) as (one, other, orders):
        orders.gate.clear()
        for replica, elsewhere in ((one, other), (other, one)):
            orders.gate.clear()
            assert (await post(replica))[0] == 504
            await rows.execute("UPDATE idemproxy.records SET lease_until = now() - interval '1 second'")
            await change(elsewhere, "release")
            orders.gate.set()
            status, replayed, first = await post(replica)
            assert (status, replayed) == (201, "false")
            assert await post(elsewhere) == (200, "true", first)
            await change(elsewhere, "purge")
            for each in (one, other):
                await until_figure(each, "idemproxy_cache_bytes", is_zero=True)
        assert orders.executions == 4
