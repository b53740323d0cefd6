"""Requests that try to be read in two ways: as one by this proxy, as two by the server behind it.

Each payload carries `GET /smuggled`, placed where a reader that falls for the trick begins to read the next request.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: api\r\n\r\n"

BAD_CHUNKS = [
    b"+5\r\nhello",
    b"-1\r\n",
    b"0x5\r\nhello",
    b"0_2e\r\n",
    b"\r\nhello",
    b" 5\r\nhello",
    b"5 \r\nhello",
    b"5\nhello",
    b"5\r\nhelloX\r\n",
    b"5\r\nhello\n0\r\n",
    b"5\r\nhello0\r\n",
    b"5\rhello",
    b"g\r\n",
    b"11112222333344445\r\n",
    b"5;\x00\r\nhello",
    b"5;a\nb\r\nhello",
    b"5;a\rb\r\nhello",
    b";\r\n",
    b"5,5\r\nhello",
    b"5\t\r\nhello",
    b"5;" + b"x" * 300,
    b"5;\xff\r\nhello",
    b"0\r\nContent-Length: 5\r\n\r\n",
    b"0\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"0\r\nHost: evil\r\n\r\n",
    b"0\r\nno colon\r\n\r\n",
    b"0\r\nX : y\r\n\r\n",
    b"0\r\n X: y\r\n\r\n",
    b"0\r\nX: a\nb\r\n\r\n",
    b"0\r\nX: a\x00\r\n\r\n",
    b"0\r\nX: a\x01\r\n\r\n",
    b"0\r\n\n",
    b"00000\r\n\x00",
]


CHUNKED_SMUGGLED = b"0\r\n\r\n" + SMUGGLED
"""For a reader by chunks the body ends at once; for one by length, all of it is body."""


@dataclass(frozen=True)
class Payload:
    name: str
    packets: tuple[bytes, ...]


LENGTHS = [
    b"",
    b"+5",
    b"-5",
    b"0x5",
    b"5 5",
    b"5,5",
    b"5, 5",
    b"5;5",
    b"5_0",
    b"5.0",
    b"5e0",
    b"\x0b5",
    b"5\x0b",
    b"5\x0c",
    b"5\x00",
    b"'5'",
    b'"5"',
    b"five",
    b"0b101",
    b"0o5",
    b"\xc2\xb9",
    b"\xef\xbc\x95",
    b"18446744073709551621",
    b"99999999999999999999",
    b"9" * 400,
    b"5\r",
    b"5\n",
    b"\r5",
    b"5\n0",
    b"5\r\n 0",
    b"5\r\n\t0",
    b"--5",
    b"+0",
    b"-0",
    b"5L",
    b"5h",
    b"$5",
    b"(5)",
]

CODINGS = [
    b"gzip, chunked",
    b"chunked, gzip",
    b"chunked, chunked",
    b"chunked,",
    b",chunked",
    b", chunked",
    b"chunked;",
    b"chunked; q=1",
    b"xchunked",
    b"chunkedx",
    b"chunked chunked",
    b"'chunked'",
    b'"chunked"',
    b"identity",
    b"identity, chunked",
    b"chunked, identity",
    b"",
    b" ",
    b"chunked\x00",
    b"\x00chunked",
    b"\x0bchunked",
    b"chunked\x0b",
    b"\x0cchunked",
    b"chunked\x0c",
    b"chunked\r",
    b"chunked\n",
    b"\rchunked",
    b"\nchunked",
    b"chu\x00nked",
    b"\xc2\xa0chunked",
    b"chunked\xa0",
    b"chunked\x7f",
    b"chunked\r\n ",
    b"\r\n chunked",
    b"\r\n\tchunked",
    b"deflate",
    b"br, chunked",
    b"cow",
    b"c\xc5\xbfhunked",
    b"chunke\xc4\x91",
    b"chunked/1",
    b"chunked=1",
    b"chunked#",
    b"x, chunked",
    b"chunked\x1f",
    b"-chunked",
]

CODING_NAMES = [
    b"Transfer-Encoding ",
    b"Transfer-Encoding\t",
    b" Transfer-Encoding",
    b"\tTransfer-Encoding",
    b"Transfer_Encoding",
    b"Transfer Encoding",
    b"Transfer-Encoding\x00",
    b"\x00Transfer-Encoding",
    b"Transfer-Encoding\x0b",
    b"Transfer-Encoding\r",
    b"Transfer-Encoding\n",
    b"\rTransfer-Encoding",
    b"\nTransfer-Encoding",
    b"X: y\rTransfer-Encoding",
    b"X: y\nTransfer-Encoding",
    b"X\nTransfer-Encoding",
    b"X:\nTransfer-Encoding",
    b"Transfer-Encoding\xa0",
    b"Transfer-Encodin\xc4\xa1",
    b'"Transfer-Encoding"',
    b"(Transfer-Encoding)",
    b"Transfer-Encoding:\r\n",
    b"TRANSFER_ENCODING",
    b"X: y\r\n Transfer-Encoding",
    b"X: y\r\n\tTransfer-Encoding",
    b"X: y\r\r\nTransfer-Encoding",
    b"X: y\x00\r\nTransfer-Encoding",
]

LENGTH_NAMES = [
    b"Content-Length ",
    b"Content-Length\t",
    b" Content-Length",
    b"\tContent-Length",
    b"Content_Length",
    b"CONTENT_LENGTH",
    b"Content Length",
    b"Content-Length\x00",
    b"Content-Length\r",
    b"Content-Length\n",
    b"X: y\nContent-Length",
    b"X: y\rContent-Length",
    b"X\nContent-Length",
    b"Content-Length:\r\n",
    b"X: y\r\n Content-Length",
    b"\x0bContent-Length",
    b"Content-Length\xa0",
]

LINES = [
    b"X",
    b": y",
    b"X y: z",
    b"X\x00: y",
    b"X: \x00",
    b"X: \x01",
    b"X: \x1f",
    b"X: \x7f",
    b"X: y\r",
    b"X: y\rz",
    b"X: y\nz",
    b"X: y\n",
    b"\x0bX: y",
    b"X(: y",
    b"X@: y",
    b"X/: y",
    b"X[: y",
    b"X=: y",
    b'X": y',
    b"X\xe9: y",
    b"X: y\r\n\x00",
    b"X: y\r\n z",
    b"X: y\r\n\tz",
    b" X: y",
    b"\tX: y",
    b"=: y",
    b"{}: y",
]

STARTS = [
    b"PUT  /orders HTTP/1.1",
    b"PUT /orders  HTTP/1.1",
    b"PUT\t/orders HTTP/1.1",
    b"PUT /orders\tHTTP/1.1",
    b" PUT /orders HTTP/1.1",
    b"PUT /orders HTTP/1.1 ",
    b"PUT /orders HTTP/1.1\t",
    b"PUT /orders HTTP/1.1\x00",
    b"PUT /orders HTTP/1.1\n",
    b"PUT /orders HTTP/1.1\r",
    b"PUT /or ders HTTP/1.1",
    b"PUT /or\x00ders HTTP/1.1",
    b"PUT /or\rders HTTP/1.1",
    b"PUT /or\nders HTTP/1.1",
    b"PUT /orders#x HTTP/1.1",
    b"PUT orders HTTP/1.1",
    b"PUT * HTTP/1.1",
    b"PUT HTTP/1.1",
    b"PUT /orders",
    b"PUT /orders HTTP/1",
    b"PUT /orders HTTP/1.1.1",
    b"PUT /orders HTTP/1.2",
    b"PUT /orders HTTP/0.9",
    b"PUT /orders HTTP/2.0",
    b"PUT /orders HTTP/3",
    b"PUT /orders HTTP/01.1",
    b"PUT /orders HTTP/1.01",
    b"PUT /orders HTTP/+1.1",
    b"PUT /orders http/1.1",
    b"PUT /orders HTTPS/1.1",
    b"PUT /orders RTSP/1.1",
    b"PUT /orders ICY",
    b"PUT /orders HTTP/1,1",
    b"put /orders HTTP/1.1",
    b"PuT /orders HTTP/1.1",
    b"P\x00UT /orders HTTP/1.1",
    b"PUT@ /orders HTTP/1.1",
    b"\x16\x03\x01\x02\x00",
    b"CONNECT api:80 HTTP/1.1",
    b"TRACE /orders HTTP/1.1",
    b"PUT http://other/orders HTTP/1.1",
    b"PUT http://api:81/orders HTTP/1.1",
    b"PUT http://a@api/ HTTP/1.1",
    b"PUT ftp://api/orders HTTP/1.1",
    b"PUT //api/orders\x0b HTTP/1.1",
    b"PUT /orders\x7f HTTP/1.1",
    b"\nPUT /orders HTTP/1.1",
    b"\r\n\r\nPUT /orders HTTP/1.1",
    b"\rPUT /orders HTTP/1.1",
]

HOSTS = [
    b"",
    b"Host:",
    b"Host: ",
    b"Host: api\r\nHost: api",
    b"Host: api\r\nhost: other",
    b"Host: u@api",
    b"Host: api/b",
    b"Host: api, b",
    b"Host: a b",
    b"Host: api:x",
    b"Host: api:80:80",
    b"Host: [::1",
    b"Host: ::1",
    b"Host: api?x",
    b"Host: api#x",
    b"Host: api\\b",
    b"Host: \xc3\xa9",
    b"Host : api",
    b"Host: api\x00",
    b"Host: api\x0b",
]


def payloads(lines: bytes) -> Iterator[Payload]:
    """Every payload, each refused as a whole; `lines` (empty, or ending with CRLF) go along with each."""
    put = b"PUT /orders HTTP/1.1\r\nHost: api\r\n" + lines
    for value in LENGTHS:
        yield Payload(f"length {value[:25]!r}", (put + b"Content-Length: " + value + b"\r\n\r\nhello" + SMUGGLED,))
    for value in CODINGS:
        yield Payload(f"coding {value!r}", (put + b"Transfer-Encoding: " + value + b"\r\n\r\n" + CHUNKED_SMUGGLED,))
    size = b"%d" % len(CHUNKED_SMUGGLED)
    for name in CODING_NAMES:
        both = put + b"Content-Length: " + size + b"\r\n" + name + b": chunked\r\n\r\n" + CHUNKED_SMUGGLED
        yield Payload(f"coding's name {name!r}", (both,))
    for name in LENGTH_NAMES:
        hidden = put + name + b": " + b"%d" % len(SMUGGLED) + b"\r\nContent-Length: 0\r\n\r\n" + SMUGGLED
        yield Payload(f"length's name {name!r}", (hidden,))
    for one, two in [(b"0", size), (size, b"0"), (b"5", b"5"), (size, size)]:
        twice = put + b"Content-Length: " + one + b"\r\ncontent-length: " + two + b"\r\n\r\n" + CHUNKED_SMUGGLED
        yield Payload(f"lengths {one!r} and {two!r}", (twice,))
    for one, two in [
        (b"Content-Length: " + size, b"Transfer-Encoding: chunked"),
        (b"Transfer-Encoding: chunked", b"Content-Length: " + size),
        (b"Content-Length: 0", b"Transfer-Encoding: chunked"),
        (b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
        (b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity"),
        (b"Transfer-Encoding: identity", b"Transfer-Encoding: chunked"),
        (b"Transfer-Encoding: chunked", b"transfer-encoding: x"),
        (b"Content-Type: a/b", b"Content-Type: c/d"),
    ]:
        yield Payload(f"{one!r} and {two!r}", (put + one + b"\r\n" + two + b"\r\n\r\n" + CHUNKED_SMUGGLED,))
    old = b"PUT /orders HTTP/1.0\r\nHost: api\r\nConnection: keep-alive\r\n" + lines
    yield Payload("chunked in HTTP/1.0", (old + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKED_SMUGGLED,))
    for wire in BAD_CHUNKS:
        head = put + b"Transfer-Encoding: chunked\r\n\r\n"
        yield Payload(f"chunk {wire[:40]!r}", (head + wire + b"\r\n" + CHUNKED_SMUGGLED,))
        yield Payload(f"later chunk {wire[:40]!r}", (head + b"3\r\nabc\r\n", wire + b"\r\n" + CHUNKED_SMUGGLED))
    for line in LINES:
        yield Payload(f"line {line!r}", (put + line + b"\r\nContent-Length: 0\r\n\r\n" + SMUGGLED,))
    for start in STARTS:
        yield Payload(f"start {start!r}", (start + b"\r\nHost: api\r\n" + lines + b"\r\n" + SMUGGLED,))
    for host in HOSTS:
        line = host + b"\r\n" if host else b""
        yield Payload(f"host {host!r}", (b"PUT /orders HTTP/1.1\r\n" + line + lines + b"\r\n" + SMUGGLED,))
    for value in [b"200-ok", b"y 100-continue", b"100-continue, x", b"100-continue\x00", b"100continue", b""]:
        yield Payload(f"expect {value!r}", (put + b"Expect: " + value + b"\r\nContent-Length: 0\r\n\r\n" + SMUGGLED,))
