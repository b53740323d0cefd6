"""The circuit breaker: while the upstream is down, writes are refused at once and their keys are free."""

from __future__ import annotations

import asyncio

import asyncpg

from tests.acceptance.test_contract_rows import ADA, send, state
from tests.conftest import StartProxy
from tests.support.process import fetch, free_port
from tests.support.rawserver import RawServer, answering, ok


def keyed(number: int) -> dict[str, str]:
    return {**ADA, "Idempotency-Key": f"order-{number}"}


async def test_while_the_upstream_is_down_writes_are_refused_without_a_try(
    proxy: StartProxy, rows: asyncpg.Connection
) -> None:
    port = free_port()
    how = {"breaker_failures": "2", "breaker_seconds": "3600"}
    async with proxy(f"http://127.0.0.1:{port}", **how) as service:
        async with RawServer(answering(ok()), port=port) as up:
            assert (await send(service, headers=keyed(0))).status == 200
        assert (await send(service, headers=keyed(1))).code == "UPSTREAM_DOWN", "its second try opens the breaker"
        async with RawServer(answering(ok()), port=port) as up:
            got = await send(service, headers=keyed(2))
            assert (got.status, got.code, got.error["retriable"]) == (503, "UPSTREAM_DOWN", True)
            assert 3500 < int(got.headers["Retry-After"]) <= 3600
            assert up.connections == 0
            assert "idemproxy_breaker_open 1.0" in (await fetch(service.admin_port, "/metrics"))[1]
            replayed = await send(service, headers=keyed(0))
            assert (replayed.status, replayed.headers["Idempotency-Replay"]) == (200, "true")
            assert (await send(service, method="GET", headers={})).status == 200, "what is not guarded goes through"
        assert await state(rows) == [("completed", 1)]


async def test_one_write_tries_the_upstream_out_and_closes_the_breaker(proxy: StartProxy) -> None:
    port = free_port()
    how = {"breaker_failures": "1", "breaker_seconds": "0.2"}
    async with proxy(f"http://127.0.0.1:{port}", **how) as service:
        assert (await send(service)).status == 503
        async with RawServer(answering(ok(), ok()), port=port), asyncio.timeout(10):
            while (await send(service, headers=keyed(1))).status == 503:
                await asyncio.sleep(0.05)
            assert (await send(service, headers=keyed(2))).status == 200
