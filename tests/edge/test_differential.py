"""The same requests straight to the upstream and through the proxy: docs/fidelity.md tells every difference.

The upstream records what it gets byte by byte and answers as scripted; the client records what it hears.
"""

from __future__ import annotations

import asyncio
import gzip
import itertools
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import StartProxy
from tests.support.rawserver import RawServer
from tests.support.wire import connected

PAGE = Path(__file__).resolve().parents[2] / "docs" / "fidelity.md"


@dataclass(frozen=True)
class Message:
    start: bytes
    fields: tuple[tuple[bytes, bytes], ...]
    content: bytes
    trailers: tuple[tuple[bytes, bytes], ...]
    chunked: bool

    def values(self, name: bytes) -> list[bytes]:
        return [value for field, value in self.fields if field.lower() == name]


def fields(block: bytes) -> tuple[tuple[bytes, bytes], ...]:
    split = (line.partition(b":") for line in block.split(b"\r\n") if line)
    return tuple((name, value.strip(b" \t")) for name, _, value in split)


async def read_message(reader: asyncio.StreamReader, *, bodiless: bool = False, until_end: bool = False) -> Message:
    """One message as it is on the wire, its body without its framing."""
    start, _, rest = (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")
    head = fields(rest)
    by_name = {name.lower(): value for name, value in head}
    content, trailers, chunked = b"", b"", b"transfer-encoding" in by_name
    if bodiless:
        pass
    elif chunked:
        while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
            content += (await reader.readexactly(size + 2))[:-2]
        while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
            trailers += line
    elif b"content-length" in by_name:
        content = await reader.readexactly(int(by_name[b"content-length"]))
    elif until_end:
        content = await reader.read()
    return Message(start, head, content, fields(trailers), chunked)


@dataclass(frozen=True)
class Case:
    request: bytes
    answer: bytes

    @property
    def bodiless(self) -> bool:
        return self.request.startswith(b"HEAD ") or self.answer.split()[1] in (b"204", b"304")


TARGETS = [
    b"/",
    b"/a/b",
    b"/a%2Fb",
    b"/a%2fb",
    b"//a//b/",
    b"/a/../b/./c",
    b"/%2e%2e/x",
    b"/a\\b",
    b"/a;b=c",
    b"/a%zz",
    b"/%00",
    b"/?",
    b"/a?",
    b"/a?x=1&x=2&y",
    b"/a?x=%41+%20",
    b"/a?x=[1]&y={}",
    b"/a?q=http://b/c?d",
    b"/\xc3\xa9?\xff",
    b"/a?" + b"x" * 4000,
    b"/~user/'(x)*!$&,:@|^`",
    b'/a?x=<>"',
]
FIELDS = [
    b"",
    b"X-Case: Kept\r\nx-case: Again\r\nX-CASE: And again\r\n",
    b"X-Empty:\r\nX-Spaces:   a  b   \r\nX-Tab: a\tb\r\nX-None:x\r\n",
    b"X-Latin: caf\xe9\r\nX-UTF8: caf\xc3\xa9\r\n",
    b"Cookie: a=1\r\nCookie: b=2\r\nAccept: */*;q=0.1\r\nAccept-Encoding: gzip, br;q=0\r\n",
    b'Authorization: Basic dTpw\r\nUser-Agent: x/1 (y; z)\r\nRange: bytes=0-9\r\nIf-None-Match: "a", W/"b"\r\n',
    b"Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nTE: trailers\r\nX-Stays: 1\r\n",
    b"X_Under: 1\r\nX-Long: " + b"y" * 4000 + b"\r\n!#$%&'*+-.^_`|~: token\r\n",
    b"Via: 1.0 first\r\nX-Forwarded-For: 10.1.1.1\r\nForwarded: for=10.1.1.1\r\nX-Forwarded-Proto: https\r\n",
    b"Origin: null\r\nReferer: http://a/\r\nTraceparent: 00-1-2-01\r\nIdempotency-Key: on-a-read\r\n",
]
PACKED = gzip.compress(b"hello " * 50, mtime=0)
BODIES = [
    b"\r\n",
    b"Content-Length: 0\r\n\r\n",
    b"Content-Length: 5\r\n\r\nhello",
    b"Content-Length: 005\r\n\r\nh\x00\r\no",
    b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(PACKED) + PACKED,
    b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"transfer-encoding: Chunked\r\n\r\n1;x=y\r\nh\r\n4\r\nello\r\n0\r\nX-Sum: 1\r\nX-Sum: 2\r\n\r\n",
    b"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 20\r\n\r\n--x\r\n\r\nabc\r\n--x--\r\n\n",
]
METHODS = [b"GET", b"HEAD", b"PUT", b"DELETE", b"OPTIONS", b"POST", b"PATCH", b"PROPFIND", b"QUERY"]


def fixed(status: bytes, lines: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status, lines, len(body), body)


ANSWERS = [
    fixed(b"200 OK", b"Date: Thu, 01 Jan 1970 00:00:00 GMT\r\nServer: x\r\n", b"ok"),
    fixed(b"200 OK", b"", b"ok"),
    fixed(b"200 ", b"X-Case: 1\r\nx-case: 2\r\nX-Empty:\r\n", b""),
    fixed(
        b"201 Made for you",
        b"Location: /a/../b\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nX-Latin: caf\xe9\r\n",
        b"\x00\xff",
    ),
    fixed(b"302 Found", b"Location: http://elsewhere:81/?x#y\r\n", b"moved"),
    fixed(b"206 Partial Content", b"Content-Range: bytes 0-1/9\r\n", b"01"),
    fixed(b"200 OK", b'Content-Encoding: gzip\r\nVary: *\r\nETag: W/"x"\r\n', PACKED),
    fixed(b"401 Unauthorized", b'WWW-Authenticate: Basic realm="x"\r\nWWW-Authenticate: Bearer\r\n', b"no"),
    fixed(b"404 Not Found", b"Connection: close, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=1\r\n", b"gone"),
    fixed(b"500 Oh No", b"X-Long: " + b"z" * 4000 + b"\r\n", b"e" * 70_000),
    fixed(b"599 Odd", b'Warning: 299 - "x"\r\n', b""),
    fixed(b"205 Reset Content", b"", b""),
    b"HTTP/1.1 204 No Content\r\nX: y\r\n\r\n",
    b"HTTP/1.1 304 Not Modified\r\nETag: x\r\nContent-Length: 1234\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n2;x\r\nbc\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 1\r\nX-Sum: 2\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nX: until the end\r\n\r\nand this is all",
    b"HTTP/1.0 200 OK\r\nX: old\r\n\r\nolder",
    b"HTTP/1.1 200 OK\r\nX: y\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n\x00\n\r\n\r\n345\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nIdempotency-Replay: true\r\nContent-Length: 2\r\n\r\nok",
]


def cases() -> list[Case]:
    """A few hundred: every target, field block, body, method and answer, in changing company."""
    lists = [itertools.cycle(some) for some in (METHODS, TARGETS, FIELDS, BODIES, ANSWERS)]
    made = []
    for n in range(360):
        method, target, block, body, answer = [next(some) for some in lists]
        if n % 20 == 19:
            next(lists[n // 20 % 5])  # or the same ones would always meet
        if method == b"HEAD":
            answer = answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
        made.append(Case(b"%b %b HTTP/1.1\r\nHost: api.test\r\n%b%b" % (method, target, block, body), answer))
    return made


class Scripted:
    """Gives one answer to each connection, and keeps what it was asked."""

    def __init__(self) -> None:
        self.answer = b""
        self.seen: list[Message] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.seen.append(await read_message(reader))
        writer.write(self.answer)


async def ask(port: int, upstream: Scripted, case: Case) -> tuple[Message, Message]:
    """What the upstream saw and what the client heard."""
    upstream.answer = case.answer
    async with connected(port) as wire, asyncio.timeout(20):
        await wire.say(case.request)
        heard = await read_message(wire.reader, bodiless=case.bodiless, until_end=True)
    return upstream.seen.pop(), heard


HOP_BY_HOP = {b"connection", b"keep-alive", b"te", b"x-hop", b"transfer-encoding"}


def request_differences(straight: Message, through: Message) -> set[str]:
    found: set[str] = set()
    if straight.start != through.start:
        found.add("request-line")
    expected = list(straight.fields)
    for at, (name, value) in enumerate(expected):
        lower = name.lower()
        if lower == b"host" and through.values(b"host") != [value]:
            expected[at] = (name, through.values(b"host")[0])
            found.add("host")
        elif lower == b"content-length" and value != str(int(value)).encode():
            expected[at] = (name, str(int(value)).encode())
            found.add("length-spelling")
        elif lower == b"transfer-encoding" and value != b"chunked":
            expected[at] = (name, b"chunked")
            found.add("chunk-spelling")
        elif lower == b"x-forwarded-for" or (lower == b"forwarded" and b"for=" in value):
            expected[at] = (name, value + (b", for=127.0.0.1" if lower == b"forwarded" else b", 127.0.0.1"))
            found.add("forwarded")
    kept = [field for field in expected if field[0].lower() not in HOP_BY_HOP - {b"transfer-encoding"}]
    if kept != expected:
        found.add("hop-by-hop")
    added = list(through.fields[len(kept) :])
    if list(through.fields[: len(kept)]) != kept:
        found.add(f"fields: {kept} became {through.fields}")
    for name, value in added:
        if name == b"Via" and re.fullmatch(rb"1\.1 idemproxy-[0-9a-f]{8}", value):
            found.add("via")
        elif (name, value) in (
            (b"X-Forwarded-For", b"127.0.0.1"),
            (b"X-Forwarded-Host", b"api.test"),
            (b"X-Forwarded-Proto", b"http"),
        ):
            found.add("forwarded")
        else:
            found.add(f"added: {name!r}: {value!r}")
    return found | _body_differences(straight, through)


def answer_differences(straight: Message, through: Message, own: bytes = b"idempotency-replay") -> set[str]:
    found: set[str] = set()
    if straight.start != through.start:
        same = straight.start.replace(b"HTTP/1.0", b"HTTP/1.1", 1) == through.start
        found.add("version" if same else f"status line: {straight.start!r} became {through.start!r}")
    gone = HOP_BY_HOP | {own}
    kept = [field for field in straight.fields if field[0].lower() not in gone]
    if any(field[0].lower() in HOP_BY_HOP - {b"transfer-encoding"} for field in straight.fields):
        found.add("hop-by-hop")
    if straight.values(own):
        found.add("own-answer-fields")
    if list(through.fields[: len(kept)]) != kept:
        found.add(f"fields: {kept} became {through.fields}")
    for name, value in through.fields[len(kept) :]:
        if name == b"Date" and not straight.values(b"date"):
            found.add("date")
        elif (name, value) == (b"Transfer-Encoding", b"chunked"):
            if not straight.chunked:
                found.add("until-the-end")
        elif (name, value) == (b"Connection", b"close"):
            found.add("hop-by-hop")
        else:
            found.add(f"added: {name!r}: {value!r}")
    return found | _body_differences(straight, through)


def _body_differences(straight: Message, through: Message) -> set[str]:
    found = set()
    if straight.content != through.content:
        found.add(f"body: {straight.content[:99]!r} became {through.content[:99]!r}")
    if straight.trailers != through.trailers:
        found.add(f"trailers: {straight.trailers} became {through.trailers}")
    return found


def told() -> set[str]:
    """The differences that the page tells, by their names."""
    return set(re.findall(r"^\| `([a-z-]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))


async def test_every_difference_is_told_and_every_difference_that_is_told_is_there(proxy: StartProxy) -> None:
    script = Scripted()
    every = cases()
    assert len(every) >= 300
    seen: Counter[str] = Counter()
    async with RawServer(script) as upstream, proxy(upstream.url, methods="LOCK") as service:
        for case in every:
            straight_request, straight_answer = await ask(upstream.port, script, case)
            request, answer = await ask(service.port, script, case)
            found = request_differences(straight_request, request) | answer_differences(straight_answer, answer)
            assert found <= told(), (case, found - told())
            seen.update(found)
    assert set(seen) == told()


async def test_in_shadow_every_method_is_untouched_but_for_what_any_hop_changes(proxy: StartProxy) -> None:
    """The contract's methods are all guarded here, or would be; the keys that come along are seen, and kept."""
    script = Scripted()
    allowed = told() - {"own-answer-fields"}
    settings = {"mode": "shadow", "methods": "POST,PATCH,PUT,DELETE,PROPFIND,QUERY"}
    async with RawServer(script) as upstream, proxy(upstream.url, **settings) as service:
        for case in cases():
            keyed = Case(
                case.request.replace(b"\r\n", b"\r\nIdempotency-Key: k\r\nIdempotency_Key: k\r\n", 1), case.answer
            )
            straight_request, straight_answer = await ask(upstream.port, script, keyed)
            request, answer = await ask(service.port, script, keyed)
            found = request_differences(straight_request, request)
            found |= answer_differences(straight_answer, answer, own=b"none is taken away")
            assert found <= allowed, (keyed, found - allowed)
        await service.office.flush()
        seen = service.metrics.registry.get_sample_value
        assert seen("idemproxy_shadow_requests_total", {"route": "*", "would": "first_write"}) or seen(
            "idemproxy_shadow_requests_total", {"route": "*", "would": "invalid"}
        )
