"""Nothing is smuggled: no request that the proxy did not read reaches the server behind it."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

from idemproxy.service import Service
from tests.conftest import StartProxy
from tests.support.hostile import SMUGGLED, Payload, payloads
from tests.support.process import free_port, until
from tests.support.rawserver import RawServer, read_request

KEYED = b"Authorization: Bearer ada\r\nIdempotency-Key: order-1\r\n"
GUARD_ALL = {"methods": "POST,PATCH,PUT"}
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def talk(port: int, *packets: bytes) -> bytes:
    """Send the packets, each on its own, then no more; all that comes back until the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for n, packet in enumerate(packets):
            if n:
                await asyncio.sleep(0.01)  # so that they are read one by one; right or wrong, the answer is the same
            writer.write(packet)
            await writer.drain()
        writer.write_eof()
        async with asyncio.timeout(20):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def strict(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        await read_request(reader)
        writer.write(OK)


def statuses(answer: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)]


async def send_all(service: Service, lines: bytes) -> dict[str, list[int]]:
    """Send every payload; those that were not refused, by name."""
    accepted: dict[str, list[int]] = {}
    count = 0
    for payload in payloads(lines):
        count += 1
        got = statuses(await talk(service.port, *payload.packets))
        if not got or len(got) != 1 or not 400 <= got[0] <= 599:
            accepted[payload.name] = got
    assert count >= 200
    return accepted


@pytest.mark.parametrize("lines", [b"", KEYED], ids=["unguarded", "guarded"])
async def test_every_payload_is_refused_and_nothing_reaches_a_strict_upstream(
    proxy: StartProxy, rows: asyncpg.Connection, lines: bytes
) -> None:
    guarded = GUARD_ALL if lines else {}
    async with RawServer(strict) as upstream, proxy(upstream.url, **guarded) as service:
        assert await send_all(service, lines) == {}
        assert upstream.requests == []
        assert await rows.fetchval("SELECT count(*) FROM idemproxy.records") == 0
        assert b"200 OK" in await talk(service.port, SMUGGLED)  # sent openly, it does arrive: the proxy still serves
        assert len(upstream.requests) == 1


async def test_a_body_that_looks_like_a_request_stays_a_body(proxy: StartProxy) -> None:
    async with RawServer(strict) as upstream, proxy(upstream.url) as service:
        head = b"PUT /orders HTTP/1.1\r\nHost: api\r\nContent-Length: %d\r\n\r\n" % len(SMUGGLED)
        assert statuses(await talk(service.port, head + SMUGGLED)) == [200]
        [request] = upstream.requests
        assert request.startswith(b"PUT /orders HTTP/1.1\r\n")
        assert request.endswith(b"\r\n\r\n" + SMUGGLED)


NGINX = """
daemon off; pid {folder}/pid; error_log {folder}/error.log; worker_processes 1;
events {{ worker_connections 64; }}
http {{
    log_format seen '$request_method $request_uri $status';
    access_log {folder}/seen.log seen;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    server {{ listen 127.0.0.1:{port}; location / {{ return 200 ok; }} }}
}}
"""


@pytest.fixture
def nginx(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A real server behind the proxy: its URL, and the log of what it took for a request."""
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        assert not os.environ.get("CI"), "nginx must be there in CI"
        pytest.skip("nginx is not installed")
    port = free_port()
    config = tmp_path / "nginx.conf"
    config.write_text(NGINX.format(folder=tmp_path, port=port))
    process = subprocess.Popen([program, "-p", str(tmp_path), "-c", str(config)], stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}", tmp_path / "seen.log"
    finally:
        process.terminate()
        process.wait(10)


@asynccontextmanager
async def before_nginx(proxy: StartProxy, url: str, **settings: str) -> AsyncIterator[Service]:
    async with proxy(url, **settings) as service:
        async with asyncio.timeout(20):
            while b"200 OK" not in await talk(service.port, b"GET /ready HTTP/1.1\r\nHost: api\r\n\r\n"):
                await asyncio.sleep(0.05)
        yield service


@pytest.mark.parametrize("lines", [b"", KEYED], ids=["unguarded", "guarded"])
async def test_every_payload_is_refused_and_nothing_reaches_nginx(
    proxy: StartProxy, nginx: tuple[str, Path], lines: bytes
) -> None:
    url, log = nginx
    async with before_nginx(proxy, url, **(GUARD_ALL if lines else {})) as service:
        accepted = await send_all(service, lines)
        # nginx answers a body's head here, before a chunk in a later packet turns out to be none.
        assert [name for name, got in accepted.items() if got != [200] or not name.startswith("later chunk")] == []
        await talk(service.port, b"GET /last HTTP/1.1\r\nHost: api\r\n\r\n")
        await until(lambda: "/last" in log.read_text(), "the log has been written")
        seen = {line.rpartition(" ")[0] for line in log.read_text().splitlines()}
        assert seen - {"PUT /orders"} == {"GET /ready", "GET /last"}
        assert "PUT /orders" not in seen or not lines


def test_no_two_payloads_have_one_name() -> None:
    every: list[Payload] = list(payloads(b""))
    assert len({payload.name for payload in every}) == len(every)
