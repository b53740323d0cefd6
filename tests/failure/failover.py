"""`python -m tests.failure.failover`: what a failover of Postgres costs, with a synchronous standby and without.

A proxy on both servers by one URL, under load. The primary is killed, the standby promoted; the proxy finds it by
itself. Then every write that a client was told is done is looked for in the new primary.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import Counter
from dataclasses import dataclass

import asyncpg

from idemproxy.service import Service
from idemproxy.settings import load
from tests.failure.rig import Client
from tests.support.cluster import Cluster, cluster
from tests.support.orders import orders_api

logging.getLogger("asyncpg").setLevel(logging.CRITICAL)  # as the product does, where it sets up its log

WRITERS = 8
BEFORE = 30
"""Writes that must have been acknowledged before the primary dies, however slow the machine."""
AFTERWARDS = 50
"""Writes that must succeed on the new primary before the run ends."""


@dataclass(frozen=True)
class Figures:
    acknowledged: int
    """Writes that a client was told are done before the failover."""
    lost: int
    """Those of them that the new primary does not know, so that a retry would run again."""
    twice: int
    """Keys that the upstream executed more than once."""
    blackout: float
    """The longest time without a write, in seconds: from the primary's death to the standby's promotion and use."""


async def failover(servers: Cluster, *, seconds: float) -> Figures:
    acknowledged: list[str] = []
    times: list[float] = []
    numbers = itertools.count()
    async with orders_api() as orders:
        values = {
            "upstream": orders.url,
            "listen": "127.0.0.1:0",
            "admin_listen": "127.0.0.1:0",
            "database_url": servers.dsn,
            "on_unknown": "hold",
        }
        async with Service(load({}, values)) as service:

            async def write() -> None:
                while True:
                    key = f"order-{next(numbers)}"
                    client = Client(service.port, key, f'{{"item": "{key}"}}'.encode())
                    await client.send()
                    if await client.heard() == "created":
                        acknowledged.append(key)
                        times.append(time.monotonic())

            writers = [asyncio.create_task(write()) for _ in range(WRITERS)]
            try:
                await asyncio.sleep(seconds)
                async with asyncio.timeout(60):
                    while len(acknowledged) < BEFORE:
                        await asyncio.sleep(0.02)
                await servers.kill_primary()
                before, killed = list(acknowledged), len(times)
                await servers.promote()
                async with asyncio.timeout(60):
                    while len(acknowledged) < len(before) + AFTERWARDS:
                        await asyncio.sleep(0.02)
            finally:
                for writer in writers:
                    writer.cancel()
                await asyncio.gather(*writers, return_exceptions=True)
        runs = Counter(body for _, _, body in orders.ledger)
    known = await _completed(servers.standby.dsn)
    lost = [key for key in before if key not in known]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times[max(killed - 1, 0) :])]
    return Figures(len(before), len(lost), sum(number > 1 for number in runs.values()), max(gaps))


async def _completed(dsn: str) -> set[str]:
    connection = await asyncpg.connect(dsn)
    rows = await connection.fetch("SELECT key FROM idemproxy.records WHERE state = 'completed'")
    await connection.close()
    return {row["key"] for row in rows}


async def main() -> None:
    for synchronous, delay in ((True, 0.0), (True, 0.05), (False, 0.0), (False, 0.05)):
        async with cluster(synchronous=synchronous) as servers:
            servers.line.delay = delay
            figures = await failover(servers, seconds=10)
        kind = "synchronous" if synchronous else "asynchronous"
        print(f"{kind} standby, replication {delay * 1000:.0f} ms late: {figures}")


if __name__ == "__main__":
    asyncio.run(main())
