"""A primary and a standby, both real, from the binaries of the embedded Postgres; the line between them can be cut."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

import asyncpg

from idemproxy.store.embedded import EmbeddedPostgres, find_bindir
from idemproxy.store.migrate import migrate
from tests.support.link import Link, far_end

SETTINGS = {"fsync": "off"}
"""Both servers are killed, never the machine."""


@dataclass
class Cluster:
    primary: EmbeddedPostgres
    standby: EmbeddedPostgres
    line: Link
    """What the standby hears of the primary."""

    @property
    def dsn(self) -> str:
        """One URL for both."""
        hosts = ",".join(str(Path(str(far_end(server.dsn))).parent) for server in (self.primary, self.standby))
        parts = urlsplit(self.primary.dsn)
        return parts._replace(query=f"host={quote(hosts)}&port=5432").geturl()

    async def wait_for_standby(self, *, synchronous: bool) -> None:
        """Have the primary wait for the standby at each commit, or see that it does not."""
        connection = await asyncpg.connect(self.primary.dsn)
        names = "ANY 1 (*)" if synchronous else ""
        await connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
        await connection.execute("SELECT pg_reload_conf()")
        wanted = "quorum" if synchronous else "async"
        async with asyncio.timeout(20):
            while await connection.fetchval("SELECT sync_state FROM pg_stat_replication") != wanted:
                await asyncio.sleep(0.02)
        await connection.close()

    async def kill_primary(self) -> None:
        """All of it at once, and what it has sent with it, as when a machine dies."""
        await self.line.cut()
        for pid in processes(self.primary):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def promote(self) -> None:
        connection = await asyncpg.connect(self.standby.dsn)
        assert await connection.fetchval("SELECT pg_promote()")
        await connection.close()


def processes(server: EmbeddedPostgres) -> list[int]:
    """The server and its children."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    return [server.pid, *map(int, children)]


@asynccontextmanager
async def cluster(*, synchronous: bool) -> AsyncIterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="cluster-"))
    os.chmod(folder, 0o711)  # noqa: PTH101 - the servers may run under another account
    primary = await EmbeddedPostgres.start(folder / "a", settings=SETTINGS)
    try:
        connection = await asyncpg.connect(primary.dsn)
        await migrate(connection)
        await connection.close()
        async with Link(far_end(primary.dsn)) as line:
            standby = await _standby(folder / "b", primary, line.port)
            try:
                made = Cluster(primary, standby, line)
                await made.wait_for_standby(synchronous=synchronous)
                yield made
            finally:
                await standby.stop()
    finally:
        await primary.stop()
        shutil.rmtree(folder, ignore_errors=True)


async def _standby(folder: Path, primary: EmbeddedPostgres, port: int) -> EmbeddedPostgres:
    source = f"host=127.0.0.1 port={port} user={urlsplit(primary.dsn).username}"
    await asyncio.to_thread(_copy, folder / "postgres", source, Path(str(far_end(primary.dsn))).parent)
    return await EmbeddedPostgres.start(folder, settings={**SETTINGS, "primary_conninfo": source})


def _copy(data: Path, source: str, original: Path) -> None:
    """A base backup that will start as a standby, owned by whoever owns the original."""
    data.parent.mkdir()
    how = ["-D", str(data), "-d", source, "-X", "stream", "--checkpoint=fast", "--no-sync"]
    backup = [str(find_bindir() / "pg_basebackup"), *how]
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
    copied = subprocess.run(backup, capture_output=True, text=True, check=False, env=environment)
    assert copied.returncode == 0, copied.stderr
    (data / "standby.signal").touch()
    owner = original.stat()
    for path in (data, *data.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
