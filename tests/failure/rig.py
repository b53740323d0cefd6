"""Two proxies, a line to Postgres and an upstream, each a process that can really be killed, stopped and cut off."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import orjson

from tests.failure.control import ADDRESS
from tests.failure.upstream import executions
from tests.support.link import through
from tests.support.process import ROOT, START_SECONDS, environment, fetch, free_port

SMALL_BUFFER = 4096
SETTLE_SECONDS = 20.0


class Child:
    """A process of ours: started, signalled, started again."""

    def __init__(self, *command: str, env: dict[str, str]) -> None:
        self._command = command
        self.env = env
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *self._command],
            cwd=ROOT,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
        )

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def close(self) -> None:
        self.kill()
        self.log.close()

    @property
    def output(self) -> str:
        self.log.seek(0)
        return self.log.read().decode()


@dataclass
class Instance:
    """One proxy."""

    child: Child
    port: int
    admin_port: int

    @classmethod
    def make(cls, module: str, settings: dict[str, str], control_port: int) -> Instance:
        port, admin_port = free_port(), free_port()
        listen = {"listen": f"127.0.0.1:{port}", "admin_listen": f"127.0.0.1:{admin_port}"}
        env = {**environment({**settings, **listen}), ADDRESS: str(control_port)}
        command = ("-m", module) if module != "idemproxy" else ("-m", module, "run")
        return cls(Child(*command, env=env), port, admin_port)

    async def ready(self) -> None:
        """Start it if it is not there, and wait until it serves."""
        if not self.child.alive:
            self.child.start()
        async with asyncio.timeout(START_SECONDS):
            while True:
                with contextlib.suppress(OSError, IndexError):
                    if (await fetch(self.admin_port, "/readyz"))[0] == 200:
                        return
                assert self.child.alive, self.child.output
                await asyncio.sleep(0.02)


@dataclass
class Rig:
    """`victim` is what faults happen to; `other` is another instance on the same database, whose line stays whole."""

    victim: Instance
    other: Instance
    upstream: Child
    upstream_port: int
    ledger: Path
    database: str
    link_port: int
    control_port: int
    numbers: Iterator[int]

    @classmethod
    def make(cls, database: str, folder: Path, numbers: Iterator[int], **settings: str) -> Rig:
        upstream_port, link_port, control_port = free_port(), free_port(), free_port()
        ledger = folder / "ledger"
        common = {"upstream": f"http://127.0.0.1:{upstream_port}", **settings}
        upstream = Child(
            *("-m", "tests.failure.upstream", str(upstream_port), str(ledger)),
            env={**os.environ, ADDRESS: str(control_port)},
        )
        victim = {**common, "database_url": through(database, link_port)}
        other = {**common, "database_url": database}
        return cls(
            Instance.make("tests.failure.proxy", victim, control_port),
            Instance.make("idemproxy", other, control_port),
            upstream,
            upstream_port,
            ledger,
            database,
            link_port,
            control_port,
            numbers,
        )

    async def up(self) -> None:
        """Everything runs; what a test has killed is started again."""
        await self.upstream_up()
        await asyncio.gather(self.victim.ready(), self.other.ready())

    async def upstream_up(self) -> None:
        if not self.upstream.alive:
            self.upstream.start()
        async with asyncio.timeout(START_SECONDS):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self.upstream_port)
                except OSError:
                    assert self.upstream.alive, self.upstream.output
                    await asyncio.sleep(0.02)
                else:
                    writer.close()
                    return

    def down(self) -> None:
        for child in (self.victim.child, self.other.child, self.upstream):
            child.close()

    def runs(self, key: str) -> int:
        return executions(self.ledger)[key]


WORDS = {
    "IDEMPOTENCY_IN_PROGRESS": "in-progress",
    "IDEMPOTENCY_OUTCOME_UNKNOWN": "held",
    "IDEMPOTENCY_STORE_UNAVAILABLE": "no-store",
    "UPSTREAM_UNREACHABLE": "unreachable",
    "UPSTREAM_DISCONNECTED": "lost",
}


@dataclass
class Client:
    """One write under one key, over a connection of its own, which can stop or break off where it likes."""

    port: int
    key: str
    body: bytes = b'{"item": "tea"}'
    bodies: set[bytes] = field(default_factory=set)
    """What every 2xx under this key said; shared by the clients of one key."""

    async def connect(self) -> None:
        with contextlib.ExitStack() as undone:
            plain = undone.enter_context(socket.socket())
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
            plain.setblocking(False)
            await asyncio.get_running_loop().sock_connect(plain, ("127.0.0.1", self.port))
            undone.pop_all()  # from here on the connection's: it closes what it was given
        self._reader, self._writer = await asyncio.open_connection(sock=plain, limit=SMALL_BUFFER)

    async def send_head(self, *, expect: bool = False) -> None:
        await self.connect()
        asks = "Expect: 100-continue\r\n" if expect else ""
        self._writer.write(
            f"POST /orders HTTP/1.1\r\nHost: orders\r\nAuthorization: Bearer ada\r\nIdempotency-Key: {self.key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(self.body)}\r\n{asks}"
            "Connection: close\r\n\r\n".encode()
        )
        if expect:
            assert await self._reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"

    async def send_body(self) -> None:
        self._writer.write(self.body)
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    async def send(self) -> None:
        await self.send_head()
        await self.send_body()

    async def first_bytes(self) -> None:
        """The reply has begun."""
        self._begun = await self._reader.readexactly(100)

    _begun: bytes = b""

    def abort(self) -> None:
        self._writer.transport.abort()

    async def heard(self) -> str:
        """The reply in a word; `cut-off` when there was none, or not all of one."""
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                reply = self._begun + await self._reader.read()
        except ConnectionError:
            reply = b""
        finally:
            self._writer.close()
        head, end, body = reply.partition(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        if not end or len(body) < int(fields.get(b"content-length", b"0")):
            return "cut-off"
        status = int(head.split(b" ", 2)[1])
        if status >= 400:
            code: str = orjson.loads(body)["error"]["code"]
            return WORDS.get(code, code)
        self.bodies.add(body)
        if fields[b"idempotency-replay"] == b"true":
            return "replay"
        return "unstored" if fields.get(b"idempotency-stored") == b"false" else "created"

    async def again(self, port: int) -> str:
        """The same request, by another connection."""
        other = Client(port, self.key, self.body, self.bodies)
        await other.send()
        return await other.heard()

    async def until_settled(self, port: int, *, not_yet: tuple[str, ...] = ("in-progress",)) -> str:
        async with asyncio.timeout(SETTLE_SECONDS):
            while (word := await self.again(port)) in not_yet:
                await asyncio.sleep(0.05)
        return word
