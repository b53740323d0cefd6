"""`python -m benchmarks.bloat`: whether the table grows when keys come and go, cycle after cycle.

A cycle claims so many new keys, completes them with answers that expire at once, and sweeps them: the statements are
the product's own, in its own batches. Nothing is vacuumed by hand: autovacuum has to keep up, as in production.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import click

from idemproxy.core.record import RecordId
from idemproxy.store import queries
from idemproxy.store.columns import answers, identified, numbers
from idemproxy.store.embedded import EmbeddedPostgres
from idemproxy.store.migrate import migrate
from idemproxy.store.pool import open_pool
from idemproxy.store.postgres import BATCH_ITEMS
from idemproxy.store.sweep import sweep

HEADERS = b"Content-Type: application/json\nDate: Wed, 18 Nov 2026 12:00:00 GMT\nServer: nginx\n"
BODY = b'{"id":"ord_0001","state":"accepted","total":"41.80","currency":"EUR"}'.ljust(150)
SCOPE = bytes(32)
FINGERPRINT = bytes(33)
AT_ONCE = 0.001
"""Seconds that an answer is kept: it has expired when the sweep comes."""
SIZES = """
SELECT pg_relation_size(oid) AS rows, pg_indexes_size(oid) AS indexes, pg_total_relation_size(oid) AS total
  FROM pg_class WHERE oid = 'idemproxy.records'::regclass
"""


@dataclass(frozen=True)
class Sizes:
    """In bytes. `total` has the rows, the indexes, what is stored beside the rows, and the maps."""

    rows: int
    indexes: int
    total: int


async def write(pool: asyncpg.Pool, keys: int, *, ttl: float = AT_ONCE) -> None:
    """Claim and complete so many new keys."""
    sql = queries.load()
    async with pool.acquire() as connection:
        for start in range(0, keys, BATCH_ITEMS):
            number = min(BATCH_ITEMS, keys - start)
            ids = identified(sorted(RecordId(str(uuid.uuid4()), SCOPE, "POST /orders") for _ in range(number)))
            tokens, ttls = os.urandom(16 * number), numbers([ttl] * number)
            await connection.fetch(sql["claim"], *ids, FINGERPRINT * number, tokens, numbers([30.0] * number), ttls)
            kept = answers([(HEADERS, BODY)] * number)
            done = await connection.fetch(sql["complete"], *ids, tokens, ttls, numbers([201] * number), *kept)
            if len(done) != number:
                raise RuntimeError(f"{number - len(done)} of {number} claims were not completed")


async def sizes(pool: asyncpg.Pool) -> Sizes:
    row = await pool.fetchrow(SIZES)
    assert row is not None
    return Sizes(**row)


async def cycle(pool: asyncpg.Pool, keys: int) -> Sizes:
    """One cycle; the sizes at its height, before the sweep."""
    await write(pool, keys)
    height = await sizes(pool)
    left = keys
    while left > 0:
        left -= await sweep(pool, 0)
    return height


async def run(keys: int, cycles: int) -> None:
    with tempfile.TemporaryDirectory(prefix="idemproxy-bloat-") as folder:
        Path(folder).chmod(0o755)
        # A cycle lasts minutes here and a day in production: autovacuum looks as much more often.
        settings = {"max_wal_size": "4GB", "autovacuum_naptime": "1s"}
        postgres = await EmbeddedPostgres.start(Path(folder) / "data", settings=settings)
        try:
            connection = await asyncpg.connect(postgres.dsn)
            await migrate(connection)
            await connection.close()
            async with await open_pool(postgres.dsn, 100) as pool:
                click.echo(
                    f"{'cycle':>5} {'seconds':>8} {'rows MB':>9} {'indexes MB':>11} {'total MB':>9} {'B/key':>7}"
                )
                for number in range(1, cycles + 1):
                    started = time.monotonic()
                    found = await cycle(pool, keys)
                    figures = f"{found.rows / 1e6:9,.1f} {found.indexes / 1e6:11,.1f} {found.total / 1e6:9,.1f}"
                    seconds = time.monotonic() - started
                    click.echo(f"{number:5} {seconds:8.1f} {figures} {found.total / keys:7,.0f}")
        finally:
            await postgres.stop()


@click.command()
@click.option("--keys", default=100_000, show_default=True, help="New keys in each cycle.")
@click.option("--cycles", default=10, show_default=True)
def main(keys: int, cycles: int) -> None:
    """Let keys come and go, and print what the table takes at the height of each cycle."""
    asyncio.run(run(keys, cycles))


if __name__ == "__main__":
    main()
