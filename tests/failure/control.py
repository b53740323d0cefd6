"""How a test stops a process at a named point: the process says that it is there, and waits to be told to go on.

The processes under test run `at`; the test runs a `Control`, whose address they find in their environment. Points
that no test has armed are passed at once, and so are all of them while nobody listens.
"""

from __future__ import annotations

import asyncio
import os
from types import TracebackType
from typing import Self

ADDRESS = "IDEMPROXY_TEST_CONTROL"
REACH_SECONDS = 20.0


async def at(point: str, key: str) -> None:
    """The write under `key` is at `point`: wait there if a test says so."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(os.environ[ADDRESS]))
    except (KeyError, OSError):
        return
    writer.write(f"{point} {key}\n".encode())
    try:
        await reader.readline()
    finally:
        writer.close()


class Control:
    """Listens on `port` while it is entered; `arm` a point for a key, await `reached`, and let it `go_on`."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._armed: dict[tuple[str, str], asyncio.Event] = {}
        self._waiting: dict[tuple[str, str], asyncio.Event] = {}

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for held in self._waiting.values():
            held.set()
        self._server.close()
        await self._server.wait_closed()

    def arm(self, point: str, key: str) -> None:
        self._armed[point, key] = asyncio.Event()
        self._waiting[point, key] = asyncio.Event()

    async def reached(self, point: str, key: str) -> None:
        async with asyncio.timeout(REACH_SECONDS):
            await self._armed[point, key].wait()

    def go_on(self, point: str, key: str) -> None:
        self._waiting[point, key].set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            point, _, key = (await reader.readline()).decode().strip().partition(" ")
            if (point, key) in self._armed and not self._armed[point, key].is_set():  # later attempts pass
                self._armed[point, key].set()
                await self._waiting[point, key].wait()
            writer.write(b"\n")
            await writer.drain()
        except ConnectionError:
            pass  # the process was killed where it waited
        finally:
            writer.close()
