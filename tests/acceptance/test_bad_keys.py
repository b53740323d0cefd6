"""Keys that cannot be used, byte by byte: table 3a, by its numbers. Nothing of them is stored or forwarded."""

from __future__ import annotations

import asyncio

import asyncpg
import orjson
import pytest

from tests.conftest import StartProxy
from tests.support.orders import Orders, orders_api

BODY = b'{"item": "tea"}'


async def ask(port: int, *lines: bytes, method: bytes = b"POST", body: bytes = BODY) -> tuple[int, bytes, bytes]:
    """Send exactly these header lines, and give back status, head and body of the answer."""
    framing = () if any(line.startswith(b"Transfer-Encoding") for line in lines) else (_length(body),)
    head = b"\r\n".join((method + b" /orders HTTP/1.1", b"Host: api", *lines, *framing, b"", b""))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in answer.split(b"\r\n")[1:] if line)
        content = b"" if method == b"HEAD" else await reader.readexactly(int(fields[b"content-length"]))
        if fields.get(b"connection") == b"close":
            assert await reader.read() == b""  # and it keeps its word
        return int(answer.split()[1]), answer, content
    finally:
        writer.close()
        await writer.wait_closed()


def _length(body: bytes) -> bytes:
    return b"Content-Length: %d" % len(body)


ADA = b"Authorization: Bearer ada"


async def assert_refused(
    proxy: StartProxy,
    rows: asyncpg.Connection,
    code: str,
    *lines: bytes,
    refused_with: int = 400,
    closes: bool = False,
    **settings: str,
) -> None:
    async with orders_api() as orders, proxy(orders.url, **settings) as service:
        status, head, body = await ask(service.port, *lines)
        problem = orjson.loads(body)
        assert (status, problem["status"], problem["error"]["code"]) == (refused_with, refused_with, code)
        assert b"application/problem+json" in head
        assert b"x-should-retry: false" in head
        assert b"Idempotency-Key:" not in head  # what could not be read is not echoed
        if closes:
            assert b"Connection: close" in head
        assert orders.executions == 0
        assert await rows.fetchval("SELECT count(*) FROM idemproxy.records") == 0
        good = await ask(service.port, ADA, b"Idempotency-Key: good")
        assert good[0] == 201  # the next one is served as ever
        assert orders.executions == 1


async def assert_unguarded(orders: Orders, rows: asyncpg.Connection, head: bytes) -> None:
    assert orders.executions == 1
    assert b"Idempotency-Replay" not in head
    assert await rows.fetchval("SELECT count(*) FROM idemproxy.records") == 0


async def test_1_no_key_where_one_is_required(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    await assert_refused(proxy, rows, "MISSING_IDEMPOTENCY_KEY", ADA, key_required="true")


async def test_1_no_key_where_it_is_optional_passes(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        status, head, _ = await ask(service.port, ADA)
        assert status == 201
        await assert_unguarded(orders, rows, head)


INVALID = {
    "2_empty": (b"Idempotency-Key:",),
    "2_empty_after_a_space": (b"Idempotency-Key: ",),
    "2_only_spaces_and_tabs": (b"Idempotency-Key: \t  \t",),
    "2_an_empty_string": (b'Idempotency-Key: ""',),
    "2_a_string_of_spaces": (b'Idempotency-Key: "   "',),
    "3_two_different_lines": (b"Idempotency-Key: a", b"Idempotency-Key: b"),
    "3_two_lines_in_two_cases": (b"Idempotency-Key: a", b"idempotency-key: b"),
    "4_two_identical_lines": (b"Idempotency-Key: a", b"Idempotency-Key: a"),
    "5_a_list": (b"Idempotency-Key: a, b",),
    "5_a_list_without_spaces": (b"Idempotency-Key: a,b",),
    "5_a_list_of_strings": (b'Idempotency-Key: "a", "b"',),
    "5_two_words": (b"Idempotency-Key: a b",),
    "6_256_characters": (b"Idempotency-Key: " + b"a" * 256,),
    "6_a_string_of_256_characters": (b'Idempotency-Key: "' + b"a" * 256 + b'"',),
    "7_8000_characters": (b"Idempotency-Key: " + b"a" * 8000,),
    "11_a_tab_inside": (b"Idempotency-Key: a\tb",),
    "11_a_tab_inside_a_string": (b'Idempotency-Key: "a\tb"',),
    "13_a_string_that_does_not_end": (b'Idempotency-Key: "abc',),
    "13_a_string_that_does_not_begin": (b'Idempotency-Key: abc"',),
    "13_an_escape_of_nothing": (b'Idempotency-Key: "abc\\"',),
    "13_an_unknown_escape": (b'Idempotency-Key: "a\\bc"',),
    "13_a_string_with_parameters": (b'Idempotency-Key: "abc";v=1',),
}


@pytest.mark.parametrize("lines", INVALID.values(), ids=INVALID.keys())
async def test_a_key_that_cannot_be_one(proxy: StartProxy, rows: asyncpg.Connection, lines: tuple[bytes, ...]) -> None:
    await assert_refused(proxy, rows, "INVALID_IDEMPOTENCY_KEY", ADA, *lines)


@pytest.mark.parametrize("key", [b"a" * 255, b'"' + b"a" * 255 + b'"'], ids=["bare", "quoted"])
async def test_6_255_characters_are_a_key(proxy: StartProxy, rows: asyncpg.Connection, key: bytes) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        assert (await ask(service.port, ADA, b"Idempotency-Key: " + key))[0] == 201
        assert await rows.fetchval("SELECT length(key) FROM idemproxy.records") == 255


async def test_6_the_limit_can_be_lowered(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    line = b"Idempotency-Key: " + b"a" * 65
    await assert_refused(proxy, rows, "INVALID_IDEMPOTENCY_KEY", ADA, line, key_max_length="64")


NOT_ASCII = {
    "8_a_byte_that_is_not_utf8": b"a\xffb",
    "8_a_string_with_such_a_byte": b'"a\xffb"',
    "9_composed": "caf\u00e9".encode(),
    "9_decomposed": "cafe\u0301".encode(),
    "9_an_emoji": "\U0001f375".encode(),
}


@pytest.mark.parametrize("key", NOT_ASCII.values(), ids=NOT_ASCII.keys())
async def test_a_key_that_is_not_ascii(proxy: StartProxy, rows: asyncpg.Connection, key: bytes) -> None:
    await assert_refused(proxy, rows, "INVALID_HEADER_ENCODING", ADA, b"Idempotency-Key: " + key)


NO_HTTP = {
    "10_nul": (b"Idempotency-Key: a\x00b",),
    "10_control": (b"Idempotency-Key: a\x01b",),
    "10_del": (b"Idempotency-Key: a\x7fb",),
    "12_a_folded_line": (b"Idempotency-Key: a", b" b"),
    "12_a_line_folded_with_a_tab": (b"Idempotency-Key: a", b"\tb"),
}


@pytest.mark.parametrize("lines", NO_HTTP.values(), ids=NO_HTTP.keys())
async def test_a_header_that_is_no_http_ends_the_connection(
    proxy: StartProxy, rows: asyncpg.Connection, lines: tuple[bytes, ...]
) -> None:
    await assert_refused(proxy, rows, "BAD_REQUEST", ADA, *lines, closes=True)


async def test_7_a_key_beyond_what_a_line_may_hold(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    line = b"Idempotency-Key: " + b"a" * 9000
    await assert_refused(proxy, rows, "REQUEST_HEAD_TOO_LARGE", ADA, line, refused_with=431, closes=True)


async def test_13_a_quoted_key_and_the_bare_one_are_the_same(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        assert (await ask(service.port, ADA, b"Idempotency-Key: abc"))[0] == 201
        status, head, _ = await ask(service.port, ADA, b'Idempotency-Key: "abc"')
        assert status == 200
        assert b"Idempotency-Replay: true" in head
        assert orders.executions == 1
        assert await rows.fetchval("SELECT string_agg(key, ',') FROM idemproxy.records") == "abc"


async def test_14_an_underscore_is_no_key_and_goes_no_further(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        status, head, _ = await ask(service.port, ADA, b"Idempotency_Key: x", b"Authorization_: y")
        assert status == 201
        await assert_unguarded(orders, rows, head)
        names = [name.lower() for name, _ in orders.headers[0]]
        assert b"idempotency_key" not in names
        assert b"authorization" in names


async def test_14_an_underscore_is_missing_where_a_key_is_required(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    await assert_refused(proxy, rows, "MISSING_IDEMPOTENCY_KEY", ADA, b"Idempotency_Key: x", key_required="true")


CHUNKED = b"f\r\n" + BODY + b"\r\n0\r\nIdempotency-Key: x\r\n\r\n"


async def test_15_a_key_in_the_trailers_is_no_key(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        status, head, _ = await ask(service.port, ADA, b"Transfer-Encoding: chunked", body=CHUNKED)
        assert status == 201
        await assert_unguarded(orders, rows, head)
        assert orders.ledger == [("POST", "/orders", BODY)]
        assert b"idempotency-key" not in [name.lower() for name, _ in orders.headers[0]]


async def test_15_a_key_in_the_trailers_is_missing_where_required(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    async with orders_api() as orders, proxy(orders.url, key_required="true") as service:
        status, _, body = await ask(service.port, ADA, b"Transfer-Encoding: chunked", body=CHUNKED)
        assert (status, orjson.loads(body)["error"]["code"]) == (400, "MISSING_IDEMPOTENCY_KEY")
        assert orders.executions == 0
        assert await rows.fetchval("SELECT count(*) FROM idemproxy.records") == 0


@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"OPTIONS"])
@pytest.mark.parametrize("key", [b"x", b"a, b", b""])
async def test_16_a_key_on_a_read_is_ignored(
    proxy: StartProxy, rows: asyncpg.Connection, method: bytes, key: bytes
) -> None:
    async with orders_api() as orders, proxy(orders.url, key_required="true") as service:
        line = b"Idempotency-Key: " + key
        status, head, _ = await ask(service.port, ADA, line, method=method, body=b"")
        assert status == 201
        await assert_unguarded(orders, rows, head)


@pytest.mark.parametrize(
    "name",
    [
        b"Idempotency-Key",
        b"idempotency-key",
        b"Authorization",
        b"Cookie",
        b"Host",
        b"Content-Type",
        b"Content-Length",
        b"Content-Encoding",
    ],
)
async def test_17_connection_must_not_name_what_the_api_needs(
    proxy: StartProxy, rows: asyncpg.Connection, name: bytes
) -> None:
    lines = (ADA, b"Idempotency-Key: k", b"Connection: close, " + name)
    async with orders_api() as orders, proxy(orders.url) as service:
        status, _, body = await ask(service.port, *lines)
        assert (status, orjson.loads(body)["error"]["code"]) == (400, "PROTECTED_HEADER_NOMINATED")
        assert orders.executions == 0
        assert await rows.fetchval("SELECT count(*) FROM idemproxy.records") == 0


async def test_17_nor_the_headers_that_carry_key_and_scope(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    settings = {"key_from": "header:X-Request-Id", "scope_from": "header:X-Tenant"}
    async with orders_api() as orders, proxy(orders.url, **settings) as service:
        for name in (b"X-Request-Id", b"x-tenant"):
            lines = (b"X-Request-Id: k", b"X-Tenant: t", b"Connection: " + name)
            status, _, body = await ask(service.port, *lines)
            assert (status, orjson.loads(body)["error"]["code"]) == (400, "PROTECTED_HEADER_NOMINATED")
        assert orders.executions == 0
        assert await rows.fetchval("SELECT count(*) FROM idemproxy.records") == 0
