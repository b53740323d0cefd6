"""The primary dies and its standby takes over: what a synchronous one keeps, and what any other loses."""

from __future__ import annotations

import asyncpg

from idemproxy.store.durability import ASYNCHRONOUS, LOCAL
from tests.failure.failover import failover
from tests.support.cluster import cluster
from tests.support.orders import orders_api
from tests.support.process import idemproxy, running


async def test_with_a_synchronous_standby_no_acknowledged_write_is_lost() -> None:
    async with cluster(synchronous=True) as servers:
        figures = await failover(servers, seconds=2)
    assert (figures.lost, figures.twice) == (0, 0)


async def test_with_an_asynchronous_standby_that_lags_acknowledged_writes_are_lost() -> None:
    async with cluster(synchronous=False) as servers:
        await servers.line.cut()
        figures = await failover(servers, seconds=1)
    assert figures.lost == figures.acknowledged


async def checked(dsn: str) -> tuple[int, list[str]]:
    ended = await idemproxy(
        "check", upstream="http://127.0.0.1:9", database_url=dsn, listen="127.0.0.1:0", admin_listen="127.0.0.1:0"
    )
    return ended.code, ended.faults


async def test_a_check_fails_and_a_start_warns_when_a_failover_would_lose_claims() -> None:
    async with cluster(synchronous=True) as servers, orders_api() as orders:
        assert await checked(servers.dsn) == (0, [])
        connection = await asyncpg.connect(servers.primary.dsn)
        await connection.execute("ALTER DATABASE idemproxy SET synchronous_commit = local")
        assert await checked(servers.dsn) == (2, [f"error: IDEMPROXY_DATABASE_URL: {LOCAL}"])
        await connection.execute("ALTER DATABASE idemproxy RESET synchronous_commit")

        await servers.wait_for_standby(synchronous=False)
        assert await checked(servers.dsn) == (2, [f"error: IDEMPROXY_DATABASE_URL: {ASYNCHRONOUS}"])
        await connection.execute("CREATE ROLE app LOGIN; GRANT USAGE ON SCHEMA idemproxy TO app")
        await connection.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA idemproxy TO app")
        app = servers.dsn.replace("//idemproxy@", "//app@")
        assert await checked(app) == (2, [f"error: IDEMPROXY_DATABASE_URL: {ASYNCHRONOUS}"]), "any role sees it"
        await connection.close()
        async with running(upstream=orders.url, database_url=servers.dsn) as proxy:
            assert ASYNCHRONOUS in proxy.output
