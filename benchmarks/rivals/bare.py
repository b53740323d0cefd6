"""A reverse proxy with no idempotency at all: aiohttp's server, aiohttp's client, bodies read whole.

python -m benchmarks.rivals.bare PORT UPSTREAM
"""

from __future__ import annotations

import asyncio
import sys

import aiohttp
import uvloop
from aiohttp import web
from yarl import URL

HOP_BY_HOP = frozenset({"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "host", "date"})


def forwarded(headers: object) -> list[tuple[str, str]]:
    items = headers.items()  # type: ignore[attr-defined]
    return [(name, value) for name, value in items if name.lower() not in HOP_BY_HOP]


def session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent", "Content-Type"),
    )


async def send(client: aiohttp.ClientSession, upstream: str, request: web.BaseRequest, body: bytes) -> web.Response:
    url = URL(upstream + request.raw_path, encoded=True)
    async with client.request(
        request.method, url, headers=forwarded(request.headers), data=body or None, allow_redirects=False
    ) as answer:
        content = await answer.read()
        headers = [line for line in forwarded(answer.headers) if line[0].lower() != "content-length"]
        return web.Response(status=answer.status, body=content, headers=dict(headers))


async def main(port: int, upstream: str) -> None:
    client = session()

    async def handle(request: web.BaseRequest) -> web.Response:
        return await send(client, upstream, request, await request.read())

    await serve(handle, port)


async def serve(handle: object, port: int) -> None:
    runner = web.ServerRunner(web.Server(handle, access_log=None))  # type: ignore[arg-type]
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, backlog=1024).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), sys.argv[2]))
