"""Guarded answers that flow while they are recorded: live for the first client, whole for every later one."""

from __future__ import annotations

import asyncio
import contextlib

import asyncpg
import pytest

from tests.conftest import StartProxy
from tests.support.compiled import interpreted_only
from tests.support.process import until
from tests.support.rawserver import RawServer
from tests.support.script import EVENTS, HOLD, Script, chunk, state, until_state
from tests.support.wire import Wire, connected

WRITE = (
    b"POST /orders HTTP/1.1\r\nHost: api\r\nAuthorization: Bearer ada\r\nIdempotency-Key: order-1\r\n"
    b"Content-Length: 2\r\n\r\n{}"
)
ONE, TWO = b"data: one\n\n", b"data: two\n\n"


async def replayed(port: int) -> bytes:
    """The body of a retry's answer, which is a replay."""
    async with connected(port) as wire:
        await wire.say(WRITE)
        head, body = await wire.answer()
        assert b"Idempotency-Replay: true" in head
        return body


async def test_an_event_arrives_before_the_next_is_sent(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    script = Script(EVENTS + chunk(ONE), chunk(TWO), b"0\r\n\r\n")
    async with RawServer(script) as upstream, proxy(upstream.url) as service, connected(service.port) as wire:
        await wire.say(WRITE)
        head = await wire.head()
        assert b"Content-Type: text/event-stream; charset=utf-8\r\n" in head
        assert b"Idempotency-Replay: false\r\n" in head
        assert await wire.chunk() == ONE
        assert await state(rows) == "claimed"
        script.go()
        assert await wire.chunk() == TWO
        script.go()
        assert await wire.chunk() == b""
        assert await state(rows) == "completed"
        assert await replayed(service.port) == ONE + TWO
        assert len(upstream.requests) == 1


async def test_a_client_that_leaves_does_not_stop_the_recording(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    script = Script(EVENTS + chunk(ONE), chunk(TWO) * 500_000, b"0\r\n\r\n")
    async with RawServer(script) as upstream, proxy(upstream.url, max_stored_bytes="10000000") as service:
        async with connected(service.port) as wire:
            await wire.say(WRITE)
            await wire.head()
            assert await wire.chunk() == ONE
            wire.writer.transport.abort()
        script.go()
        script.go()
        await until_state(rows, "completed")
        assert await replayed(service.port) == ONE + TWO * 500_000
        assert len(upstream.requests) == 1


@pytest.mark.parametrize(
    "framing", [b"Transfer-Encoding: chunked", b"Content-Length: 1000"], ids=["chunked", "with a length"]
)
async def test_a_stream_cut_by_the_upstream_is_unknown_and_cut_for_the_client(
    proxy: StartProxy, rows: asyncpg.Connection, framing: bytes
) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n" + framing + b"\r\n\r\n"
    first = chunk(ONE) if b"chunked" in framing else ONE
    script = Script(head + first)
    async with RawServer(script) as upstream, proxy(upstream.url) as service, connected(service.port) as wire:
        await wire.say(WRITE)
        await wire.head()
        with pytest.raises(ConnectionError):
            await _to_the_end(wire)
        assert await state(rows) == "unknown"


@interpreted_only
async def test_a_fault_of_the_proxys_own_leaves_no_client_waiting(
    proxy: StartProxy, rows: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a fault in settling")

    script = Script(EVENTS + chunk(ONE) + b"0\r\n\r\n")
    async with RawServer(script) as upstream, proxy(upstream.url) as service, connected(service.port) as wire:
        monkeypatch.setattr(service.exchange.settler, "settle", fail)
        await wire.say(WRITE)
        await wire.head()
        with pytest.raises(ConnectionError):
            await _to_the_end(wire)
        assert await state(rows) == "claimed"


async def _to_the_end(wire: Wire) -> None:
    rest = await wire.rest()
    raise AssertionError(f"an end that looks whole: {rest!r}")


@pytest.mark.parametrize("framing", ["chunked", "with a length", "until the connection closes"])
async def test_the_end_is_held_back_until_it_is_settled(
    proxy: StartProxy, rows: asyncpg.Connection, database: str, framing: str
) -> None:
    body = ONE + TWO
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    answer = {
        "chunked": head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(body) + b"0\r\n\r\n",
        "with a length": head + b"Content-Length: %d\r\n\r\n" % len(body) + body,
        "until the connection closes": head + b"\r\n" + body,
    }[framing]
    async with (
        RawServer(Script(answer)) as upstream,
        proxy(upstream.url) as service,
        connected(service.port) as wire,
    ):
        await rows.execute(HOLD)
        await rows.execute("SELECT pg_advisory_lock(1)")
        await wire.say(WRITE)
        await wire.head()
        whole = body if framing == "with a length" else chunk(body) + b"0\r\n\r\n"
        seen = b""
        with contextlib.suppress(TimeoutError):
            while piece := await asyncio.wait_for(wire.reader.read(100), 0.3):
                seen += piece
        # Where only the connection's end tells that there is no more, the last piece may have been handed on before.
        assert seen in ((b"", chunk(body)) if framing == "until the connection closes" else (b"",))
        await rows.execute("SELECT pg_advisory_unlock(1)")
        assert seen + await wire.read(len(whole) - len(seen)) == whole
        assert await state(rows) == "completed"


@pytest.mark.parametrize("framing", ["chunked", "with a length"])
async def test_what_does_not_fit_into_the_buffer_flows_too_and_is_replayed(
    proxy: StartProxy, rows: asyncpg.Connection, framing: str
) -> None:
    half = bytes(range(256)) * 2048
    if framing == "chunked":
        head = b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n"
        script = Script(head + chunk(half), chunk(half) + b"0\r\n\r\n")
    else:
        head = b"HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n" % (2 * len(half))
        script = Script(head + half, half)
    async with RawServer(script) as upstream, proxy(upstream.url) as service, connected(service.port) as wire:
        await wire.say(WRITE)
        assert (await wire.head()).startswith(b"HTTP/1.1 201 Created\r\n")
        got = b""
        while len(got) < len(half):
            got += await wire.chunk() if framing == "chunked" else await wire.read(len(half))
        assert got == half
        assert await state(rows) == "claimed"
        script.go()
        if framing == "chunked":
            while piece := await wire.chunk():
                got += piece
        else:
            got += await wire.read(len(half))
        assert got == half * 2
        assert await state(rows) == "completed"
        assert await replayed(service.port) == half * 2


async def test_a_stream_that_outgrows_the_store_is_delivered_and_says_so_at_its_end(
    proxy: StartProxy, rows: asyncpg.Connection
) -> None:
    script = Script(EVENTS + chunk(ONE), chunk(TWO) * 100, b"0\r\n\r\n")
    async with (
        RawServer(script) as upstream,
        proxy(upstream.url, max_stored_bytes="1000") as service,
        connected(service.port) as wire,
    ):
        await wire.say(WRITE)
        assert b"Idempotency-Stored" not in await wire.head()  # nobody knows yet
        body = await wire.chunk()
        script.go()
        script.go()
        while piece := await wire.chunk():
            body += piece
        assert body == ONE + TWO * 100
        assert await wire.head() == b"Idempotency-Stored: false\r\n\r\n"  # the trailer
        assert await state(rows) == "completed"
        await wire.say(WRITE)
        head, problem = await wire.answer()
        assert head.startswith(b"HTTP/1.1 409 ")
        assert b"IDEMPOTENCY_RESPONSE_NOT_STORED" in problem
        assert len(upstream.requests) == 1


async def test_who_waits_for_a_stream_gets_the_whole_of_it(proxy: StartProxy) -> None:
    script = Script(EVENTS + chunk(ONE), chunk(TWO), b"0\r\n\r\n")
    async with (
        RawServer(script) as upstream,
        proxy(upstream.url, in_flight="wait") as service,
        connected(service.port) as wire,
    ):
        await wire.say(WRITE)
        await wire.head()
        assert await wire.chunk() == ONE
        waiting = asyncio.ensure_future(replayed(service.port))
        await until(lambda: service.data.active == 2, "the duplicate waits")
        script.go()
        script.go()
        assert await waiting == ONE + TWO
        assert len(upstream.requests) == 1
