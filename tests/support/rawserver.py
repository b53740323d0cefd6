"""An upstream whose every byte a test decides."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from types import TracebackType
from typing import Self

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

_recorded: ContextVar[list[bytes]] = ContextVar("recorded")
"""The `requests` of the server in whose handler `read_request` is called."""


class RawServer:
    """Runs `handler` for each connection and records what `read_request` reads there."""

    def __init__(
        self, handler: Handler, *, tls: ssl.SSLContext | None = None, path: str | None = None, port: int = 0
    ) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self.port = port
        self._handler = handler
        self._tls = tls
        self._path = path
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        if self._path is not None:
            return f"http+unix://{self._path.replace('/', '%2F')}"
        return f"https://localhost:{self.port}" if self._tls else f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        if self._path is not None:
            self._server = await asyncio.start_unix_server(self._serve, self._path)
        else:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self._tls)
            self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        _recorded.set(self.requests)
        try:
            await self._handler(reader, writer)
            await writer.drain()
            writer.close()
        except (asyncio.CancelledError, asyncio.IncompleteReadError, ConnectionError):
            writer.transport.abort()


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """One whole request: head, and a body by Content-Length or chunks."""
    head = await reader.readuntil(b"\r\n\r\n")
    pieces = [head]
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if line)
    if fields.get(b"transfer-encoding") == b"chunked":
        size = -1
        while size != 0:
            line = await reader.readuntil(b"\r\n")
            size = int(line, 16)
            pieces += [line, await reader.readexactly(size + 2)]
    else:
        pieces.append(await reader.readexactly(int(fields.get(b"content-length", 0))))
    request = b"".join(pieces)
    _recorded.get().append(request)
    return request


def answering(*answers: bytes) -> Handler:
    """Give these answers to the requests of a connection, one each; then wait for the client to close it."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await read_request(reader)
            writer.write(answer)
        await reader.read()

    return handler


def closing_after(answer: bytes) -> Handler:
    """Read one request, write `answer`, close."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer)

    return handler


def resetting_after(answer: bytes) -> Handler:
    """Read one request, write `answer`, and once that has surely arrived, reset the connection."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer)
        await asyncio.sleep(0.02)  # a reset discards what the peer has not read yet
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()

    return handler


def ok(body: bytes = b"ok", *lines: bytes) -> bytes:
    """A 200 with Content-Length."""
    return b"\r\n".join((b"HTTP/1.1 200 OK", *lines, b"Content-Length: %d" % len(body), b"", body))
