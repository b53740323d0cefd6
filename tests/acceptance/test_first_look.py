"""The exchange in its simplest form: a write, its retry, and a different write under the same key."""

from __future__ import annotations

import aiohttp

from tests.conftest import StartProxy
from tests.support.orders import orders_api

HEADERS = {"Authorization": "Bearer ada", "Idempotency-Key": "order-1"}


async def test_a_retry_is_answered_without_running_again(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url) as service, aiohttp.ClientSession() as client:
        url = f"http://127.0.0.1:{service.port}/orders"
        async with client.post(url, json={"item": "tea"}, headers=HEADERS) as first:
            first_body = await first.read()
        async with client.post(url, json={"item": "tea"}, headers=HEADERS) as second:
            second_body = await second.read()
        async with client.post(url, json={"item": "milk"}, headers=HEADERS) as other:
            problem = await other.json(content_type="application/problem+json")
        assert (first.status, first.headers["Idempotency-Replay"]) == (201, "false")
        assert (second.status, second.headers["Idempotency-Replay"]) == (200, "true")
        assert first_body == second_body
        assert (other.status, problem["error"]["code"]) == (409, "IDEMPOTENCY_CONFLICT")
        assert orders.executions == 1
