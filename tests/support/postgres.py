"""The Postgres that tests use: one that is running, the embedded one, or a container."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

from idemproxy.store.embedded import EmbeddedError, EmbeddedPostgres, find_bindir

QUICK = {"fsync": "off", "full_page_writes": "off", "max_connections": "100"}
"""Tests kill processes, never the machine: without fsync nothing that they look at can be lost."""
IMAGE = "postgres:18"


class Choice(StrEnum):
    URL = "url"
    EMBEDDED = "embedded"
    CONTAINER = "container"


def choose(environment: Mapping[str, str], embedded: Callable[[], bool], docker: Callable[[], bool]) -> Choice:
    """IDEMPROXY_TEST_POSTGRES decides; else a URL that is given, else what is there: binaries, a container engine."""
    named = environment.get("IDEMPROXY_TEST_POSTGRES")
    if named:
        return Choice(named)
    if environment.get("IDEMPROXY_TEST_DATABASE_URL"):
        return Choice.URL
    if embedded() or not docker():
        return Choice.EMBEDDED  # which says what is missing, when nothing is there
    return Choice.CONTAINER


def has_binaries() -> bool:
    try:
        find_bindir()
    except EmbeddedError:
        return False
    return True


def has_docker() -> bool:
    try:
        import docker

        return bool(docker.from_env(timeout=2).ping())
    except Exception:  # not installed, not running, not allowed: all the same here
        return False


@contextmanager
def postgres_server(choice: Choice) -> Iterator[str]:
    match choice:
        case Choice.URL:
            yield os.environ["IDEMPROXY_TEST_DATABASE_URL"]
        case Choice.CONTAINER:
            yield from _container()
        case Choice.EMBEDDED:
            yield from _embedded()


def _embedded() -> Iterator[str]:
    folder = Path(tempfile.mkdtemp(prefix="idemproxy-test-"))
    server = asyncio.run(EmbeddedPostgres.start(folder, settings=QUICK))
    try:
        yield server.dsn
    finally:
        asyncio.run(server.stop())
        shutil.rmtree(folder, ignore_errors=True)


def _container() -> Iterator[str]:
    from testcontainers.community.postgres import PostgresContainer

    image = os.environ.get("IDEMPROXY_TEST_POSTGRES_IMAGE", IMAGE)
    settings = [word for name, value in QUICK.items() for word in ("-c", f"{name}={value}")]
    container = PostgresContainer(image, username="idemproxy", password="idemproxy", dbname="idemproxy", driver=None)
    with container.with_command(["postgres", *settings]) as running:
        yield running.get_connection_url()
