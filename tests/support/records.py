"""Records as the store sees them: claims made up by a test, and a store to put them into."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import asyncpg

from idemproxy.core.messages import Answer
from idemproxy.core.record import Claim, RecordId
from idemproxy.store.cache import Cache
from idemproxy.store.known import Known
from idemproxy.store.pool import open_pool
from idemproxy.store.postgres import PostgresStore
from tests.support.pgbouncer import PgBouncer

ADA = hashlib.sha256(b"ada").digest()
BOB = hashlib.sha256(b"bob").digest()
TEA = b"\x01" + hashlib.sha256(b"tea").digest()
COFFEE = b"\x01" + hashlib.sha256(b"coffee").digest()

CREATED = Answer(
    201, b"Created", ((b"Content-Type", b"application/json"), (b"X-Twice", b"1"), (b"X-Twice", b"2")), b"{}"
)

LAPSE = "UPDATE idemproxy.records SET lease_until = now() - interval '1 second'"
EXPIRE = """
    UPDATE idemproxy.records
       SET lease_until = now() - interval '2 seconds', expires_at = now() - interval '1 second'
"""


def claim_of(
    key: str = "order-1",
    *,
    scope: bytes = ADA,
    route: str = "POST /orders",
    fingerprint: bytes = TEA,
    lease_seconds: float = 30,
    ttl_seconds: float = 60,
) -> Claim:
    return Claim(RecordId(key, scope, route), fingerprint, os.urandom(16), lease_seconds, ttl_seconds)


@dataclass
class Noted:
    """What the store has told about its statements: names and sizes of those that succeeded, and failures."""

    statements: list[tuple[str, int]] = field(default_factory=list)
    failures: int = 0
    hits: int = 0

    def hit(self) -> None:
        self.hits += 1

    def succeeded(self, name: str, _: float, items: int) -> None:
        self.statements.append((name, items))

    def failed(self) -> None:
        self.failures += 1


pooler: PgBouncer | None = None
"""What stands before Postgres; set by the fixture `line`."""


async def pool_on(dsn: str) -> asyncpg.Pool:
    return await (open_pool(dsn, 100) if pooler is None else open_pool(pooler.before(dsn), 0))


@asynccontextmanager
async def store_on(dsn: str, noted: Noted | None = None, cache: Cache | None = None) -> AsyncIterator[PostgresStore]:
    noted = noted or Noted()
    pool = await pool_on(dsn)
    known = Known(Cache(0) if cache is None else cache, noted.hit)
    store = PostgresStore(pool, noted.succeeded, noted.failed, known)
    try:
        yield store
    finally:
        await store.close()


async def record(rows: asyncpg.Connection, key: str = "order-1") -> dict[str, object]:
    """The one record of this key; its times as seconds from now."""
    row = await rows.fetchrow(
        """
        SELECT state, token, attempt, fingerprint, status, headers, body, settled_at IS NOT NULL AS settled,
               extract(epoch FROM lease_until - now())::float8 AS lease_left,
               extract(epoch FROM expires_at - now())::float8 AS time_left
          FROM idemproxy.records WHERE key = $1
        """,
        key,
    )
    assert row is not None, f"no record of {key}"
    return dict(row)


async def count(rows: asyncpg.Connection) -> int:
    number: int = await rows.fetchval("SELECT count(*) FROM idemproxy.records")
    return number
