"""One Postgres per test process, one migrated template in it, one clone of that per test."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from idemproxy.service import Service
from idemproxy.settings import load
from idemproxy.store.migrate import migrate
from tests.support.compiled import stale
from tests.support.postgres import choose, has_binaries, has_docker, postgres_server

TEMPLATE = "idemproxy_template"


def pytest_configure() -> None:
    if changed := stale():
        pytest.exit(f"changed since compiled: {', '.join(changed)}; run `python hatch_build.py`, with --clean for none")


_numbers = itertools.count()


def with_database(dsn: str, name: str) -> str:
    return urlunsplit(urlsplit(dsn)._replace(path=f"/{name}"))


async def _make_template(dsn: str, name: str) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute(f"DROP DATABASE IF EXISTS {name}")
    await connection.execute(f"CREATE DATABASE {name}")
    await connection.close()
    connection = await asyncpg.connect(with_database(dsn, name))
    await migrate(connection)
    await connection.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a Postgres that tests may create databases in."""
    with postgres_server(choose(os.environ, has_binaries, has_docker)) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def template(postgres: str) -> str:
    name = f"{TEMPLATE}_{os.getpid()}"
    asyncio.run(_make_template(postgres, name))
    return name


@pytest.fixture
async def empty_database(postgres: str) -> AsyncIterator[str]:
    """The URL of a database that has never been migrated."""
    async with _database(postgres, "template1") as dsn:
        yield dsn


@pytest.fixture
async def database(postgres: str, template: str) -> AsyncIterator[str]:
    """The URL of a migrated database of the test's own."""
    async with _database(postgres, template) as dsn:
        yield dsn


@asynccontextmanager
async def _database(postgres: str, template: str) -> AsyncIterator[str]:
    name = f"test_{os.getpid()}_{next(_numbers)}"
    connection = await asyncpg.connect(postgres)
    try:
        await connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        yield with_database(postgres, name)
        await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
    finally:
        await connection.close()


class StartProxy(Protocol):
    def __call__(self, upstream: str, **settings: str) -> AbstractAsyncContextManager[Service]: ...


@pytest.fixture
def proxy(database: str) -> StartProxy:
    """Start a proxy in this process: `async with proxy(upstream_url, ttl_seconds="60") as service:`."""

    @asynccontextmanager
    async def start(upstream: str, **settings: str) -> AsyncIterator[Service]:
        values = {
            "upstream": upstream,
            "listen": "127.0.0.1:0",
            "admin_listen": "127.0.0.1:0",
            "database_url": database,
            "cache_bytes": "0",  # tests move time in SQL, which a cache does not see; its own tests turn it on
            **settings,
        }
        async with Service(load({}, values)) as service:
            yield service

    return start


@pytest.fixture
async def rows(database: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection to the test's database, to look at records and to move their time."""
    connection = await asyncpg.connect(database)
    yield connection
    await connection.close()
