"""Behind PgBouncer in transaction mode, with the settings that the documentation names."""

from __future__ import annotations

import asyncio
import os
import pwd
import re
import shutil
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from tests.conftest import StartProxy
from tests.support.manifests import ROOT
from tests.support.orders import orders_api
from tests.support.process import free_port
from tests.support.relay import over_tcp

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
PAGE = (ROOT / "docs" / "maintenance.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed")

CONFIGURATION = """
[databases]
* = host={host} port={port} user={user} password={password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 2
"""


@asynccontextmanager
async def pgbouncer(dsn: str, folder: Path) -> AsyncIterator[str]:
    """Two server connections for everybody: clients meet each other's."""
    assert PROGRAM is not None
    parts = urlsplit(dsn)
    listen = free_port()
    words = {"host": parts.hostname, "port": parts.port, "user": parts.username, "password": parts.password or "none"}
    file = folder / "pgbouncer.ini"
    file.write_text(CONFIGURATION.format(**words, listen=listen), encoding="utf-8")
    account = {"user": pwd.getpwnam("nobody").pw_uid, "extra_groups": []} if os.geteuid() == 0 else {}
    read = os.open(file, os.O_RDONLY)  # the account may not be able to walk there
    process = await asyncio.create_subprocess_exec(
        *(PROGRAM, "--quiet", f"/dev/fd/{read}"),
        stdin=DEVNULL,
        stdout=DEVNULL,
        stderr=DEVNULL,
        pass_fds=(read,),
        **account,  # type: ignore[arg-type]
    )
    os.close(read)
    try:
        async with asyncio.timeout(30):
            while True:
                assert process.returncode is None
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", listen)
                    writer.close()
                    break
                except OSError:
                    await asyncio.sleep(0.05)
        yield f"postgresql://{parts.username}@127.0.0.1:{listen}{parts.path}"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_many_writes_at_once_are_each_executed_once_and_replayed(
    proxy: StartProxy, database: str, tmp_path: Path
) -> None:
    documented = dict(re.findall(r"^IDEMPROXY_(\w+)=(\S+)$", PAGE, re.MULTILINE))
    settings = {name.lower(): value for name, value in documented.items() if name == "DATABASE_STATEMENT_CACHE_SIZE"}
    assert settings
    async with (
        orders_api() as orders,
        over_tcp(database) as dsn,
        pgbouncer(dsn, tmp_path) as bouncer,
        proxy(orders.url, database_url=bouncer, **settings) as service,
        aiohttp.ClientSession(headers={"Authorization": "Bearer me"}) as client,
    ):

        async def write(number: int) -> tuple[int, str]:
            headers = {"Idempotency-Key": f"key-{number}"}
            async with client.post(f"http://127.0.0.1:{service.port}/orders", json=number, headers=headers) as reply:
                return reply.status, reply.headers["Idempotency-Replay"]

        assert set(await asyncio.gather(*map(write, range(40)))) == {(201, "false")}
        assert set(await asyncio.gather(*map(write, range(40)))) == {(200, "true")}
        assert orders.executions == 40
