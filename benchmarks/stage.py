"""What a run needs around it: an nginx upstream, a durable Postgres, Redis, and servers as processes of their own."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg

from idemproxy.store.embedded import EmbeddedPostgres

ROOT = Path(__file__).parents[1]
ANSWER = b'{"id":"ord_0001","state":"accepted","total":"41.80","currency":"EUR"}'

TOOLS = {
    "wrk": "the load generator (Debian: apt-get install wrk)",
    "nginx": "the upstream (Debian: apt-get install nginx-light)",
    "redis-server": "the rival's store (Debian: apt-get install redis-server)",
}
PACKAGES = {
    "idempotency_header_middleware": "asgi-idempotency-header",
    "fastapi": "fastapi (asgi-idempotency-header imports it)",
    "redis": "redis",
    "starlette": "starlette",
    "uvicorn": "uvicorn",
}

NGINX = """
daemon off; worker_processes 1; error_log stderr crit; pid {folder}/nginx.pid;
events {{ worker_connections 512; }}
http {{
  access_log off; keepalive_requests 100000000; keepalive_timeout 300s; default_type application/json;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port} backlog=1024;
    location / {{ if ($request_method = POST) {{ return 201 '{answer}'; }} return 200 '{answer}'; }}
  }}
}}
"""


def compiled() -> bool:
    """Whether what is measured is compiled, and from the sources as they are."""
    package = ROOT / "idemproxy"
    built = {path: path.parent / f"{path.name.partition('.')[0]}.py" for path in package.rglob("*.so")}
    return bool(built) and all(source.stat().st_mtime <= path.stat().st_mtime for path, source in built.items())


def missing(*, plain: bool) -> list[str]:
    """What has to be installed before a run, one line each."""
    lines = []
    if plain and any((ROOT / "idemproxy").rglob("*.so")):
        lines.append("idemproxy as plain Python: python hatch_build.py --clean")
    if not plain and not compiled():
        lines.append("idemproxy, compiled: python hatch_build.py (or measure it --plain)")
    lines += [f"{tool}: {why}" for tool, why in TOOLS.items() if shutil.which(tool) is None]
    lines += [
        f"{name}: pip install -e '.[bench]'"
        for module, name in PACKAGES.items()
        if importlib.util.find_spec(module) is None
    ]
    return lines


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Server:
    """A server under test, in a process (and perhaps children) of its own."""

    name: str
    port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def pids(self) -> list[int]:
        """The process and all its children, save the embedded database."""
        found, left = [], [self.process.pid]
        while left:
            pid = left.pop()
            found.append(pid)
            children = Path(f"/proc/{pid}/task/{pid}/children")
            left += [int(child) for child in children.read_text().split()] if children.exists() else []
        return found

    def cpu_seconds(self) -> float:
        ticks = 0
        for pid in self.pids():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def resident_mib(self) -> float:
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.pids())
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@dataclass
class Stage:
    folder: Path
    upstream: str
    postgres: str
    redis: str
    stack: AsyncExitStack
    databases: int = field(default=0)

    async def database(self) -> str:
        """A new, empty database on the one Postgres."""
        self.databases += 1
        name = f"bench_{self.databases}"
        connection = await asyncpg.connect(self.postgres)
        await connection.execute(f"CREATE DATABASE {name}")
        await connection.close()
        return self.postgres.replace("/idemproxy?", f"/{name}?")

    async def idemproxy(self, name: str = "idemproxy", dsn: str | None = None, **settings: str) -> Server:
        port, admin = free_port(), free_port()
        values = {
            "UPSTREAM": self.upstream,
            "LISTEN": f"127.0.0.1:{port}",
            "ADMIN_LISTEN": f"127.0.0.1:{admin}",
            "DATABASE_URL": dsn or await self.database(),
            "AUTO_MIGRATE": "true",
            **{key.upper(): value for key, value in settings.items()},
        }
        environment = {f"IDEMPROXY_{key}": value for key, value in values.items()}
        return await self.start(name, port, "idemproxy", "run", environment=environment)

    async def rival(self, module: str, *arguments: str) -> Server:
        port = free_port()
        return await self.start(module, port, f"benchmarks.rivals.{module}", str(port), *arguments)

    async def start(
        self, name: str, port: int, module: str, *arguments: str, environment: dict[str, str] | None = None
    ) -> Server:
        log = self.stack.enter_context((self.folder / f"{name}-{port}.log").open("wb"))
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("IDEMPROXY_")}
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            env={**inherited, **(environment or {})},
            stdout=log,
            stderr=log,
        )
        server = Server(name, port, process)
        self.stack.callback(stop, process)
        await listening(server, Path(log.name))
        return server


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


async def listening(server: Server, log: Path) -> None:
    for _ in range(600):
        if server.process.poll() is not None:
            raise RuntimeError(f"{server.name} did not start:\n{log.read_text()}")
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return
    raise RuntimeError(f"{server.name} does not listen:\n{log.read_text()}")


@asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="idemproxy-bench-")))
        folder.chmod(0o755)
        postgres = await EmbeddedPostgres.start(folder / "data", settings={"max_wal_size": "4GB"})
        stack.push_async_callback(postgres.stop)
        port = free_port()
        (folder / "nginx.conf").write_text(NGINX.format(folder=folder, port=port, answer=ANSWER.decode()))
        nginx = subprocess.Popen(["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")])
        stack.callback(stop, nginx)
        redis_socket = folder / "redis.sock"
        redis = subprocess.Popen(
            ["redis-server", "--port", "0", "--unixsocket", str(redis_socket), "--dir", str(folder)],
            stdout=subprocess.DEVNULL,
        )
        stack.callback(stop, redis)
        await listening(Server("nginx", port, nginx), folder / "nginx.conf")
        yield Stage(folder, f"http://127.0.0.1:{port}", postgres.dsn, str(redis_socket), stack)
