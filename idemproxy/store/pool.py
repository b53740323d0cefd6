"""The connections that the store works with: how many, how long a statement may take, and how it is planned."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg

from idemproxy.store.connect import Primary
from idemproxy.store.errors import FAULTS

ACQUIRE_SECONDS = 0.5
STATEMENT_SECONDS = 1.5
LOCK_SECONDS = 1.0
POOL_SIZE = 10
"""Three batches of claims and completions, one of each other kind of statement, the sweep, one for readiness and one
for clients that ask what became of a key."""

STEADY_PLANS = {
    # One plan per statement and connection, made once: with arrays of a few items Postgres would plan each call anew.
    "plan_cache_mode": "force_generic_plan",
    # A plan is kept while the table grows. Made when it was empty, it would read the whole table for every batch until
    # the next ANALYZE. What is left without these is the primary key for each item of the batch, at any size.
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    # Up to PostgreSQL 17 a plan that had to use what is off counts as so costly that it would be compiled.
    "jit": "off",
}
"""How the statements of queries.sql are planned. A pooler takes no settings; behind one, each call is planned anew."""


async def open_pool(
    dsn: str, statement_cache_size: int, *, min_size: int = 1, max_size: int = POOL_SIZE, searches: bool = False
) -> asyncpg.Pool:
    """`searches`: for the statements of operators, which are planned by what is searched for."""

    async def keep_session(_: Any) -> None:
        """Nothing in a session is ever changed, so nothing has to be reset: this saves a round trip per batch."""

    pooled = statement_cache_size == 0
    session = {"application_name": "idemproxy"}
    if not pooled:
        session |= {
            "statement_timeout": str(int(STATEMENT_SECONDS * 1000)),
            "lock_timeout": str(int(LOCK_SECONDS * 1000)),
            "idle_in_transaction_session_timeout": "5000",
            **({} if searches else STEADY_PLANS),
        }
    return await asyncpg.create_pool(
        dsn,
        min_size=min_size,
        max_size=max_size,
        timeout=STATEMENT_SECONDS,
        command_timeout=STATEMENT_SECONDS,
        statement_cache_size=statement_cache_size,
        max_inactive_connection_lifetime=60,  # so that load that has passed does not hold server processes for good
        reset=keep_session,
        server_settings=session,
        connect=Primary(dsn, pooled=pooled).connect,
    )


async def is_writable(pool: asyncpg.Pool) -> bool:
    """Whether the database answers right now, and takes writes."""
    try:
        async with asyncio.timeout(1.0), pool.acquire(timeout=ACQUIRE_SECONDS) as connection:
            demoted: bool = await connection.fetchval("SELECT pg_is_in_recovery()")
        if demoted:
            await pool.expire_connections()
        return not demoted
    except FAULTS:
        return False
