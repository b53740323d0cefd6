"""The scripts of the `ha` profile, run on real servers: a copy that follows, and commits that wait for it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from idemproxy.store.embedded import EmbeddedPostgres
from tests.support.manifests import ROOT

SCRIPTS = ROOT / "deploy" / "compose"
SECONDS = 60.0
QUICK = {"fsync": "off", "full_page_writes": "off", "max_connections": "20"}


@dataclass(frozen=True)
class Primary:
    dsn: str
    sockets: Path
    cluster: Path
    binaries: Path

    async def script(self, name: str, *arguments: str, **environment: str) -> Process:
        """Start a script as the Postgres image would: as the server's account, its programs on the path."""
        owner = self.cluster.stat()
        account = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []} if os.geteuid() == 0 else {}
        text = (SCRIPTS / name).read_text(encoding="utf-8")  # the account may not be able to read the checkout
        return await asyncio.create_subprocess_exec(
            *("sh", "-c", text, name, *arguments),
            env={
                "PATH": f"{self.binaries}:/usr/bin:/bin",
                "LC_ALL": "C",
                "REPLICATION_PASSWORD": "it's",
                **environment,
            },
            cwd="/",
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            **account,  # type: ignore[arg-type]
        )

    async def done(self, name: str, *arguments: str, **environment: str) -> None:
        process = await self.script(name, *arguments, PGHOST=str(self.sockets), **environment)
        out, _ = await asyncio.wait_for(process.communicate(), SECONDS)
        assert process.returncode == 0, out.decode()


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not below pytest's own directory, which only its user may enter."""
    made = Path(tempfile.mkdtemp(prefix="idemproxy-test-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
async def primary(folder: Path) -> AsyncIterator[Primary]:
    home = folder / "primary"
    server = await EmbeddedPostgres.start(home, settings=QUICK)
    try:
        home.chmod(0o755)  # the scripts run as the server's account, which is not ours when we are root
        connection = await asyncpg.connect(server.dsn)
        pid = await connection.fetchval("SELECT pg_backend_pid()")
        program = Path(f"/proc/{pid}/exe").readlink()  # noqa: ASYNC240 - the kernel answers at once
        await connection.close()
        sockets = Path(parse_qs(urlsplit(server.dsn).query)["host"][0])
        cluster = next(home.glob("*/PG_VERSION")).parent
        yield Primary(server.dsn, sockets, cluster, program.parent)
    finally:
        await server.stop()


@asynccontextmanager
async def standby(primary: Primary, folder: Path) -> AsyncIterator[str]:
    """Its URL, once it takes reads."""
    owner = primary.cluster.stat()
    place = folder / "standby"
    place.mkdir(mode=0o700, exist_ok=True)
    os.chown(place, owner.st_uid, owner.st_gid)
    options = [
        "-c",
        "listen_addresses=",
        "-c",
        f"unix_socket_directories={place}",
        "-c",
        "unix_socket_permissions=0700",
    ]
    process = await primary.script(
        "standby.sh", *options, PGDATA=str(place / "18" / "docker"), PRIMARY=str(primary.sockets)
    )
    dsn = f"postgresql://idemproxy@/idemproxy?host={place}&port=5432"
    try:
        yield dsn
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
        await asyncio.wait_for(process.communicate(), SECONDS)


async def eventually(connection: asyncpg.Connection, query: str) -> object:
    """The first row that is not null, asked for until it is there."""
    async with asyncio.timeout(SECONDS):
        while (found := await connection.fetchval(query)) is None:
            await asyncio.sleep(0.05)
    return found


STATE = "SELECT sync_state FROM pg_stat_replication WHERE application_name = 'standby' AND state = 'streaming'"
WAITING = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


async def test_a_commit_is_acknowledged_when_the_standby_has_it_and_waits_when_it_is_gone(
    primary: Primary, folder: Path
) -> None:
    watcher = await asyncpg.connect(primary.dsn)
    writer = await asyncpg.connect(primary.dsn)
    names = {"POSTGRES_USER": "idemproxy", "POSTGRES_DB": "idemproxy", "PGDATA": str(primary.cluster)}
    await primary.done("primary.sh", **names)
    assert await watcher.fetchval("SELECT rolreplication FROM pg_roles WHERE rolname = 'replicator'")
    rules = "SELECT 1 FROM pg_hba_file_rules WHERE user_name = '{replicator}' AND auth_method = 'scram-sha-256'"
    assert await watcher.fetchval(rules) == 1

    async with standby(primary, folder) as copy:
        assert await eventually(watcher, STATE) == "async"
        await primary.done("synchronous.sh", "on", PGUSER="idemproxy")
        assert await eventually(watcher, f"{STATE} AND sync_state = 'quorum'") == "quorum"
        await writer.execute("CREATE TABLE proof AS SELECT 1 AS kept")
        reader = await asyncpg.connect(copy)
        assert await reader.fetchval("SELECT kept FROM proof") == 1
        assert await reader.fetchval("SELECT pg_is_in_recovery()")
        await reader.close()

    commit = asyncio.ensure_future(writer.execute("INSERT INTO proof VALUES (2)"))
    assert await eventually(watcher, WAITING) == 1
    assert not commit.done()
    await primary.done("synchronous.sh", "off", PGUSER="idemproxy")
    assert await asyncio.wait_for(commit, SECONDS) == "INSERT 0 1"

    async with standby(primary, folder):  # what is there already is not copied again
        assert await eventually(watcher, STATE) == "async"
    for connection in (watcher, writer):
        await connection.close()
