"""Migrations: numbered SQL files, each applied once, from any number of replicas at the same time."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from dataclasses import dataclass
from pathlib import Path

import asyncpg

LOCK_POLL_SECONDS = 0.1
LOCK_WAIT_SECONDS = 60.0
"""Another replica may be migrating a large table; longer than this, somebody should look."""

_LEDGER = """
CREATE SCHEMA IF NOT EXISTS idemproxy;
CREATE TABLE IF NOT EXISTS idemproxy.migrations (
    version    integer PRIMARY KEY,
    name       text NOT NULL,
    checksum   text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);
"""


class MigrationError(Exception):
    """The schema and this version of idemproxy do not fit together; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Migration:
    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


def available() -> list[Migration]:
    """The migrations that came with this version, in order: inside the wheel, or beside the package in a checkout."""
    package = Path(__file__).resolve().parent.parent
    folder = next(path for path in (package / "migrations", package.parent / "migrations") if path.is_dir())
    found = []
    for path in sorted(folder.glob("*.sql")):
        number = re.match(r"(\d{4})_(\w+)\.sql$", path.name)
        if number is not None:
            found.append(Migration(int(number[1]), number[2], path.read_text(encoding="utf-8")))
    return found


async def applied(connection: asyncpg.Connection) -> dict[int, str]:
    """Versions and checksums that the database has; empty for a database that was never migrated."""
    if await connection.fetchval("SELECT to_regclass('idemproxy.migrations')") is None:
        return {}
    rows = await connection.fetch("SELECT version, checksum FROM idemproxy.migrations")
    return {row["version"]: row["checksum"] for row in rows}


async def pending(connection: asyncpg.Connection) -> list[Migration]:
    """What is still to be applied. Raises when the database is newer than the code, or a file was changed."""
    done = await applied(connection)
    known = {migration.version: migration for migration in available()}
    newer = sorted(set(done) - set(known))
    if newer:
        raise MigrationError(
            f"the database schema is at version {newer[-1]}, newer than this idemproxy knows ({max(known)}): "
            "run a newer idemproxy"
        )
    for version, checksum in done.items():
        if known[version].checksum != checksum:
            raise MigrationError(
                f"migration {version:04d} was applied in another wording than this idemproxy carries: "
                "use the release that applied it, and never edit an applied migration"
            )
    return [migration for migration in known.values() if migration.version not in done]


async def migrate(connection: asyncpg.Connection) -> list[Migration]:
    """Apply what is pending, each file in a transaction of its own; give back what this call applied."""
    mine: list[Migration] = []
    give_up = time.monotonic() + LOCK_WAIT_SECONDS
    while True:
        async with connection.transaction():
            # A transaction's lock, so that it works behind PgBouncer; polled, because waiting inside a lock would
            # hold a snapshot that other schema changes wait for.
            if await connection.fetchval("SELECT pg_try_advisory_xact_lock(hashtextextended('idemproxy.migrate', 0))"):
                todo = await pending(connection)
                if not todo:  # and no right is needed that only an owner has
                    return mine
                await connection.execute(_LEDGER)
                await connection.execute(todo[0].sql)
                await connection.execute(
                    "INSERT INTO idemproxy.migrations (version, name, checksum) VALUES ($1, $2, $3)",
                    todo[0].version,
                    todo[0].name,
                    todo[0].checksum,
                )
                mine.append(todo[0])
                continue
        if time.monotonic() > give_up:
            raise MigrationError("another process has held the migration lock for a minute: see what it is doing")
        await asyncio.sleep(LOCK_POLL_SECONDS)


async def require_current(connection: asyncpg.Connection) -> None:
    """Raise unless the schema is exactly what this version works with."""
    todo = await pending(connection)
    if todo:
        names = ", ".join(f"{migration.version:04d}_{migration.name}" for migration in todo)
        raise MigrationError(
            f"the database schema lacks {names}: run `idemproxy migrate`, or set IDEMPROXY_AUTO_MIGRATE=true"
        )
