"""Answers of every shape: a replay has the bytes and the fields of the first, but for the documented ones."""

from __future__ import annotations

import asyncio
import gzip

import pytest

from tests.conftest import StartProxy
from tests.support.rawserver import RawServer, closing_after

Lines = list[tuple[bytes, bytes]]


def fixed(status: bytes, body: bytes, *lines: bytes) -> bytes:
    return b"\r\n".join((b"HTTP/1.1 " + status, *lines, b"Content-Length: %d" % len(body), b"", body))


def chunks(status: bytes, pieces: list[bytes], *lines: bytes, trailers: bytes = b"") -> bytes:
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n" + trailers + b"\r\n"
    return b"\r\n".join((b"HTTP/1.1 " + status, *lines, b"Transfer-Encoding: chunked", b"", body))


EVERY_BYTE = bytes(range(256))
MEBIBYTE = EVERY_BYTE * 4096
JSON = b'{"id": 1,  "price": 1.50}\n'

SHAPES: dict[str, tuple[bytes, bytes]] = {
    # name: what the upstream says, and the body in it
    "json": (fixed(b"201 Created", JSON, b"Content-Type: application/json"), JSON),
    "ok": (fixed(b"200 OK", b"ok"), b"ok"),
    "accepted": (fixed(b"202 Accepted", b"later", b"Retry-After: 3"), b"later"),
    "non_authoritative": (fixed(b"203 Non-Authoritative Information", b"x"), b"x"),
    "no_content": (b"HTTP/1.1 204 No Content\r\nX-Order: 1\r\n\r\n", b""),
    "reset_content": (fixed(b"205 Reset Content", b""), b""),
    "multi_status": (fixed(b"207 Multi-Status", b"<x/>", b"Content-Type: application/xml"), b"<x/>"),
    "unregistered_2xx": (fixed(b"299 Whatever", b"x"), b"x"),
    "empty": (fixed(b"200 OK", b""), b""),
    "empty_chunked": (chunks(b"200 OK", []), b""),
    "every_byte": (fixed(b"200 OK", EVERY_BYTE, b"Content-Type: application/octet-stream"), EVERY_BYTE),
    "looks_like_http": (fixed(b"200 OK", b"HTTP/1.1 500 No\r\n\r\n"), b"HTTP/1.1 500 No\r\n\r\n"),
    "looks_like_chunks": (fixed(b"200 OK", b"0\r\n\r\n"), b"0\r\n\r\n"),
    "utf8": (fixed(b"200 OK", "Grüße 🍵".encode()), "Grüße 🍵".encode()),
    "broken_utf8": (fixed(b"200 OK", b"\xff\xfe\x00\xc3"), b"\xff\xfe\x00\xc3"),
    "nuls": (fixed(b"200 OK", b"\0" * 100), b"\0" * 100),
    "gzip": (
        fixed(b"200 OK", gzip.compress(JSON, mtime=0), b"Content-Encoding: gzip", b"Vary: Accept-Encoding"),
        gzip.compress(JSON, mtime=0),
    ),
    "said_to_be_gzip": (fixed(b"200 OK", b"not gzip at all", b"Content-Encoding: gzip"), b"not gzip at all"),
    "mebibyte": (fixed(b"200 OK", MEBIBYTE), MEBIBYTE),
    "mebibyte_chunked": (
        chunks(b"200 OK", [MEBIBYTE[at : at + 9999] for at in range(0, len(MEBIBYTE), 9999)]),
        MEBIBYTE,
    ),
    "chunked": (chunks(b"201 Created", [b"one", b"two", b"3"]), b"onetwo3"),
    "chunked_by_the_byte": (chunks(b"200 OK", [b"%c" % byte for byte in EVERY_BYTE]), EVERY_BYTE),
    "chunked_with_trailers": (chunks(b"200 OK", [b"x"], b"Trailer: X-Sum", trailers=b"X-Sum: 1\r\n"), b"x"),
    "until_close": (b"HTTP/1.1 200 OK\r\nX-Order: 1\r\n\r\nup to the end", b"up to the end"),
    "http_1_0": (b"HTTP/1.0 200 OK\r\nX-Order: 1\r\n\r\nold", b"old"),
    "connection_close": (fixed(b"200 OK", b"x", b"Connection: close, X-Hop", b"X-Hop: 1"), b"x"),
    "forty_headers": (fixed(b"200 OK", b"x", *(b"X-H%d: v%d" % (n, n) for n in range(40))), b"x"),
    "repeated_headers": (
        fixed(b"200 OK", b"x", b"X-Tag: one", b"X-Other: 1", b"X-Tag: two", b"X-Tag: one", b"x-tag: 3"),
        b"x",
    ),
    "repeated_links": (fixed(b"200 OK", b"x", b"Link: </a>; rel=a", b"Link: </b>; rel=b"), b"x"),
    "odd_case": (fixed(b"200 OK", b"x", b"x-oDD-cASE: 1", b"CONTENT-TYPE: TEXT/Plain", b"etag: W/1"), b"x"),
    "latin_1_value": (fixed(b"200 OK", b"x", b"X-Name: caf\xe9 \xff"), b"x"),
    "utf8_value": (fixed(b"200 OK", b"x", b"X-Name: " + "café 🍵".encode()), b"x"),
    "empty_value": (fixed(b"200 OK", b"x", b"X-Empty:", b"X-Blank:   ", b"X-After: 1"), b"x"),
    "colons_in_a_value": (fixed(b"200 OK", b"x", b"X-Time: 12:30:00", b"X-Colon: :"), b"x"),
    "tab_in_a_value": (fixed(b"200 OK", b"x", b"X-Tab: a\tb"), b"x"),
    "long_value": (fixed(b"200 OK", b"x", b"X-Long: " + b"v" * 7000), b"x"),
    "no_reason": (fixed(b"200 ", b"x"), b"x"),
    "own_reason": (fixed(b"201 Brewed Just Now", b"x"), b"x"),
    "location": (fixed(b"201 Created", b"", b"Location: /orders/7?x=%2F", b"Content-Location: /o/7"), b""),
    "etag_and_dates": (
        fixed(
            b"200 OK",
            b"x",
            b'ETag: "v1"',
            b"Last-Modified: Mon, 01 Jan 2024 00:00:00 GMT",
            b"Date: Mon, 01 Jan 2024 00:00:00 GMT",
            b"Cache-Control: private, max-age=5",
        ),
        b"x",
    ),
    "problem": (fixed(b"200 OK", b'{"status": 400}', b"Content-Type: application/problem+json"), b'{"status": 400}'),
    "multiple_choices": (fixed(b"300 Multiple Choices", b"pick"), b"pick"),
    "moved": (fixed(b"301 Moved Permanently", b"", b"Location: https://elsewhere/"), b""),
    "found": (fixed(b"302 Found", b"there", b"Location: /orders/1"), b"there"),
    "see_other": (fixed(b"303 See Other", b"", b"Location: /orders/1"), b""),
    "temporary_redirect": (fixed(b"307 Temporary Redirect", b"", b"Location: /v2/orders"), b""),
    "permanent_redirect": (fixed(b"308 Permanent Redirect", b"", b"Location: /v2/orders"), b""),
    "after_an_interim_answer": (b"HTTP/1.1 103 Early Hints\r\nLink: </s>\r\n\r\n" + fixed(b"200 OK", b"x"), b"x"),
    "server_sent_events": (
        chunks(b"200 OK", [b"data: 1\n\n", b"data: 2\n\n"], b"Content-Type: text/event-stream"),
        b"data: 1\n\ndata: 2\n\n",
    ),
}

OWN = {b"idempotency-replay", b"idempotency-key"}
DESCRIBED_BY = (b"Link", b'</.well-known/idempotency>; rel="describedby"')
FRAMING = {b"connection", b"content-length", b"transfer-encoding", b"trailer"}
HOP_BY_HOP = FRAMING | {b"x-hop"}


def parse(answer: bytes) -> tuple[int, Lines, bytes]:
    head, _, rest = answer.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    fields = [(name, value.strip(b" \t")) for name, _, value in (line.partition(b":") for line in lines)]
    return int(first.split()[1]), fields, rest


async def post(port: int, key: bytes = b"k") -> tuple[int, Lines, bytes]:
    """The answer as it is on the wire: `Connection: close` ends it, so that nothing has to be believed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"POST /orders HTTP/1.1\r\nHost: api\r\nAuthorization: Bearer ada\r\nConnection: close\r\n"
        b"Idempotency-Key: %b\r\nContent-Length: 2\r\n\r\n{}" % key
    )
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    status, lines, body = parse(answer)
    return status, lines, joined(body) if (b"Transfer-Encoding", b"chunked") in lines else body


def joined(chunks: bytes) -> bytes:
    """The content of a chunked body: so comes an event stream, or what is too large for the buffer."""
    body = b""
    while chunks != b"0\r\n\r\n":
        size, _, rest = chunks.partition(b"\r\n")
        end = int(size, 16)
        assert rest[end : end + 2] == b"\r\n"
        body, chunks = body + rest[:end], rest[end + 2 :]
    return body


def without(lines: Lines, names: set[bytes]) -> Lines:
    return [line for line in lines if line[0].lower() not in names and line != DESCRIBED_BY]


def value(lines: Lines, name: bytes) -> bytes | None:
    return next((text for field, text in lines if field.lower() == name), None)


@pytest.mark.parametrize(("answer", "body"), SHAPES.values(), ids=SHAPES.keys())
async def test_a_replay_is_the_first_answer_again(proxy: StartProxy, answer: bytes, body: bytes) -> None:
    async with RawServer(closing_after(answer)) as upstream, proxy(upstream.url) as service:
        status, lines, first = await post(service.port)
        said, sent, _ = parse(answer[answer.rindex(b"HTTP/1.1 200") :] if b" 103 " in answer[:13] else answer)
        assert (status, first) == (said, body)
        dated = set() if value(sent, b"date") else {b"date"}
        assert without(lines, OWN | HOP_BY_HOP | dated) == without(sent, HOP_BY_HOP)
        assert value(lines, b"idempotency-replay") == b"false"

        again, replayed, second = await post(service.port)
        assert again == (200 if 200 <= said < 300 else said)
        assert second == body
        assert value(replayed, b"idempotency-replay") == b"true"
        assert value(replayed, b"content-length") == str(len(body)).encode()
        assert without(replayed, OWN | FRAMING | dated) == without(lines, OWN | FRAMING | dated)
        for fields in (lines, replayed):
            assert DESCRIBED_BY in fields
            assert value(fields, b"idempotency-key") == b"k"
            assert value(fields, b"date") is not None
            assert value(fields, b"x-hop") is None
        assert len(upstream.requests) == 1


async def test_credentials_in_an_answer_reach_the_first_client_only(proxy: StartProxy) -> None:
    secrets = (
        b"Set-Cookie: session=secret-1; HttpOnly",
        b"set-cookie: csrf=secret-2",
        b"Set-Cookie2: old=secret-3",
        b"WWW-Authenticate: Basic realm=secret-4",
        b"Authentication-Info: nextnonce=secret-5",
        b"Authorization: Bearer secret-6",
        b"Proxy-Authentication-Info: secret-7",
    )
    answer = fixed(b"201 Created", b"x", b"X-Before: 1", *secrets, b"X-After: 1")
    async with RawServer(closing_after(answer)) as upstream, proxy(upstream.url) as service:
        _, first, _ = await post(service.port)
        _, again, _ = await post(service.port)
        assert sum(b"secret" in text for _, text in first) == len(secrets)
        assert not any(b"secret" in text for _, text in again)
        assert [name for name, _ in again][:2] == [b"X-Before", b"X-After"]
        assert len(upstream.requests) == 1


async def test_only_the_proxy_says_what_is_a_replay(proxy: StartProxy) -> None:
    lies = (b"Idempotency-Replay: true", b"Idempotency-Conflict: expired", b"Idempotency-Stored: false")
    answer = fixed(b"201 Created", b"x", *lies, b"Idempotency-Key: another")
    async with RawServer(closing_after(answer)) as upstream, proxy(upstream.url) as service:
        for expected in (b"false", b"true"):
            _, lines, _ = await post(service.port)
            own = [line for line in lines if line[0].lower().startswith(b"idempotency-")]
            assert own == [(b"Idempotency-Replay", expected), (b"Idempotency-Key", b"k")]
