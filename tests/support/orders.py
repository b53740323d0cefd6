"""An upstream that keeps a ledger: it is written before anything is answered, and alone tells how often a write ran."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web


@dataclass
class Orders:
    """`answer` may be replaced by a test; `gate` holds answers back while it is cleared."""

    url: str = ""
    ledger: list[tuple[str, str, bytes]] = field(default_factory=list)
    headers: list[list[tuple[bytes, bytes]]] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    answer: Callable[[web.BaseRequest, bytes], Awaitable[web.StreamResponse]] | None = None

    @property
    def executions(self) -> int:
        return len(self.ledger)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        self.ledger.append((request.method, request.raw_path, body))
        self.headers.append(list(request.raw_headers))
        self.arrived.set()
        await self.gate.wait()
        if self.answer is not None:
            return await self.answer(request, body)
        return web.json_response({"order": len(self.ledger)}, status=201)


@asynccontextmanager
async def orders_api() -> AsyncIterator[Orders]:
    orders = Orders()
    orders.gate.set()
    server = web.Server(orders.handle, auto_decompress=False)
    runner = web.ServerRunner(server, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    orders.url = f"http://127.0.0.1:{port}"
    try:
        yield orders
    finally:
        orders.gate.set()
        await runner.cleanup()
