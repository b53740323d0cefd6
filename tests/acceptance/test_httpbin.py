"""httpbin answers the same behind the proxy as in front of it."""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator

import aiohttp
import orjson
import pytest
from yarl import URL

from tests.conftest import StartProxy
from tests.support.process import ROOT, fetch, free_port

PYTHON = ROOT / ".httpbin" / "bin" / "python"
"""An environment of its own: httpbin needs an older greenlet than Playwright does."""

HEADERS = {"Host": "httpbin.test", "Accept": "application/json", "X-Custom": "kept"}

READS = [
    "/get?x=1&x=2&y=%2F",
    "/headers",
    "/ip",
    "/user-agent",
    "/json",
    "/xml",
    "/html",
    "/robots.txt",
    "/encoding/utf8",
    "/deny",
    "/gzip",
    "/deflate",
    "/brotli",
    "/status/200",
    "/status/204",
    "/status/304",
    "/status/404",
    "/status/418",
    "/status/500",
    "/redirect/2",
    "/absolute-redirect/1",
    "/redirect-to?url=http%3A%2F%2Felsewhere%2F&status_code=307",
    "/cookies",
    "/cookies/set?a=b",
    "/basic-auth/u/p",
    "/bearer",
    "/digest-auth/auth/u/p",
    "/etag/x",
    "/cache/60",
    "/response-headers?X-A=1&X-A=2&Content-Type=text%2Fplain",
    "/stream/5",
    "/bytes/2000?seed=1",
    "/stream-bytes/300000?seed=2&chunk_size=1000",
    "/range/2048?chunk_size=100",
    "/drip?numbytes=5&duration=0.1&delay=0",
    "/links/5/0",
    "/forms/post",
    "/image/png",
    "/image/jpeg",
    "/image/svg",
    "/base64/aGVsbG8=",
    "/anything/a//b%2Fc?x=%zz",
    "/delay/0",
]
WRITES = [
    ("POST", "/post"),
    ("PUT", "/put"),
    ("PATCH", "/patch"),
    ("DELETE", "/delete"),
    ("POST", "/anything"),
    ("POST", "/status/201"),
]
BODIES: dict[str, dict[str, object]] = {
    "json": {"json": {"a": [1, 2, {"b": "é"}]}},
    "form": {"data": {"a": "1", "b": "x y&z"}},
    "nothing": {},
    # Last: gunicorn closes a connection on which more than 64 KiB of a body were left unread, and does not say so.
    "bytes": {"data": bytes(range(256)) * 500},
}
CHANGES = {"Date", "Connection", "Transfer-Encoding", "Content-Length"}
"""Of the answer's fields: the time, and how the body is framed."""
OWN = {"Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "Connection"}
"""Of the request's fields: what the proxy adds, and what belongs to each connection by itself."""


@pytest.fixture
async def httpbin() -> AsyncIterator[int]:
    """A real server with httpbin in it: its port."""
    if not PYTHON.exists():
        assert not os.environ.get("CI"), "httpbin must be there in CI"
        pytest.skip("python3 -m venv .httpbin && .httpbin/bin/pip install 'httpbin>=0.10.2' 'gunicorn>=23'")
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        PYTHON,
        *("-W", "ignore", "-m", "gunicorn", "--worker-class", "gthread", "--threads", "8", "--log-level", "critical"),
        # Its own two seconds of keep-alive end between two requests of a busy machine: a race, no fault of either.
        *("--keep-alive", "75", "--bind", f"127.0.0.1:{port}", "httpbin:app"),
        stdout=DEVNULL,
        stderr=DEVNULL,
    )
    try:
        async with asyncio.timeout(60):
            while True:
                try:
                    await fetch(port, "/status/200")
                    break
                except OSError:
                    assert process.returncode is None, "httpbin did not start"
                    await asyncio.sleep(0.1)
        yield port
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def shown(body: bytes) -> object:
    """The body; where httpbin shows the request's own headers, without those that the proxy adds."""
    try:
        return [_without_own(orjson.loads(document)) for document in (body.splitlines() if b"\n{" in body else [body])]
    except orjson.JSONDecodeError:
        return body


def _without_own(document: object) -> object:
    if isinstance(document, dict) and isinstance(document.get("headers"), dict):
        document["headers"] = {name: value for name, value in document["headers"].items() if name not in OWN}
    return document


async def ask(client: aiohttp.ClientSession, port: int, method: str, path: str, body: dict[str, object]) -> object:
    url = f"http://127.0.0.1:{port}{path}"
    how = {"allow_redirects": False, "headers": HEADERS, **body}
    async with client.request(method, URL(url, encoded=True), **how) as got:  # type: ignore[arg-type]
        fields = [(name, value) for name, value in got.headers.items() if name not in CHANGES]
        if "digest-auth" in path:  # a fresh nonce each time
            fields = [(name, value) for name, value in fields if name not in ("WWW-Authenticate", "Set-Cookie")]
        return got.status, got.reason, fields, shown(await got.read())


async def test_it_answers_the_same(proxy: StartProxy, httpbin: int) -> None:
    jar = aiohttp.DummyCookieJar()
    async with (
        proxy(f"http://127.0.0.1:{httpbin}", upstream_host="keep") as service,
        aiohttp.ClientSession(cookie_jar=jar, connector=aiohttp.TCPConnector(force_close=True)) as client,
    ):
        for path in READS:
            for method in ("GET", "HEAD"):
                front = await ask(client, httpbin, method, path, {})
                assert await ask(client, service.port, method, path, {}) == front, (method, path)
        for method, path in WRITES:
            for name, body in BODIES.items():
                front = await ask(client, httpbin, method, path, body)
                assert await ask(client, service.port, method, path, body) == front, (method, path, name)
