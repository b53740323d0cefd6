"""An MCP server by the official SDK, whose tools write to a ledger before they answer; and clients by the same SDK."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx2
import uvicorn
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.mcpserver import Context, MCPServer
from mcp.types import ToolAnnotations
from pydantic import BaseModel

if TYPE_CHECKING:
    from tests.conftest import StartProxy

AGENT = {"Authorization": "Bearer agent-1"}


@dataclass
class LedgerTools:
    """`gate` holds answers back while it is cleared; `arrived` is set once a write is in the ledger."""

    url: str = ""
    ledger: list[dict[str, Any]] = field(default_factory=list)
    requests: list[Recorded] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def write(self, **what: Any) -> int:
        self.ledger.append(what)
        self.arrived.set()
        await self.gate.wait()
        return len(self.ledger)


class Consent(BaseModel):
    sure: bool


@dataclass
class Recorded:
    """A request as it reached the server."""

    method: str
    headers: list[tuple[bytes, bytes]]
    body: bytes = b""


def server_of(tools: LedgerTools) -> MCPServer:
    server = MCPServer("ledger")

    @server.tool()
    async def create_order(item: str, amount: float = 1.0) -> dict[str, Any]:
        """Order an item."""
        return {"order": await tools.write(tool="create_order", item=item, amount=amount)}

    @server.tool()
    async def refund(item: str) -> dict[str, Any]:
        """Give the money back."""
        return {"refund": await tools.write(tool="refund", item=item)}

    @server.tool()
    async def ship_slowly(item: str, context: Context) -> str:
        """Ship an item, step by step."""
        await context.report_progress(1, 3, "packed")
        number = await tools.write(tool="ship_slowly", item=item)
        await context.report_progress(2, 3, "sent")
        return f"shipment {number}"

    @server.tool()
    async def order_if_sure(item: str, context: Context) -> dict[str, Any]:
        """Order an item once its caller has agreed."""
        said = await context.elicit("Sure?", Consent)
        assert said.action == "accept"
        return {"order": await tools.write(tool="order_if_sure", item=item)}

    @server.tool()
    async def fail(item: str) -> str:
        """Always fails."""
        await tools.write(tool="fail", item=item)
        raise ValueError("no such item")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    async def count_orders() -> int:
        """How many writes there were."""
        tools.ledger.append({"tool": "count_orders"})
        return len(tools.ledger)

    @server.tool(annotations=ToolAnnotations(idempotent_hint=True))
    async def set_address(address: str) -> str:
        """Naturally idempotent."""
        await tools.write(tool="set_address", address=address)
        return address

    @server.tool()
    async def pay(amount: float, idempotencyKey: str = "none") -> str:  # noqa: N803 - the wire's name
        """A tool that asks for the key itself."""
        await tools.write(tool="pay", amount=amount, key=idempotencyKey)
        return idempotencyKey

    @server.tool()
    async def announce(context: Context) -> None:
        """Tell everybody that the tools have changed."""
        await context.session.send_tool_list_changed()

    @server.resource("ledger://orders")
    def orders() -> str:
        return "orders"

    @server.prompt()
    def order_something(item: str) -> str:
        return f"Order {item}"

    return server


@asynccontextmanager
async def ledger_tools(*, json_response: bool, port: int = 0) -> AsyncIterator[LedgerTools]:
    """The server on a port of its own, recording every request as it comes in."""
    tools = LedgerTools()
    tools.gate.set()
    app = server_of(tools).streamable_http_app(json_response=json_response)

    async def recording(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        recorded = Recorded(scope["method"], list(scope["headers"]))
        tools.requests.append(recorded)

        async def received() -> Any:
            message = await receive()
            recorded.body += message.get("body", b"")
            return message

        await app(scope, received, send)

    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    tools.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    config = uvicorn.Config(recording, log_level="error", lifespan="on", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        async with asyncio.timeout(20):
            while not server.started:
                assert not serving.done(), serving.result()
                await asyncio.sleep(0.01)
        yield tools
    finally:
        tools.gate.set()
        server.should_exit = True
        await serving
        listener.close()


def key(value: str) -> Any:
    """A key as the protocol has room for it: in the call's `_meta`."""
    return {"idempotencyKey": value}


@asynccontextmanager
async def guarded(proxy: StartProxy, *, json_response: bool, **settings: str) -> AsyncIterator[tuple[LedgerTools, str]]:
    """A server with a ledger, and the URL of the proxy in front of it."""
    async with (
        ledger_tools(json_response=json_response) as tools,
        proxy(tools.url, mcp_path="/mcp", **settings) as service,
    ):
        yield tools, f"http://127.0.0.1:{service.port}"


@asynccontextmanager
async def agent(
    url: str, mode: Any = "legacy", headers: dict[str, str] | None = None, **callbacks: Any
) -> AsyncIterator[Client]:
    """A client by the official SDK; `mode` "legacy" has sessions, "2026-07-28" has none."""
    async with httpx2.AsyncClient(headers=AGENT if headers is None else headers, timeout=30) as http:
        transport = streamable_http_client(f"{url}/mcp", http_client=http)
        async with Client(transport, mode=mode, cache=None, **callbacks) as client:
            yield client
