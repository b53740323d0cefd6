"""Limits and deadlines on the data port, by the numbers of the table of bad input."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import asyncpg
import orjson
import pytest
from aiohttp import web

from idemproxy.edge import clients
from idemproxy.service import Service
from tests.conftest import StartProxy
from tests.support.compiled import interpreted_only
from tests.support.orders import orders_api
from tests.support.process import fetch, until

GET = b"GET /orders HTTP/1.1\r\nHost: api\r\n"
KEYED = b"POST /orders HTTP/1.1\r\nHost: api\r\nAuthorization: Bearer ada\r\nIdempotency-Key: order-1\r\n"


_writers: list[asyncio.StreamWriter] = []


@pytest.fixture(autouse=True)
async def _all_closed() -> AsyncIterator[None]:
    yield
    while _writers:
        _writers.pop().close()


class Client:
    """A connection to the data port; closed at the end of the test."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        _writers.append(writer)

    @classmethod
    async def connect(cls, service: Service) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", service.port))

    async def send(self, data: bytes) -> Client:
        self._writer.write(data)
        await self._writer.drain()
        return self

    async def answer(self) -> tuple[int, bytes, bytes]:
        """Status, head and body of the next answer."""
        async with asyncio.timeout(20):
            head = await self._reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head.lower())
            return int(head[9:12]), head, await self._reader.readexactly(int(length[1]) if length else 0)

    async def code(self) -> str:
        """The code of the next answer, which is a refusal that ends the connection."""
        status, head, body = await self.answer()
        assert b"Connection: close" in head
        assert b"Content-Type: application/problem+json" in head
        problem = orjson.loads(body)
        assert problem["status"] == status
        await self.ended()
        return f"{status} {problem['error']['code']}"

    async def ended(self) -> None:
        async with asyncio.timeout(20):
            assert await self._reader.read() == b""


async def say(service: Service, data: bytes) -> Client:
    return await (await Client.connect(service)).send(data)


async def counted(service: Service, code: str) -> int:
    _, text = await fetch(service.admin_port, "/metrics")
    found = re.search(rf'^idemproxy_refusals_total{{code="{code}"}} (\d+)', text, re.MULTILINE)
    return int(found[1]) if found else 0


REFUSED = {
    "54 length and coding": (KEYED + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", "400 BAD_REQUEST"),
    "55 two lengths": (KEYED + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\n", "400 BAD_REQUEST"),
    "57 a coding besides chunked": (
        KEYED + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
        "501 UNSUPPORTED_TRANSFER_CODING",
    ),
    "58 chunked in 1.0": (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400 BAD_REQUEST"),
    "62 a bare line feed": (b"GET / HTTP/1.1\nHost: api\n\n", "400 BAD_REQUEST"),
    "63 no host": (b"GET / HTTP/1.1\r\n\r\n", "400 INVALID_HOST"),
    "64 a host that is none": (b"GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", "400 INVALID_HOST"),
    "65 HTTP/2.0": (b"POST / HTTP/2.0\r\nHost: api\r\n\r\n", "505 HTTP_VERSION_NOT_SUPPORTED"),
    "65 the preface of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "505 HTTP_VERSION_NOT_SUPPORTED"),
    "65 TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "400 BAD_REQUEST"),
    "66 another authority": (b"POST http://other/abs HTTP/1.1\r\nHost: api\r\n\r\n", "400 BAD_REQUEST"),
    "67 CONNECT": (b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n", "405 METHOD_NOT_ALLOWED"),
    "67 TRACE": (b"TRACE / HTTP/1.1\r\nHost: api\r\n\r\n", "405 METHOD_NOT_ALLOWED"),
    "68 a method in lower case": (b"post / HTTP/1.1\r\nHost: api\r\n\r\n", "400 BAD_REQUEST"),
    "70 a long target": (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: api\r\n\r\n", "414 REQUEST_TARGET_TOO_LONG"),
    "70 a target without an end": (b"GET /" + b"a" * 9000, "414 REQUEST_TARGET_TOO_LONG"),
    "70 a long line": (GET + b"X: " + b"a" * 9000 + b"\r\n\r\n", "431 REQUEST_HEAD_TOO_LARGE"),
    "70 many lines": (GET + b"X: y\r\n" * 200 + b"\r\n", "431 REQUEST_HEAD_TOO_LARGE"),
    "71 many long lines": (GET + (b"X: " + b"a" * 8000 + b"\r\n") * 120, "431 REQUEST_HEAD_TOO_LARGE"),
    "78 another expectation": (KEYED + b"Expect: 200-ok\r\n\r\n", "417 EXPECTATION_FAILED"),
    "82 two content types": (KEYED + b"Content-Type: a/b\r\nContent-Type: a/b\r\n\r\n", "400 BAD_REQUEST"),
}


@pytest.mark.parametrize(("data", "answer"), REFUSED.values(), ids=REFUSED.keys())
async def test_a_request_that_is_refused(
    proxy: StartProxy, caplog: pytest.LogCaptureFixture, data: bytes, answer: str
) -> None:
    caplog.set_level("INFO")
    async with orders_api() as orders, proxy(orders.url) as service:
        assert await (await say(service, data)).code() == answer
        assert orders.executions == 0
        assert await counted(service, answer.split()[1]) == 1
        [line] = [record for record in caplog.records if record.name == "idemproxy.http"]
        assert line.levelname == "INFO"
        assert line.exc_info is None


@pytest.mark.parametrize("lines", [GET.replace(b"GET", b"PUT"), KEYED], ids=["unguarded", "guarded"])
@pytest.mark.parametrize("wire", [b"0_2e\r\n", b"5\r\nhelloXX0\r\n\r\n", b"zz"])
async def test_61_a_bad_chunk_in_a_later_packet(
    proxy: StartProxy, rows: asyncpg.Connection, lines: bytes, wire: bytes
) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        client = await say(service, lines + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        await until(lambda: service.data.active == 1, "the head has been read")
        await client.send(wire)
        assert await client.code() == "400 BAD_REQUEST"
        assert orders.executions == 0
        assert await rows.fetchval("SELECT count(*) FROM idemproxy.records") == 0


async def test_67_options_for_the_server_is_handed_on(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        client = await say(service, b"OPTIONS * HTTP/1.1\r\nHost: api\r\n\r\n")
        assert (await client.answer())[0] == 201
        assert orders.ledger[0][:2] == ("OPTIONS", "*")


@pytest.mark.parametrize("expect", [b"", b"Expect: 100-continue\r\n"], ids=["sent at once", "waiting to be asked"])
async def test_72_79_a_length_over_the_limit_is_refused_before_the_body_is_asked_for(
    proxy: StartProxy, expect: bytes
) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        client = await say(service, KEYED + expect + b"Content-Length: 9999999999\r\n\r\n")
        assert await client.code() == "413 REQUEST_BODY_TOO_LARGE"
        assert orders.executions == 0
        assert await counted(service, "REQUEST_BODY_TOO_LARGE") == 1


async def test_79_a_bad_key_is_refused_before_the_body_is_asked_for(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        head = KEYED.replace(b"order-1", b"a, b") + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n"
        assert await (await say(service, head)).code() == "400 INVALID_IDEMPOTENCY_KEY"
        assert orders.executions == 0


@pytest.mark.parametrize("lines", [GET.replace(b"GET", b"PUT"), KEYED], ids=["unguarded", "guarded"])
async def test_a_body_is_asked_for_once_and_only_when_it_is_wanted(proxy: StartProxy, lines: bytes) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        client = await say(service, lines + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n")
        assert await client.answer() == (100, b"HTTP/1.1 100 Continue\r\n\r\n", b"")
        await client.send(b"hello")
        assert (await client.answer())[0] == 201
        assert orders.ledger[0][2] == b"hello"
        assert not any(name.lower() == b"expect" for name, _ in orders.headers[0])
        await client.send(lines + b"Content-Length: 5\r\n\r\nhello")
        assert (await client.answer())[0] in (200, 201)


@pytest.mark.parametrize("lines", [GET.replace(b"GET", b"PUT"), KEYED], ids=["unguarded", "guarded"])
async def test_74_a_body_that_stalls(proxy: StartProxy, rows: asyncpg.Connection, lines: bytes) -> None:
    async with orders_api() as orders, proxy(orders.url, body_timeout_seconds="0.2") as service:
        client = await say(service, lines + b"Content-Length: 5\r\n\r\nhel")
        assert await client.code() == "408 REQUEST_BODY_TIMEOUT"
        assert orders.executions == 0
        assert await counted(service, "REQUEST_BODY_TIMEOUT") == 1
        assert await rows.fetchval("SELECT count(*) FROM idemproxy.records") == 0


async def test_74_a_guarded_body_that_drips(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url, body_timeout_seconds="0.5") as service:
        client = await say(service, KEYED + b"Content-Length: 1000000\r\n\r\n")
        drip = asyncio.ensure_future(_drip(client))
        try:
            assert await client.code() == "408 REQUEST_BODY_TIMEOUT"
        finally:
            drip.cancel()
        assert orders.executions == 0


async def _drip(client: Client) -> None:
    try:
        while True:
            await client.send(b"x")
            await asyncio.sleep(0.05)
    except ConnectionError:
        pass


@pytest.mark.parametrize("beginning", [b"GET", GET, GET + b"X: y"])
async def test_75_a_head_that_drips(proxy: StartProxy, beginning: bytes) -> None:
    async with orders_api() as orders, proxy(orders.url, head_timeout_seconds="0.2") as service:
        assert await (await say(service, beginning)).code() == "408 REQUEST_HEAD_TIMEOUT"
        assert orders.executions == 0
        assert await counted(service, "REQUEST_HEAD_TIMEOUT") == 1


async def test_a_head_in_many_packets_is_read(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        client = await Client.connect(service)
        for i in range(0, len(GET), 3):
            await client.send(GET[i : i + 3])
            await asyncio.sleep(0)
        await client.send(b"\r")
        await client.send(b"\n")
        assert (await client.answer())[0] == 201
        assert orders.executions == 1


async def test_an_idle_connection_is_closed_in_silence(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url, idle_timeout_seconds="0.2") as service:
        await (await Client.connect(service)).ended()
        used = await say(service, GET + b"\r\n")
        assert (await used.answer())[0] == 201
        await used.ended()


async def test_76_a_body_that_ends_early_is_not_answered(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        client = await say(service, KEYED + b"Content-Length: 5\r\n\r\nhel")
        client._writer.write_eof()
        await client.ended()
        assert orders.executions == 0
        assert await rows.fetchval("SELECT count(*) FROM idemproxy.records") == 0


async def test_76_a_body_that_ends_early_behind_another_request_is_not_answered_either(
    proxy: StartProxy, rows: asyncpg.Connection
) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        orders.gate.clear()
        client = await say(service, GET + b"\r\n" + KEYED + b"Content-Length: 5\r\n\r\nhel")
        await orders.arrived.wait()
        client._writer.write_eof()
        await asyncio.sleep(0.1)  # the end arrives while the first request is still under way
        orders.gate.set()
        assert (await client.answer())[0] == 201
        await client.ended()
        assert orders.executions == 1
        assert await rows.fetchval("SELECT count(*) FROM idemproxy.records") == 0


async def test_77_a_client_that_has_said_all_it_will_say_is_answered(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        client = await say(service, KEYED + b"Content-Length: 5\r\n\r\nhello" + GET + b"\r\n")
        client._writer.write_eof()
        assert (await client.answer())[0] == 201
        assert (await client.answer())[0] == 201
        await client.ended()
        assert orders.executions == 2


async def test_80_pipelined_requests_are_answered_in_order(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        write = KEYED + b"Content-Length: 5\r\n\r\nhello"
        client = await say(service, write + GET + b"\r\n" + write)
        first, read, again = [await client.answer() for _ in range(3)]
        assert (first[0], read[0], again[0]) == (201, 201, 200)
        assert b"Idempotency-Replay: false" in first[1]
        assert b"Idempotency-Replay: true" in again[1]
        assert first[2] == again[2] == b'{"order": 1}'
        assert orders.executions == 2


async def test_83_a_body_of_tiny_chunks_is_a_body(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        chunks = b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n"
        client = await say(service, KEYED + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
        assert (await client.answer())[0] == 201
        assert orders.ledger[0][2] == b"x" * 20_000


async def test_84_at_the_limit_the_connection_that_is_idle_the_longest_makes_room(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url, max_connections="3") as service:
        first, second, third = [await say(service, GET + b"\r\n") for _ in range(3)]
        for client in (first, second, third):
            assert (await client.answer())[0] == 201
        await first.send(GET + b"\r\n")  # now the second is idle the longest
        assert (await first.answer())[0] == 201
        fourth = await say(service, GET + b"\r\n")
        assert (await fourth.answer())[0] == 201
        await second.ended()
        await first.send(GET + b"\r\n")
        assert (await first.answer())[0] == 201


async def test_84_when_none_is_idle_new_connections_are_told_to_come_back(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url, max_connections="2") as service:
        orders.gate.clear()
        busy = [await say(service, GET + b"\r\n") for _ in range(2)]
        await until(lambda: orders.executions == 2, "both are under way")
        refused = await Client.connect(service)
        status, head, _ = await refused.answer()
        assert status == 503
        assert b"\r\nRetry-After: 1\r\n" in head
        await refused.ended()
        assert await counted(service, "TOO_MANY_CONNECTIONS") == 1
        orders.gate.set()
        for client in busy:
            assert (await client.answer())[0] == 201


async def test_the_next_on_a_connection_takes_the_place_of_the_one_before(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url, max_in_flight="1") as service:
        client = await say(service, (GET + b"\r\n") * 3)
        assert [(await client.answer())[0] for _ in range(3)] == [201, 201, 201]
        assert orders.executions == 3


async def test_more_requests_than_fit_are_told_to_come_back(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url, max_in_flight="2") as service:
        orders.gate.clear()
        busy = [await say(service, GET + b"\r\n") for _ in range(2)]
        await until(lambda: orders.executions == 2, "both are under way")
        refused = await say(service, KEYED + b"Content-Length: 2\r\n\r\n{}")
        status, head, body = await refused.answer()
        assert (status, orjson.loads(body)["error"]["code"]) == (503, "TOO_MANY_REQUESTS_IN_FLIGHT")
        assert b"\r\nRetry-After: 1\r\n" in head
        assert await counted(service, "TOO_MANY_REQUESTS_IN_FLIGHT") == 1
        orders.gate.set()
        for client in busy:
            assert (await client.answer())[0] == 201
        assert (await (await say(service, GET + b"\r\n")).answer())[0] == 201
        assert orders.executions == 3


@interpreted_only
async def test_a_client_that_takes_nothing_loses_its_place(proxy: StartProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "WRITE_STALL_SECONDS", 0.3)
    async with orders_api() as orders, proxy(orders.url) as service:

        async def much(*_: object) -> web.Response:
            return web.Response(body=b"x" * 50_000_000)

        orders.answer = much
        await say(service, GET + b"\r\n")
        await until(lambda: orders.executions == 1, "it is under way")
        await until(lambda: service.data.active == 0, "it has been given up")


async def test_the_answer_to_head_has_no_body_whoever_gives_it(proxy: StartProxy) -> None:
    async with proxy("http://127.0.0.1:9") as service:
        client = await say(service, GET.replace(b"GET", b"HEAD") + b"Connection: close\r\n\r\n")
        answer = await client._reader.read()
        assert answer.startswith(b"HTTP/1.1 502 ")
        assert answer.endswith(b"\r\n\r\n")
