"""A line to Postgres, or to anything else, that a test can cut, hold up and mend."""

from __future__ import annotations

import asyncio
import socket
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, urlsplit, urlunsplit

CHUNK = 65536


def far_end(dsn: str) -> str | tuple[str, int]:
    """Where a database URL leads to: the path of a Unix socket, or host and port."""
    parts = urlsplit(dsn)
    query = parse_qs(parts.query)
    host = (query.get("host") or [parts.hostname or "127.0.0.1"])[0]
    port = int((query.get("port") or [str(parts.port or 5432)])[0])
    return f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, port)


def through(dsn: str, port: int) -> str:
    """The same database, by way of a link that listens on `port`."""
    parts = urlsplit(dsn)
    user = parts.netloc.rpartition("@")[0]
    return urlunsplit(parts._replace(netloc=f"{user}@127.0.0.1:{port}", query="sslmode=disable"))


class Link:
    """Passes everything on between `port` and the far end, until it is told otherwise."""

    def __init__(self, far_end: str | tuple[str, int], port: int = 0) -> None:
        self._far_end = far_end
        self.port = port
        self.delay = 0.0
        """Seconds that everything from the far end is late, as on a long or a busy line."""
        self.ends_are_told = True
        """Whether a connection that has ended at the far end is closed here."""
        self.ended = asyncio.Event()
        """Set when the far end has ended a connection, and all that it said before has been passed on."""
        self._needles: list[bytes] = []
        self._held = asyncio.Event()
        self._release = asyncio.Event()
        self._lines: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        await self.mend()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def mend(self) -> None:
        """Take connections (again)."""
        if self._server is None:
            listener = socket.create_server(("127.0.0.1", self.port))
            self.port = listener.getsockname()[1]
            self._server = await asyncio.start_server(self._serve, sock=listener)

    async def cut(self) -> None:
        """Break every connection and refuse new ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.drop()
        self._release.set()

    def drop(self) -> None:
        """Break every connection; new ones are welcome."""
        for ends in list(self._lines):
            for end in ends:
                end.transport.abort()

    def hold_reply_to(self, needle: bytes) -> None:
        """What holds `needle` goes through; what comes back on that connection is held up until `let_go`."""
        self._needles.append(needle)
        self._held.clear()
        self._release.clear()

    async def held(self) -> None:
        """Wait until a reply was held up: by then, its statement has been carried out."""
        async with asyncio.timeout(20):
            await self._held.wait()

    def let_go(self) -> None:
        self._release.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if isinstance(self._far_end, str):
                far_reader, far_writer = await asyncio.open_unix_connection(self._far_end)
            else:
                far_reader, far_writer = await asyncio.open_connection(*self._far_end)
        except OSError:
            writer.transport.abort()
            return
        ends = (writer, far_writer)
        self._lines.add(ends)
        hold = asyncio.Event()
        pumps = [
            asyncio.create_task(self._pump_there(reader, far_writer, hold)),
            asyncio.create_task(self._pump_back(far_reader, writer, hold)),
        ]
        self._tasks.update(pumps)

        def ended(pump: asyncio.Task[None]) -> None:
            self._tasks.discard(pump)
            if self.ends_are_told:
                self._lines.discard(ends)
                for end in ends:
                    end.close()

        for pump in pumps:
            pump.add_done_callback(ended)

    async def _pump_there(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hold: asyncio.Event
    ) -> None:
        try:
            while data := await reader.read(CHUNK):
                for needle in self._needles:
                    if needle in data:
                        self._needles.remove(needle)
                        hold.set()
                        break
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass

    async def _pump_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hold: asyncio.Event) -> None:
        try:
            while data := await reader.read(CHUNK):
                if hold.is_set():
                    hold.clear()
                    self._held.set()
                    await self._release.wait()
                await asyncio.sleep(self.delay)
                writer.write(data)
                await writer.drain()
            self.ended.set()
        except ConnectionError:
            pass
