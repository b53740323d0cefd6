"""A tool call's event stream while the tool is still at work: live for its caller, recorded for whoever asks again."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import asyncpg
import pytest
from mcp.types import ElicitResult

from tests.conftest import StartProxy
from tests.support.ledger_tools import agent, guarded, key
from tests.support.rawserver import RawServer
from tests.support.rpc import call
from tests.support.script import EVENTS, HOLD, Script, chunk, state, until_state
from tests.support.wire import connected

PROGRESS = (
    b"id: e1\nretry: 500\n"  # what a client resumes a broken stream by
    b'data: {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}\n\n'
)
RESPONSE = b'event: message\ndata: {"jsonrpc":"2.0","id":1,"result":{"content":[]}}\n\n'
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


class Heard:
    """Progress notifications as they arrive."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.first = asyncio.Event()

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        self.steps.append(progress)
        self.first.set()


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_progress_arrives_while_the_tool_is_at_work(
    proxy: StartProxy, rows: asyncpg.Connection, mode: str
) -> None:
    heard = Heard()
    async with guarded(proxy, json_response=False) as (tools, url), agent(url, mode) as client:
        tools.gate.clear()
        ship = client.call_tool("ship_slowly", {"item": "tea"}, progress_callback=heard, meta=key("k"))
        shipping = asyncio.ensure_future(ship)
        await asyncio.wait_for(heard.first.wait(), 30)
        assert heard.steps == [1]
        assert await state(rows) == "claimed"
        assert not shipping.done()
        tools.gate.set()
        result = await shipping
        assert await state(rows) == "completed"
    assert result.structured_content == {"result": "shipment 1"}
    assert heard.steps == [1, 2]


async def test_a_caller_that_leaves_in_the_middle_does_not_stop_the_recording(
    proxy: StartProxy, rows: asyncpg.Connection
) -> None:
    heard, again = Heard(), Heard()

    async def ship(heard: Heard) -> Any:
        async with agent(url, "2026-07-28") as client:
            return await client.call_tool("ship_slowly", {"item": "tea"}, progress_callback=heard, meta=key("k"))

    async with guarded(proxy, json_response=False) as (tools, url):
        tools.gate.clear()
        shipping = asyncio.create_task(ship(heard))
        await asyncio.wait_for(heard.first.wait(), 30)
        await tools.arrived.wait()
        shipping.cancel()  # closes its connection
        await asyncio.wait({shipping})
        tools.gate.set()
        await until_state(rows, "completed")
        result = await ship(again)
    assert len(tools.ledger) == 1
    assert heard.steps == [1]
    assert again.steps == []
    assert result.structured_content == {"result": "shipment 1"}
    assert result.meta["_idempotent_replay"] is True


async def test_a_tool_can_ask_its_caller_while_it_is_at_work(proxy: StartProxy) -> None:
    async def agree(*_: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"sure": True})

    async with guarded(proxy, json_response=False) as (tools, url), agent(url, elicitation_callback=agree) as client:
        for _ in range(2):
            result = await client.call_tool("order_if_sure", {"item": "tea"}, meta=key("k"))
            assert result.structured_content == {"order": 1}
    assert len(tools.ledger) == 1


def tool_call() -> bytes:
    """As bytes on a connection, to a tool whose server has no list: that it is asked for is the first request."""
    body = json.dumps(call()).encode()
    head = b"POST /mcp HTTP/1.1\r\nHost: api\r\nAuthorization: Bearer ada\r\nContent-Type: application/json\r\n"
    return head + b"Accept: application/json, text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(body) + body


class Server(Script):
    """Answers the call step by step, and has no list of tools."""

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        length = int(request.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        if b'"tools/list"' in await reader.readexactly(length):
            writer.write(NOT_FOUND)
            return
        await self.steps(writer)


async def test_the_response_is_held_back_until_it_is_settled(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    script = Server(EVENTS + chunk(PROGRESS), chunk(RESPONSE), b"never sent: the stream stays open")
    async with (
        RawServer(script) as upstream,
        proxy(upstream.url, mcp_path="/mcp") as service,
        connected(service.port) as wire,
    ):
        await wire.say(tool_call())
        await wire.head()
        assert await wire.chunk() == PROGRESS
        await rows.execute(HOLD)
        await rows.execute("SELECT pg_advisory_lock(1)")
        script.go()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(wire.reader.read(1), 0.5)
        await rows.execute("SELECT pg_advisory_unlock(1)")
        assert await wire.chunk() == RESPONSE
        assert await state(rows) == "completed"
        assert await wire.chunk() == b""


async def test_a_stream_with_a_length_may_go_on_after_the_response(proxy: StartProxy) -> None:
    body = PROGRESS + RESPONSE + b": bye\n\n"
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with (
        RawServer(Server(head + body)) as upstream,
        proxy(upstream.url, mcp_path="/mcp") as service,
        connected(service.port) as wire,
    ):
        await wire.say(tool_call())
        _, first = await wire.answer()
        assert first == PROGRESS + RESPONSE
        await wire.say(tool_call())
        _, second = await wire.answer()
        assert b'"_idempotent_replay":true' in second
