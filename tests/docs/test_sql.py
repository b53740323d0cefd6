"""The SQL that operators are told to run, run, and the proxy working with what it made."""

from __future__ import annotations

import re
from urllib.parse import urlsplit, urlunsplit

import aiohttp
import asyncpg
import pytest

from tests.conftest import StartProxy, with_database
from tests.support.orders import orders_api
from tests.support.pages import Block, blocks
from tests.support.process import idemproxy

SQL = blocks("sql")
SET_UP = [block for block in SQL if "CREATE DATABASE" in block.text]
GRANTS = [block for block in SQL if "GRANT" in block.text]
OTHERS = [block for block in SQL if block not in SET_UP + GRANTS]


def as_role(dsn: str, name: str) -> str:
    parts = urlsplit(dsn)
    place = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{name}:secret@{place}"))


def statements(text: str) -> list[str]:
    return [statement for statement in re.split(r";\s*\n", text) if statement.strip()]


@pytest.mark.parametrize("block", SET_UP, ids=str)
async def test_a_role_and_a_database_made_so_are_all_that_a_migration_needs(
    block: Block, postgres: str, database: str
) -> None:
    name = f"mine_{urlsplit(database).path.strip('/')}"
    connection = await asyncpg.connect(postgres)
    try:
        for statement in statements(block.text):
            await connection.execute(re.sub(r"\bidemproxy\b", name, statement))
        done = await idemproxy("migrate", database_url=as_role(with_database(postgres, name), name))
        assert done.code == 0, done.err
    finally:
        await connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        await connection.execute(f"DROP ROLE IF EXISTS {name}")
        await connection.close()


@pytest.mark.parametrize("block", GRANTS, ids=str)
async def test_a_role_with_these_rights_only_is_enough_to_serve(
    block: Block, proxy: StartProxy, database: str, rows: asyncpg.Connection
) -> None:
    name = f"app_{urlsplit(database).path.strip('/')}"
    await rows.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'")
    try:
        await rows.execute(re.sub(r"TO \w+;", f"TO {name};", block.text))
        headers = {"Authorization": "me", "Idempotency-Key": "k"}
        async with (
            orders_api() as orders,
            proxy(orders.url, database_url=as_role(database, name)) as service,
            aiohttp.ClientSession(headers=headers) as client,
        ):
            for replay in ("false", "true"):
                async with client.post(f"http://127.0.0.1:{service.port}/orders", json={}) as reply:
                    assert reply.headers["Idempotency-Replay"] == replay
    finally:
        await rows.execute(f"DROP OWNED BY {name}")
        await rows.execute(f"DROP ROLE {name}")


@pytest.mark.parametrize("block", OTHERS, ids=str)
async def test_the_schema_takes_this(block: Block, rows: asyncpg.Connection) -> None:
    await rows.execute(block.text)
