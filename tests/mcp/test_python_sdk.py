"""Agents that use the official Python SDK, through the proxy, to a server by the same SDK."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from typing import Any

import httpx2
import pytest
from mcp import MCPError

from tests.conftest import StartProxy
from tests.support.ledger_tools import AGENT, LedgerTools, Recorded, agent, guarded, key

MODES = ["legacy", "2026-07-28"]


async def refused(call: Awaitable[object]) -> Any:
    """The `error` object of the JSON-RPC error that a call ends with."""
    with pytest.raises(MCPError) as failure:
        await call
    assert failure.value.error.message
    return failure.value.error.data["error"]


def calls_seen(tools: LedgerTools) -> list[Recorded]:
    return [request for request in tools.requests if b'"tools/call"' in request.body]


def calls_of(tools: LedgerTools) -> list[Any]:
    return [json.loads(request.body) for request in calls_seen(tools)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("json_response", [True, False], ids=["json", "events"])
async def test_a_tool_called_twice_with_one_key_writes_once(proxy: StartProxy, mode: str, json_response: bool) -> None:
    async with guarded(proxy, json_response=json_response) as (tools, url), agent(url, mode) as client:
        first = await client.call_tool("create_order", {"item": "tea"}, meta=key("k"))
        second = await client.call_tool("create_order", {"item": "tea"}, meta=key("k"))
    assert tools.ledger == [{"tool": "create_order", "item": "tea", "amount": 1.0}]
    assert first.structured_content == second.structured_content == {"order": 1}
    assert first.content == second.content
    assert "_idempotent_replay" not in (first.meta or {})
    assert (second.meta or {})["_idempotent_replay"] is True


@pytest.mark.parametrize("json_response", [True, False], ids=["json", "events"])
async def test_twenty_calls_at_once_under_one_key_write_once(proxy: StartProxy, json_response: bool) -> None:
    async with guarded(proxy, json_response=json_response, in_flight="wait") as (tools, url), agent(url) as client:
        calls = [client.call_tool("create_order", {"item": "tea"}, meta=key("k")) for _ in range(20)]
        results = await asyncio.gather(*calls)
    assert len(tools.ledger) == 1
    assert [result.structured_content for result in results] == [{"order": 1}] * 20
    assert sum("_idempotent_replay" not in (result.meta or {}) for result in results) == 1


async def test_a_duplicate_hears_that_the_first_is_still_running(proxy: StartProxy) -> None:
    async with guarded(proxy, json_response=True) as (tools, url), agent(url) as client:
        tools.gate.clear()
        first = asyncio.create_task(client.call_tool("create_order", {"item": "tea"}, meta=key("k")))
        await tools.arrived.wait()
        error = await refused(client.call_tool("create_order", {"item": "tea"}, meta=key("k")))
        tools.gate.set()
        await first
    assert len(tools.ledger) == 1
    assert error["code"] == "IDEMPOTENCY_IN_PROGRESS"
    assert error["retriable"] is True


@pytest.mark.parametrize("mode", MODES)
async def test_changed_arguments_under_one_key_are_refused(proxy: StartProxy, mode: str) -> None:
    async with guarded(proxy, json_response=False) as (tools, url), agent(url, mode) as client:
        await client.call_tool("create_order", {"item": "tea"}, meta=key("k"))
        error = await refused(client.call_tool("create_order", {"item": "coffee"}, meta=key("k")))
        again = await client.call_tool("create_order", {"amount": 1, "item": "tea"}, meta=key("other"))
    assert [entry["item"] for entry in tools.ledger] == ["tea", "tea"]
    assert again.structured_content == {"order": 2}
    assert error["code"] == "IDEMPOTENCY_CONFLICT"
    assert error["retriable"] is False
    assert error["action"].startswith("Use a fresh key")


async def test_a_restarted_agent_finds_its_key_in_a_new_session(proxy: StartProxy) -> None:
    async with guarded(proxy, json_response=False) as (tools, url):
        async with agent(url) as client:
            first = await client.call_tool("create_order", {"item": "tea"}, meta=key("k"))
        async with agent(url) as client:
            second = await client.call_tool("create_order", {"item": "tea"}, meta=key("k"))
    sessions = {dict(request.headers).get(b"mcp-session-id") for request in tools.requests if request.body} - {None}
    assert len(sessions) == 2
    assert len(tools.ledger) == 1
    assert first.structured_content == second.structured_content


async def test_another_caller_may_use_the_same_key(proxy: StartProxy) -> None:
    async with guarded(proxy, json_response=True) as (tools, url):
        for who in ("Bearer agent-1", "Bearer agent-2"):
            async with agent(url, headers={"Authorization": who}) as client:
                await client.call_tool("create_order", {"item": "tea"}, meta=key("k"))
    assert len(tools.ledger) == 2


async def test_one_key_on_two_tools_is_a_workflow(proxy: StartProxy) -> None:
    async with guarded(proxy, json_response=True) as (tools, url), agent(url) as client:
        for _ in range(2):
            await client.call_tool("create_order", {"item": "tea"}, meta=key("k"))
            await client.call_tool("refund", {"item": "tea"}, meta=key("k"))
        async with httpx2.AsyncClient(headers=AGENT) as http:
            status = (await http.get(f"{url}/.well-known/idempotency/keys/k")).json()
    assert [entry["tool"] for entry in tools.ledger] == ["create_order", "refund"]
    assert [(step["operation"], step["state"]) for step in status["steps"]] == [
        ("create_order", "completed"),
        ("refund", "completed"),
    ]


@pytest.mark.parametrize("json_response", [True, False], ids=["json", "events"])
async def test_the_first_caller_hangs_up_and_the_second_gets_the_answer(proxy: StartProxy, json_response: bool) -> None:
    async with guarded(proxy, json_response=json_response, in_flight="wait") as (tools, url):
        tools.gate.clear()
        call = asyncio.create_task(call_once(url))
        await tools.arrived.wait()
        call.cancel()  # closes its connection
        await asyncio.wait({call})
        tools.gate.set()
        async with agent(url) as client:
            again = await client.call_tool("create_order", {"item": "tea"}, meta=key("k"))
    assert len(tools.ledger) == 1
    assert again.structured_content == {"order": 1}
    assert (again.meta or {})["_idempotent_replay"] is True


async def call_once(url: str) -> None:
    async with agent(url, "2026-07-28") as client:
        await client.call_tool("create_order", {"item": "tea"}, meta=key("k"))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("json_response", [True, False], ids=["json", "events"])
async def test_a_tools_error_is_not_kept(proxy: StartProxy, mode: str, json_response: bool) -> None:
    async with guarded(proxy, json_response=json_response) as (tools, url), agent(url, mode) as client:
        first = await client.call_tool("fail", {"item": "tea"}, meta=key("k"))
        second = await client.call_tool("fail", {"item": "coffee"}, meta=key("k"))
    assert first.is_error
    assert second.is_error
    assert [entry["item"] for entry in tools.ledger] == ["tea", "coffee"]


@pytest.mark.parametrize("mode", MODES)
async def test_progress_is_for_the_first_caller(proxy: StartProxy, mode: str) -> None:
    heard: list[float] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        heard.append(progress)

    async with guarded(proxy, json_response=False) as (tools, url), agent(url, mode) as client:
        for _ in range(2):
            result = await client.call_tool("ship_slowly", {"item": "tea"}, progress_callback=note, meta=key("k"))
            assert result.structured_content == {"result": "shipment 1"}
            assert heard == [1, 2]
    assert len(tools.ledger) == 1


async def test_a_call_without_a_key_is_not_guarded(proxy: StartProxy) -> None:
    async with guarded(proxy, json_response=True) as (tools, url), agent(url) as client:
        for _ in range(2):
            await client.call_tool("create_order", {"item": "tea"})
    assert len(tools.ledger) == 2


async def test_a_key_that_is_required_is_asked_for(proxy: StartProxy) -> None:
    async with guarded(proxy, json_response=True, key_required="true") as (tools, url), agent(url) as client:
        error = await refused(client.call_tool("create_order", {"item": "tea"}))
        await client.list_tools()
        await client.call_tool("count_orders")
    assert error["code"] == "MISSING_IDEMPOTENCY_KEY"
    assert tools.ledger == [{"tool": "count_orders"}]


async def test_tools_that_only_read_or_repeat_harmlessly_are_not_guarded(proxy: StartProxy) -> None:
    async with guarded(proxy, json_response=True) as (tools, url), agent(url) as client:
        await client.list_tools()
        for _ in range(2):
            await client.call_tool("count_orders", meta=key("k"))
            await client.call_tool("set_address", {"address": "here"}, meta=key("k"))
    assert [entry["tool"] for entry in tools.ledger] == ["count_orders", "set_address"] * 2


async def test_a_key_among_the_arguments_is_for_the_proxy_alone(proxy: StartProxy) -> None:
    async with guarded(proxy, json_response=True) as (tools, url), agent(url) as client:
        for _ in range(2):
            await client.call_tool("create_order", {"item": "tea", "idempotencyKey": "k"})
        await client.call_tool("create_order", {"idempotencyKey": None, "item": "tea"})
    assert len(tools.ledger) == 2
    keyed, unkeyed = calls_of(tools)
    assert keyed["params"]["arguments"] == unkeyed["params"]["arguments"] == {"item": "tea"}
    assert (b"idempotency-key", b"k") in calls_seen(tools)[0].headers


async def test_a_key_that_the_tool_itself_asks_for_stays(proxy: StartProxy) -> None:
    async with guarded(proxy, json_response=True) as (tools, url), agent(url) as client:
        await client.list_tools()
        for _ in range(2):
            await client.call_tool("pay", {"amount": 7, "idempotencyKey": "k"})
    assert tools.ledger == [{"tool": "pay", "amount": 7.0, "key": "k"}]


async def test_keys_that_differ_are_refused(proxy: StartProxy) -> None:
    async with guarded(proxy, json_response=True) as (tools, url), agent(url) as client:
        error = await refused(client.call_tool("create_order", {"item": "tea", "idempotencyKey": "a"}, meta=key("b")))
        too_long = await refused(client.call_tool("create_order", {"item": "tea"}, meta=key("k" * 256)))
    assert error["code"] == "DIFFERING_IDEMPOTENCY_KEYS"
    assert too_long["code"] == "INVALID_IDEMPOTENCY_KEY"
    assert calls_seen(tools) == []


async def test_the_caller_has_to_be_known(proxy: StartProxy) -> None:
    async with guarded(proxy, json_response=True) as (tools, url), agent(url, headers={}) as client:
        error = await refused(client.call_tool("create_order", {"item": "tea"}, meta=key("k")))
    assert error["code"] == "MISSING_IDEMPOTENCY_SCOPE"
    assert calls_seen(tools) == []


async def test_a_header_carries_the_key_as_well(proxy: StartProxy) -> None:
    headers = {**AGENT, "Idempotency-Key": "k"}
    async with guarded(proxy, json_response=True) as (tools, url), agent(url, headers=headers) as client:
        for _ in range(2):
            await client.call_tool("create_order", {"item": "tea"})
    assert len(tools.ledger) == 1


async def test_a_derived_key_serves_a_harness_that_cannot_set_one(proxy: StartProxy) -> None:
    parts = "header:X-Conversation,meta:step"
    steps: Any = [{"step": 1}, {"step": 2}]
    async with guarded(proxy, json_response=True, mcp_derive_key_from=parts) as (tools, url):
        for _ in range(2):  # the second agent is the first one, restarted
            async with agent(url, headers={**AGENT, "X-Conversation": "c1"}) as client:
                for step in steps:
                    await client.call_tool("create_order", {"item": "tea"}, meta=step)
        async with agent(url) as client:
            await client.call_tool("create_order", {"item": "tea"}, meta=steps[0])
    assert len(tools.ledger) == 3  # two steps of one conversation, and a call that no key can be derived for


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("json_response", [True, False], ids=["json", "events"])
async def test_the_contract_is_told_in_meta_and_the_key_only_on_request(
    proxy: StartProxy, mode: str, json_response: bool
) -> None:
    settings = {"mcp_annotate": "true", "mcp_advertise_key": "true"}
    async with guarded(proxy, json_response=json_response, **settings) as (_, url), agent(url, mode) as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert (listed["create_order"].meta or {})["x-agent-idempotency"]["class"] == "key_idempotent"
    assert "idempotencyKey" in listed["create_order"].input_schema["properties"]
    assert listed["count_orders"].meta is None
    assert "idempotencyKey" not in listed["count_orders"].input_schema["properties"]
    assert listed["pay"].input_schema["properties"]["idempotencyKey"]["default"] == "none"
