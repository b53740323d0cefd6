"""Migrations on a real Postgres: each file once, from anywhere, and never across versions that do not fit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from idemproxy.store import migrate as migrating
from idemproxy.store.migrate import Migration, MigrationError, applied, available, migrate, pending, require_current

SCHEMA = """
    SELECT table_name, column_name, data_type, is_nullable FROM information_schema.columns
     WHERE table_schema = 'idemproxy' ORDER BY 1, 2
"""
LEDGER = "SELECT version, name, checksum, applied_at FROM idemproxy.migrations ORDER BY version"

ONE = Migration(1, "one", "CREATE TABLE idemproxy.one (n int)")
TWO = Migration(2, "two", "ALTER TABLE idemproxy.one ADD COLUMN m int")
BROKEN = Migration(3, "broken", "CREATE TABLE idemproxy.three (n int); SELECT 1 / 0")


@asynccontextmanager
async def connected(dsn: str, number: int) -> AsyncIterator[list[asyncpg.Connection]]:
    connections = [await asyncpg.connect(dsn) for _ in range(number)]
    try:
        yield connections
    finally:
        await asyncio.gather(*(connection.close() for connection in connections))


@pytest.fixture
async def connection(empty_database: str) -> AsyncIterator[asyncpg.Connection]:
    async with connected(empty_database, 1) as connections:
        yield connections[0]


def carry(monkeypatch: pytest.MonkeyPatch, *migrations: Migration) -> None:
    """A release of the product that came with these files."""
    monkeypatch.setattr(migrating, "available", lambda: list(migrations))


def test_the_files_are_numbered_without_gaps_and_have_names() -> None:
    found = available()
    assert [migration.version for migration in found] == list(range(1, len(found) + 1))
    assert found[0].name == "records"


async def test_an_empty_database_is_brought_up_to_date(connection: asyncpg.Connection) -> None:
    assert await migrate(connection) == available()
    assert await pending(connection) == []
    await require_current(connection)
    assert await connection.fetchval("SELECT count(*) FROM idemproxy.records") == 0


async def test_migrating_twice_changes_nothing(connection: asyncpg.Connection) -> None:
    await migrate(connection)
    before = await connection.fetch(SCHEMA), await connection.fetch(LEDGER)
    assert await migrate(connection) == []
    assert (await connection.fetch(SCHEMA), await connection.fetch(LEDGER)) == before


async def test_looking_at_what_is_pending_changes_nothing(connection: asyncpg.Connection) -> None:
    assert await pending(connection) == available()
    assert await applied(connection) == {}
    assert await connection.fetchval("SELECT to_regnamespace('idemproxy')") is None


async def test_from_many_connections_at_once_each_file_is_applied_once(
    empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    carry(monkeypatch, ONE, TWO)
    async with connected(empty_database, 10) as connections:
        done = await asyncio.gather(*(migrate(connection) for connection in connections))
        assert sorted((m for some in done for m in some), key=lambda m: m.version) == [ONE, TWO]
        ledger = await connections[0].fetch(LEDGER)
        assert [(row["version"], row["name"], row["checksum"]) for row in ledger] == [
            (1, "one", ONE.checksum),
            (2, "two", TWO.checksum),
        ]


async def test_a_newer_release_applies_only_what_is_new(
    connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    carry(monkeypatch, ONE)
    await migrate(connection)
    carry(monkeypatch, ONE, TWO)
    assert await pending(connection) == [TWO]
    assert await migrate(connection) == [TWO]


async def test_a_file_that_fails_leaves_no_trace_and_keeps_those_before_it(
    connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    carry(monkeypatch, ONE, TWO, BROKEN)
    with pytest.raises(asyncpg.DivisionByZeroError):
        await migrate(connection)
    assert sorted(await applied(connection)) == [1, 2]
    assert await connection.fetchval("SELECT to_regclass('idemproxy.three')") is None


async def test_a_schema_that_is_older_is_refused_with_the_remedy(
    connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    carry(monkeypatch, ONE)
    await migrate(connection)
    carry(monkeypatch, ONE, TWO)
    with pytest.raises(MigrationError, match="lacks 0002_two: run `idemproxy migrate`"):
        await require_current(connection)


async def test_a_schema_that_is_newer_is_refused_with_the_remedy(
    connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    carry(monkeypatch, ONE, TWO)
    await migrate(connection)
    carry(monkeypatch, ONE)
    for verb in (require_current, pending, migrate):
        with pytest.raises(MigrationError, match=r"at version 2, newer than this idemproxy knows .1.: run a newer"):
            await verb(connection)


async def test_a_file_that_was_edited_after_it_was_applied_is_refused(
    connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    carry(monkeypatch, ONE)
    await migrate(connection)
    carry(monkeypatch, Migration(1, "one", ONE.sql + " -- edited"))
    with pytest.raises(MigrationError, match="0001 was applied in another wording"):
        await migrate(connection)


async def test_a_lock_that_is_never_given_back_is_reported(
    empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrating, "LOCK_WAIT_SECONDS", 0.2)
    async with connected(empty_database, 2) as (one, two):
        await one.execute("SELECT pg_advisory_lock(hashtextextended('idemproxy.migrate', 0))")
        with pytest.raises(MigrationError, match="held the migration lock"):
            await migrate(two)
        await one.execute("SELECT pg_advisory_unlock_all()")
        assert await migrate(two) == available()
