"""What stands between a claim that Postgres has acknowledged and its loss, and between us and Postgres."""

from __future__ import annotations

from dataclasses import dataclass

import asyncpg

from idemproxy.store import queries

OPENED_WITH = {"idle_in_transaction_session_timeout": "61s"}
"""A setting that a session is opened with, to see whether it arrives: a pooler refuses it, or drops it."""

OFF = (
    "synchronous_commit is off for this role or database, so that acknowledged claims can be lost and writes could "
    "run twice; turn it on"
)
POOLER = (
    "a pooler such as PgBouncer stands before Postgres, where the prepared statements of several proxies get mixed "
    "up; set "
    "IDEMPROXY_DATABASE_STATEMENT_CACHE_SIZE=0, which is right for each of its modes"
)
ASYNCHRONOUS = (
    "Postgres has standbys and waits for none of them: a failover loses the claims that were acknowledged last, and "
    "their writes can run twice; name the standbys in synchronous_standby_names, for instance 'ANY 1 (*)'"
)
LOCAL = (
    "synchronous_commit is local for this role or database, so that Postgres does not wait for its synchronous "
    "standby: a failover loses claims, and their writes can run twice; set it to on"
)


@dataclass(frozen=True, slots=True)
class Weaknesses:
    """Each one line that says what to do, or None."""

    fatal: str | None = None
    in_failover: str | None = None


async def weaknesses(connection: asyncpg.Connection, *, pooled: bool) -> Weaknesses:
    row = await connection.fetchrow(queries.load()["durability"])
    if row is None:
        return Weaknesses()
    if row["synchronous_commit"] == "off":
        return Weaknesses(fatal=OFF)
    if not pooled and row["opened_with"] not in ("61s", "1min 1s"):
        return Weaknesses(fatal=POOLER)
    if not row["standbys"]:
        return Weaknesses()
    if not row["synchronous"]:
        return Weaknesses(in_failover=ASYNCHRONOUS)
    return Weaknesses(in_failover=LOCAL if row["synchronous_commit"] == "local" else None)
