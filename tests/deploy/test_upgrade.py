"""From the first schema to the newest: records that live in the database go on living."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import asyncpg

from idemproxy.store import migrate
from tests.conftest import StartProxy
from tests.support.orders import Orders, orders_api
from tests.support.process import idemproxy, running

FIRST = migrate.available()[0]
HEADERS = {"Authorization": "Bearer me"}
COLUMNS = """
SELECT table_name, column_name, data_type, is_nullable, column_default
FROM information_schema.columns WHERE table_schema = 'idemproxy' ORDER BY 1, 2
"""
CONSTRAINTS = """
SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid)
FROM pg_constraint WHERE connamespace = 'idemproxy'::regnamespace ORDER BY 1, 2
"""
INDEXES = "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'idemproxy' ORDER BY 1, 2"
BACK_TO_WORK = """
UPDATE idemproxy.records
SET state = 'claimed', status = NULL, headers = NULL, body = NULL, settled_at = NULL,
    lease_until = now() + interval '1 hour'
WHERE key = 'running'
"""


async def write(url: str, key: str) -> tuple[int, str, bytes]:
    headers = {**HEADERS, "Idempotency-Key": key}
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"{url}/orders", json={"item": key}, headers=headers) as reply,
    ):
        marker = reply.headers.get("Idempotency-Replay", reply.headers.get("Idempotency-Conflict", ""))
        return reply.status, marker, await reply.read()


async def columns(connection: asyncpg.Connection) -> list[str]:
    rows = await connection.fetch(
        "SELECT column_name FROM information_schema.columns "
        "WHERE table_schema = 'idemproxy' AND table_name = 'records' ORDER BY ordinal_position"
    )
    return [row["column_name"] for row in rows]


async def schema(dsn: str) -> list[tuple[Any, ...]]:
    """Columns, constraints and indexes, as the catalogue describes them."""
    connection = await asyncpg.connect(dsn)
    found = [tuple(row) for query in (COLUMNS, CONSTRAINTS, INDEXES) for row in await connection.fetch(query)]
    await connection.close()
    return found


async def at_first_version(dsn: str) -> asyncpg.Connection:
    """A database as the first release left it."""
    connection = await asyncpg.connect(dsn)
    await connection.execute(migrate._LEDGER)
    await connection.execute(FIRST.sql)
    await connection.execute(
        "INSERT INTO idemproxy.migrations (version, name, checksum) VALUES ($1, $2, $3)",
        *(FIRST.version, FIRST.name, FIRST.checksum),
    )
    return connection


async def events(connection: asyncpg.Connection) -> set[tuple[Any, ...]]:
    return {tuple(row) for row in await connection.fetch("SELECT key, event FROM idemproxy.events")}


async def test_live_records_survive_the_way_from_the_first_schema_to_the_newest(
    proxy: StartProxy, rows: asyncpg.Connection, empty_database: str
) -> None:
    async with orders_api() as orders:
        first = await at_first_version(empty_database)
        old = await columns(first)
        answer = await records_of_today(proxy, rows, orders)
        for row in await rows.fetch(f"SELECT {', '.join(old)} FROM idemproxy.records"):
            places = ", ".join(f"${number}" for number in range(1, len(old) + 1))
            await first.execute(f"INSERT INTO idemproxy.records ({', '.join(old)}) VALUES ({places})", *row)

        done = await idemproxy("migrate", database_url=empty_database)
        assert done.code == 0, done.err
        newest = migrate.available()[-1].version
        assert await first.fetchval("SELECT max(version) FROM idemproxy.migrations") == newest
        assert await first.fetchval("SELECT count(*) FROM idemproxy.records") == 2

        shown = await idemproxy("keys", "list", "--json", database_url=empty_database)
        states = {record["key"]: record["state"] for record in json.loads(shown.out)["records"]}
        assert states == {"settled": "completed", "running": "running"}

        async with running(upstream=orders.url, database_url=empty_database) as proxy_process:
            assert await write(proxy_process.url, "settled") == (200, "true", answer)
            assert (await write(proxy_process.url, "running"))[:2] == (409, "in-flight")
            assert (await write(proxy_process.url, "new"))[:2] == (201, "false")
            reason = ("--reason", "of no use any more")
            purged = await idemproxy("keys", "purge", "settled", *reason, database_url=empty_database)
            assert purged.code == 0, purged.err
            async with asyncio.timeout(30):  # events are written in batches
                while not {("settled", "dedup_hit"), ("new", "first_write")} <= await events(first):
                    await asyncio.sleep(0.1)
        assert await first.fetchval("SELECT action FROM idemproxy.changes WHERE key = 'settled'") == "purge"
        await first.close()
        assert [body for _, _, body in orders.ledger] == [
            b'{"item": "settled"}',
            b'{"item": "running"}',
            b'{"item": "new"}',
        ]


async def records_of_today(proxy: StartProxy, rows: asyncpg.Connection, orders: Orders) -> bytes:
    """One settled record, and one whose owner is at work for another hour; the settled answer."""
    async with proxy(orders.url) as service:
        url = f"http://127.0.0.1:{service.port}"
        _, _, answer = await write(url, "settled")
        await write(url, "running")
    await rows.execute(BACK_TO_WORK)
    return answer


async def test_a_migrated_database_is_like_a_fresh_one(database: str, empty_database: str) -> None:
    await (await at_first_version(empty_database)).close()
    assert (await idemproxy("migrate", database_url=empty_database)).code == 0
    assert await schema(empty_database) == await schema(database)


async def test_a_version_that_is_older_than_the_schema_says_so_and_does_not_start(empty_database: str) -> None:
    connection = await at_first_version(empty_database)
    assert (await idemproxy("migrate", database_url=empty_database)).code == 0
    await connection.execute("INSERT INTO idemproxy.migrations VALUES (9999, 'of_tomorrow', 'x')")
    await connection.close()
    done = await idemproxy("run", upstream="http://127.0.0.1:9", database_url=empty_database)
    assert done.code == 2
    assert "run a newer idemproxy" in done.err
