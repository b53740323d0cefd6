"""Bodies of any size pass in bounded memory: measured on the real process."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from tests.support.process import Proxy, running
from tests.support.rawserver import RawServer
from tests.support.wire import connected

MIB = 1024 * 1024
SIZE = 1024 * MIB
PIECE = b"x" * MIB
GROWTH = 64 * MIB
KEYED = b"POST /down\r\nAuthorization: Bearer ada\r\nIdempotency-Key: order-1\r\n"


def resident(proxy: Proxy) -> int:
    """The most memory that the process has had at any time, in bytes."""
    status = Path(f"/proc/{proxy.process.pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Takes all that is sent, and gives as much when asked with GET."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % SIZE)
            for _ in range(SIZE // MIB):
                writer.write(PIECE)
                await writer.drain()
        else:
            left = SIZE
            while left:
                piece = await reader.read(MIB)
                assert piece
                left -= len(piece)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwhole")


@pytest.fixture(autouse=True)
def _on_linux() -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("memory is measured in /proc")


async def test_a_gibibyte_up_and_a_gibibyte_down(database: str) -> None:
    async with (
        RawServer(serve) as upstream,
        running(upstream=upstream.url, database_url=database) as proxy,
    ):
        before = resident(proxy)
        async with connected(proxy.port) as wire:
            await wire.say(b"PUT /up HTTP/1.1\r\nHost: api\r\nContent-Length: %d\r\n\r\n" % SIZE)
            for _ in range(SIZE // MIB):
                await wire.say(PIECE)
            assert (await wire.answer())[1] == b"whole"
        async with connected(proxy.port) as wire:
            await wire.say(b"GET /down HTTP/1.1\r\nHost: api\r\n\r\n")
            await wire.head()
            left = SIZE
            while left:
                piece = await wire.reader.read(MIB)
                assert piece
                left -= len(piece)
        assert resident(proxy) - before < GROWTH


async def stands_still(moved: list[int]) -> int:
    """How many pieces have moved, once no more do."""
    before = -1
    while before != moved[0]:
        before = moved[0]
        await asyncio.sleep(0.3)
    return before


@pytest.mark.parametrize("lines", [b"GET /down", KEYED], ids=["unguarded", "guarded"])
async def test_a_client_that_does_not_read_holds_the_upstream_back(database: str, lines: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % SIZE)
        while True:
            writer.write(PIECE)
            await writer.drain()
            written[0] += 1

    written = [0]
    async with (
        RawServer(serve) as upstream,
        running(upstream=upstream.url, database_url=database) as proxy,
        connected(proxy.port) as wire,
    ):
        method, _, more = lines.partition(b"\r\n")
        await wire.say(method + b" HTTP/1.1\r\nHost: api\r\n" + more + b"\r\n")
        await wire.head()
        assert await stands_still(written) < 64


async def test_an_upstream_that_does_not_read_holds_the_client_back(database: str) -> None:
    async def serve(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.Event().wait()

    async def send() -> None:
        while True:
            await wire.say(PIECE)
            written[0] += 1

    written = [0]
    async with (
        RawServer(serve) as upstream,
        running(upstream=upstream.url, database_url=database) as proxy,
        connected(proxy.port) as wire,
    ):
        before = resident(proxy)
        await wire.say(b"PUT /up HTTP/1.1\r\nHost: api\r\nContent-Length: %d\r\n\r\n" % SIZE)
        sending = asyncio.create_task(send())
        assert await stands_still(written) < 64
        assert resident(proxy) - before < GROWTH
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def test_a_crowd_of_the_largest_writes_stays_within_the_formula(database: str) -> None:
    """The formula of docs/limits.md, with small numbers in it."""
    connections, in_flight, request, stored, cached = 128, 16, 2 * MIB, MIB, 8 * MIB

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(request)
            writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n" % stored + b"y" * stored)

    limits = {
        "max_connections": str(connections),
        "max_in_flight": str(in_flight),
        "max_request_bytes": str(request),
        "max_stored_bytes": str(stored),
        "cache_bytes": str(cached),
    }
    async with (
        RawServer(answer) as upstream,
        running(upstream=upstream.url, database_url=database, **limits) as proxy,
    ):
        answers = await asyncio.gather(*(_write(proxy, n, request) for n in range(100)))
        assert set(answers) == {b"201", b"503"}
        assert answers.count(b"201") >= in_flight
        formula = 100 * MIB + cached + connections * (2 + 32) * 1024 + in_flight * (2 * MIB + 2 * request + 2 * stored)
        assert resident(proxy) < formula


async def _write(proxy: Proxy, n: int, size: int) -> bytes:
    async with connected(proxy.port) as wire:
        await wire.say(
            b"POST /orders HTTP/1.1\r\nHost: api\r\nAuthorization: Bearer ada\r\n"
            b"Idempotency-Key: order-%d\r\nContent-Length: %d\r\n\r\n" % (n, size)
        )
        with contextlib.suppress(ConnectionError):  # refused before all of it was sent; the answer says so
            await wire.say(b"x" * size)
        return (await wire.answer())[0][9:12]
