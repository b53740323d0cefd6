"""The proxy is killed while an agent's call is under way, and when it has just been answered."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import asyncpg
from mcp import MCPError

from tests.support.ledger_tools import agent, key, ledger_tools
from tests.support.process import running


async def call_once(url: str) -> Any:
    """Order tea under one key; the `error` object if that is refused."""
    async with agent(url, "2026-07-28") as client:
        try:
            await client.call_tool("create_order", {"item": "tea"}, meta=key("k"))
        except MCPError as refused:
            return refused.error.data["error"]
    return None


async def test_an_answer_outlives_the_proxy_that_gave_it(database: str) -> None:
    async with ledger_tools(json_response=False) as tools:
        results = []
        for _ in range(2):
            async with running(upstream=tools.url, database_url=database, mcp_path="/mcp") as proxy:
                async with agent(proxy.url, "2026-07-28") as client:
                    results.append(await client.call_tool("create_order", {"item": "tea"}, meta=key("k")))
                proxy.signal(signal.SIGKILL)
                await proxy.exit_code()
    assert len(tools.ledger) == 1
    assert [result.structured_content for result in results] == [{"order": 1}] * 2
    assert (results[1].meta or {})["_idempotent_replay"] is True


async def test_a_call_that_was_cut_off_by_a_kill_is_not_repeated_where_the_operator_holds_it(
    database: str, rows: asyncpg.Connection
) -> None:
    settings = {"database_url": database, "mcp_path": "/mcp", "on_unknown": "hold"}
    async with ledger_tools(json_response=True) as tools:
        tools.gate.clear()
        async with running(upstream=tools.url, **settings) as proxy:
            call = asyncio.create_task(call_once(proxy.url))
            await tools.arrived.wait()
            proxy.signal(signal.SIGKILL)
            await proxy.exit_code()
            await asyncio.wait({call})
        tools.gate.set()
        await rows.execute("UPDATE records SET lease_until = now() - interval '1 second'")
        async with running(upstream=tools.url, **settings) as proxy:
            error = await call_once(proxy.url)
    assert len(tools.ledger) == 1
    assert error is not None
    assert error["code"] == "IDEMPOTENCY_OUTCOME_UNKNOWN"
    assert error["safe_new_key"] is False
