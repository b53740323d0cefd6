"""What is said of each guarded exchange: one log line with its trace, and counters with bounded labels."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import aiohttp
import asyncpg
import pytest
from prometheus_client import CollectorRegistry

from idemproxy.operator.trace import trace_id
from idemproxy.service import Service
from tests.conftest import StartProxy
from tests.support.orders import Orders, orders_api

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
HEADERS = {"Authorization": "Bearer ada", "Idempotency-Key": "order-1", "traceparent": TRACEPARENT}


async def post(service: Service, path: str = "/orders", item: str = "tea", **headers: str) -> int:
    url = f"http://127.0.0.1:{service.port}{path}"
    async with aiohttp.ClientSession() as client, client.post(url, json={"item": item}, headers=headers) as got:
        await got.read()
        return got.status


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(record)["fields"] for record in caplog.records if record.getMessage() == "exchange"]


def sample(registry: CollectorRegistry, name: str, **labels: str) -> float:
    return registry.get_sample_value(name, labels) or 0.0


async def test_each_exchange_is_one_line_with_its_trace_and_without_its_key(
    proxy: StartProxy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "idemproxy")
    async with orders_api() as orders, proxy(orders.url) as service:
        assert await post(service, **HEADERS) == 201
        assert await post(service, **HEADERS) == 200
        assert await post(service, item="milk", **HEADERS) == 409
    assert [line["outcome"] for line in lines(caplog)] == ["first_write", "replay", "conflict"]
    for line in lines(caplog):
        assert line["trace"] == TRACE
        assert line["route"] == "POST /orders"
        assert "order-1" not in str(line)
        assert "ada" not in str(line)


async def test_the_traceparent_reaches_the_upstream_as_it_came(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        await post(service, **HEADERS)
        await post(service, Authorization="Bearer ada", traceparent=TRACEPARENT)
        sent = [value for headers in orders.headers for name, value in headers if name.lower() == b"traceparent"]
        assert sent == [TRACEPARENT.encode()] * 2


@pytest.mark.parametrize(
    "value",
    [b"", b"00-x", TRACEPARENT.encode().upper(), f"ff-{TRACE}-00f067aa0ba902b7-01".encode(), b"00-" + b"0" * 32],
)
def test_a_malformed_traceparent_is_no_trace(value: bytes) -> None:
    assert trace_id(((b"Traceparent", value),)) is None


def test_two_traceparents_are_no_trace() -> None:
    assert trace_id(((b"traceparent", TRACEPARENT.encode()),) * 2) is None
    assert trace_id(((b"TraceParent", TRACEPARENT.encode()),)) == TRACE


async def test_without_a_contract_any_number_of_paths_share_one_route_label(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        for number in range(5):
            await post(service, f"/orders/{number}", **{**HEADERS, "Idempotency-Key": str(number)})
        await post(service, Authorization="Bearer ada")
        registry = service.metrics.registry
        assert sample(registry, "idemproxy_exchanges_total", route="*", outcome="first_write") == 5
        assert sample(registry, "idemproxy_unkeyed_requests_total", route="*") == 1


async def test_an_owner_that_finishes_after_a_take_over_is_counted(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        await finish_late(service, orders, rows)
        assert sample(service.metrics.registry, "idemproxy_late_finishes_total") == 1


async def finish_late(service: Service, orders: Orders, rows: asyncpg.Connection) -> None:
    orders.gate.clear()
    first = asyncio.create_task(post(service, **HEADERS))
    await orders.arrived.wait()
    await rows.execute("UPDATE idemproxy.records SET token = decode(repeat('ab', 16), 'hex')")
    orders.gate.set()
    await first
