"""A client on a raw connection: it says what a test tells it to say, and hears answers piece by piece."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

SECONDS = 30.0


class Wire:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> bytes:
        async with asyncio.timeout(SECONDS):
            return await self.reader.readuntil(b"\r\n\r\n")

    async def read(self, size: int) -> bytes:
        async with asyncio.timeout(SECONDS):
            return await self.reader.readexactly(size)

    async def chunk(self) -> bytes:
        """The content of the next chunk, `b""` for the last one."""
        async with asyncio.timeout(SECONDS):
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            return (await self.reader.readexactly(size + 2))[:-2] if size else b""

    async def answer(self) -> tuple[bytes, bytes]:
        """Head and whole body, however it is framed."""
        head = await self.head()
        length = re.search(rb"\r\ncontent-length: (\d+)\r\n", head.lower())
        if length is not None:
            return head, await self.read(int(length[1]))
        body = b""
        if b"\r\ntransfer-encoding: chunked\r\n" in head.lower():
            while piece := await self.chunk():
                body += piece
            await self.read(2)
            return head, body
        async with asyncio.timeout(SECONDS):
            return head, await self.reader.read()

    async def rest(self) -> bytes:
        async with asyncio.timeout(SECONDS):
            return await self.reader.read()


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Wire]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()
