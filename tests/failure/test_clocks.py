"""Two replicas whose clocks are two hours apart: Postgres' clock alone decides what has lapsed or expired."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from pathlib import Path

import asyncpg
import pytest

from tests.failure.rig import Client, Instance
from tests.support.orders import orders_api

LIBRARY = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)
pytestmark = pytest.mark.skipif(
    LIBRARY is None and os.environ.get("CI") != "true",
    reason="faketime is not installed (Debian: apt install faketime)",
)


@asynccontextmanager
async def two_hours_apart(upstream: str, database: str, **settings: str) -> AsyncIterator[tuple[Instance, Instance]]:
    ahead, behind = (
        Instance.make("idemproxy", {"upstream": upstream, "database_url": database, **settings}, 0) for _ in range(2)
    )
    for instance, offset in ((ahead, "+1h"), (behind, "-1h")):
        instance.child.env |= {"LD_PRELOAD": str(LIBRARY), "FAKETIME": offset, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    try:
        await asyncio.gather(ahead.ready(), behind.ready())
        yield ahead, behind
    finally:
        ahead.child.close()
        behind.child.close()


async def time_of_day(instance: Instance) -> float:
    """By its own clock, as a refusal is dated."""
    reader, writer = await asyncio.open_connection("127.0.0.1", instance.port)
    writer.write(b"GET relative HTTP/1.1\r\nHost: x\r\n\r\n")
    head = (await reader.read()).partition(b"\r\n\r\n")[0].decode()
    writer.close()
    dates = [line.partition(": ")[2] for line in head.split("\r\n") if line.lower().startswith("date: ")]
    return parsedate_to_datetime(dates[0]).timestamp()


async def test_each_key_runs_once_whoever_asks(database: str, rows: asyncpg.Connection) -> None:
    async with orders_api() as orders, two_hours_apart(orders.url, database, cache_bytes="0") as (ahead, behind):
        assert 7000 < await time_of_day(ahead) - await time_of_day(behind) < 7400

        orders.gate.clear()
        first = Client(ahead.port, "order-1")
        await first.send()
        await orders.arrived.wait()
        assert await first.again(behind.port) == "in-progress", "its lease has not lapsed an hour ago"
        orders.gate.set()
        assert await first.heard() == "created"
        assert await first.again(behind.port) == "replay"

        second = Client(behind.port, "order-2")
        await second.send()
        assert await second.heard() == "created"
        assert await second.again(ahead.port) == "replay", "it has not expired an hour ago"

        crowd = [Client((ahead, behind)[number % 2].port, f"order-{3 + number % 10}") for number in range(80)]
        await asyncio.gather(*(client.send() for client in crowd))
        assert set(await asyncio.gather(*(client.heard() for client in crowd))) <= {"created", "replay", "in-progress"}
        assert orders.executions == 12

        await rows.execute("UPDATE idemproxy.records SET expires_at = now() WHERE key = 'order-1'")
        assert await first.again(behind.port) == "created", "by Postgres' clock it has expired"
