"""Agents that use the official TypeScript SDK, through the proxy."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StartProxy
from tests.support.ledger_tools import AGENT, guarded, ledger_tools
from tests.support.process import running

SDK = "@modelcontextprotocol/sdk@1.32"
SCRIPT = Path(__file__).parent.parent / "support" / "agent.mjs"


@pytest.fixture(scope="session")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The agent, beside the SDK that npm has put there: once for all test processes."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "typescript"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        missing = None if (folder / "node_modules").exists() else _install(folder)
    if missing:
        assert not os.environ.get("CI"), missing
        pytest.skip(missing)
    return Path(shutil.copy(SCRIPT, folder))


def _install(folder: Path) -> str | None:
    """Why the SDK cannot be had; None once it is there."""
    npm = shutil.which("npm")
    if not shutil.which("node") or not npm:
        return "node and npm are not installed"
    command = [npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), SDK]
    installed = subprocess.run(command, capture_output=True, text=True, timeout=300)
    return f"npm cannot install {SDK}: {installed.stderr[:200]}" if installed.returncode else None


async def started(script: Path, url: str, *rounds: list[dict[str, Any]]) -> asyncio.subprocess.Process:
    """An agent that makes the calls of a round at once, in a session of their own."""
    task = json.dumps({"url": f"{url}/mcp", "headers": AGENT, "rounds": rounds})
    return await asyncio.create_subprocess_exec(
        "node", script, task, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
    )


async def told(script: Path, url: str, *rounds: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """What became of the calls."""
    process = await started(script, url, *rounds)
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, err.decode()
    outcomes: list[list[dict[str, Any]]] = json.loads(out)
    return outcomes


def order(item: str = "tea", **more: Any) -> dict[str, Any]:
    return {"name": "create_order", "arguments": {"item": item}, "meta": {"idempotencyKey": "k"}, **more}


@pytest.mark.parametrize("json_response", [True, False], ids=["json", "events"])
async def test_one_key_writes_once_across_sessions(proxy: StartProxy, script: Path, json_response: bool) -> None:
    async with guarded(proxy, json_response=json_response) as (tools, url):
        [[first], [second], [changed]] = await told(script, url, [order()], [order()], [order("coffee")])
    assert [entry["item"] for entry in tools.ledger] == ["tea"]
    assert second["result"].pop("_idempotent_replay") is True
    assert second["result"].pop("_meta") == {"_idempotent_replay": True}
    assert second["result"] == first["result"]
    assert changed["error"]["name"] == "McpError"
    assert changed["error"]["code"] == -32010
    assert changed["error"]["data"]["error"]["code"] == "IDEMPOTENCY_CONFLICT"


@pytest.mark.parametrize("json_response", [True, False], ids=["json", "events"])
async def test_twenty_calls_at_once_write_once(proxy: StartProxy, script: Path, json_response: bool) -> None:
    async with guarded(proxy, json_response=json_response, in_flight="wait") as (tools, url):
        [outcomes] = await told(script, url, [order() for _ in range(20)])
    assert len(tools.ledger) == 1
    assert [outcome["result"]["structuredContent"] for outcome in outcomes] == [{"order": 1}] * 20


async def test_progress_is_for_the_first_caller(proxy: StartProxy, script: Path) -> None:
    ship = order(name="ship_slowly", progress=True)
    async with guarded(proxy, json_response=False) as (tools, url):
        [[first], [second]] = await told(script, url, [ship], [ship])
    assert (first["progress"], second["progress"]) == ([1, 2], [])
    assert second["result"]["structuredContent"] == first["result"]["structuredContent"]
    assert len(tools.ledger) == 1


@pytest.mark.parametrize("json_response", [True, False], ids=["json", "events"])
async def test_an_agent_that_is_killed_finds_its_answer_when_it_is_back(
    proxy: StartProxy, script: Path, json_response: bool
) -> None:
    async with guarded(proxy, json_response=json_response, in_flight="wait") as (tools, url):
        tools.gate.clear()
        agent = await started(script, url, [order()])
        await asyncio.wait_for(tools.arrived.wait(), 60)
        agent.kill()
        await agent.communicate()
        tools.gate.set()
        [[again]] = await told(script, url, [order()])
    assert len(tools.ledger) == 1
    assert again["result"]["structuredContent"] == {"order": 1}
    assert again["result"]["_idempotent_replay"] is True


async def test_an_answer_outlives_the_proxy_that_gave_it(database: str, script: Path) -> None:
    results = []
    async with ledger_tools(json_response=False) as tools:
        for _ in range(2):
            async with running(upstream=tools.url, database_url=database, mcp_path="/mcp") as proxy:
                [[outcome]] = await told(script, proxy.url, [order()])
                results.append(outcome["result"])
                proxy.signal(signal.SIGKILL)
                await proxy.exit_code()
    assert len(tools.ledger) == 1
    assert [result["structuredContent"] for result in results] == [{"order": 1}] * 2
    assert results[1]["_idempotent_replay"] is True
