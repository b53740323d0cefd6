"""A way to the database that can be cut, stopped without a word, or made to lose a reply."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, urlsplit


class Forwarder:
    """Listens on TCP and passes on, both ways, what it may."""

    def __init__(self, dsn: str) -> None:
        parts = urlsplit(dsn)
        query = parse_qs(parts.query)
        self._host = query.get("host", [parts.hostname or ""])[0]
        self._port = int(query.get("port", [str(parts.port or 5432)])[0])
        self._user, self._password = parts.username, parts.password
        self._name = parts.path
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._lose = False
        self.lost = asyncio.Event()
        """Set once a reply was lost that `lose_next_reply` asked for."""

    async def open(self) -> str:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        login = f"{self._user or 'postgres'}{':' + self._password if self._password else ''}@"
        return f"postgresql://{login}127.0.0.1:{port}{self._name}?sslmode=disable"

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        await self._flowing.wait()
        if self._host.startswith("/"):
            there = await asyncio.open_unix_connection(f"{self._host}/.s.PGSQL.{self._port}")
        else:
            there = await asyncio.open_connection(self._host, self._port)
        self._writers.append(there[1])
        self._tasks += [
            asyncio.create_task(self._copy(reader, there[1])),
            asyncio.create_task(self._copy(there[0], writer, replies=True)),
        ]

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, replies: bool = False) -> None:
        try:
            while data := await reader.read(65536):
                await self._flowing.wait()
                if replies and self._lose:
                    self._lose = False
                    self.lost.set()
                    writer.transport.abort()
                    return
                writer.write(data)
        except ConnectionError:
            pass
        writer.close()

    def lose_next_reply(self) -> None:
        """The next thing the server says is thrown away, and its connection with it: a commit in doubt."""
        self._lose = True

    def freeze(self) -> None:
        self._flowing.clear()

    def cut(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def close(self) -> None:
        self._flowing.set()
        self.cut()
        await asyncio.gather(*self._tasks)


@asynccontextmanager
async def way_to(database: str) -> AsyncIterator[tuple[Forwarder, str]]:
    forwarder = Forwarder(database)
    url = await forwarder.open()
    try:
        yield forwarder, url
    finally:
        await forwarder.close()
