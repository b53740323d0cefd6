"""PgBouncer in transaction mode before the tests' Postgres, as hostile as it can be: few servers, taken in turn."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.link import far_end, through
from tests.support.process import free_port

SETTINGS = """
[databases]
* = {target}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 3
server_round_robin = 1
server_idle_timeout = 5
max_client_conn = 500
{more}
"""


@dataclass(frozen=True)
class PgBouncer:
    port: int
    server: str | tuple[str, int]

    def before(self, dsn: str) -> str:
        """The same database by way of this pooler; another server's is left as it is."""
        return through(dsn, self.port) if far_end(dsn) == self.server else dsn


def installed() -> bool:
    return shutil.which("pgbouncer") is not None


@contextmanager
def pgbouncer(dsn: str, more: str = "") -> Iterator[PgBouncer]:
    server, port = far_end(dsn), free_port()
    parts = urlsplit(dsn)
    host, number = (str(Path(server).parent), 5432) if isinstance(server, str) else server
    login = f"user={parts.username}" + (f" password={parts.password}" if parts.password else "")
    folder = Path(tempfile.mkdtemp(prefix="pgbouncer-"))
    folder.chmod(0o755)
    settings = folder / "pgbouncer.ini"
    settings.write_text(SETTINGS.format(target=f"host={host} port={number} {login}", port=port, more=more))
    settings.chmod(0o644)
    account = []
    if os.geteuid() == 0:  # as which it refuses to run; it must be the account that may use the server's socket
        account = ["-u", Path(host).owner() if isinstance(server, str) else "nobody"]
        if isinstance(server, str):
            Path(host).parent.chmod(0o711)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(["pgbouncer", *account, str(settings)], stdout=log, stderr=log)
        try:
            _listening(process, port, folder / "log")
            yield PgBouncer(port, server)
        finally:
            process.kill()
            process.wait()
            shutil.rmtree(folder, ignore_errors=True)


def _listening(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    give_up = time.monotonic() + 20
    while True:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < give_up, log.read_text()
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
