"""A keyed call to a tool that was never listed here: the server is asked for its tools first, once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.conftest import StartProxy
from tests.support.rpc import call, wired

PAGES: dict[str | None, dict[str, Any]] = {
    None: {"tools": [{"name": "count", "annotations": {"readOnlyHint": True}}], "nextCursor": "two"},
    "two": {"tools": [{"name": "pay", "inputSchema": {"properties": {"idempotencyKey": {"type": "string"}}}}]},
}


def server(message: Any) -> Any:
    return PAGES[message["params"].get("cursor")] if message["method"] == "tools/list" else {"content": []}


def to(name: str, **arguments: Any) -> dict[str, Any]:
    return call(params={"name": name, "arguments": arguments, "_meta": {"idempotencyKey": "k", "a": 1}})


async def test_a_tool_that_asks_for_the_key_gets_it(proxy: StartProxy) -> None:
    async with wired(proxy, server) as wire:
        for _ in range(2):
            await wire.post(to("pay", idempotencyKey="k"))
    assert [sent["params"]["arguments"] for sent in wire.calls] == [{"idempotencyKey": "k"}]


async def test_a_tool_that_only_reads_is_not_guarded(proxy: StartProxy) -> None:
    async with wired(proxy, server) as wire:
        for _ in range(2):
            await wire.post(to("count"))
    assert len(wire.calls) == 2


async def test_the_list_is_asked_for_in_the_callers_name_and_once(proxy: StartProxy) -> None:
    headers = {"Mcp-Session-Id": "s1", "Mcp-Method": "tools/call", "Mcp-Name": "pay", "Mcp-Param-Item": "tea"}
    async with wired(proxy, server, in_flight="wait") as wire:
        await wire.post(to("pay"), **headers)
        for name in ("pay", "count", "unknown", "unknown"):
            await wire.post(to(name), **headers)
    asked = [number for number, message in enumerate(wire.messages) if message["method"] == "tools/list"]
    assert len(asked) == 4  # two pages for the first call, two more for the name that is in none of them
    first = {name.lower(): value for name, value in wire.orders.headers[asked[0]]}
    assert first[b"authorization"] == b"Bearer agent-1"
    assert first[b"mcp-session-id"] == b"s1"
    assert first[b"mcp-method"] == b"tools/list"
    assert b"mcp-name" not in first
    assert b"mcp-param-item" not in first
    assert wire.messages[asked[0]]["params"] == {"_meta": {"a": 1}}
    assert len({message["id"] for message in wire.messages if message["method"] == "tools/list"}) == 4


async def test_a_key_is_not_missed_in_a_call_that_only_reads(proxy: StartProxy) -> None:
    async with wired(proxy, server, key_required="true") as wire:
        _, answer = await wire.post(call(params={"name": "count"}))
    assert "result" in answer
    assert len(wire.calls) == 1


async def test_a_call_without_a_key_asks_nothing(proxy: StartProxy) -> None:
    async with wired(proxy, server) as wire:
        await wire.post(call(params={"name": "pay"}))
    assert [message["method"] for message in wire.messages] == ["tools/call"]


@pytest.mark.parametrize("result", [7, {}, {"tools": 7}, {"tools": [], "nextCursor": 7}, None])
async def test_a_server_that_gives_no_list_is_guarded_all_the_same(proxy: StartProxy, result: Any) -> None:
    async with wired(proxy, lambda message: result if message["method"] == "tools/list" else {}) as wire:
        for _ in range(2):
            await wire.post(to("pay", idempotencyKey="k"))
    assert [sent["params"]["arguments"] for sent in wire.calls] == [{}]


async def test_many_at_once_are_guarded_as_one(proxy: StartProxy) -> None:
    async with wired(proxy, server, in_flight="wait") as wire:
        await asyncio.gather(*(wire.post(to("pay")) for _ in range(10)))
    assert len(wire.calls) == 1
