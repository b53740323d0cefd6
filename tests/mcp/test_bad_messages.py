"""Messages that are wrong: each gets a proper JSON-RPC error, and nothing that could be a tool call is passed on."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from tests.conftest import StartProxy
from tests.support.rpc import HEADERS, call, wired


def nested(depth: int) -> bytes:
    whole = json.dumps(call()).encode()
    return whole.replace(b'"arguments": {}', b'"arguments": ' + b'{"a":' * depth + b"1" + b"}" * depth)


@pytest.mark.parametrize(
    ("body", "rpc_code", "code", "status"),
    [
        (b"", -32700, "INVALID_JSON", 400),
        (b"{", -32700, "INVALID_JSON", 400),
        (b"\xff\xfe", -32700, "INVALID_JSON", 400),
        (nested(100_000), -32700, "INVALID_JSON", 400),
        (b"7", -32600, "INVALID_JSONRPC", 400),
        (b"[]", -32600, "INVALID_JSONRPC", 400),
        ({"method": "tools/call"}, -32600, "INVALID_JSONRPC", 400),
        (call(id=None), -32600, "INVALID_JSONRPC", 400),
        (call(params={"arguments": {}}), -32602, "INVALID_TOOL_CALL", 200),
        (call(params={"name": "pay", "arguments": []}), -32602, "INVALID_TOOL_CALL", 200),
        (call(params={"name": "pay", "_meta": {"idempotencyKey": "k" * 256}}), -32602, "INVALID_IDEMPOTENCY_KEY", 200),
        (call(params={"name": "pay", "_meta": {"idempotencyKey": 7}}), -32602, "INVALID_IDEMPOTENCY_KEY", 200),
        (call({"a": "x" * 20_000}), -32602, "REQUEST_BODY_TOO_LARGE", 413),
    ],
)
async def test_a_wrong_message_is_a_json_rpc_error_and_goes_no_further(
    proxy: StartProxy, body: Any, rpc_code: int, code: str, status: int
) -> None:
    async with wired(proxy, max_request_bytes="16384" if status == 413 else "10000000") as wire:
        got, answer = await wire.post(body)
    assert (got, answer["error"]["code"], answer["error"]["data"]["error"]["code"]) == (status, rpc_code, code)
    assert answer["jsonrpc"] == "2.0"
    assert answer["id"] == (1 if status == 200 else None)
    assert wire.messages == []


async def test_wrong_parameters_have_a_status_since_the_revision_that_asks_for_one(proxy: StartProxy) -> None:
    async with wired(proxy) as wire:
        status, _ = await wire.post(call(params={}), **{"MCP-Protocol-Version": "2026-07-28"})
    assert status == 400


async def test_arguments_as_deep_as_can_be_read_are_guarded(proxy: StartProxy) -> None:
    async with wired(proxy) as wire:
        _, first = await wire.post(nested(500))
        _, second = await wire.post(nested(500))
        _, other = await wire.post(nested(499))
    assert len(wire.calls) == 1
    assert "_idempotent_replay" not in first["result"]
    assert second["result"]["_idempotent_replay"] is True
    assert other["error"]["data"]["error"]["code"] == "IDEMPOTENCY_CONFLICT"


async def test_large_arguments_are_guarded(proxy: StartProxy) -> None:
    async with wired(proxy) as wire:
        await wire.post(call({"text": "x" * 900_000}))
        status, answer = await wire.post(call({"text": "x" * 900_000}))
    assert status == 200
    assert len(wire.calls) == 1
    assert answer["result"]["_idempotent_replay"] is True


@pytest.mark.parametrize("revision", ["2025-06-18", "2025-11-25", "2026-07-28"])
async def test_a_batch_is_refused_where_the_protocol_has_none(proxy: StartProxy, revision: str) -> None:
    async with wired(proxy) as wire:
        status, answer = await wire.post(
            [{"jsonrpc": "2.0", "id": 1, "method": "ping"}], **{"MCP-Protocol-Version": revision}
        )
    assert (status, answer["id"], answer["error"]["code"]) == (400, None, -32600)
    assert wire.messages == []


@pytest.mark.parametrize("headers", [{}, {"MCP-Protocol-Version": "2025-03-26"}])
async def test_where_the_protocol_has_batches_one_without_guarded_calls_goes_through(
    proxy: StartProxy, headers: dict[str, str]
) -> None:
    batch = [{"jsonrpc": "2.0", "id": 1, "method": "ping"}, call(id=2, params={"name": "pay"})]
    async with wired(proxy) as wire:
        status, answer = await wire.post(batch, **headers)
    assert (status, [part["id"] for part in answer]) == (200, [1, 2])
    assert wire.messages == [batch]


async def test_a_guarded_call_has_to_come_alone(proxy: StartProxy) -> None:
    note = {"jsonrpc": "2.0", "method": "notifications/cancelled"}
    async with wired(proxy) as wire:
        status, answer = await wire.post([{"jsonrpc": "2.0", "id": "a", "method": "ping"}, note, call(id=2)])
    assert status == 200
    assert [(part["id"], part["error"]["data"]["error"]["code"]) for part in answer] == [
        ("a", "JSONRPC_BATCH_REFUSED"),
        (2, "JSONRPC_BATCH_REFUSED"),
    ]
    assert wire.messages == []


async def test_a_compressed_message_is_read_all_the_same(proxy: StartProxy) -> None:
    body = gzip.compress(json.dumps(call()).encode())
    async with wired(proxy) as wire:
        await wire.post(body, **{"Content-Encoding": "gzip"})
        status, answer = await wire.post(body, **{"Content-Encoding": "gzip"})
        assert status == 200
        refused, error = await wire.post(body, **{"Content-Encoding": "br"})
    assert answer["result"]["_idempotent_replay"] is True
    assert (refused, error["error"]["code"]) == (400, -32700)
    assert wire.calls == [call()]


@pytest.mark.parametrize("forward_key", ["same", "derived", "none"])
async def test_the_server_sees_the_key_as_the_operator_wants_it(proxy: StartProxy, forward_key: str) -> None:
    async with wired(proxy, forward_key=forward_key) as wire:
        await wire.post(call())
    [sent] = wire.calls
    headers = {name.lower(): value for name, value in wire.orders.headers[-1]}
    assert sent["params"]["_meta"] == ({"idempotencyKey": "k"} if forward_key == "same" else {})
    key = headers.get(b"idempotency-key")
    assert key == b"k" if forward_key == "same" else key != b"k"
    assert (key is None) == (forward_key == "none")


async def test_other_paths_and_methods_are_plain_http(proxy: StartProxy) -> None:
    async with wired(proxy) as wire:
        resuming = {"Mcp-Session-Id": "s1", "Last-Event-ID": "e1"}
        async with wire.client.get(wire.url, headers={**HEADERS, **resuming}) as answer:
            await answer.read()
        async with wire.client.post(f"{wire.url}/other", data=b"{}", headers=HEADERS) as answer:
            await answer.read()
    assert [(method, path) for method, path, _ in wire.orders.ledger] == [("GET", "/mcp"), ("POST", "/mcp/other")]
    assert resuming.items() <= {name.decode(): value.decode() for name, value in wire.orders.headers[0]}.items()
