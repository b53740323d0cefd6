"""What the upstream may say about its answer, how attempts are numbered, and what is tried again inside the proxy."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import asyncpg
import pytest
from aiohttp import web

from idemproxy.service import Service
from tests.acceptance.test_contract_rows import KEYED, lapse, send, state
from tests.conftest import StartProxy
from tests.support.orders import Orders, orders_api
from tests.support.process import free_port
from tests.support.rawserver import RawServer, answering, ok

Answer = Callable[[web.BaseRequest, bytes], Awaitable[web.StreamResponse]]


def saying(orders: Orders, status: int, **fields: str) -> Answer:
    async def answer(_: web.BaseRequest, __: bytes) -> web.StreamResponse:
        headers = {f"Idempotency-{name}": value for name, value in fields.items()}
        return web.json_response({"execution": orders.executions}, status=status, headers=headers)

    return answer


@pytest.mark.parametrize(
    ("status", "fields"),
    [(201, {"Store": "no"}), (201, {"Outcome": "none"}), (500, {"Outcome": "none"}), (502, {"Outcome": "none"})],
)
async def test_an_answer_the_upstream_takes_back_releases_the_key(
    proxy: StartProxy, rows: asyncpg.Connection, status: int, fields: dict[str, str]
) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        orders.answer = saying(orders, status, **fields)
        first = await send(service)
        assert (first.status, first.problem) == (status, {"execution": 1})
        assert not [name for name in fields if f"Idempotency-{name}" in first.headers]
        assert await state(rows) == []
        assert (await send(service)).problem == {"execution": 2}


@pytest.mark.parametrize("status", [207, 422, 500, 504])
async def test_a_partial_outcome_is_kept_and_replayed_whatever_its_status(
    proxy: StartProxy, rows: asyncpg.Connection, status: int
) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        orders.answer = saying(orders, status, Outcome="partial")
        first, again = await send(service), await send(service)
        assert (first.status, again.status) == (status, 200 if status == 207 else status)
        assert first.body == again.body
        assert (first.headers["Idempotency-Replay"], again.headers["Idempotency-Replay"]) == ("false", "true")
        assert "Idempotency-Outcome" not in first.headers
        assert "Idempotency-Outcome" not in again.headers
        assert orders.executions == 1
        assert await state(rows) == [("completed", 1)]


async def test_a_partial_outcome_whose_answer_must_not_be_kept_is_remembered(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        orders.answer = saying(orders, 500, Outcome="partial", Store="no")
        assert (await send(service)).status == 500
        again = await send(service)
        assert (again.status, again.code) == (409, "IDEMPOTENCY_RESPONSE_NOT_STORED")
        assert again.problem["first_status"] == 500
        assert orders.executions == 1


@pytest.mark.parametrize("on_unknown", ["retry", "hold"])
async def test_an_outcome_the_upstream_does_not_know_is_handled_like_a_lost_answer(
    proxy: StartProxy, rows: asyncpg.Connection, on_unknown: str
) -> None:
    async with orders_api() as orders, proxy(orders.url, on_unknown=on_unknown) as service:
        orders.answer = saying(orders, 200, Outcome="unknown")
        assert (await send(service)).problem == {"execution": 1}
        assert await state(rows) == [("unknown", 1)]
        await lapse(rows)
        orders.answer = None
        again = await send(service)
        assert again.status == (201 if on_unknown == "retry" else 409)
        assert orders.executions == (2 if on_unknown == "retry" else 1)


async def test_the_upstream_sets_the_time_to_live_of_its_answer(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    async with orders_api() as orders, proxy(orders.url, ttl_seconds="600") as service:
        orders.answer = saying(orders, 201, TTL="7200")
        first = await send(service)
        assert "Idempotency-TTL" not in first.headers
        left = await rows.fetchval("SELECT extract(epoch FROM expires_at - now())::float8 FROM idemproxy.records")
        assert 6000 < left <= 7200


def attempts(orders: Orders) -> list[list[bytes]]:
    return [[value for name, value in lines if name == b"Idempotency-Attempt"] for lines in orders.headers]


async def test_attempts_are_numbered_for_the_upstream_and_shown_to_the_client(
    proxy: StartProxy, rows: asyncpg.Connection
) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        orders.answer = saying(orders, 502)
        forged = {**KEYED, "Idempotency-Attempt": "99", "Idempotency_Attempt": "98"}
        assert "Idempotency-Attempt" not in (await send(service, headers=forged)).headers
        await lapse(rows)
        assert (await send(service)).headers["Idempotency-Attempt"] == "2"
        await lapse(rows)
        orders.answer = None
        assert (await send(service)).headers["Idempotency-Attempt"] == "3"
        assert attempts(orders) == [[b"1"], [b"2"], [b"3"]]
        assert not [name for lines in orders.headers for name, _ in lines if name == b"Idempotency_Attempt"]


async def test_a_write_of_which_nothing_was_sent_is_tried_again_inside(proxy: StartProxy) -> None:
    port = free_port()
    async with proxy(f"http://127.0.0.1:{port}") as service:
        writing = asyncio.create_task(send(service))
        await until_claimed(service)
        late = RawServer(answering(ok(b'{"order": 1}')), port=port)
        async with late:
            got = await writing
        assert (got.status, got.problem) == (200, {"order": 1})
        assert got.headers["Idempotency-Replay"] == "false"
        assert len(late.requests) == 1
        assert late.requests[0].count(b"Idempotency-Attempt: 1\r\n") == 1


async def until_claimed(service: Service) -> None:
    async with asyncio.timeout(10):
        while not service.exchange.running:
            await asyncio.sleep(0.001)


async def test_tries_end_soon_and_within_the_deadline_of_the_request(proxy: StartProxy) -> None:
    async with proxy(f"http://127.0.0.1:{free_port()}", upstream_timeout_seconds="0.1") as service:
        async with asyncio.timeout(10):
            got = await send(service)
        assert (got.status, got.code) == (502, "UPSTREAM_UNREACHABLE")
