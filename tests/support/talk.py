"""A client that says what a test wants, byte by byte, and hangs up when the test says so."""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class Said:
    """An answer as it came off the wire."""

    status: int
    headers: dict[str, str]
    body: bytes


def post(body: bytes, *lines: bytes, path: bytes = b"/orders", length: int | None = None) -> bytes:
    """A POST with a key and a caller, and with these header lines."""
    head = (
        b"POST %b HTTP/1.1" % path,
        b"Host: orders",
        b"Authorization: Bearer ada",
        b"Idempotency-Key: order-1",
        *lines,
        b"Content-Length: %d" % (len(body) if length is None else length),
        b"",
        b"",
    )
    return b"\r\n".join(head) + body


class Client:
    """`async with await Client.to(port) as client:`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def to(cls, port: int, *, receive_buffer: int | None = None) -> Self:
        connection = socket.socket()
        connection.setblocking(False)
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
        return cls(*await asyncio.open_connection(sock=connection))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def hear(self) -> Said:
        """One answer with a Content-Length."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines if line)
        body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return Said(int(first.split(" ")[1]), headers, body)

    def hang_up(self, how: str) -> None:
        """`fin` says goodbye; `reset` is a client that crashed."""
        if how == "reset":
            linger = struct.pack("ii", 1, 0)
            self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.writer.transport.abort()
