"""The sweep on a real Postgres: what goes, what stays, and who may sweep."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator

import asyncpg
import pytest

from idemproxy.core.record import Expired, Lease
from idemproxy.store import queries
from idemproxy.store import sweep as sweeping
from idemproxy.store.sweep import SWEEP_BATCH, deletions, run_batch, strippings, sweep, sweep_forever
from tests.support.process import until
from tests.support.records import CREATED, EXPIRE, claim_of, count, pool_on, record, store_on

pytestmark = pytest.mark.usefixtures("line")

FILL = """
    INSERT INTO idemproxy.records (key, scope, route, fingerprint, state, token, attempt, claimed_at, settled_at,
                                   lease_until, expires_at, status, headers, body)
    SELECT $1 || n, $2, 'POST /orders', $3, 'completed', $4, 1, now(), now(), now() - interval '2 days',
           now() - $5::float8 * interval '1 second', 201, '', 'kept'
      FROM generate_series(1, $6::int) AS n
"""


async def fill(rows: asyncpg.Connection, name: str, number: int, *, expired_since: float) -> None:
    """So many completed records, expired so many seconds ago; a negative number is still to come."""
    scope = hashlib.sha256(b"ada").digest()
    await rows.execute(FILL, f"{name}-", scope, b"\x01" + scope, scope[:16], expired_since, number)


@pytest.fixture
async def pool(database: str) -> AsyncIterator[asyncpg.Pool]:
    async with await pool_on(database) as opened:
        yield opened


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "SWEEP_BATCH", 10)


async def test_what_has_expired_goes_and_what_has_not_stays(pool: asyncpg.Pool, rows: asyncpg.Connection) -> None:
    await fill(rows, "old", 3, expired_since=1)
    await fill(rows, "new", 2, expired_since=-60)
    assert await sweep(pool, 0) == 3
    assert await rows.fetchval("SELECT array_agg(key ORDER BY key) FROM idemproxy.records") == ["new-1", "new-2"]
    assert await sweep(pool, 0) == 0


@pytest.mark.usefixtures("small_batches")
async def test_it_works_in_batches_the_oldest_first(pool: asyncpg.Pool, rows: asyncpg.Connection) -> None:
    await fill(rows, "old", 10, expired_since=100)
    await fill(rows, "older", 15, expired_since=200)
    async with pool.acquire() as connection:
        assert await run_batch(connection, deletions(), 0) == 10
    assert await rows.fetchval("SELECT count(*) FROM idemproxy.records WHERE key LIKE 'older-%'") == 5
    assert await sweep(pool, 0) == 15
    assert await count(rows) == 0


async def test_a_live_claim_and_an_unknown_outcome_are_never_touched(
    database: str, pool: asyncpg.Pool, rows: asyncpg.Connection
) -> None:
    async with store_on(database) as store:
        running = await store.claim(claim_of("running"))
        lost = await store.claim(claim_of("lost"))
        assert isinstance(running, Lease)
        assert isinstance(lost, Lease)
        await store.mark_unknown(lost)
        await rows.execute("UPDATE idemproxy.records SET lease_until = now() - interval '1 hour' WHERE key = 'lost'")
        assert await sweep(pool, 0) == 0
        assert await store.complete(running, CREATED, kept=True)


async def test_what_nobody_has_completed_goes_when_its_time_is_over(
    database: str, pool: asyncpg.Pool, rows: asyncpg.Connection
) -> None:
    await fill(rows, "old", 1, expired_since=1)
    async with store_on(database) as store:
        assert isinstance(await store.claim(claim_of("abandoned")), Lease)
        lost = await store.claim(claim_of("lost"))
        assert isinstance(lost, Lease)
        await store.mark_unknown(lost)
    await rows.execute(EXPIRE)
    gone: list[str] = []
    assert await sweep(pool, 0, lambda ids: gone.extend(id.key for id in ids)) == 3
    assert sorted(gone) == ["abandoned", "lost", "old-1"]
    assert await count(rows) == 0


async def test_a_record_that_is_claimed_anew_while_the_sweep_waits_for_it_stays(
    database: str, pool: asyncpg.Pool, rows: asyncpg.Connection
) -> None:
    async with store_on(database) as store:
        assert isinstance(await store.claim(claim_of()), Lease)
    await rows.execute(EXPIRE)
    other = await asyncpg.connect(database)
    try:
        async with other.transaction():
            await other.execute(
                "UPDATE idemproxy.records SET lease_until = now() + '30 s', expires_at = now() + '90 s'::interval"
            )
            sweeper = asyncio.create_task(sweep(pool, 0))
            waiting = """
                SELECT count(*) FROM pg_stat_activity
                 WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '-- Delete%'
            """
            async with asyncio.timeout(10):
                while not await rows.fetchval(waiting):
                    await asyncio.sleep(0.01)
        assert await sweeper == 0
    finally:
        await other.close()
    assert (await record(rows))["state"] == "claimed"


async def test_one_replica_sweeps_at_a_time(database: str, pool: asyncpg.Pool, rows: asyncpg.Connection) -> None:
    await fill(rows, "old", 3, expired_since=1)
    other = await asyncpg.connect(database)
    try:
        async with other.transaction():
            assert await other.fetchval(queries.load()["sweep_lock"])
            async with pool.acquire() as connection:
                assert await run_batch(connection, deletions(), 0) is None
            assert await sweep(pool, 0) == 0
            assert await count(rows) == 3
    finally:
        await other.close()
    assert await sweep(pool, 0) == 3


async def test_many_replicas_together_delete_each_record_once(database: str, rows: asyncpg.Connection) -> None:
    await fill(rows, "old", 2500, expired_since=1)
    pools = [await pool_on(database) for _ in range(4)]
    counts = await asyncio.gather(*(sweep(pool, 0) for pool in pools))
    for pool in pools:
        await pool.close()
    left = await count(rows)
    assert sum(counts) + left == 2500
    assert sum(counts) >= SWEEP_BATCH  # whoever finds another one at work leaves the rest to it, or to the next round


# Tombstones


async def test_a_tombstone_stays_for_its_time_without_its_answer(
    database: str, pool: asyncpg.Pool, rows: asyncpg.Connection
) -> None:
    await fill(rows, "old", 1, expired_since=10)
    assert await sweep(pool, 60) == 0
    tombstone = await record(rows, "old-1")
    assert (tombstone["state"], tombstone["status"]) == ("completed", 201)
    assert (tombstone["headers"], tombstone["body"]) == (None, None)
    async with store_on(database) as store:
        assert isinstance(await store.claim(claim_of("old-1")), Expired)
    assert await sweep(pool, 5) == 1


async def test_an_answer_that_has_not_expired_keeps_its_body(pool: asyncpg.Pool, rows: asyncpg.Connection) -> None:
    await fill(rows, "new", 1, expired_since=-60)
    await sweep(pool, 60)
    assert (await record(rows, "new-1"))["body"] == b"kept"


@pytest.mark.usefixtures("small_batches")
async def test_all_tombstones_lose_their_answers_however_many_there_are(
    pool: asyncpg.Pool, rows: asyncpg.Connection
) -> None:
    await fill(rows, "old", 35, expired_since=10)
    assert await sweep(pool, 60) == 0
    assert await rows.fetchval("SELECT count(*) FROM idemproxy.records WHERE body IS NOT NULL") == 0
    assert await count(rows) == 35


async def test_a_round_does_not_walk_over_the_tombstones_of_the_rounds_before(
    pool: asyncpg.Pool, rows: asyncpg.Connection
) -> None:
    walk = strippings()
    await fill(rows, "old", 3, expired_since=600)
    await sweep(pool, 3600, tombstones=walk)
    await fill(rows, "new", 2, expired_since=10)
    await sweep(pool, 3600, tombstones=walk)
    await fill(rows, "newer", 1, expired_since=5)
    await sweep(pool, 3600, tombstones=walk)
    kept = await rows.fetch("SELECT key FROM idemproxy.records WHERE body IS NOT NULL ORDER BY key")
    assert [row["key"] for row in kept] == []
    await rows.execute("UPDATE idemproxy.records SET headers = '', body = 'behind it' WHERE key LIKE 'old-%'")
    await sweep(pool, 3600, tombstones=walk)
    kept = await rows.fetch("SELECT key FROM idemproxy.records WHERE body IS NOT NULL ORDER BY key")
    assert [row["key"] for row in kept] == ["old-1", "old-2", "old-3"]


# The loop


async def test_an_outage_puts_the_sweep_off_and_does_not_end_it(
    database: str, rows: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    pool = await pool_on(database)
    task = asyncio.create_task(sweep_forever(pool, 0, 0.01))
    try:
        await rows.execute("ALTER TABLE idemproxy.records RENAME TO elsewhere")
        await until(lambda: "sweep put off: UndefinedTableError" in caplog.text, "the fault is reported")
        await rows.execute("ALTER TABLE idemproxy.elsewhere RENAME TO records")
        await fill(rows, "old", 3, expired_since=1)
        async with asyncio.timeout(10):
            while await count(rows):
                await asyncio.sleep(0.01)
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await pool.close()
