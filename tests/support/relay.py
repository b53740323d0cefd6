"""Ways between two sockets: one that only changes the address, one that loses an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, urlsplit


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(65536):
        writer.write(piece)
        await writer.drain()
    writer.close()


@asynccontextmanager
async def over_tcp(dsn: str) -> AsyncIterator[str]:
    """The same database on a port, for what does not see this machine's files, nor the socket among them."""
    parts = urlsplit(dsn)
    folder = parse_qs(parts.query).get("host")
    if folder is None:
        yield dsn
        return

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_unix_connection(f"{folder[0]}/.s.PGSQL.5432")
        await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer), return_exceptions=True)

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    yield f"postgresql://{parts.username}@127.0.0.1:{port}{parts.path}"
    server.close()


@asynccontextmanager
async def losing_the_first_answer(port: int) -> AsyncIterator[tuple[str, list[bytes]]]:
    """An address that leads to this port; the first request arrives there, then its connection is gone.

    Gives the address, and a list that the lost answer is put into.
    """
    lost: list[bytes] = []

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        sending = asyncio.ensure_future(_copy(reader, inner_writer))
        try:
            answer = await inner_reader.read(65536)
            if not lost:
                lost.append(answer)
                writer.transport.abort()
                return
            writer.write(answer)
            await _copy(inner_reader, writer)
            await sending
        except ConnectionError:
            pass
        finally:
            sending.cancel()
            inner_writer.transport.abort()

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", lost
    server.close()
