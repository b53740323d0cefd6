"""What is kept comes back byte for byte, and smaller where that can be had."""

from __future__ import annotations

import os

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from idemproxy.store.packing import COMPRESS_FROM_BYTES, pack, unpack
from tests.conftest import StartProxy
from tests.support.rawserver import RawServer, answering
from tests.support.wire import connected

JSON = b'{"items": [' + b'{"id": 1, "name": "tea"}, ' * 500 + b"]}"
WRITE = (
    b"POST /orders HTTP/1.1\r\nHost: api\r\nAuthorization: Bearer ada\r\nIdempotency-Key: order-1\r\n"
    b"Content-Length: 2\r\n\r\n{}"
)

names = st.from_regex(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+", fullmatch=True)
values = st.binary(max_size=20).map(lambda value: value.translate(None, b"\r\n\0").strip(b" \t"))


@given(
    st.lists(st.tuples(names, values), max_size=5).map(tuple),
    st.binary(max_size=100).flatmap(lambda some: st.integers(0, 300).map(lambda times: some * times)),
)
def test_it_comes_back_as_it_was(headers: tuple[tuple[bytes, bytes], ...], body: bytes) -> None:
    assert unpack(*pack(headers, body)) == (headers, body)


def test_it_is_smaller_where_that_helps_and_never_larger() -> None:
    assert len(pack((), JSON)[1]) < len(JSON) / 5
    noise = os.urandom(100_000)
    assert pack((), noise) == (b"", noise)
    assert pack((), b"x" * (COMPRESS_FROM_BYTES - 1)) == (b"", b"x" * (COMPRESS_FROM_BYTES - 1))


@pytest.mark.parametrize("body", [JSON, JSON * 100, os.urandom(5000)], ids=["json", "large json", "noise"])
async def test_a_replay_is_byte_identical_whatever_lies_in_the_row(
    proxy: StartProxy, rows: asyncpg.Connection, body: bytes
) -> None:
    answer = b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    async with (
        RawServer(answering(answer)) as upstream,
        proxy(upstream.url) as service,
        connected(service.port) as wire,
    ):
        await wire.say(WRITE)
        _, content = await wire.answer()
        assert content == body
        await wire.say(WRITE)
        again, content = await wire.answer()
        assert content == body
        assert b"Content-Type: application/json\r\n" in again
        kept = await rows.fetchval("SELECT octet_length(body) FROM idemproxy.records")
        assert kept < len(body) / 5 if b"tea" in body else kept == len(body)
        assert len(upstream.requests) == 1
