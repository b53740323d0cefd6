"""`contract verify` tells each check as it ends, not all of them at the end."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

from aiohttp import web

from tests.contract.test_verify import CALLERS, document
from tests.support.orders import orders_api
from tests.support.process import ROOT, environment


async def test_a_check_is_told_while_the_next_one_runs(tmp_path: Path) -> None:
    contract = tmp_path / "api.json"
    contract.write_text(json.dumps(document().tree))
    retried, told = asyncio.Event(), asyncio.Event()
    async with orders_api() as orders:

        async def answer(_: web.BaseRequest, body: bytes) -> web.StreamResponse:
            if orders.executions > 1:
                retried.set()
                await told.wait()
            return web.json_response({}, status=201)

        orders.answer = answer
        verb = ("contract", "verify", orders.url, "--contract", str(contract), "--yes-send-writes")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "idemproxy", *verb, *CALLERS),
            cwd=ROOT,
            env=environment({}),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(60):
                operation = await process.stdout.readline()
                first = await process.stdout.readline()
                await retried.wait()
                assert b"createOrder" in operation
                assert first.split()[:2] == [b"ok", b"first_write"]
                assert process.returncode is None
                told.set()
                await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 1
