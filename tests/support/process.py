"""The product as its users run it: real processes, told what to do by their environment and by signals."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
import socket
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]
START_SECONDS = 30.0
POLL_SECONDS = 0.01


def environment(settings: dict[str, str]) -> dict[str, str]:
    """Ours, without any setting of the product, and with these."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("IDEMPROXY_", "_IDEMPROXY"))}
    return {**ours, **{f"IDEMPROXY_{name.upper()}": value for name, value in settings.items()}}


_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_ports = itertools.count(random.randrange(1000))


def free_port() -> int:
    """For somebody who will listen on it in a moment. Not one that the system would hand out by itself meanwhile, to
    an outgoing connection or to another test: each test process has a thousand of its own, below those."""
    while True:
        port = 12_000 + _WORKER % 20 * 1000 + next(_ports) % 1000
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


async def until(condition: Callable[[], bool], what: str, seconds: float = 10.0) -> None:
    """Wait for what cannot be awaited: something that another process does."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + seconds
    while not condition():
        assert loop.time() < give_up, f"not within {seconds:g} s: {what}"
        await asyncio.sleep(POLL_SECONDS)


async def fetch(port: int, path: str) -> tuple[int, str]:
    """GET on a connection of its own; OSError when nobody listens."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    return int(head.split(b" ")[1]), body.decode()


@dataclass
class Proxy:
    """A running `idemproxy run`."""

    process: Process
    port: int
    admin_port: int
    log: IO[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def output(self) -> str:
        self.log.seek(0)
        return self.log.read().decode()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def exit_code(self, seconds: float = 10.0) -> int:
        async with asyncio.timeout(seconds):
            return await self.process.wait()

    async def ready(self) -> tuple[int, str]:
        return await fetch(self.admin_port, "/readyz")

    async def until_ready_says(self, status: int, seconds: float = 10.0) -> str:
        """Ask until /readyz has this status; its text."""
        async with asyncio.timeout(seconds):
            while True:
                try:
                    got, text = await self.ready()
                except OSError:
                    got, text = 0, ""
                if got == status:
                    return text
                if self.process.returncode is not None:
                    raise AssertionError(f"exited with {self.process.returncode}:\n{self.output}")
                await asyncio.sleep(POLL_SECONDS)


@asynccontextmanager
async def running(**settings: str) -> AsyncIterator[Proxy]:
    """`idemproxy run` with these settings, ready; killed and reaped at the end, whatever happens."""
    settings = {"listen": f"127.0.0.1:{free_port()}", "admin_listen": f"127.0.0.1:{free_port()}", **settings}
    port, admin_port = (int(settings[name].rpartition(":")[2]) for name in ("listen", "admin_listen"))
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "idemproxy", "run"),
            cwd=ROOT,
            env=environment(settings),
            stdin=DEVNULL,
            stdout=log,
            stderr=log,
        )
        proxy = Proxy(process, port, admin_port, log)
        try:
            await proxy.until_ready_says(200, START_SECONDS)
            yield proxy
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


@dataclass(frozen=True)
class Finished:
    code: int
    out: str
    err: str

    @property
    def faults(self) -> list[str]:
        return self.err.splitlines()


async def idemproxy(*arguments: str, **settings: str) -> Finished:
    """Run a verb to its end."""
    return await python("-m", "idemproxy", *arguments, **settings)


async def python(*arguments: str, **settings: str) -> Finished:
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, cwd=ROOT, env=environment(settings), stdin=DEVNULL, stdout=PIPE, stderr=PIPE
    )
    try:
        async with asyncio.timeout(60):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return Finished(process.returncode, out.decode(), err.decode())
