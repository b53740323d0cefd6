"""Past one machine: the tables spread over the workers of a Citus cluster, by key.

All three by the same column, so that what an operator does to a record and what is written about it stay on one worker.
The ledger of migrations stays where it is, on the coordinator.
"""

from __future__ import annotations

import asyncpg

from idemproxy.store.migrate import MigrationError

TABLES = ("idemproxy.records", "idemproxy.events", "idemproxy.changes")
"""The first one leads: the others are placed where its rows are."""

NO_CITUS = (
    "--distributed: this database has no Citus extension; create it on the coordinator (CREATE EXTENSION citus) and "
    "add the workers, or migrate without --distributed: the same schema works on one Postgres. Nothing was changed"
)


async def can_distribute(connection: asyncpg.Connection) -> bool:
    return await connection.fetchval("SELECT to_regclass('pg_dist_partition')") is not None


async def require_citus(connection: asyncpg.Connection) -> None:
    if not await can_distribute(connection):
        raise MigrationError(NO_CITUS)


async def undistributed(connection: asyncpg.Connection) -> list[str]:
    """The tables that are still on the coordinator alone."""
    rows = await connection.fetch(
        """
        SELECT name FROM unnest($1::text[]) WITH ORDINALITY AS wanted (name, n)
         WHERE NOT EXISTS (SELECT FROM pg_dist_partition WHERE logicalrelid = to_regclass(name)) ORDER BY n
        """,
        TABLES,
    )
    return [row["name"] for row in rows]


async def distribute(connection: asyncpg.Connection) -> list[str]:
    """Spread what is not yet spread, rows included; writes wait meanwhile. Gives back the tables that were moved."""
    async with connection.transaction():
        # One at a time: the same lock as the migrations, which alter the same tables.
        await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('idemproxy.migrate', 0))")
        moved = await undistributed(connection)
        for table in moved:
            beside = "default" if table == TABLES[0] else TABLES[0]
            await connection.execute("SELECT create_distributed_table($1, 'key', colocate_with => $2)", table, beside)
    return moved


async def where(connection: asyncpg.Connection) -> str:
    """One line for `check`."""
    if not await can_distribute(connection):
        return "the records are on one Postgres"
    left = await undistributed(connection)
    if not left:
        return "the records are distributed by key (Citus)"
    return f"Citus is there, and {', '.join(left)} not distributed: run `idemproxy migrate --distributed`"
