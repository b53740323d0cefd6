"""What the upstream client sends, what it believes, and what it says when something is missing."""

from __future__ import annotations

import asyncio
import select
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from idemproxy.core.messages import Headers
from idemproxy.edge import upstream
from idemproxy.edge.origin import Origin
from idemproxy.edge.upstream import HttpUpstream
from idemproxy.ports import BodyLost, Interim, Loss, Lost, NotSent, Opened, Switched
from tests.support.compiled import interpreted_only
from tests.support.rawserver import Handler, RawServer, answering, closing_after, ok, read_request, resetting_after

HOST: Headers = ((b"Host", b"api"),)
CHUNKED: Headers = (*HOST, (b"Transfer-Encoding", b"chunked"))


# The hook that replaces the fixture below belongs into a conftest; policies are deprecated from 3.14 on.
pytestmark = [
    pytest.mark.filterwarnings('ignore:Overriding the "event_loop_policy" fixture'),
    pytest.mark.filterwarnings("ignore:.*Policy.* is deprecated:DeprecationWarning"),
]


@pytest.fixture(params=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    """Both loops: they differ in transports, sockets and the order of callbacks."""
    return uvloop.EventLoopPolicy() if request.param == "uvloop" else asyncio.DefaultEventLoopPolicy()


class Client:
    """An upstream, shorter to call."""

    def __init__(self, origin: Origin, **options: Any) -> None:
        self._upstream = HttpUpstream(origin, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._upstream, name)

    async def ask(
        self,
        method: str = "GET",
        *,
        timeout: float = 2.0,
        interim: Interim | None = None,
    ) -> Opened | NotSent | Lost:
        return await self._upstream.send(method, b"/", HOST, b"", timeout=timeout, interim=interim)

    async def whole(self, method: str = "GET") -> tuple[Opened, bytes]:
        opened = await self.ask(method)
        assert isinstance(opened, Opened), opened
        return opened, await read_all(opened)

    @property
    def open(self) -> int:
        return len(self._upstream._open)


async def read_all(opened: Opened) -> bytes:
    body = b""
    while piece := await opened.body.read():
        body += piece
    return body


@asynccontextmanager
async def serving(
    handler: Handler, *, base: str = "", idle_seconds: float = 4.0, max_connections: int = 256, max_idle: int = 64
) -> AsyncIterator[tuple[RawServer, Client]]:
    async with RawServer(handler) as server:
        client = Client(
            Origin.parse(server.url + base),
            idle_seconds=idle_seconds,
            max_connections=max_connections,
            max_idle=max_idle,
        )
        try:
            yield server, client
        finally:
            await client.close()
            assert client.open == 0
            assert client._connecting == 0
            assert not client._waiters


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(2):
        while not condition():
            await asyncio.sleep(0.001)


def lost(result: object) -> Loss:
    assert isinstance(result, Lost), result
    return result.loss


async def loss_of_body(opened: object) -> tuple[bytes, Loss]:
    """What could be read before the body broke off, and how it did."""
    assert isinstance(opened, Opened), opened
    body = b""
    try:
        while piece := await opened.body.read():
            body += piece
    except BodyLost as broken:
        return body, broken.lost.loss
    raise AssertionError(f"the body ended whole: {body!r}")


class TestOrigin:
    @pytest.mark.parametrize(
        ("url", "origin", "authority"),
        [
            ("http://api", Origin("http", "api", 80, b""), b"api"),
            ("http://api:80/", Origin("http", "api", 80, b""), b"api"),
            ("http://api:8080/v1/", Origin("http", "api", 8080, b"/v1"), b"api:8080"),
            ("https://api:443/a%20b", Origin("https", "api", 443, b"/a%20b"), b"api"),
            ("https://api:80", Origin("https", "api", 80, b""), b"api:80"),
            ("http://[::1]:9000", Origin("http", "::1", 9000, b""), b"[::1]:9000"),
            (
                "http+unix://%2Frun%2FApi.sock/base",
                Origin("http+unix", "localhost", 0, b"/base", "/run/Api.sock"),
                b"localhost",
            ),
        ],
    )
    def test_is_read_from_a_url(self, url: str, origin: Origin, authority: bytes) -> None:
        assert Origin.parse(url) == origin
        assert origin.authority == authority

    @pytest.mark.parametrize(
        ("url", "complaint"),
        [
            ("localhost:8080", "did you mean 'http://localhost:8080'"),
            ("ftp://api", "must start with"),
            ("http://", "no host"),
            ("http://:80", "no host"),
            ("http://api:0", "port"),
            ("http://api:", "port"),
            ("http://api:99999", "port"),
            ("http://api:x", "port"),
            ("http://me:secret@api", "user name"),
            ("http://api/?a=1", "query"),
            ("http://api/#x", "fragment"),
            ("http://[::1", "cannot be read"),
            ("http://api/ä", "ASCII"),
            ("http://api\r\n", "ASCII"),
            ("http+unix://run/api.sock", "absolute path"),
        ],
    )
    def test_says_in_one_line_what_is_wrong_with_a_url(self, url: str, complaint: str) -> None:
        with pytest.raises(ValueError, match=complaint) as caught:
            Origin.parse(url)
        assert "\n" not in str(caught.value)


class TestTheRequest:
    async def test_goes_out_exactly_as_given_behind_the_base_path(self) -> None:
        headers = ((b"hOST", b"x"), (b"B", b"2"), (b"a", b"\xe9"), (b"B", b""), (b"Content-Length", b"3"))
        async with serving(answering(ok()), base="/base") as (server, client):
            await client.send("PATCH", b"/a?b=%2F", headers, b"abc", timeout=2)
        fields = b"hOST: x\r\nB: 2\r\na: \xe9\r\nB: \r\nContent-Length: 3\r\n\r\n"
        assert server.requests == [b"PATCH /base/a?b=%2F HTTP/1.1\r\n" + fields + b"abc"]

    async def test_streams_its_body_as_chunks_when_its_headers_say_so(self) -> None:
        async def body() -> AsyncIterator[bytes]:
            yield b"hello"
            yield b""
            yield b"x" * 17

        async with serving(answering(ok(), ok())) as (server, client):
            opened = await client.send("POST", b"/", CHUNKED, body(), timeout=2)
            assert isinstance(opened, Opened)
            assert await read_all(opened) == b"ok"
            await client.whole()
        assert server.requests[0].endswith(b"\r\n\r\n5\r\nhello\r\n11\r\n" + b"x" * 17 + b"\r\n0\r\n\r\n")
        assert server.connections == 1

    async def test_streams_its_body_as_it_is_when_it_has_a_length(self) -> None:
        async def body() -> AsyncIterator[bytes]:
            yield b"he"
            yield b"llo"

        async with serving(answering(ok())) as (server, client):
            headers = (*HOST, (b"Content-Length", b"5"))
            assert isinstance(await client.send("PUT", b"/", headers, body(), timeout=2), Opened)
        assert server.requests[0].endswith(b"\r\n\r\nhello")

    async def test_has_its_head_sent_before_the_first_piece_is_there(self) -> None:
        head_seen = asyncio.Event()

        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            head_seen.set()
            await reader.readuntil(b"0\r\n\r\n")
            writer.write(ok())

        async def body() -> AsyncIterator[bytes]:
            await head_seen.wait()
            yield b"x"

        async with serving(handler) as (_, client):
            assert isinstance(await client.send("POST", b"/", CHUNKED, body(), timeout=2), Opened)

    async def test_waits_with_the_next_piece_while_the_upstream_does_not_read(self) -> None:
        taken = 0
        go_on = asyncio.Event()

        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await go_on.wait()
            await read_request(reader)
            writer.write(ok())

        async def body() -> AsyncIterator[bytes]:
            nonlocal taken
            for _ in range(200):
                taken += 1
                yield b"x" * 65536

        async with serving(handler) as (_, client):
            sending = asyncio.ensure_future(client.send("POST", b"/", CHUNKED, body(), timeout=5))
            await asyncio.sleep(0.1)
            stalled_at = taken
            await asyncio.sleep(0.05)
            assert taken == stalled_at < 200
            go_on.set()
            assert isinstance(await sending, Opened)
            assert taken == 200

    async def test_is_broken_off_and_raises_when_its_body_raises(self) -> None:
        broken_off = asyncio.Event()

        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            assert not (await reader.read()).endswith(b"0\r\n\r\n")
            broken_off.set()

        async def body() -> AsyncIterator[bytes]:
            yield b"x"
            raise LookupError("the client left")

        async with serving(handler) as (_, client):
            with pytest.raises(LookupError, match="the client left"):
                await client.send("POST", b"/", CHUNKED, body(), timeout=2)
            await asyncio.wait_for(broken_off.wait(), 2)

    async def test_counts_as_lost_when_its_body_is_cancelled(self) -> None:
        async def body() -> AsyncIterator[bytes]:
            yield b"x"
            raise asyncio.CancelledError

        async with serving(answering(ok())) as (_, client):
            assert lost(await client.send("POST", b"/", CHUNKED, body(), timeout=2)) is Loss.DISCONNECTED

    @pytest.mark.parametrize("whole", [True, False])
    async def test_stops_at_the_end_of_an_early_answer_whose_connection_is_not_reused(self, whole: bool) -> None:
        stopped = asyncio.Event()
        rest = asyncio.Event()

        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"x\r\n")
            writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 6\r\n\r\nno" + (b" way" if whole else b""))
            await rest.wait()
            if not whole:
                writer.write(b" way")
            assert await reader.read() == b""

        async def body() -> AsyncIterator[bytes]:
            yield b"x"
            try:
                await asyncio.sleep(60)
            finally:
                stopped.set()

        async with serving(handler) as (_, client):
            opened = await client.send("POST", b"/", CHUNKED, body(), timeout=2)
            assert stopped.is_set() is whole
            rest.set()
            assert isinstance(opened, Opened)
            assert (opened.status, await read_all(opened)) == (413, b"no way")
            await until(stopped.is_set)
            await until(lambda: client.open == 0)

    async def test_goes_on_while_it_is_being_answered(self) -> None:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n")
            for _ in range(3):
                writer.write((await reader.readuntil(b"\r\n") + await reader.readuntil(b"\r\n"))[3:4])
            await reader.readuntil(b"0\r\nX-Sum: 3\r\n\r\n")

        turn: asyncio.Queue[bytes] = asyncio.Queue()

        async def body() -> AsyncIterator[bytes]:
            for _ in range(3):
                yield await turn.get()

        async with serving(echo) as (_, client):
            turn.put_nowait(b"a")
            headers = ((b"X-Sum", b"3"),)
            opened = await client.send("POST", b"/", CHUNKED, body(), timeout=2, trailers=lambda: headers)
            assert isinstance(opened, Opened)
            assert await opened.body.read() == b"a"
            turn.put_nowait(b"b")
            assert await opened.body.read() == b"b"
            turn.put_nowait(b"c")
            assert await read_all(opened) == b"c"

    async def test_may_take_longer_than_the_timeout_as_long_as_it_moves(self) -> None:
        async def body() -> AsyncIterator[bytes]:
            for _ in range(12):
                yield b"x"
                await asyncio.sleep(0.05)

        async with serving(answering(ok())) as (_, client):
            opened = await client.send("POST", b"/", CHUNKED, body(), timeout=0.4)
            assert isinstance(opened, Opened)

    @interpreted_only
    async def test_goes_to_the_next_address_when_one_refuses(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def two(*_: object) -> list[str]:
            return ["127.0.0.2", "127.0.0.1"]

        monkeypatch.setattr(upstream, "_addresses", two)
        async with RawServer(answering(ok())) as server:
            client = Client(Origin.parse(f"http://localhost:{server.port}"))
            assert (await client.whole())[1] == b"ok"
            await client.close()

    async def test_of_bytes_that_is_answered_early_does_not_leave_its_rest_to_the_next(self) -> None:
        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(ok())
            await asyncio.sleep(60)

        async with serving(handler) as (_, client):
            body = b"x" * 30_000_000  # more than the socket buffers of both sides take
            headers = (*HOST, (b"Content-Length", b"%d" % len(body)))
            opened = await client.send("POST", b"/", headers, body, timeout=2)
            assert isinstance(opened, Opened)
            assert await read_all(opened) == b"ok"
            await until(lambda: client.open == 0)


class TestNotSent:
    async def test_is_said_when_nobody_listens(self) -> None:
        async with RawServer(answering()) as server:
            pass
        client = Client(Origin.parse(server.url))
        assert isinstance(await client.ask(), NotSent)
        assert client._connecting == client.open == 0

    async def test_is_said_when_the_name_is_unknown(self) -> None:
        assert isinstance(await Client(Origin.parse("http://nowhere.invalid")).ask(), NotSent)

    @pytest.mark.parametrize(("connect_timeout", "whole"), [(0.05, 5.0), (5.0, 0.05)])
    async def test_is_said_when_connecting_takes_too_long(self, connect_timeout: float, whole: float) -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
            address = server.getsockname()
            with socket.socket() as first, socket.socket() as second:
                # Fills the queue of connections: the kernel drops every further SYN.
                for filler in (first, second):
                    filler.setblocking(False)
                    filler.connect_ex(address)
                client = Client(Origin.parse(f"http://127.0.0.1:{address[1]}"), connect_timeout=connect_timeout)
                async with asyncio.timeout(1):
                    assert isinstance(await client.ask(timeout=whole), NotSent)
                await client.close()

    async def test_is_said_when_no_connection_becomes_free_in_time(self) -> None:
        async with serving(answering(), max_connections=1) as (server, client):
            first = asyncio.ensure_future(client.ask())
            await until(lambda: len(server.requests) == 0 and client.open == 1)
            assert isinstance(await client.ask(timeout=0.05), NotSent)
            assert not client._waiters
            first.cancel()

    async def test_is_said_after_close(self) -> None:
        async with serving(answering(ok())) as (server, client):
            await client.close()
            assert isinstance(await client.ask(), NotSent)
            assert server.requests == []


class TestLost:
    @pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nA: b\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"])
    async def test_is_said_once_when_the_upstream_closes_before_a_whole_head(self, answer: bytes) -> None:
        async with serving(closing_after(answer)) as (server, client):
            assert lost(await client.ask()) is Loss.DISCONNECTED
            assert (len(server.requests), server.connections) == (1, 1)

    async def test_is_said_when_the_connection_is_reset(self) -> None:
        async with serving(resetting_after(b"")) as (server, client):
            assert lost(await client.ask()) is Loss.DISCONNECTED
            assert len(server.requests) == 1

    async def test_is_said_of_a_pooled_connection_that_dies_with_the_request_and_nothing_is_repeated(self) -> None:
        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            writer.write(ok())
            await read_request(reader)

        async with serving(handler) as (server, client):
            await client.whole()
            assert lost(await client.ask("GET")) is Loss.DISCONNECTED
            assert (len(server.requests), server.connections) == (2, 1)

    @pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\n"])
    async def test_is_said_when_no_head_comes_in_time_and_the_connection_is_closed(self, answer: bytes) -> None:
        async with serving(answering(answer)) as (server, client):
            assert lost(await client.ask(timeout=0.05)) is Loss.TIMEOUT
            await until(lambda: client.open == 0)
            assert len(server.requests) == 1

    async def test_is_said_when_the_upload_takes_too_long(self) -> None:
        async def body() -> AsyncIterator[bytes]:
            yield b"x"
            await asyncio.sleep(60)

        async with serving(answering(ok())) as (_, client):
            assert lost(await client.send("POST", b"/", CHUNKED, body(), timeout=0.05)) is Loss.TIMEOUT

    async def test_is_said_to_those_in_flight_when_the_client_is_closed(self) -> None:
        async with serving(answering(b"")) as (server, client):
            asking = asyncio.ensure_future(client.ask())
            await until(lambda: len(server.requests) == 1)
            await client.close()
            assert lost(await asking) is Loss.DISCONNECTED

    @pytest.mark.parametrize(
        "answer",
        [
            pytest.param(b"SSH-2.0-OpenSSH_9.6\r\n", id="not HTTP"),
            pytest.param(b"RTSP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", id="another protocol"),
            pytest.param(b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n", id="another version"),
            pytest.param(b"HTTP/1.1 101 S\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", id="101"),
            pytest.param(b"HTTP/1.1 101 S\r\n\r\n", id="101 without upgrade"),
            pytest.param(b"HTTP/1.1 099 X\r\nContent-Length: 0\r\n\r\n", id="below 100"),
            pytest.param(b"HTTP/1.1 600 X\r\nContent-Length: 0\r\n\r\n", id="above 599"),
            pytest.param(b"HTTP/1.1 103 E\r\nContent-Length: 2\r\n\r\nxx" + ok(), id="interim with a body"),
            pytest.param(
                b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                id="length, then chunked",
            ),
            pytest.param(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
                id="chunked, then length",
            ),
            pytest.param(ok(b"", b"Content-Length: 0"), id="length twice"),
            pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nok", id="length as a list"),
            pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", id="another coding"),
            pytest.param(ok(b"", b"A: b\rc"), id="CR in a value"),
            pytest.param(ok(b"", b"A: b\nc"), id="LF in a value"),
            pytest.param(ok(b"", b"A: b\0c"), id="NUL in a value"),
            pytest.param(ok(b"", b"A: b", b" c"), id="folded value"),
            pytest.param(b"HTTP/1.1 200 O\0K\r\nContent-Length: 0\r\n\r\n", id="NUL in the reason"),
            pytest.param(ok(b"", *[b"A: b"] * 512), id="513 lines"),
            pytest.param(ok(b"", *[b"A: " + b"b" * 1020] * 300), id="lines of over 256 KiB"),
            pytest.param(b"HTTP/1.1 200 OK\r\nA: " + b"b" * 300_000, id="a line without end"),
            pytest.param(b"HTTP/1.1 200 " + b"b" * 300_000, id="a reason without end"),
            pytest.param(b"HTTP/1.1 102 Processing\r\n\r\n" * 11_000, id="interim answers without end"),
        ],
    )
    async def test_is_said_of_an_invalid_answer(self, answer: bytes) -> None:
        async with serving(answering(answer)) as (_, client):
            assert lost(await client.ask()) is Loss.INVALID
            await until(lambda: client.open == 0)


class TestTheHead:
    async def test_comes_with_its_headers_in_order_case_and_repetition(self) -> None:
        fields = b"Set-Cookie: a\r\nX-e:\r\nset-cookie:  b \r\nContent-Length: 0\r\n\r\n"
        answer = b"HTTP/1.1 404 Not  F\xe9und\r\n" + fields
        async with serving(answering(answer)) as (_, client):
            opened, body = await client.whole()
        assert (opened.status, opened.reason, body) == (404, b"Not  F\xe9und", b"")
        assert opened.headers == (
            (b"Set-Cookie", b"a"),
            (b"X-e", b""),
            (b"set-cookie", b"b "),  # the parser skips blanks in front, not behind
            (b"Content-Length", b"0"),
        )

    async def test_may_come_byte_by_byte(self) -> None:
        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            for byte in b"HTTP/1.1 200 All right\r\nX-Long: value\r\nContent-Length: 2\r\n\r\nok":
                writer.write(bytes((byte,)))
                await asyncio.sleep(0)
            await reader.read()

        async with serving(handler) as (_, client):
            opened, body = await client.whole()
        assert (opened.reason, opened.headers[0], body) == (b"All right", (b"X-Long", b"value"), b"ok")

    async def test_may_have_no_reason_and_512_lines(self) -> None:
        answer = b"HTTP/1.1 200\r\n" + b"A: b\r\n" * 511 + b"Content-Length: 0\r\n\r\n"
        async with serving(answering(answer)) as (_, client):
            opened, _ = await client.whole()
        assert (opened.reason, len(opened.headers)) == (b"", 512)

    async def test_comes_after_interim_answers_which_are_reported(self) -> None:
        seen: list[tuple[int, bytes, Headers]] = []
        interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
        async with serving(answering(interim + ok(), interim + ok())) as (server, client):
            opened = await client.ask(interim=lambda *answer: seen.append(answer))
            assert isinstance(opened, Opened)
            assert (opened.status, opened.reason, await read_all(opened)) == (200, b"OK", b"ok")
            assert seen == [(100, b"Continue", ()), (103, b"Early Hints", ((b"Link", b"</a>"),))]
            assert (await client.whole())[1] == b"ok"
            assert server.connections == 1

    async def test_is_not_framed_by_the_fields_of_an_interim_answer(self) -> None:
        answer = b"HTTP/1.1 100 Continue\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\n\r\nuntil the end"
        async with serving(closing_after(answer)) as (_, client):
            assert (await client.whole())[1] == b"until the end"


class TestTheBody:
    @pytest.mark.parametrize(
        ("method", "answer"),
        [
            ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"),
            ("HEAD", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
            ("HEAD", b"HTTP/1.1 200 OK\r\n\r\n"),
            ("GET", b"HTTP/1.1 204 No Content\r\n\r\n"),
            ("GET", b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n"),
            ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n"),
        ],
    )
    async def test_is_empty_for_head_204_and_304_whatever_their_length(self, method: str, answer: bytes) -> None:
        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while True:
                request = await read_request(reader)
                writer.write(ok(b"next") if request.startswith(b"POST") else answer)

        async with serving(handler) as (_, client):
            assert (await client.whole(method))[1] == b""
            assert (await client.whole("POST"))[1] == b"next"

    @pytest.mark.parametrize(
        ("framing", "poison"),
        [
            (b"Content-Length: 99", ok(b"poison") + b"\r\n\r\n"),
            (b"Transfer-Encoding: chunked", b"6\r\npoison\r\n0\r\n\r\n"),
            (b"Transfer-Encoding: chunked", b"6"),
        ],
    )
    async def test_of_an_answer_to_head_that_has_one_nevertheless_does_not_become_the_next_answer(
        self, framing: bytes, poison: bytes
    ) -> None:
        head = b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n\r\n"

        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            request = await read_request(reader)
            writer.write(head + poison if request.startswith(b"HEAD") else ok(b"good"))
            await reader.read()

        async with serving(handler) as (server, client):
            assert (await client.whole("HEAD"))[1] == b""
            assert (await client.whole())[1] == b"good"
            assert server.connections == 2

    async def test_comes_in_chunks_with_trailers(self) -> None:
        answer = (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n"
            b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nX-Sum: 1\r\nx-last: \xe9\r\n\r\n"
        )
        async with serving(answering(answer, ok())) as (server, client):
            opened, body = await client.whole()
            assert body == b"abcde"
            assert opened.headers == ((b"Transfer-Encoding", b"Chunked"),)
            assert opened.body.trailers == ((b"X-Sum", b"1"), (b"x-last", b"\xe9"))
            await client.whole()
            assert server.connections == 1

    async def test_without_a_length_ends_whole_with_the_connection(self) -> None:
        async with serving(closing_after(b"HTTP/1.0 200 OK\r\n\r\nall of it")) as (_, client):
            opened, body = await client.whole()
            assert (body, opened.body.trailers) == (b"all of it", ())
            await until(lambda: client.open == 0)

    async def test_without_a_length_is_lost_when_the_connection_is_reset(self) -> None:
        async with serving(resetting_after(b"HTTP/1.1 200 OK\r\n\r\npart")) as (_, client):
            assert await loss_of_body(await client.ask()) == (b"part", Loss.DISCONNECTED)

    @pytest.mark.parametrize(
        ("rest", "arrived", "loss"),
        [
            (b"Content-Length: 9\r\n\r\npart", b"part", Loss.DISCONNECTED),
            (b"Transfer-Encoding: chunked\r\n\r\n4\r\npart\r\n", b"part", Loss.DISCONNECTED),
            (b"Transfer-Encoding: chunked\r\n\r\n4\r\npart\r\n0\r\nA: b\r\n", b"part", Loss.DISCONNECTED),
            (b"Transfer-Encoding: chunked\r\n\r\n4\r\npart\r\nxyz\r\n", b"part", Loss.INVALID),
            (b"Transfer-Encoding: chunked\r\n\r\n4\r\npartial\r\n", b"part", Loss.INVALID),
            (b"Transfer-Encoding: chunked\r\n\r\n0\r\nA: " + b"b" * 600_000, b"", Loss.INVALID),
        ],
    )
    async def test_is_lost_after_what_arrived_when_it_ends_short_or_wrong(
        self, rest: bytes, arrived: bytes, loss: Loss
    ) -> None:
        async with serving(closing_after(b"HTTP/1.1 200 OK\r\n" + rest)) as (_, client):
            assert await loss_of_body(await client.ask()) == (arrived, loss)

    async def test_is_lost_when_its_next_piece_takes_too_long(self) -> None:
        async with serving(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npart")) as (_, client):
            assert await loss_of_body(await client.ask(timeout=0.05)) == (b"part", Loss.TIMEOUT)
            await until(lambda: client.open == 0)

    async def test_may_take_longer_than_the_timeout_as_long_as_each_piece_does_not(self) -> None:
        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n")
            for _ in range(4):
                await asyncio.sleep(0.06)
                writer.write(b"x")
            await reader.read()

        async with serving(handler) as (_, client):
            opened = await client.ask(timeout=0.15)
            assert isinstance(opened, Opened)
            assert await read_all(opened) == b"xxxx"

    async def test_is_not_read_from_the_socket_while_nobody_takes_it(self) -> None:
        total = 16_000_000
        written = 0

        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal written
            await read_request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
            while written < total:
                writer.write(b"x" * 100_000)
                await writer.drain()
                written += 100_000
            await read_request(reader)
            writer.write(ok())
            await reader.read()

        async with serving(handler) as (server, client):
            opened = await client.ask()
            assert isinstance(opened, Opened)
            await asyncio.sleep(0.1)
            assert written < total
            assert len(await opened.body.read()) <= 2 * 256 * 1024
            assert len(await read_all(opened)) > total - 2 * 256 * 1024 - 1
            await client.whole()  # a connection that was paused is as good as any
            assert server.connections == 1

    async def test_that_has_arrived_is_read_without_waiting(self) -> None:
        async with serving(answering(ok(b"here"))) as (_, client):
            opened = await client.ask()
            assert isinstance(opened, Opened)
            with pytest.raises(StopIteration) as returned:
                opened.body.read().__await__().send(None)
            assert returned.value.value == b"here"

    async def test_that_is_given_up_closes_its_connection(self) -> None:
        async with serving(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npart")) as (_, client):
            opened = await client.ask()
            assert isinstance(opened, Opened)
            opened.body.close()
            with pytest.raises(BodyLost):
                await opened.body.read()
            await until(lambda: client.open == 0)

    async def test_that_has_ended_is_closed_without_effect_on_the_next(self) -> None:
        async with serving(answering(ok(b"one"), ok(b"two"))) as (server, client):
            opened, _ = await client.whole()
            second = await client.ask()
            opened.body.close()
            assert isinstance(second, Opened)
            assert await read_all(second) == b"two"
            assert server.connections == 1


class TestAConnection:
    async def test_is_used_again_last_in_first_out(self) -> None:
        served: list[int] = []

        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            number = server.connections
            while True:
                await read_request(reader)
                served.append(number)
                await asyncio.sleep(0.02 * number)
                writer.write(ok())

        async with serving(handler) as (server, client):
            await asyncio.gather(client.whole(), client.whole())
            await client.whole()
            await client.whole()
            assert sorted(served[:2]) == [1, 2]
            assert served[2:] == [2, 2]  # the slower one came back last

    @pytest.mark.parametrize(
        "answer",
        [
            pytest.param(ok(b"ok", b"Connection: close"), id="told to close"),
            pytest.param(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", id="HTTP/1.0"),
            pytest.param(ok() + ok(b"poison"), id="a second answer"),
            pytest.param(ok() + b"H", id="one byte too many"),
            pytest.param(ok() + b"garbage", id="garbage"),
            pytest.param(ok(b"ok", b"Connection: close") + ok(b"poison"), id="an answer after close"),
            pytest.param(b"HTTP/1.1 204 N\r\nContent-Length: 36\r\n\r\n" + ok(b"poison"), id="204 with a body"),
        ],
    )
    async def test_is_not_used_again_after(self, answer: bytes) -> None:
        async with serving(answering(answer)) as (server, client):
            assert (await client.whole())[1] in (b"ok", b"")
            await until(lambda: client.open == 0)
            assert (await client.whole())[1] in (b"ok", b"")
            assert server.connections == 2

    @pytest.mark.parametrize("stray", [ok(b"poison"), b"\r\n", b""])
    async def test_that_is_idle_is_closed_by_bytes_or_by_its_end(self, stray: bytes) -> None:
        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            writer.write(ok())
            await asyncio.sleep(0.02)
            if stray:
                writer.write(stray)
                await reader.read()

        async with serving(handler) as (server, client):
            await client.whole()
            assert client.open == 1
            await until(lambda: client.open == 0)
            assert (await client.whole())[1] == b"ok"
            assert server.connections == 2

    @pytest.mark.parametrize("last", [b"", ok(b"poison")])
    async def test_that_ended_before_the_loop_could_see_it_gets_no_request(self, last: bytes) -> None:
        # The server is a thread: while this coroutine blocks, the loop reads nothing, but the kernel does.
        with socket.create_server(("127.0.0.1", 0)) as listener:
            requests: list[int] = []
            may_end, has_ended = threading.Event(), threading.Event()

            def serve() -> None:
                first, _ = listener.accept()
                with first:
                    requests.append(len(first.recv(9999)))
                    first.sendall(ok())
                    may_end.wait(2)
                    if last:
                        first.sendall(last)
                    else:
                        first.shutdown(socket.SHUT_WR)
                    has_ended.set()
                    try:
                        requests.append(len(first.recv(9999)))  # 0: closed, nothing more was sent here
                    except ConnectionResetError:  # closed with the stray bytes unread
                        requests.append(0)
                second, _ = listener.accept()
                with second:
                    second.recv(9999)
                    second.sendall(ok(b"fresh"))

            thread = threading.Thread(target=serve)
            thread.start()
            client = Client(Origin.parse(f"http://127.0.0.1:{listener.getsockname()[1]}"))
            await client.whole()
            may_end.set()
            assert has_ended.wait(2)  # blocks the loop on purpose
            assert (await client.whole())[1] == b"fresh"
            await client.close()
            thread.join(2)
            assert requests[1:] == [0]

    async def test_is_closed_when_it_has_been_idle_too_long(self) -> None:
        async with serving(answering(ok(), ok()), idle_seconds=0.05) as (server, client):
            await asyncio.gather(client.whole(), client.whole())
            assert client.open == 2
            await until(lambda: client.open == 0)
            await client.whole()
            assert server.connections == 3

    async def test_is_kept_only_while_few_are_idle(self) -> None:
        async with serving(answering(ok()), max_idle=2) as (_, client):
            await asyncio.gather(*(client.whole() for _ in range(4)))
            await until(lambda: client.open == 2)

    async def test_does_not_delay_small_writes(self) -> None:
        async with serving(answering(ok())) as (_, client):
            await client.whole()
            (connection,) = client._open
            sock = connection._transport.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    async def test_is_closed_when_its_request_is_cancelled(self) -> None:
        async with serving(answering(b"")) as (server, client):
            asking = asyncio.ensure_future(client.ask())
            await until(lambda: len(server.requests) == 1)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            await until(lambda: client.open == 0)

    async def test_may_be_a_unix_socket(self, tmp_path: Path) -> None:
        async with RawServer(answering(ok(), ok()), path=str(tmp_path / "api.sock")) as server:
            client = Client(Origin.parse(server.url + "/base"))
            await client.whole()
            assert (await client.whole())[1] == b"ok"
            await client.close()
            assert server.connections == 1
            assert server.requests[0].startswith(b"GET /base/ HTTP/1.1\r\n")


class TestTheBoundOnConnections:
    async def test_makes_requests_wait_in_their_order(self) -> None:
        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while True:
                await read_request(reader)
                await asyncio.sleep(0.002)
                writer.write(ok())

        async with serving(handler, max_connections=2) as (server, client):

            async def one(number: int) -> None:
                opened = await client.send("GET", b"/%d" % number, HOST, b"", timeout=2)
                assert isinstance(opened, Opened)

            await asyncio.gather(*(one(number) for number in range(20)))
            assert server.connections == 2
            order = [int(request.split()[1][1:]) for request in server.requests]
            assert all(abs(place - number) <= 1 for place, number in enumerate(order)), order

    async def test_passes_the_place_of_a_closed_connection_on(self) -> None:
        async with serving(answering(ok(b"ok", b"Connection: close")), max_connections=1) as (server, client):
            bodies = await asyncio.gather(*(client.whole() for _ in range(5)))
            assert [body for _, body in bodies] == [b"ok"] * 5
            assert server.connections == 5

    async def test_passes_the_place_of_a_failed_connect_on(self) -> None:
        async with RawServer(answering()) as server:
            pass
        client = Client(Origin.parse(server.url), max_connections=1)
        results = await asyncio.gather(*(client.ask() for _ in range(5)))
        assert all(isinstance(result, NotSent) for result in results)
        assert client._connecting == 0

    @pytest.mark.parametrize("ticks", range(1, 7))
    async def test_loses_nothing_to_a_connect_cancelled_at_any_moment(self, ticks: int) -> None:
        # Late in the row the answer has come whole before the cancellation: that connection is used again.
        async with serving(answering(ok(), ok()), max_connections=1) as (_, client):
            sending = asyncio.ensure_future(client.whole())
            for _ in range(ticks):
                await asyncio.sleep(0)
            sending.cancel()
            await asyncio.wait((sending,))
            assert (await asyncio.wait_for(client.whole(), 2))[1] == b"ok"
            assert (client._connecting, len(client._open)) == (0, 1)

    async def test_loses_nothing_to_a_connect_that_times_out_just_when_it_is_made(self) -> None:
        async with serving(answering(ok()), max_connections=1) as (_, client):
            assert isinstance(await client.ask(timeout=0), NotSent)
            assert (await asyncio.wait_for(client.whole(), 2))[1] == b"ok"
            assert (client._connecting, len(client._open)) == (0, 1)

    @pytest.mark.parametrize("ticks", range(4))
    async def test_loses_nothing_to_a_cancelled_waiter(self, ticks: int) -> None:
        release = asyncio.Event()

        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while True:
                await read_request(reader)
                await release.wait()
                writer.write(ok())

        async with serving(handler, max_connections=1) as (server, client):
            first = asyncio.ensure_future(client.whole())
            await until(lambda: len(server.requests) == 1)
            second = asyncio.ensure_future(client.whole())
            third = asyncio.ensure_future(client.whole())
            await asyncio.sleep(0)
            assert len(client._waiters) == 2
            if ticks:
                release.set()
                await first  # the second has the connection in hand, or soon will
                for _ in range(ticks - 1):
                    await asyncio.sleep(0)
            second.cancel()
            release.set()
            assert (await asyncio.wait_for(third, 2))[1] == b"ok"
            await asyncio.wait((first, second))
            assert not client._waiters

    async def test_does_not_forget_a_waiter_whose_connection_died_in_its_hands(self) -> None:
        async with serving(answering(ok(), ok()), max_connections=1) as (server, client):
            await client.whole()
            connection = client._idle.pop()
            waiting = asyncio.ensure_future(client.ask())
            await until(lambda: len(client._waiters) == 1)
            connection.drop()
            client.release(connection)
            assert isinstance(await waiting, Opened)
            assert server.connections == 2


async def test_what_is_said_in_a_tunnel_that_the_upstream_has_ended_is_dropped() -> None:
    agreed = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nbye"
    async with serving(closing_after(agreed)) as (_, client):
        switched = await client.switch("GET", b"/", HOST, timeout=2)
        assert isinstance(switched, Switched)
        assert [await switched.channel.read() for _ in range(2)] == [b"bye", b""]
        await until(lambda: client.open == 0)
        await switched.channel.write(b"too late")


@contextmanager
def certificate(directory: Path) -> Iterator[tuple[ssl.SSLContext, Path]]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl command")
    key, cert = directory / "key.pem", directory / "cert.pem"
    command = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    subject = ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(cert)]
    subprocess.run([openssl, *command.split(), *subject], check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    yield context, cert


class TestTls:
    async def test_is_spoken_with_an_upstream_that_is_trusted_and_reused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with certificate(tmp_path) as (context, cert):
            monkeypatch.setenv("SSL_CERT_FILE", str(cert))
            async with RawServer(answering(ok(b"x" * 500_000), ok()), tls=context) as server:
                client = Client(Origin.parse(server.url))
                assert len((await client.whole())[1]) == 500_000
                assert (await client.whole())[1] == b"ok"
                assert server.connections == 1
                await client.close()

    @pytest.mark.skipif(not hasattr(select, "POLLRDHUP"), reason="only Linux tells the end of what has not been read")
    async def test_that_ended_before_the_loop_could_see_it_gets_no_request(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def serve() -> None:
            with context.wrap_socket(listener.accept()[0], server_side=True) as first:
                requests.append(first.recv(9999))
                first.sendall(ok())
                may_end.wait(2)
                first.shutdown(socket.SHUT_WR)
                has_ended.set()
                with suppress(OSError):
                    requests.append(first.recv(9999))
            with context.wrap_socket(listener.accept()[0], server_side=True) as second:
                second.recv(9999)
                second.sendall(ok(b"fresh"))

        requests: list[bytes] = []
        may_end, has_ended = threading.Event(), threading.Event()
        with certificate(tmp_path) as (context, cert), socket.create_server(("127.0.0.1", 0)) as listener:
            monkeypatch.setenv("SSL_CERT_FILE", str(cert))
            thread = threading.Thread(target=serve)
            thread.start()
            client = Client(Origin.parse(f"https://localhost:{listener.getsockname()[1]}"))
            await client.whole()
            may_end.set()
            assert has_ended.wait(2)  # blocks the loop on purpose
            assert (await client.whole())[1] == b"fresh"
            await client.close()
            thread.join(2)
            assert requests[1:] in ([], [b""])

    async def test_ends_a_body_without_a_length_when_the_upstream_says_goodbye(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with certificate(tmp_path) as (context, cert):
            monkeypatch.setenv("SSL_CERT_FILE", str(cert))
            async with RawServer(closing_after(b"HTTP/1.0 200 OK\r\n\r\nall"), tls=context) as server:
                client = Client(Origin.parse(server.url))
                assert (await client.whole())[1] == b"all"
                await client.close()

    async def test_with_an_upstream_that_is_not_trusted_sends_nothing(self, tmp_path: Path) -> None:
        with certificate(tmp_path) as (context, _):
            async with RawServer(answering(ok()), tls=context) as server:
                client = Client(Origin.parse(server.url))
                assert isinstance(await client.ask(), NotSent)
                assert server.requests == []
                assert client._connecting == client.open == 0
                await client.close()
