"""Completed answers in memory: never too long, never too many, and never what an operator has purged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import asyncpg
import pytest

from idemproxy.core.messages import Answer
from idemproxy.core.record import Completed, Lease, RecordId, Running
from idemproxy.store import purges
from idemproxy.store.cache import ENTRY_BYTES, Cache, now
from idemproxy.store.connect import Primary
from idemproxy.store.embedded import EmbeddedPostgres
from idemproxy.store.migrate import migrate
from idemproxy.store.pool import open_pool
from idemproxy.store.purges import CHANNEL, Purges, purged
from tests.support.records import CREATED, Noted, claim_of, store_on

MIB = 1024 * 1024


def completed(body: bytes = b"") -> Completed:
    return Completed(b"t" * 16, b"f" * 33, 201, Answer(201, b"Created", (), body))


def id_of(number: int) -> RecordId:
    return RecordId(f"order-{number}", b"s" * 32, "POST /orders")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(15):
        while not condition():
            await asyncio.sleep(0.01)


def test_an_entry_is_found_until_its_time_is_over() -> None:
    cache = Cache(MIB)
    cache.put(id_of(1), completed(), now() + 60, asked=now())
    cache.put(id_of(2), completed(), now(), asked=now())
    assert cache.get(id_of(1)) == completed()
    assert cache.get(id_of(2)) is None
    assert len(cache) == 1


def test_its_bound_is_in_bytes_and_what_was_used_last_stays() -> None:
    cache = Cache(3 * (ENTRY_BYTES + 1000))
    for number in (1, 2, 3):
        cache.put(id_of(number), completed(b"x" * 1000), now() + 60, asked=now())
    cache.get(id_of(1))
    cache.put(id_of(4), completed(b"x" * 1000), now() + 60, asked=now())
    assert [cache.get(id_of(number)) is not None for number in (1, 2, 3, 4)] == [True, False, True, True]
    assert cache.bytes == 3 * (ENTRY_BYTES + 1000)


def test_what_is_larger_than_all_of_it_is_left_out() -> None:
    cache = Cache(MIB)
    cache.put(id_of(1), completed(), now() + 60, asked=now())
    cache.put(id_of(2), completed(b"x" * MIB), now() + 60, asked=now())
    assert (len(cache), cache.get(id_of(2))) == (1, None)


def test_putting_dropping_and_clearing_leave_no_bytes_behind() -> None:
    cache = Cache(MIB)
    for _ in range(3):
        cache.put(id_of(1), completed(b"xyz"), now() + 60, asked=now())
    assert cache.bytes == ENTRY_BYTES + 3
    cache.drop(id_of(1))
    assert cache.bytes == 0
    cache.put(id_of(1), completed(), now() + 60, asked=now())
    cache.purge_all()
    assert (cache.bytes, len(cache)) == (0, 0)


def test_what_was_asked_for_before_a_purge_is_not_kept_after_it() -> None:
    cache = Cache(MIB)
    asked = now()
    cache.purge(id_of(1))
    cache.put(id_of(1), completed(), now() + 60, asked=asked)
    assert cache.get(id_of(1)) is None
    cache.put(id_of(1), completed(), now() + 60, asked=now())
    assert cache.get(id_of(1)) == completed()


@asynccontextmanager
async def listening(dsn: str, cache: Cache) -> AsyncIterator[None]:
    pool = await open_pool(dsn, 100)
    task = asyncio.create_task(Purges(Primary(dsn), pool, cache).listen_forever())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await pool.close()


async def test_a_trusted_cache_answers_without_asking_postgres(database: str) -> None:
    noted, cache = Noted(), Cache(MIB)
    async with listening(database, cache), store_on(database, noted, cache) as store:
        await until(lambda: cache.trusted)
        lease = await store.claim(claim_of())
        assert isinstance(lease, Lease)
        await store.complete(lease, CREATED, kept=True)
        noted.statements.clear()
        assert await store.claim(claim_of()) == Completed(lease.claim.token, lease.claim.fingerprint, 201, CREATED)
        assert (noted.statements, noted.hits) == ([], 1)


async def test_an_answer_read_from_postgres_is_kept_for_the_next_one(database: str) -> None:
    noted, cache = Noted(), Cache(MIB)
    async with listening(database, cache), store_on(database) as elsewhere, store_on(database, noted, cache) as store:
        await until(lambda: cache.trusted)
        lease = await elsewhere.claim(claim_of())
        assert isinstance(lease, Lease)
        await elsewhere.complete(lease, CREATED, kept=True)
        first, second = await store.claim(claim_of()), await store.claim(claim_of())
        assert first == second
        assert [name for name, _ in noted.statements] == ["claim", "read"]


async def test_a_cache_that_hears_of_no_purges_is_not_asked(database: str) -> None:
    noted, cache = Noted(), Cache(MIB)
    async with store_on(database, noted, cache) as store:
        lease = await store.claim(claim_of())
        assert isinstance(lease, Lease)
        await store.complete(lease, CREATED, kept=True)
        noted.statements.clear()
        assert isinstance(await store.claim(claim_of()), Completed)
        assert [name for name, _ in noted.statements] == ["claim", "read"]


async def test_a_purge_reaches_every_cache(database: str, rows: asyncpg.Connection) -> None:
    one, two = Cache(MIB), Cache(MIB)
    async with listening(database, one), listening(database, two):
        await until(lambda: one.trusted and two.trusted)
        for cache in (one, two):
            cache.put(id_of(1), completed(), now() + 60, asked=now())
            cache.put(id_of(2), completed(), now() + 60, asked=now())
        await rows.execute("SELECT pg_notify($1, $2)", CHANNEL, purged(id_of(1)))
        await until(lambda: not one.get(id_of(1)) and not two.get(id_of(1)))
        assert one.get(id_of(2))
        assert two.get(id_of(2))
        await rows.execute("SELECT pg_notify($1, $2)", CHANNEL, "no such thing")
        await until(lambda: not len(one) and not len(two))


async def test_a_lost_connection_ends_the_trust_and_memory_starts_afresh(
    database: str, rows: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purges, "PING_SECONDS", 0.05)
    cache = Cache(MIB)
    async with listening(database, cache):
        await until(lambda: cache.trusted)
        cache.put(id_of(1), completed(), now() + 60, asked=now())
        await rows.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
            "AND pid <> pg_backend_pid()"
        )
        await until(lambda: not cache.trusted)
        assert cache.get(id_of(1)) == completed()  # as a reserve
        await until(lambda: cache.trusted)
        assert cache.get(id_of(1)) is None


async def test_while_the_store_is_down_a_completed_answer_is_still_replayed(tmp_path: object) -> None:
    server = await EmbeddedPostgres.start(tmp_path)  # type: ignore[arg-type]
    try:
        connection = await asyncpg.connect(server.dsn)
        await migrate(connection)
        await connection.close()
        cache = Cache(MIB)
        async with store_on(server.dsn, cache=cache) as store:
            lease = await store.claim(claim_of())
            assert isinstance(lease, Lease)
            await store.complete(lease, CREATED, kept=True)
            await server.stop()
            assert isinstance(await store.claim(claim_of()), Completed)
    finally:
        await server.stop()


async def test_a_duplicate_of_a_write_that_runs_here_does_not_reach_postgres(database: str) -> None:
    noted = Noted()
    async with store_on(database, noted) as store:
        found = await asyncio.gather(*(store.claim(claim_of()) for _ in range(20)))
        assert sum(isinstance(state, Lease) for state in found) == 1
        assert sum(isinstance(state, Running) for state in found) == 19
        assert noted.statements == [("claim", 1)]


async def test_after_it_was_settled_the_next_claim_asks_again(database: str) -> None:
    async with store_on(database) as store:
        lease = await store.claim(claim_of())
        assert isinstance(lease, Lease)
        await store.release(lease)
        assert isinstance(await store.claim(claim_of()), Lease)


async def test_a_lease_that_was_lost_is_not_believed_in_any_longer(database: str, rows: asyncpg.Connection) -> None:
    async with store_on(database) as store:
        lease = await store.claim(claim_of())
        assert isinstance(lease, Lease)
        await rows.execute("DELETE FROM idemproxy.records")
        assert isinstance(await store.claim(claim_of()), Running)
        assert not await store.renew(lease)
        assert isinstance(await store.claim(claim_of()), Lease)
