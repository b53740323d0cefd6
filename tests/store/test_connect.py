"""Which host a connection goes to."""

from __future__ import annotations

import asyncio
import socket
import time
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from idemproxy.store.connect import STAGGER_SECONDS, Primary, one_each
from tests.support.link import Link, far_end, through


@pytest.mark.parametrize(
    ("dsn", "urls"),
    [
        ("postgresql://u@h/d", ["postgresql://u@h/d"]),
        ("postgresql://u:p@h:1/d?sslmode=require", ["postgresql://u:p@h:1/d?sslmode=require"]),
        ("postgresql://u@/d?host=/tmp/x&port=5432", ["postgresql://u@/d?host=/tmp/x&port=5432"]),
        ("postgresql://u:p@a:1,b:2/d", ["postgresql://u:p@a:1/d", "postgresql://u:p@b:2/d"]),
        ("postgresql://u:p@a,b:2,[::1]:3/d", ["postgresql://u:p@a/d", "postgresql://u:p@b:2/d", "postgresql://u:p@[::1]:3/d"]),
        ("postgresql://u:a,b@a,b/d", ["postgresql://u:a,b@a/d", "postgresql://u:a,b@b/d"]),
        (
            "postgresql://u@a,b/d?target_session_attrs=any&sslmode=require",
            ["postgresql://u@a/d?sslmode=require", "postgresql://u@b/d?sslmode=require"],
        ),
        (
            "postgresql://u@/d?host=/x,/y&port=5432",
            ["postgresql://u@/d?host=%2Fx&port=5432", "postgresql://u@/d?host=%2Fy&port=5432"],
        ),
        ("postgresql://u@/d?host=a,b&port=1,2", ["postgresql://u@a:1/d", "postgresql://u@b:2/d"]),
    ],
)  # fmt: skip
def test_a_url_is_taken_apart_into_its_hosts(dsn: str, urls: list[str]) -> None:
    assert one_each(dsn) == urls


async def reaches(primary: Primary) -> tuple[str, int]:
    connection = await primary.connect(timeout=10)
    try:
        assert await connection.fetchval("SELECT 1") == 1
        return connection._addr  # type: ignore[no-any-return, attr-defined]
    finally:
        await connection.close()


async def test_a_host_that_is_silent_or_refuses_does_not_hold_up_the_other(database: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        async with Link(far_end(database)) as link:
            user = urlsplit(through(database, link.port)).netloc.rpartition("@")[0]
            ports = [silent.getsockname()[1], closed.getsockname()[1], link.port]
            hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
            primary = Primary(f"postgresql://{user}@{hosts}{urlsplit(database).path}?sslmode=disable")
            assert (await reaches(primary))[1] == link.port
            started = time.monotonic()
            assert (await reaches(primary))[1] == link.port
            assert parse_qs(urlsplit(primary._dsns[0]).query) == {"sslmode": ["disable"]}
            assert urlsplit(primary._dsns[0]).port == link.port, "the one that answered last is asked first"
            assert time.monotonic() - started < 10
            assert len(asyncio.all_tasks()) < 10


async def test_a_server_that_takes_no_writes_is_passed_over(database: str, rows: asyncpg.Connection) -> None:
    name = urlsplit(database).path[1:]
    await rows.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with pytest.raises(asyncpg.TargetServerAttributeNotMatched):
        await Primary(database).connect(timeout=10)
    await rows.execute(f"SET default_transaction_read_only = off; ALTER DATABASE {name} RESET ALL")
    assert await reaches(Primary(database))


def test_the_next_host_is_asked_well_within_the_time_that_a_connection_may_take() -> None:
    assert STAGGER_SECONDS * 2 < 0.5
