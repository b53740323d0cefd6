"""What is not guarded passes as it is: every kind of answer, both directions at once, other protocols, other links."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path

import asyncpg
import pytest

from idemproxy.edge import clients
from tests.conftest import StartProxy
from tests.support.compiled import interpreted_only
from tests.support.process import free_port, until
from tests.support.rawserver import Handler, RawServer, answering, closing_after, read_request
from tests.support.wire import Wire, connected

GET = b"GET /things?x=%41 HTTP/1.1\r\nHost: shop.test\r\n\r\n"


def lines(message: bytes) -> list[bytes]:
    return message.partition(b"\r\n\r\n")[0].split(b"\r\n")


async def heard(proxy: StartProxy, upstream: Handler, request: bytes = GET, **settings: str) -> bytes:
    """All that a client hears on one connection that it does not use again."""
    async with (
        RawServer(upstream) as server,
        proxy(server.url, **settings) as service,
        connected(service.port) as wire,
    ):
        await wire.say(request)
        wire.writer.write_eof()
        return await wire.rest()


async def test_interim_answers_are_handed_on_but_for_the_proxys_own(proxy: StartProxy) -> None:
    answer = (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    )
    got = await heard(proxy, closing_after(answer))
    assert got.startswith(b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\nHTTP/1.1 200 OK\r\n")
    assert b"100 Continue" not in got


async def test_http_1_0_hears_no_interim_answers_and_no_chunks(proxy: StartProxy) -> None:
    answer = (
        b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    )
    got = await heard(proxy, closing_after(answer), b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Connection: close" in got
    assert got.endswith(b"\r\n\r\nok")


@pytest.mark.parametrize(
    ("request_", "answer", "expected"),
    [
        (b"HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", b"Content-Length: 1000"),
        (b"GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 1000\r\nETag: x\r\n\r\n", b"Content-Length: 1000"),
        (b"GET", b"HTTP/1.1 204 No Content\r\nX: y\r\n\r\n", b"X: y"),
        (b"GET", b"HTTP/1.1 205 Reset Content\r\nContent-Length: 0\r\n\r\n", b"Content-Length: 0"),
    ],
)
async def test_an_answer_without_a_body_leaves_the_connection_usable(
    proxy: StartProxy, request_: bytes, answer: bytes, expected: bytes
) -> None:
    async with (
        RawServer(answering(answer, answer)) as upstream,
        proxy(upstream.url) as service,
        connected(service.port) as wire,
    ):
        for _ in range(2):
            await wire.say(GET.replace(b"GET", request_))
            head = await wire.head()
            assert lines(head)[0] == lines(answer)[0]
            assert expected in lines(head)
        assert upstream.connections == 1


async def test_a_body_that_ends_with_the_connection_is_chunked(proxy: StartProxy) -> None:
    got = await heard(proxy, closing_after(b"HTTP/1.0 200 OK\r\nX: y\r\n\r\nup to the end"))
    assert b"\r\nTransfer-Encoding: chunked\r\n" in got
    assert got.endswith(b"\r\n\r\nd\r\nup to the end\r\n0\r\n\r\n")


async def test_redirects_are_handed_on(proxy: StartProxy) -> None:
    answer = b"HTTP/1.1 303 See Other\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n"
    async with RawServer(answering(answer)) as upstream, proxy(upstream.url) as service:
        async with connected(service.port) as wire:
            await wire.say(GET)
            assert b"Location: http://elsewhere/" in lines(await wire.head())
        assert len(upstream.requests) == 1


@pytest.mark.parametrize("mode", [{}, {"mode": "shadow", "methods": "PUT"}])
async def test_trailers_pass_both_ways(proxy: StartProxy, mode: dict[str, str]) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        trailers = b"Idempotency-Replay: true\r\nX-Sum: 2\r\nKeep-Alive: timeout=5\r\n"
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n" + trailers + b"\r\n")

    seen: list[bytes] = []
    request = (
        b"PUT / HTTP/1.1\r\nHost: api\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"2;ext\r\nhi\r\n0\r\nX-Sum: 1\r\nAuthorization: x\r\n\r\n"
    )
    got = await heard(proxy, handler, request, **mode)
    assert seen == [b"2\r\nhi\r\n0\r\nX-Sum: 1\r\n\r\n"]
    assert got.endswith(b"2\r\nok\r\n0\r\nX-Sum: 2\r\n\r\n")


@pytest.mark.parametrize(
    "keyed", [b"", b"Authorization: Bearer ada\r\nIdempotency-Key: k\r\n"], ids=["unguarded", "guarded"]
)
@pytest.mark.parametrize("more", [b"", b"Content-Type: text/event-stream\r\n"], ids=["whole", "live"])
async def test_an_upstream_cannot_take_the_length_from_its_answer(proxy: StartProxy, keyed: bytes, more: bytes) -> None:
    answer = b"HTTP/1.1 200 OK\r\nConnection: close, Content-Length, X\r\nX: y\r\nContent-Length: 2\r\n" + more
    async with (
        RawServer(closing_after(answer + b"\r\nok")) as upstream,
        proxy(upstream.url) as service,
        connected(service.port) as wire,
    ):
        await wire.say(b"POST / HTTP/1.1\r\nHost: api\r\n" + keyed + b"Content-Length: 0\r\n\r\n")
        head, body = await wire.answer()
        assert b"Content-Length: 2" in lines(head)
        assert b"X: y" not in lines(head)
        assert body == b"ok"


async def test_an_upstream_may_answer_while_it_still_reads(proxy: StartProxy) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        piece = b""
        while piece != b"0\r\n\r\n":
            piece = await reader.readuntil(b"\r\n") + await reader.readuntil(b"\r\n")
            writer.write(piece)
        await reader.read()

    async with RawServer(echo) as upstream, proxy(upstream.url) as service, connected(service.port) as wire:
        await wire.say(b"PUT / HTTP/1.1\r\nHost: api\r\nTransfer-Encoding: chunked\r\n\r\n")
        await wire.say(b"3\r\none\r\n")
        await wire.head()
        assert await wire.chunk() == b"one"
        await wire.say(b"3\r\ntwo\r\n")
        assert await wire.chunk() == b"two"
        await wire.say(b"0\r\n\r\n")
        assert await wire.chunk() == b""


async def test_an_early_refusal_reaches_a_client_that_is_still_sending(proxy: StartProxy) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")

    async with RawServer(refuse) as upstream, proxy(upstream.url) as service, connected(service.port) as wire:
        await wire.say(b"PUT / HTTP/1.1\r\nHost: api\r\nContent-Length: 100000000\r\n\r\n" + b"x" * 300_000)
        head, body = await wire.answer()
        assert (head[9:12], body) == (b"413", b"no")
        assert b"Connection: close" in lines(head)


@interpreted_only
async def test_a_slow_client_gets_all_of_an_answer_that_came_early(
    proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection is closed, for the rest of its request is not wanted: but not before it has taken its answer."""

    async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not any(connection._transport.get_write_buffer_size() for connection in service.data.clients._open):
            sent.append(b"x" * 32768)
            writer.write(b"8000\r\n" + sent[-1] + b"\r\n")
            await asyncio.sleep(0.005)
        writer.write(b"0\r\n\r\n")
        await reader.read()

    monkeypatch.setattr(clients, "LINGER_SECONDS", 0.05)
    sent: list[bytes] = []
    async with RawServer(early) as upstream, proxy(upstream.url) as service, connected(service.port) as wire:
        await wire.say(b"PUT / HTTP/1.1\r\nHost: api\r\nContent-Length: 10\r\n\r\nabc")
        head = await wire.head()
        assert b"Connection: close" in lines(head)
        await until(lambda: service.data.active == 0, "the answer is written, as far as the proxy is concerned")
        await asyncio.sleep(0.5)  # the client takes its time, many times what a refused one is given
        assert (await wire.rest()).replace(b"\r\n8000\r\n", b"").count(b"x") == len(b"".join(sent))


# Other protocols

HANDSHAKE = (
    b"GET /chat HTTP/1.1\r\nHost: api\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
AGREED = (
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: s=\r\n\r\n"
)


async def chat(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Agrees, greets at once, then says everything back in capitals until it hears `bye`."""
    await read_request(reader)
    writer.write(AGREED + b"hello ")
    while b"bye" not in (said := await reader.read(65536)) and said:
        writer.write(said.upper())


@pytest.mark.parametrize("mode", ["enforce", "shadow"])
async def test_a_websocket_is_a_tunnel(proxy: StartProxy, mode: str) -> None:
    async with RawServer(chat) as upstream, proxy(upstream.url, mode=mode) as service, connected(service.port) as wire:
        await wire.say(HANDSHAKE + b"early ")
        assert await wire.head() == AGREED
        assert sorted([await wire.read(6), await wire.read(6)]) == [b"EARLY ", b"hello "]
        for word in (b"\x00\x81\xff", b"GET / HTTP/1.1\r\n\r\n", b"x" * 300_000):
            await wire.say(word)
            assert await wire.read(len(word)) == word.upper()
        await wire.say(b"bye")
        assert await wire.rest() == b""
        [seen] = upstream.requests
        assert b"Connection: Upgrade" in lines(seen)
        assert b"Upgrade: websocket" in lines(seen)
        assert b"Sec-WebSocket-Version: 13" in lines(seen)
        await until(lambda: service.data.active == 0, "the tunnel is gone")


async def test_a_tunnel_ends_when_the_client_leaves(proxy: StartProxy) -> None:
    gone = asyncio.Event()

    async def quiet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(AGREED)
        await reader.read()
        gone.set()

    async with RawServer(quiet) as upstream, proxy(upstream.url) as service:
        async with connected(service.port) as wire:
            await wire.say(HANDSHAKE)
            await wire.head()
        await asyncio.wait_for(gone.wait(), 10)
        await until(lambda: service.data.active == 0, "the tunnel is gone")


async def test_a_tunnel_ends_when_the_client_had_left_before_it_was_there(proxy: StartProxy) -> None:
    heard: list[bytes] = []
    left = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        await left.wait()
        writer.write(AGREED)
        heard.append(await reader.read())

    async with RawServer(slow) as upstream, proxy(upstream.url) as service:
        async with connected(service.port) as wire:
            await wire.say(HANDSHAKE + b"last words")
            await until(lambda: len(upstream.requests) == 1, "the upstream has been asked")
        [connection] = service.data.clients._open
        await until(lambda: connection._ended, "the proxy has seen the client's end")
        left.set()
        await until(lambda: service.data.active == 0, "the tunnel is gone")
        await until(lambda: heard == [b"last words"], "the upstream has heard all of it")


async def test_an_upstream_that_declines_just_answers(proxy: StartProxy) -> None:
    answer = b"HTTP/1.1 426 Upgrade Required\r\nContent-Length: 2\r\n\r\nno"
    async with (
        RawServer(answering(answer, answer)) as upstream,
        proxy(upstream.url) as service,
        connected(service.port) as wire,
    ):
        for _ in range(2):
            await wire.say(HANDSHAKE)
            head, body = await wire.answer()
            assert (head[9:12], body) == (b"426", b"no")


@pytest.mark.parametrize("asked", [b"h2c", b"HTTP/2.0", b"TLS/1.0", b"h2c, websocket"])
async def test_81_no_tunnel_for_requests_that_nobody_would_see(proxy: StartProxy, asked: bytes) -> None:
    async with RawServer(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")) as upstream:
        async with proxy(upstream.url) as service, connected(service.port) as wire:
            await wire.say(HANDSHAKE.replace(b"websocket", asked, 1).replace(b"Sec-WebSocket-Key", b"HTTP2-Settings"))
            assert (await wire.head())[9:12] == b"200"
        [seen] = upstream.requests
        assert b"h2c" not in seen
        assert b"HTTP2-Settings" not in seen
        assert (b"Upgrade: websocket" in lines(seen)) is (b"websocket" in asked)


async def test_81_a_guarded_write_is_never_upgraded(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    async with RawServer(answering(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")) as upstream:
        async with proxy(upstream.url) as service, connected(service.port) as wire:
            await wire.say(
                b"POST /orders HTTP/1.1\r\nHost: api\r\nAuthorization: Bearer ada\r\nIdempotency-Key: k\r\n"
                b"Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 2\r\n\r\n{}"
            )
            assert (await wire.head())[9:12] == b"201"
        assert b"pgrade" not in upstream.requests[0]
        assert await rows.fetchval("SELECT state FROM idemproxy.records") == "completed"


# Hops and links


async def test_the_clients_host_is_replaced_or_kept(proxy: StartProxy) -> None:
    for setting in ("replace", "keep"):
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
        async with RawServer(answering(answer)) as upstream:
            async with proxy(upstream.url, upstream_host=setting) as service, connected(service.port) as wire:
                await wire.say(GET)
                await wire.head()
            host = b"shop.test" if setting == "keep" else b"127.0.0.1:%d" % upstream.port
            assert b"Host: " + host in lines(upstream.requests[0])
            assert b"X-Forwarded-Host: shop.test" in lines(upstream.requests[0])
            assert b"X-Forwarded-For: 127.0.0.1" in lines(upstream.requests[0])


@pytest.mark.parametrize("keyed", [b"", b"Authorization: Bearer ada\r\nIdempotency-Key: k\r\n"])
async def test_34_a_proxy_before_itself_says_so(proxy: StartProxy, rows: asyncpg.Connection, keyed: bytes) -> None:
    port = free_port()
    async with (
        proxy(f"http://127.0.0.1:{port}", listen=f"127.0.0.1:{port}") as service,
        connected(service.port) as wire,
    ):
        await wire.say(b"POST / HTTP/1.1\r\nHost: api\r\n" + keyed + b"Content-Length: 2\r\n\r\n{}")
        head, body = await wire.answer()
        assert head[9:12] == b"508"
        assert b"LOOP_DETECTED" in body
        assert await rows.fetchval("SELECT count(*) FROM idemproxy.records") == 0  # nothing was kept of it


async def ask(wire: Wire) -> bytes:
    await wire.say(GET)
    return (await wire.answer())[1]


async def test_the_upstream_may_be_behind_a_unix_socket(proxy: StartProxy, tmp_path: Path) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    async with RawServer(answering(answer), path=str(tmp_path / "api.sock")) as upstream:
        async with proxy(upstream.url) as service, connected(service.port) as wire:
            assert await ask(wire) == b"ok"
        assert b"Host: localhost" in lines(upstream.requests[0])


def make_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl command")
    key, cert = folder / f"{name}-key.pem", folder / f"{name}.pem"
    command = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    rest = ["-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}", "-keyout", str(key), "-out", str(cert)]
    subprocess.run([openssl, *command.split(), *rest], check=True, capture_output=True)
    return key, cert


async def test_https_with_an_authority_of_its_own_and_a_client_certificate(proxy: StartProxy, tmp_path: Path) -> None:
    key, cert = make_certificate(tmp_path, "localhost")
    client_key, client_cert = make_certificate(tmp_path, "client")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=client_cert)
    tls.load_cert_chain(cert, key)
    tls.verify_mode = ssl.CERT_REQUIRED
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    own = {"upstream_ca": str(cert), "upstream_cert": str(client_cert), "upstream_key": str(client_key)}
    async with RawServer(answering(answer), tls=tls) as upstream:
        async with proxy(upstream.url, **own) as service, connected(service.port) as wire:
            assert await ask(wire) == b"ok"
        async with proxy(upstream.url) as service, connected(service.port) as wire:
            assert b"UPSTREAM_UNREACHABLE" in await ask(wire)  # not trusted: nothing is sent
        assert len(upstream.requests) == 1
