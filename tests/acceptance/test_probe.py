"""`on_unknown=probe`: the API is asked before anything is sent again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import asyncpg
import pytest
from aiohttp import web

from idemproxy.core.detection import parse_detection
from idemproxy.core.policy import OnUnknown, Operation
from idemproxy.service import Service
from tests.acceptance.test_contract_rows import KEYED, lapse, send, state
from tests.acceptance.test_late_settling import table_away
from tests.acceptance.test_steering import attempts
from tests.conftest import StartProxy
from tests.support.orders import Orders, orders_api
from tests.support.process import until


@asynccontextmanager
async def probing(
    proxy: StartProxy, rows: asyncpg.Connection, template: str | None, found: web.Response | None
) -> AsyncIterator[tuple[Service, Orders]]:
    """A proxy whose first write was executed and got lost; its lease has lapsed. GET is answered with `found`."""
    async with orders_api() as orders, proxy(orders.url) as service:

        async def answer(request: web.BaseRequest, _: bytes) -> web.StreamResponse:
            if request.method == "GET":
                if found is None:
                    assert request.transport is not None
                    request.transport.abort()
                return found or web.Response()
            return web.json_response({"order": orders.executions}, status=502 if orders.executions == 1 else 201)

        orders.answer = answer
        policy = replace(
            service.data._match("POST", b"/orders").policy,  # type: ignore[union-attr]
            on_unknown=OnUnknown.PROBE,
            detection=parse_detection(template) if template else None,
        )
        service.data._match = lambda method, _: Operation("POST /orders", policy) if method == "POST" else None
        assert (await send(service)).status == 502
        assert await state(rows) == [("unknown", 1)]
        early = await send(service)
        assert (early.status, early.code) == (409, "IDEMPOTENCY_OUTCOME_UNKNOWN")
        assert early.error["retriable"] is (template is not None)
        await lapse(rows)
        yield service, orders


def asked(orders: Orders) -> list[tuple[str, str]]:
    return [(method, path) for method, path, _ in orders.ledger]


async def test_what_is_found_completes_the_write(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    found = web.json_response({"order": "found"}, headers={"X-Order": "1", "Set-Cookie": "a=b"})
    async with probing(proxy, rows, "GET /orders?reference={key}&item={/item}", found) as (service, orders):
        first, again = await send(service), await send(service)
        assert asked(orders) == [("POST", "/orders"), ("GET", "/orders?reference=order-1&item=tea")]
        assert (first.status, first.body) == (again.status, again.body) == (200, b'{"order": "found"}')
        assert first.headers["Idempotency-Replay"] == again.headers["Idempotency-Replay"] == "true"
        assert first.headers["X-Order"] == again.headers["X-Order"] == "1"
        assert "Set-Cookie" not in first.headers
        assert await state(rows) == [("completed", 2)]


async def test_what_is_found_and_cannot_be_stored_says_so(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    async with probing(proxy, rows, "/orders/{key}", web.json_response({"order": 1})) as (service, orders):
        orders.gate.clear()
        orders.arrived.clear()
        asking = asyncio.ensure_future(send(service))
        await orders.arrived.wait()
        async with table_away(rows):
            orders.gate.set()
            got = await asking
            assert (got.status, got.headers["Idempotency-Stored"]) == (200, "false")
        await until(lambda: not service.exchange.settler.unsettled, "it is stored after all", 20)
        assert await state(rows) == [("completed", 2)]


async def test_the_caller_asks_in_its_own_name(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    async with probing(proxy, rows, "/orders/{key}", web.json_response({"order": 1})) as (service, orders):
        await send(service, headers={**KEYED, "If-Match": "x", "Range": "bytes=0-1", "X-Tenant": "a"})
        fields = {name.lower(): value for name, value in orders.headers[1]}
        assert (fields[b"authorization"], fields[b"x-tenant"]) == (b"Bearer ada", b"a")
        assert not fields.keys() & {b"content-type", b"content-length", b"if-match", b"range", b"idempotency-key"}


async def test_what_is_not_found_is_sent_again(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    async with probing(proxy, rows, "/orders/{key}", web.Response(status=404)) as (service, orders):
        got = await send(service)
        assert [method for method, _ in asked(orders)] == ["POST", "GET", "POST"]
        assert (got.status, got.headers["Idempotency-Replay"], got.headers["Idempotency-Attempt"]) == (
            201,
            "false",
            "2",
        )
        assert attempts(orders) == [[b"1"], [], [b"2"]]
        assert await state(rows) == [("completed", 2)]


@pytest.mark.parametrize("status", [None, 401, 503])
async def test_without_a_clear_answer_it_is_held_and_asked_again_later(
    proxy: StartProxy, rows: asyncpg.Connection, status: int | None
) -> None:
    found = web.Response(status=status) if status else None
    async with probing(proxy, rows, "/orders/{key}", found) as (service, orders):
        got = await send(service)
        assert (got.status, got.code) == (409, "IDEMPOTENCY_OUTCOME_UNKNOWN")
        assert [method for method, _ in asked(orders)] == ["POST", "GET"]
        assert await state(rows) == [("unknown", 2)]
        assert (await send(service)).code == "IDEMPOTENCY_OUTCOME_UNKNOWN"
        assert len(asked(orders)) == 2, "not asked again before the lease has lapsed"
        await lapse(rows)
        assert (await send(service)).code == "IDEMPOTENCY_OUTCOME_UNKNOWN"
        assert [method for method, _ in asked(orders)] == ["POST", "GET", "GET"]


async def test_with_nothing_to_ask_it_is_held(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    async with probing(proxy, rows, None, None) as (service, orders):
        assert (await send(service)).code == "IDEMPOTENCY_OUTCOME_UNKNOWN"
        assert len(asked(orders)) == 1
