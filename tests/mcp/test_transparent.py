"""Everything that is not a guarded tool call: byte for byte the same with and without the proxy."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from tests.conftest import StartProxy
from tests.support.ledger_tools import AGENT, Recorded, agent, guarded, key

OF_THE_CONNECTION = {b"host", b"via", b"connection", b"keep-alive", b"transfer-encoding", b"date"}
OF_THE_CONNECTION |= {b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto"}


def as_seen(requests: list[Recorded]) -> list[tuple[str, list[tuple[bytes, bytes]], bytes]]:
    """What reached the server, without what speaks of the connection, and with sessions by their number."""
    sessions: dict[bytes, bytes] = {}

    def value(name: bytes, given: bytes) -> bytes:
        return sessions.setdefault(given, b"%d" % len(sessions)) if name == b"mcp-session-id" else given

    return [
        (
            request.method,
            [(name, value(name, given)) for name, given in request.headers if name not in OF_THE_CONNECTION],
            request.body,
        )
        for request in requests
        if b'"tools/call"' not in request.body
    ]


async def full_session(url: str, mode: str) -> None:
    async with agent(url, mode) as client:
        if mode == "legacy":
            await client.send_ping()
        await client.list_tools()
        await client.list_resources()
        await client.list_resource_templates()
        await client.read_resource("ledger://orders")
        await client.list_prompts()
        await client.get_prompt("order_something", {"item": "tea"})
        await client.call_tool("create_order", {"item": "tea"}, meta=key("k"))
        await client.call_tool("count_orders")


@pytest.mark.filterwarnings("ignore:ping is removed")
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
@pytest.mark.parametrize("json_response", [True, False], ids=["json", "events"])
async def test_a_full_session_reaches_the_server_as_if_there_were_no_proxy(
    proxy: StartProxy, mode: str, json_response: bool
) -> None:
    async with guarded(proxy, json_response=json_response) as (tools, url):
        await full_session(tools.url, mode)
        direct, tools.requests = as_seen(tools.requests), []
        await full_session(url, mode)
    through = as_seen(tools.requests)
    if mode == "legacy":
        assert {method for method, _, _ in direct} == {"POST", "GET", "DELETE"}
    # The stream that a session opens for the server's messages runs beside the calls: its place may differ.
    assert sorted(through) == sorted(direct)
    assert [entry for entry in through if entry[0] == "POST"] == [entry for entry in direct if entry[0] == "POST"]


def message(method: str, id: int | None = None, **params: Any) -> bytes:
    said = {"jsonrpc": "2.0", **({"id": id} if id is not None else {}), "method": method, "params": params}
    return json.dumps(said).encode()


HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
MESSAGES = [
    message("notifications/initialized"),
    message("ping", 2),
    message("tools/list", 3),
    message("resources/list", 4),
    message("resources/read", 5, uri="ledger://orders"),
    message("prompts/get", 6, name="order_something", arguments={"item": "tea"}),
    message("completion/complete", 7, ref={"type": "ref/prompt", "name": "x"}, argument={"name": "a", "value": "b"}),
    message("no/such/method", 8),
    message("notifications/cancelled", requestId=99, reason="changed my mind"),
    json.dumps({"jsonrpc": "2.0", "id": 77, "result": {}}).encode(),
    message("tools/call", 9, name="count_orders", arguments={}),
    b' {"method" : "ping",\n"jsonrpc":"2.0", "id": "\\u0061"} ',
]

Said = tuple[int, list[tuple[bytes, bytes]], bytes]


async def speak(url: str) -> list[Said]:
    """A session by hand; each answer with its status, headers and body."""
    said: list[Said] = []
    headers = {**AGENT, "Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    async with aiohttp.ClientSession(headers=headers) as client:

        async def ask(method: str, **request: Any) -> str:
            async with client.request(method, f"{url}/mcp", **request) as answer:
                session = answer.headers.get("Mcp-Session-Id", "")
                lines = [
                    (name.lower(), b"session" if name.lower() == b"mcp-session-id" else value)
                    for name, value in answer.raw_headers
                    if name.lower() not in OF_THE_CONNECTION
                ]
                said.append((answer.status, lines, await answer.read()))
                return session

        session = {"Mcp-Session-Id": await ask("POST", data=message("initialize", 1, **HELLO))}
        for body in MESSAGES:
            await ask("POST", data=body, headers=session)
        await ask("POST", data=message("ping", 10), headers={"Mcp-Session-Id": "unknown"})
        await ask("DELETE", headers=session)
        await ask("GET", headers=session)
    return said


@pytest.mark.parametrize("json_response", [True, False], ids=["json", "events"])
async def test_every_answer_is_the_servers_own(proxy: StartProxy, json_response: bool) -> None:
    async with guarded(proxy, json_response=json_response) as (tools, url):
        through = await speak(url)
        tools.ledger.clear()
        assert through == await speak(tools.url)


async def test_the_servers_own_stream_flows(proxy: StartProxy) -> None:
    heard: asyncio.Queue[object] = asyncio.Queue()

    async def note(message: object) -> None:
        heard.put_nowait(message)

    async with guarded(proxy, json_response=False) as (_, url), agent(url, message_handler=note) as client:
        await client.call_tool("announce")
        told = await asyncio.wait_for(heard.get(), 10)
    assert getattr(told, "method", None) == "notifications/tools/list_changed"
