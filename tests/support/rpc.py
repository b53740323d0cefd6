"""JSON-RPC by hand, through the proxy, to a server that answers every message and keeps what it got."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp import web
from yarl import URL

from tests.support.orders import Orders, orders_api

if TYPE_CHECKING:
    from tests.conftest import StartProxy

HEADERS = {
    "Authorization": "Bearer agent-1",
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
}


@dataclass
class Wire:
    """A server that answers every message, and a client in front of the proxy."""

    orders: Orders
    client: aiohttp.ClientSession
    url: str

    @property
    def messages(self) -> list[Any]:
        """What the server got."""
        return [json.loads(_plain(body)) for method, _, body in self.orders.ledger if method == "POST"]

    @property
    def calls(self) -> list[Any]:
        return [message for message in self.messages if isinstance(message, list) or message["method"] == "tools/call"]

    async def post(self, body: bytes | Any, **headers: str) -> tuple[int, Any]:
        return await self.post_to(self.url, body, **headers)

    async def post_to(self, url: str, body: bytes | Any, **headers: str) -> tuple[int, Any]:
        data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
        target = URL(url, encoded=True)  # as it is spelled
        async with self.client.post(target, data=data, headers={**HEADERS, **headers}) as answer:
            return answer.status, await answer.json()


@asynccontextmanager
async def wired(
    proxy: StartProxy, result: Callable[[Any], Any] = lambda _: {"content": []}, **settings: str
) -> AsyncIterator[Wire]:
    def response(message: Any) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": message.get("id"), "result": result(message)}

    async def answer(_: web.BaseRequest, body: bytes) -> web.StreamResponse:
        said = json.loads(_plain(body) or b"{}")
        return web.json_response([response(part) for part in said] if isinstance(said, list) else response(said))

    async with orders_api() as orders, proxy(orders.url, mcp_path="/mcp", **settings) as service:
        orders.answer = answer
        async with aiohttp.ClientSession() as client:
            yield Wire(orders, client, f"http://127.0.0.1:{service.port}/mcp")


def _plain(body: bytes) -> bytes:
    return gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body


def call(arguments: Any = None, **more: Any) -> dict[str, Any]:
    params = {"name": "pay", "arguments": arguments or {}, "_meta": {"idempotencyKey": "k"}}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params, **more}
