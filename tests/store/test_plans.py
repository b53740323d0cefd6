"""No statement of a request or of the sweep ever reads the whole table, whatever it looked like when it was planned."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import asyncpg
import orjson
import pytest

from idemproxy.core.record import RecordId
from idemproxy.store import queries
from idemproxy.store.columns import answers, identified, numbers
from idemproxy.store.pool import STEADY_PLANS, open_pool

SQL = queries.load()
RECORDS = 100_000
MANY = f"""
INSERT INTO idemproxy.records
    (key, scope, route, fingerprint, state, token, attempt, claimed_at, lease_until, settled_at, expires_at, status,
     headers, body)
SELECT 'order-' || n, sha256('ada'), 'POST /orders', '\\x01' || sha256('tea'), CASE WHEN n % 2 = 0 THEN 'completed'
       ELSE 'claimed' END, substr(sha256(n::text::bytea), 1, 16), 1, now(), now(), CASE WHEN n % 2 = 0 THEN now() END,
       now() + interval '1 day', CASE WHEN n % 2 = 0 THEN 201 END, CASE WHEN n % 2 = 0 THEN ''::bytea END,
       CASE WHEN n % 2 = 0 THEN ''::bytea END
  FROM generate_series(1, {RECORDS}) AS n
"""
"""One caller, one route, half of the claims open: where an index for operators would look best, and read most."""

PATIENCE = 120.0
"""The store's own connections give up soon; filling a table takes its time on a busy machine."""
BATCH = 100
KEYS = [f"order-{7 * n}" for n in range(1, BATCH + 1)]
SCOPES = [hashlib.sha256(b"ada").digest()] * BATCH
ROUTES = ["POST /orders"] * BATCH
IDS = identified([RecordId(*id) for id in zip(KEYS, SCOPES, ROUTES, strict=True)])
TEA = (b"\x01" + hashlib.sha256(b"tea").digest()) * BATCH
TOKENS = b"".join([hashlib.sha256(str(7 * n).encode()).digest()[:16] for n in range(1, BATCH + 1)])
FRESH = os.urandom(16 * BATCH)
SECONDS = numbers([60.0] * BATCH)
ANSWERS = answers([(b"A: b", b"body")] * BATCH)
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)

BY_ID: dict[str, list[Any]] = {
    "read": [*IDS],
    "take_over": [*IDS, TEA, FRESH, SECONDS, SECONDS, TOKENS],
    "renew": [*IDS, TOKENS, SECONDS, SECONDS],
    "complete": [*IDS, TOKENS, SECONDS, numbers([201] * BATCH), *ANSWERS],
    "mark_unknown": [*IDS, TOKENS, SECONDS, SECONDS],
    "release": [*IDS, TOKENS],
    "sweep": [KEYS, SCOPES, ROUTES, 0.0],
    "strip": [KEYS, SCOPES, ROUTES, 0.0],
    "steps": [KEYS[0], SCOPES[:1], 0.0],
}
SWEPT_ALONG = {"expired": "records_expires_at", "given_up": "records_open", "answered": "records_expires_at"}
BY_EXPIRY: dict[str, list[Any]] = {name: [LONG_AGO, 0.0, BATCH] for name in SWEPT_ALONG}
INSERT: dict[str, list[Any]] = {"claim": [*IDS, TEA, FRESH, SECONDS, SECONDS]}
BY_ID["claim_and_complete"] = INSERT["claim"] + BY_ID["complete"]
ALL = BY_ID | BY_EXPIRY | INSERT

EMPTIED = ("DELETE FROM idemproxy.records", "VACUUM ANALYZE idemproxy.records")
HISTORIES = {
    "of a new table, never analyzed": ((), ()),
    "of a table that was analyzed while it was empty": (EMPTIED, ()),
    "of a table that had been full and swept empty": ((MANY, *EMPTIED), ()),
    "of a table that has been analyzed since": ((), ("VACUUM ANALYZE idemproxy.records",)),
}
"""What happened before the plans were made, and after the table had grown."""


@pytest.fixture
async def connection(database: str) -> AsyncIterator[asyncpg.pool.PoolConnectionProxy]:
    """One of the store's own, on a table that nothing analyzes behind the test's back."""
    async with await open_pool(database, 100) as pool, pool.acquire() as connection:
        await connection.execute("ALTER TABLE idemproxy.records SET (autovacuum_enabled = off)")
        await connection.execute("SET statement_timeout = 0")
        yield connection


async def prepare(connection: asyncpg.pool.PoolConnectionProxy) -> None:
    """Make the plans and keep them: five times more often than Postgres looks before it settles on one."""
    for name, arguments in ALL.items():
        await connection.execute(f"PREPARE {name} AS {typed(name)}")
        for _ in range(6):
            await connection.execute(f"EXPLAIN EXECUTE {name}({literals(arguments)})")


async def kept_plan(connection: asyncpg.pool.PoolConnectionProxy, name: str) -> dict[str, Any]:
    text = await connection.fetchval(
        f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE {name}({literals(ALL[name])})", timeout=PATIENCE
    )
    return dict(orjson.loads(text)[0]["Plan"])


def typed(name: str) -> str:
    """PREPARE does not say which types an untyped parameter has; the driver does."""
    if name in BY_EXPIRY:
        return SQL[name].replace("$1", "$1::timestamptz").replace("$3", "$3::bigint")
    return SQL[name].replace("key = $1", "key = $1::text")


def literals(arguments: list[Any]) -> str:
    return ", ".join(
        f"ARRAY[{', '.join(literal(item) for item in argument)}]" if isinstance(argument, list) else literal(argument)
        for argument in arguments
    )


def literal(value: Any) -> str:
    if isinstance(value, bytes):
        return f"'\\x{value.hex()}'::bytea"
    return str(value) if isinstance(value, int | float) else f"'{value}'"


def scans(node: dict[str, Any]) -> list[dict[str, Any]]:
    own = [node] if "Relation Name" in node and "Scan" in node["Node Type"] else []
    return own + [scan for child in node.get("Plans", []) for scan in scans(child)]


@pytest.mark.parametrize("history", HISTORIES)
async def test_every_plan_stays_with_its_index(connection: asyncpg.pool.PoolConnectionProxy, history: str) -> None:
    """A hundred items are looked up in a hundred thousand records, along plans that were made before there were any."""
    before, after = HISTORIES[history]
    for sql in before:
        await connection.execute(sql, timeout=PATIENCE)
    await prepare(connection)
    for sql in (MANY, *after):
        await connection.execute(sql, timeout=PATIENCE)
    for name in ALL:
        plan = await kept_plan(connection, name)
        found = [(scan["Node Type"], scan["Index Name"]) for scan in scans(plan)]
        if name in INSERT:
            assert (found, plan["Conflict Arbiter Indexes"]) == ([], ["records_id"])
            continue
        assert found == [("Index Scan", SWEPT_ALONG.get(name, "records_id"))], f"{name}: {found}"
        for scan in scans(plan):  # by the whole key, for each item: nothing is read that does not belong to it
            assert scan.get("Rows Removed by Filter", 0) <= BATCH, f"{name}: {scan}"
            if name in BY_ID:
                assert "(key)::text = " in scan["Index Cond"], f"{name}: {scan}"
                assert "(scope)::bytea = " in scan["Index Cond"], f"{name}: {scan}"


async def test_without_the_settings_a_plan_of_an_empty_table_would_read_all_of_it(
    connection: asyncpg.pool.PoolConnectionProxy,
) -> None:
    """The reason for them: as soon as this fails, they are no longer needed."""
    for setting in STEADY_PLANS:
        await connection.execute(f"SET {setting} TO '{await built_in(connection, setting)}'")
    for sql in EMPTIED:
        await connection.execute(sql, timeout=PATIENCE)
    await prepare(connection)
    await connection.execute(MANY, timeout=PATIENCE)
    assert [scan["Node Type"] for scan in scans(await kept_plan(connection, "complete"))] == ["Seq Scan"]


async def built_in(connection: asyncpg.pool.PoolConnectionProxy, setting: str) -> str:
    value: str = await connection.fetchval("SELECT boot_val FROM pg_settings WHERE name = $1", setting)
    return value
