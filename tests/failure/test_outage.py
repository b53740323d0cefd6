"""Postgres goes away, comes back, or is cut off between a commit and the word that it was made."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg

from idemproxy.core.identity import key_hash
from idemproxy.core.judge import Settlement
from idemproxy.core.record import Lease
from idemproxy.operator.metrics import Metrics
from idemproxy.operator.reporter import Reporter
from idemproxy.service import Service
from idemproxy.settling import Settler
from idemproxy.store.embedded import EmbeddedPostgres
from idemproxy.store.migrate import migrate
from idemproxy.tasks import Tasks
from tests.conftest import StartProxy
from tests.failure.rig import Client
from tests.support.link import Link, far_end, through
from tests.support.orders import orders_api
from tests.support.process import fetch, running
from tests.support.records import CREATED, claim_of, record, store_on

SLACK_SECONDS = 1.5
"""What a loaded machine may add to what is promised."""
QUICK = {"fsync": "off"}


@asynccontextmanager
async def own_postgres(folder: Path) -> AsyncIterator[EmbeddedPostgres]:
    server = await EmbeddedPostgres.start(folder, settings=QUICK)
    try:
        connection = await asyncpg.connect(server.dsn)
        await migrate(connection)
        await connection.close()
        yield server
    finally:
        await server.stop()


async def write(port: int, key: str) -> str:
    client = Client(port, key)
    await client.send()
    return await client.heard()


async def test_without_postgres_writes_are_refused_soon_and_everything_else_goes_on(tmp_path: Path) -> None:
    async with (
        orders_api() as orders,
        own_postgres(tmp_path) as server,
        running(upstream=orders.url, database_url=server.dsn) as proxy,
    ):
        assert await write(proxy.port, "before") == "created"
        await server.stop()
        started = time.monotonic()
        heard = await asyncio.gather(*(write(proxy.port, f"during-{number}") for number in range(20)))
        assert time.monotonic() - started < 2 + SLACK_SECONDS
        assert set(heard) == {"no-store"}
        assert orders.executions == 1, "nothing is forwarded that is not guarded"
        assert (await fetch(proxy.port, "/orders"))[0] == 201, "what is not guarded goes through"
        assert await proxy.until_ready_says(503) == "the store cannot be reached\n"
        assert (await fetch(proxy.admin_port, "/livez"))[0] == 200

        async with own_postgres(tmp_path):
            started = time.monotonic()
            await proxy.until_ready_says(200, seconds=2 + SLACK_SECONDS)
            assert await write(proxy.port, "during-0") == "created"
            assert time.monotonic() - started < 2 + SLACK_SECONDS
            assert await write(proxy.port, "before") == "replay"
        assert "Traceback" not in proxy.output


async def test_a_restart_between_two_writes_is_not_noticed(tmp_path: Path) -> None:
    async with (
        orders_api() as orders,
        own_postgres(tmp_path) as server,
        running(upstream=orders.url, database_url=server.dsn) as proxy,
    ):
        heard = await asyncio.gather(*(write(proxy.port, f"before-{number}") for number in range(20)))
        assert set(heard) == {"created"}
        await server.stop()
        async with own_postgres(tmp_path):
            heard = await asyncio.gather(*(write(proxy.port, f"after-{number}") for number in range(20)))
            assert set(heard) == {"created"}
        assert orders.executions == 40


# A commit in doubt: it was made, and the word of it was lost


@asynccontextmanager
async def by_link(
    proxy: StartProxy, database: str, upstream: str, **settings: str
) -> AsyncIterator[tuple[Service, Link]]:
    async with (
        Link(far_end(database)) as link,
        proxy(upstream, database_url=through(database, link.port), **settings) as service,
    ):
        yield service, link


async def test_a_claim_in_doubt_recognises_itself_and_runs_once(
    proxy: StartProxy, database: str, rows: asyncpg.Connection
) -> None:
    async with orders_api() as orders, by_link(proxy, database, orders.url) as (service, link):
        link.hold_reply_to(b"order-1")
        writing = asyncio.create_task(write(service.port, "order-1"))
        await link.held()
        assert (await record(rows))["state"] == "claimed"
        link.drop()
        assert await writing == "created"
        assert orders.executions == 1
        assert (await record(rows))["attempt"] == 1


async def test_a_completion_in_doubt_is_not_made_twice_and_not_called_unstored(
    proxy: StartProxy, database: str, rows: asyncpg.Connection
) -> None:
    async with orders_api() as orders, by_link(proxy, database, orders.url) as (service, link):
        link.hold_reply_to(b'{"order": 1}')
        writing = asyncio.create_task(write(service.port, "order-1"))
        await link.held()
        link.drop()
        assert await writing == "created"
        assert await write(service.port, "order-1") == "replay"
        assert orders.executions == 1


# An answer that cannot be put on record


async def test_the_client_gets_its_answer_and_settling_goes_on_behind_it(
    proxy: StartProxy, database: str, rows: asyncpg.Connection
) -> None:
    async with orders_api() as orders, by_link(proxy, database, orders.url) as (service, link):
        orders.gate.clear()
        writing = asyncio.create_task(write(service.port, "order-1"))
        await orders.arrived.wait()
        await link.cut()
        orders.gate.set()
        assert await writing == "unstored"
        assert "idemproxy_settle_failures_total 1.0" in (await fetch(service.admin_port, "/metrics"))[1]
        assert [id.key for id in service.exchange.settler.unsettled] == ["order-1"]
        await link.mend()
        async with asyncio.timeout(20):
            while (await record(rows))["state"] != "completed":
                await asyncio.sleep(0.02)
        assert await Client(service.port, "order-1").until_settled(service.port, not_yet=("no-store",)) == "replay"
        assert "idemproxy_settle_losses_total 0.0" in (await fetch(service.admin_port, "/metrics"))[1]
        assert orders.executions == 1


async def test_what_could_not_be_stored_within_its_lease_is_given_up_and_counted(database: str) -> None:
    async with Link(far_end(database)) as link, store_on(through(database, link.port)) as store:
        lease = await store.claim(claim_of(lease_seconds=0.5))
        assert isinstance(lease, Lease)
        await link.cut()
        metrics, tasks = Metrics(), Tasks()
        settler = Settler(store, Reporter(metrics), tasks)
        assert await settler.settle(lease, Settlement.COMPLETE, CREATED) is False
        assert await tasks.finished(20)
        assert settler.unsettled == set()
        assert metrics.registry.get_sample_value("idemproxy_settle_losses_total") == 1


async def test_a_drain_that_ends_before_an_answer_is_stored_says_whose(database: str) -> None:
    async with orders_api() as orders, Link(far_end(database)) as link:
        settings = {"upstream": orders.url, "database_url": through(database, link.port), "drain_seconds": "0.2"}
        async with running(**settings) as proxy:
            orders.gate.clear()
            writing = asyncio.create_task(write(proxy.port, "order-1"))
            async with asyncio.timeout(10):
                await orders.arrived.wait()
            await link.cut()
            orders.gate.set()
            assert await writing == "unstored"
            proxy.process.terminate()
            assert await proxy.exit_code(20) == 1
            assert f'"message":"cut off","key":"{key_hash("order-1")}"' in proxy.output
