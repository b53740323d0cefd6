"""The contract of tools: a saved list with blocks, which comes before what the server says of its tools."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from idemproxy.contract.live import ContractError
from tests.conftest import StartProxy
from tests.support.orders import orders_api
from tests.support.process import running, until
from tests.support.rpc import call, wired

GUARDED = {"class": "key_idempotent", "ttl_seconds": 600, "scope": "account", "required": True}


def saved(path: Path, *tools: dict[str, Any]) -> str:
    path.write_text(json.dumps({"tools": tools}))
    return str(path)


def tool(name: str, block: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {}}
    meta = {} if block is None else {"_meta": {"x-agent-idempotency": block}}
    return {"name": name, "description": name, "inputSchema": schema, **meta, **more}


def to(name: str, key: str | None = "k") -> dict[str, Any]:
    return call(params={"name": name, "arguments": {}, "_meta": {"idempotencyKey": key} if key else {}})


async def test_class_and_policy_are_the_contracts_by_the_tools_name(proxy: StartProxy, tmp_path: Path) -> None:
    contract = saved(
        tmp_path / "tools.json",
        tool("pay", GUARDED),
        tool("look", {"class": "read_only"}),
        tool("set", annotations={"idempotentHint": True}),
    )
    listed = {"tools": [tool("look"), tool("pay", annotations={"readOnlyHint": True})]}
    async with wired(proxy, lambda message: listed, mcp_contract=contract) as wire:
        await wire.post({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        for name in ("pay", "look", "set"):
            for _ in range(2):
                await wire.post(to(name))
        _, refused = await wire.post(to("pay", key=None))
    assert [sent["params"]["name"] for sent in wire.calls] == ["pay", "look", "look", "set", "set"]
    assert refused["error"]["data"]["error"]["code"] == "MISSING_IDEMPOTENCY_KEY"


async def test_the_annotations_tell_each_tools_own_policy(proxy: StartProxy, tmp_path: Path) -> None:
    contract = saved(tmp_path / "tools.json", tool("pay", GUARDED))
    listed = {"tools": [tool("pay"), tool("other")]}
    async with wired(proxy, lambda message: listed, mcp_contract=contract, mcp_annotate="true") as wire:
        _, answer = await wire.post({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
    pay, other = (entry["_meta"]["x-agent-idempotency"] for entry in answer["result"]["tools"])
    assert (pay["required"], pay["ttl_seconds"]) == (True, 600)
    assert (other["required"], other["ttl_seconds"]) == (False, 86400)


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        ({"tools": [tool("pay", {"class": "made_up"})]}, "unknown class 'made_up'"),
        ({"tools": [tool("pay", {"class": "key_idempotent", "ttl_seconds": "forever"})]}, "ttl_seconds"),
        ({"tools": [7]}, "is not a mapping with a name"),
        ({"openapi": "3.1.0", "paths": {"/a": {"get": {"x-agent-idempotency": {"class": "read_only"}}}}}, "OpenAPI"),
    ],
)
async def test_a_contract_that_cannot_be_enforced_is_refused_at_start(
    proxy: StartProxy, tmp_path: Path, document: Any, fault: str
) -> None:
    path = tmp_path / "tools.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ContractError) as refused:
        async with proxy("http://127.0.0.1:9", mcp_path="/mcp", mcp_contract=str(path)):
            pass
    assert fault in str(refused.value)


async def test_the_contract_is_read_again_on_a_hangup(database: str, tmp_path: Path) -> None:
    path = tmp_path / "tools.json"
    settings = {"mcp_path": "/mcp", "mcp_contract": saved(path, tool("pay")), "database_url": database}
    async with orders_api() as orders, running(upstream=orders.url, **settings) as proxy:
        saved(path, tool("pay", {"class": "made_up"}))
        proxy.signal(signal.SIGHUP)
        await until(lambda: "not reloaded" in proxy.output, "the wrong contract is refused", 30)
        saved(path, tool("pay", GUARDED))
        proxy.signal(signal.SIGHUP)
        await until(lambda: "tools of the contract reloaded" in proxy.output, "the new contract is in force", 30)


@pytest.mark.parametrize("path", ["/mcp", "//mcp", "/mcp/", "/x/../mcp", "/%6dcp", "/mcp?a=1"])
async def test_no_spelling_of_the_path_leads_around_the_guard(proxy: StartProxy, path: str) -> None:
    async with wired(proxy) as wire:
        url = wire.url.removesuffix("/mcp")
        for _ in range(2):
            await wire.post_to(f"{url}{path}", to("pay"))
    assert len(wire.calls) == 1
