"""The client recipes, each run as it stands on the page, on a connection that breaks at the worst moment."""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from tests.conftest import StartProxy
from tests.support.orders import Orders, orders_api
from tests.support.pages import Block, blocks
from tests.support.process import free_port
from tests.support.relay import losing_the_first_answer
from tests.support.shell import Stage

RECIPES = [block for block in blocks("sh", "python", "js") if block.page == "docs/clients.md"]
STRIPE = [block for block in RECIPES if "import stripe" in block.text]
OTHERS = [block for block in RECIPES if block not in STRIPE]


async def orders_with_ids(orders: Orders) -> None:
    async def answer(request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        return web.json_response({"id": orders.executions}, status=201)

    orders.answer = answer


async def run(block: Block, stage: Stage) -> str:
    match block.language:
        case "sh":
            code, said = await stage.shell(block.text)
        case "python":
            script = stage.folder / "recipe.py"
            script.write_text(stage.localised(block.text), encoding="utf-8")
            code, said = await stage.run(sys.executable, str(script))
        case "js":
            script = stage.folder / "recipe.mjs"
            script.write_text(stage.localised(block.text), encoding="utf-8")
            code, said = await stage.run("node", str(script))
        case _:
            raise AssertionError(block.language)
    assert code == 0, said
    return said


@pytest.mark.parametrize("block", OTHERS, ids=str)
async def test_a_client_that_lost_the_answer_asks_again_and_the_api_has_executed_once(
    block: Block, proxy: StartProxy, database: str, tmp_path: Path
) -> None:
    if block.language == "js" and shutil.which("node") is None:
        pytest.skip("node is not installed")
    async with (
        orders_api() as orders,
        proxy(orders.url) as service,
        losing_the_first_answer(service.port) as (way, lost),
    ):
        await orders_with_ids(orders)
        stage = Stage.set_up(tmp_path, api=orders.url, database=database, proxy=way)
        said = await run(block, stage)
        assert lost[0].startswith(b"HTTP/1.1 201")
        assert orders.executions == 1
        assert "1" in said


@pytest.mark.parametrize("block", STRIPE, ids=str)
async def test_the_stripe_sdk_makes_one_customer_of_two_attempts_at_an_api_that_ignores_keys(
    block: Block, proxy: StartProxy, database: str, tmp_path: Path
) -> None:
    program = shutil.which("localstripe", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("localstripe is not installed")
    port = free_port()
    api = f"http://127.0.0.1:{port}"
    server = await asyncio.create_subprocess_exec(
        program,
        *("--port", str(port), "--from-scratch"),
        cwd=tmp_path,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await customers(api)
        async with proxy(api) as service, losing_the_first_answer(service.port) as (way, lost):
            stage = Stage.set_up(tmp_path, api=api, database=database, proxy=way)
            said = await run(block, stage)
            assert lost[0].startswith(b"HTTP/1.1 200")
            assert await customers(api) == [said.strip()]
    finally:
        server.kill()
        await server.wait()


async def customers(api: str) -> list[str]:
    """The customers that the API has; waits for it to be up."""
    async with aiohttp.ClientSession(headers={"Authorization": "Bearer sk_test_123"}) as client, asyncio.timeout(60):
        while True:
            try:
                async with client.get(f"{api}/v1/customers") as answer:
                    return [customer["id"] for customer in (await answer.json())["data"]]
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.1)
