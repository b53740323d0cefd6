"""Every answer that the contract promises to a guarded request, in the agent profile, by the upstream's ledger."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import asyncpg
import orjson
import pytest
from aiohttp import web
from multidict import CIMultiDictProxy

from idemproxy.service import Service
from tests.conftest import StartProxy
from tests.support.orders import Orders, orders_api
from tests.support.rawserver import RawServer, answering, closing_after, ok, read_request
from tests.support.way import way_to

ADA = {"Authorization": "Bearer ada"}
KEYED = {**ADA, "Idempotency-Key": "order-1"}
TEA = {"item": "tea"}
LINK = '</.well-known/idempotency>; rel="describedby"'


@dataclass
class Got:
    status: int
    headers: CIMultiDictProxy[str]
    body: bytes

    @property
    def code(self) -> str:
        return str(self.error["code"])

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = self.problem["error"]
        return error

    @property
    def problem(self) -> dict[str, Any]:
        document: dict[str, Any] = orjson.loads(self.body)
        return document


async def send(
    service: Service, path: str = "/orders", *, headers: dict[str, str] = KEYED, method: str = "POST", **how: Any
) -> Got:
    if method == "POST" and "data" not in how:
        how.setdefault("json", TEA)
    url = f"http://127.0.0.1:{service.port}{path}"
    async with (
        aiohttp.ClientSession() as client,
        client.request(method, url, headers=headers, allow_redirects=False, **how) as got,
    ):
        return Got(got.status, got.headers, await got.read())


def assert_problem(got: Got, status: int, code: str, *, retriable: bool, retry_after: int | None = None) -> None:
    """The whole shape of a refusal; what must not be retried says so three times."""
    assert (got.status, got.code) == (status, code)
    assert got.headers["Content-Type"] == "application/problem+json"
    assert got.headers["Cache-Control"] == "no-store"
    assert got.headers["Link"] == LINK
    assert got.headers["Idempotency-Key"] == "order-1"
    assert "Idempotency-Replay" not in got.headers
    assert got.headers.get("Retry-After") == (None if retry_after is None else str(retry_after))
    expected = None if retriable else "false"
    assert got.headers.get("x-should-retry") == got.headers.get("Stripe-Should-Retry") == expected
    problem, error = got.problem, got.error
    assert problem["type"] == f"urn:idemproxy:error:{code}"
    assert problem["status"] == status
    assert problem["title"]
    assert problem["detail"] == error["message"] != ""
    assert error["retriable"] is retriable
    assert error["retry_after_seconds"] == retry_after
    assert isinstance(error["safe_new_key"], bool)
    assert set(error) == {"type", "code", "message", "retriable", "retry_after_seconds", "safe_new_key", "action"}
    assert error["type"] in ("idempotency_error", "invalid_request_error", "api_error")
    assert error["action"]


async def state(rows: asyncpg.Connection) -> list[tuple[str, int]]:
    found = await rows.fetch("SELECT state, attempt FROM idemproxy.records")
    return [(row["state"], row["attempt"]) for row in found]


async def lapse(rows: asyncpg.Connection) -> None:
    await rows.execute("UPDATE idemproxy.records SET lease_until = now() - interval '1 second'")


async def expire(rows: asyncpg.Connection, seconds: int) -> None:
    await rows.execute("UPDATE idemproxy.records SET expires_at = now() - $1::int * interval '1 second'", seconds)


# The first write, and its replay


async def test_a_first_write_is_the_upstreams_answer_marked_as_no_replay(
    proxy: StartProxy, rows: asyncpg.Connection
) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        got = await send(service)
        assert (got.status, got.problem) == (201, {"order": 1})
        assert got.headers["Idempotency-Replay"] == "false"
        assert got.headers["Idempotency-Key"] == "order-1"
        assert got.headers["Link"] == LINK
        assert "Idempotency-Conflict" not in got.headers
        assert "Idempotency-Stored" not in got.headers
        assert orders.executions == 1
        assert await state(rows) == [("completed", 1)]


async def test_a_completed_write_is_replayed_as_200_byte_for_byte(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        first = await send(service)
        for _ in range(3):
            again = await send(service)
            assert (again.status, again.body) == (200, first.body)
            assert again.headers["Idempotency-Replay"] == "true"
            assert again.headers["Idempotency-Key"] == "order-1"
            assert again.headers["Link"] == LINK
        assert orders.executions == 1


async def test_a_kept_redirect_is_replayed_with_its_own_status(proxy: StartProxy) -> None:
    async def see_other(_: web.BaseRequest, __: bytes) -> web.Response:
        return web.Response(status=303, headers={"Location": "/orders/1"})

    async with orders_api() as orders, proxy(orders.url) as service:
        orders.answer = see_other
        first, again = await send(service), await send(service)
        assert [first.status, again.status] == [303, 303]
        assert again.headers["Location"] == "/orders/1"
        assert again.headers["Idempotency-Replay"] == "true"
        assert orders.executions == 1


async def test_a_stored_replay_status_can_be_asked_for(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url, replay_status="stored") as service:
        assert [(await send(service)).status, (await send(service)).status] == [201, 201]


# Conflicts


async def test_another_request_under_a_completed_key_conflicts(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        await send(service)
        for other in (await send(service, json={"item": "milk"}), await send(service, "/orders?rush=1")):
            assert_problem(other, 409, "IDEMPOTENCY_CONFLICT", retriable=False)
            assert other.headers["Idempotency-Conflict"] == "payload-mismatch"
            assert other.error["safe_new_key"] is True
        assert orders.executions == 1


async def test_another_request_under_a_running_key_conflicts_rather_than_waits(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url, in_flight="wait") as service:
        orders.gate.clear()
        first = asyncio.create_task(send(service))
        await orders.arrived.wait()
        other = await send(service, json={"item": "milk"})
        assert_problem(other, 409, "IDEMPOTENCY_CONFLICT", retriable=False)
        orders.gate.set()
        assert (await first).status == 201
        assert orders.executions == 1


async def test_a_duplicate_of_a_running_write_is_told_to_come_back(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        orders.gate.clear()
        first = asyncio.create_task(send(service))
        await orders.arrived.wait()
        again = await send(service)
        assert_problem(again, 409, "IDEMPOTENCY_IN_PROGRESS", retriable=True, retry_after=1)
        assert again.headers["Idempotency-Conflict"] == "in-flight"
        assert again.error["safe_new_key"] is False
        orders.gate.set()
        assert (await first).status == 201
        assert (await send(service)).headers["Idempotency-Replay"] == "true"
        assert orders.executions == 1


async def until_active(service: Service, number: int) -> None:
    """Until so many requests are being dealt with at the same time."""
    while service.data.active < number:
        await asyncio.sleep(0.005)


async def test_those_who_wait_get_the_replay(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url, in_flight="wait") as service:
        orders.gate.clear()
        first = asyncio.create_task(send(service))
        await orders.arrived.wait()
        waiters = [asyncio.create_task(send(service)) for _ in range(5)]
        await until_active(service, 6)
        assert not any(waiter.done() for waiter in waiters)
        orders.gate.set()
        body = (await first).body
        for got in await asyncio.gather(*waiters):
            assert (got.status, got.headers["Idempotency-Replay"], got.body) == (200, "true", body)
        assert orders.executions == 1


async def test_those_who_wait_at_another_replica_get_the_replay(proxy: StartProxy) -> None:
    async with (
        orders_api() as orders,
        proxy(orders.url, in_flight="wait") as one,
        proxy(orders.url, in_flight="wait") as two,
    ):
        orders.gate.clear()
        first = asyncio.create_task(send(one))
        await orders.arrived.wait()
        waiter = asyncio.create_task(send(two))
        await until_active(two, 1)
        orders.gate.set()
        got = await waiter
        assert (got.status, got.headers["Idempotency-Replay"]) == (200, "true")
        assert got.body == (await first).body
        assert orders.executions == 1


async def test_who_has_waited_long_enough_is_refused(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url, in_flight="wait", wait_seconds="0.1") as service:
        orders.gate.clear()
        first = asyncio.create_task(send(service))
        await orders.arrived.wait()
        assert_problem(await send(service), 409, "IDEMPOTENCY_IN_PROGRESS", retriable=True, retry_after=1)
        orders.gate.set()
        await first
        assert orders.executions == 1


# Expiry


async def test_an_expired_key_runs_again_as_a_first_write(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        await send(service)
        await expire(rows, 1)
        again = await send(service, json={"item": "milk"})
        assert (again.status, again.headers["Idempotency-Replay"]) == (201, "false")
        assert orders.executions == 2
        assert await state(rows) == [("completed", 1)]


async def test_an_expired_key_that_left_a_tombstone_is_refused(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    async with orders_api() as orders, proxy(orders.url, tombstone_seconds="60") as service:
        await send(service)
        await expire(rows, 1)
        again = await send(service)
        assert_problem(again, 409, "IDEMPOTENCY_KEY_EXPIRED", retriable=False)
        assert again.headers["Idempotency-Conflict"] == "expired"
        assert orders.executions == 1
        await expire(rows, 61)
        assert (await send(service)).headers["Idempotency-Replay"] == "false"
        assert orders.executions == 2


# The store


async def health(service: Service, path: str) -> int:
    url = f"http://127.0.0.1:{service.admin_port}{path}"
    async with aiohttp.ClientSession() as client, client.get(url) as got:
        return got.status


@pytest.mark.parametrize("how", ["cut", "frozen"])
async def test_without_its_store_nothing_is_forwarded(proxy: StartProxy, database: str, how: str) -> None:
    async with orders_api() as orders, way_to(database) as (way, url), proxy(orders.url, database_url=url) as service:
        assert await health(service, "/readyz") == 200
        way.cut() if how == "cut" else way.freeze()
        started = time.monotonic()
        got = await send(service)
        assert time.monotonic() - started < 2
        assert_problem(got, 503, "IDEMPOTENCY_STORE_UNAVAILABLE", retriable=True, retry_after=1)
        assert orders.executions == 0
        assert (await send(service, method="GET", headers=ADA)).status == 201
        assert (await send(service, headers=ADA)).status == 201
        assert [method for method, _, _ in orders.ledger] == ["GET", "POST"]
        assert await health(service, "/readyz") == 503
        assert await health(service, "/livez") == 200
        if how == "cut":  # and the way it is closed must not hang on a server that says nothing
            return
        await way.close()


# The upstream


async def test_a_write_that_was_never_sent_releases_its_key(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    async with proxy(f"http://127.0.0.1:{port}") as service:
        got = await send(service)
        assert_problem(got, 502, "UPSTREAM_UNREACHABLE", retriable=True, retry_after=1)
        assert got.error["safe_new_key"] is True
        assert await state(rows) == []


async def test_a_timeout_leaves_the_outcome_unknown(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    async with orders_api() as orders, proxy(orders.url, upstream_timeout_seconds="0.2") as service:
        orders.gate.clear()
        got = await send(service)
        assert_problem(got, 504, "UPSTREAM_TIMEOUT", retriable=True, retry_after=30)
        assert got.error["safe_new_key"] is False
        assert await state(rows) == [("unknown", 1)]
        again = await send(service)
        assert_problem(again, 409, "IDEMPOTENCY_OUTCOME_UNKNOWN", retriable=True, retry_after=30)
        assert again.headers["Idempotency-Conflict"] == "outcome-unknown"
        assert orders.executions == 1


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 201 Cre", b"HTTP/1.1 201 Created\r\nContent-Length: 10\r\n\r\nhalf"]
)
async def test_a_disconnect_leaves_the_outcome_unknown(
    proxy: StartProxy, rows: asyncpg.Connection, answer: bytes
) -> None:
    async with RawServer(closing_after(answer)) as upstream, proxy(upstream.url) as service:
        got = await send(service)
        assert_problem(got, 502, "UPSTREAM_DISCONNECTED", retriable=True, retry_after=30)
        assert await state(rows) == [("unknown", 1)]
        assert len(upstream.requests) == 1


async def test_an_answer_that_is_no_http_leaves_the_outcome_unknown(
    proxy: StartProxy, rows: asyncpg.Connection
) -> None:
    async with RawServer(closing_after(b"SSH-2.0-nope\r\n")) as upstream, proxy(upstream.url) as service:
        got = await send(service)
        assert_problem(got, 502, "UPSTREAM_INVALID_RESPONSE", retriable=True, retry_after=30)
        assert await state(rows) == [("unknown", 1)]


@pytest.mark.parametrize("status", [502, 504])
async def test_a_gateways_lost_answer_is_handed_on_and_unknown(
    proxy: StartProxy, rows: asyncpg.Connection, status: int
) -> None:
    async def gateway(_: web.BaseRequest, __: bytes) -> web.Response:
        return web.Response(status=status, text="from the gateway")

    async with orders_api() as orders, proxy(orders.url) as service:
        orders.answer = gateway
        got = await send(service)
        assert (got.status, got.body) == (status, b"from the gateway")
        assert got.headers["Idempotency-Replay"] == "false"
        assert await state(rows) == [("unknown", 1)]
        assert (await send(service)).code == "IDEMPOTENCY_OUTCOME_UNKNOWN"
        assert orders.executions == 1


async def test_an_unknown_outcome_is_sent_again_under_its_key_once_the_lease_has_lapsed(
    proxy: StartProxy, rows: asyncpg.Connection
) -> None:
    async with orders_api() as orders, proxy(orders.url, upstream_timeout_seconds="0.2") as service:
        orders.gate.clear()
        await send(service)
        orders.gate.set()
        await lapse(rows)
        again = await send(service)
        assert (again.status, again.headers["Idempotency-Replay"]) == (201, "false")
        assert await state(rows) == [("completed", 2)]
        assert orders.executions == 2
        keys = [dict(headers)[b"Idempotency-Key"] for headers in orders.headers]
        assert keys == [b"order-1", b"order-1"]
        assert (await send(service)).headers["Idempotency-Replay"] == "true"


async def test_a_claim_whose_owner_died_is_sent_again_once_the_lease_has_lapsed(
    proxy: StartProxy, rows: asyncpg.Connection
) -> None:
    async with orders_api() as orders, proxy(orders.url) as dead, proxy(orders.url) as alive:
        orders.gate.clear()
        first = asyncio.create_task(send(dead))
        await orders.arrived.wait()
        assert (await send(alive)).code == "IDEMPOTENCY_IN_PROGRESS"
        await lapse(rows)
        orders.arrived.clear()
        again = asyncio.create_task(send(alive))
        await orders.arrived.wait()
        assert await state(rows) == [("claimed", 2)]
        orders.gate.set()
        late, won = await asyncio.gather(first, again)
        assert won.headers["Idempotency-Replay"] == "false"
        assert await state(rows) == [("completed", 2)]
        assert (await send(alive)).body == won.body
        assert late.status in (200, 201)


async def test_a_held_outcome_is_never_sent_again(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    async with orders_api() as orders, proxy(orders.url, upstream_timeout_seconds="0.2", on_unknown="hold") as service:
        orders.gate.clear()
        assert_problem(await send(service), 504, "UPSTREAM_TIMEOUT", retriable=False)
        orders.gate.set()
        await lapse(rows)
        again = await send(service)
        assert_problem(again, 409, "IDEMPOTENCY_OUTCOME_UNKNOWN", retriable=False)
        assert again.headers["Idempotency-Conflict"] == "outcome-unknown"
        assert again.error["safe_new_key"] is False
        assert orders.executions == 1


@pytest.mark.parametrize("status", [400, 404, 409, 422, 429, 500, 503])
async def test_an_answer_that_is_not_kept_releases_the_key(
    proxy: StartProxy, rows: asyncpg.Connection, status: int
) -> None:
    async def refuse(_: web.BaseRequest, __: bytes) -> web.Response:
        return web.Response(status=status, text="no")

    async with orders_api() as orders, proxy(orders.url) as service:
        orders.answer = refuse
        got = await send(service)
        assert (got.status, got.body, got.headers["Idempotency-Replay"]) == (status, b"no", "false")
        assert await state(rows) == []
        orders.answer = None
        corrected = await send(service, json={"item": "corrected"})
        assert (corrected.status, corrected.headers["Idempotency-Replay"]) == (201, "false")
        assert orders.executions == 2


# Sizes


async def pieces(size: int) -> AsyncIterator[bytes]:
    for _ in range(0, size, 512):
        yield b"x" * 512


@pytest.mark.parametrize("framing", ["content-length", "chunked"])
async def test_a_guarded_body_over_the_limit_is_refused_and_never_forwarded(
    proxy: StartProxy, rows: asyncpg.Connection, framing: str
) -> None:
    async with orders_api() as orders, proxy(orders.url, max_request_bytes="1024") as service:
        body = b"x" * 2048 if framing == "content-length" else pieces(2048)
        assert_problem(await send(service, data=body), 413, "REQUEST_BODY_TOO_LARGE", retriable=False)
        assert (await send(service, data=b"x" * 1024)).status == 201
        assert orders.executions == 1
        assert await state(rows) == [("completed", 1)]


@pytest.mark.parametrize("size", [1001, 1_000_000], ids=["held until settled", "live"])
@pytest.mark.parametrize("framing", ["content-length", "chunked"])
async def test_an_answer_too_large_to_be_kept_is_delivered_whole_and_remembered(
    proxy: StartProxy, rows: asyncpg.Connection, framing: str, size: int
) -> None:
    body = (bytes(range(256)) * 4096)[:size]
    head = b"HTTP/1.1 201 Created\r\nX-Order: 7\r\n"
    if framing == "content-length":
        answer = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    else:
        answer = head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    async with RawServer(answering(answer)) as upstream, proxy(upstream.url, max_stored_bytes="1000") as service:
        got = await send(service)
        assert (got.status, got.body, got.headers["X-Order"]) == (201, body, "7")
        assert (got.headers["Idempotency-Replay"], got.headers["Idempotency-Stored"]) == ("false", "false")
        assert got.headers["Idempotency-Key"] == "order-1"
        assert await state(rows) == [("completed", 1)]
        again = await send(service)
        assert_problem(again, 409, "IDEMPOTENCY_RESPONSE_NOT_STORED", retriable=False)
        assert again.headers["Idempotency-Conflict"] == "response-not-stored"
        assert again.problem["first_status"] == 201
        assert again.error["safe_new_key"] is False
        assert len(upstream.requests) == 1


@pytest.mark.parametrize("kind", [b"text/plain", b"text/event-stream"])
async def test_an_answer_that_may_have_been_cut_is_taken_for_whole_unless_framing_is_required(
    proxy: StartProxy, rows: asyncpg.Connection, kind: bytes
) -> None:
    answer = b"HTTP/1.1 201 Created\r\nContent-Type: " + kind + b"\r\n\r\nup to the en"
    async with RawServer(closing_after(answer)) as upstream:
        async with proxy(upstream.url) as service:
            assert (await send(service)).body == b"up to the en"
            assert await state(rows) == [("completed", 1)]
        await rows.execute("DELETE FROM idemproxy.records")
        async with proxy(upstream.url, upstream_require_framed="true") as service:
            got = await send(service)
            assert_problem(got, 502, "UPSTREAM_INVALID_RESPONSE", retriable=True, retry_after=30)
            assert await state(rows) == [("unknown", 1)]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
    ],
    ids=["content-length", "chunked", "no body"],
)
async def test_where_framing_is_required_an_answer_that_has_it_is_whole(
    proxy: StartProxy, rows: asyncpg.Connection, answer: bytes
) -> None:
    async with (
        RawServer(answering(answer)) as upstream,
        proxy(upstream.url, upstream_require_framed="true") as service,
    ):
        assert (await send(service)).status // 100 == 2
        assert await state(rows) == [("completed", 1)]


async def test_a_large_answer_that_breaks_off_is_cut_off_for_the_client_too(
    proxy: StartProxy, rows: asyncpg.Connection
) -> None:
    answer = b"HTTP/1.1 201 Created\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 500000
    async with RawServer(closing_after(answer)) as upstream, proxy(upstream.url, max_stored_bytes="1000") as service:
        with pytest.raises(aiohttp.ClientError):
            await send(service)
        assert await state(rows) == [("unknown", 1)]


# Keys


def seen(orders: Orders) -> list[bytes]:
    """The values of the key's header that the upstream saw."""
    return [value for headers in orders.headers for name, value in headers if name.lower() == b"idempotency-key"]


async def test_the_upstream_sees_the_clients_key(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        await send(service)
        assert seen(orders) == [b"order-1"]


async def test_the_upstream_sees_a_derived_key_that_is_the_same_on_every_attempt(
    proxy: StartProxy, rows: asyncpg.Connection
) -> None:
    async def gateway(_: web.BaseRequest, __: bytes) -> web.Response:
        return web.Response(status=504)

    async with orders_api() as orders, proxy(orders.url, forward_key="derived") as service:
        orders.answer = gateway
        await send(service)
        await lapse(rows)
        await send(service)
        await send(service, "/refunds")
        first, second, elsewhere = seen(orders)
        assert first == second != elsewhere
        assert b"order-1" not in first
        assert len(first) == 64


async def test_the_upstream_sees_no_key(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url, forward_key="none") as service:
        await send(service)
        assert seen(orders) == []
        assert (await send(service)).headers["Idempotency-Replay"] == "true"
        assert orders.executions == 1


@pytest.mark.parametrize(
    ("source", "path", "how"),
    [
        ("header:X-Request-Id", "/orders", {"headers": {**ADA, "X-Request-Id": "k-1"}}),
        ("query:request_id", "/orders?a=1&request_id=k-1", {"headers": ADA}),
        ("json:/meta/id", "/orders", {"headers": ADA, "json": {"meta": {"id": "k-1"}, "item": "tea"}}),
        ("form:request_id", "/orders", {"headers": ADA, "data": {"request_id": "k-1", "item": "tea"}}),
        ("header:Idempotency-Key,query:id", "/orders?id=k-1", {"headers": ADA}),
    ],
)
async def test_the_key_is_found_where_it_is_configured_to_be(
    proxy: StartProxy, rows: asyncpg.Connection, source: str, path: str, how: dict[str, Any]
) -> None:
    async with orders_api() as orders, proxy(orders.url, key_from=source) as service:
        first, again = await send(service, path, **how), await send(service, path, **how)
        assert [first.headers["Idempotency-Replay"], again.headers["Idempotency-Replay"]] == ["false", "true"]
        assert first.headers["Idempotency-Key"] == again.headers["Idempotency-Key"] == "k-1"
        assert await rows.fetchval("SELECT key FROM idemproxy.records") == "k-1"
        assert orders.executions == 1


@pytest.mark.parametrize("source", ["json:/id", "form:id"])
async def test_a_body_without_its_optional_key_passes_whole(
    proxy: StartProxy, rows: asyncpg.Connection, source: str
) -> None:
    async with orders_api() as orders, proxy(orders.url, key_from=source) as service:
        got = await send(service, headers=ADA, data=b'{"item": "tea"}')
        assert got.status == 201
        assert "Idempotency-Replay" not in got.headers
        assert orders.ledger == [("POST", "/orders", b'{"item": "tea"}')]
        assert await state(rows) == []


async def test_a_quoted_key_and_the_bare_one_are_one_key(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        await send(service)
        again = await send(service, headers={**ADA, "Idempotency-Key": '"order-1"'})
        assert again.headers["Idempotency-Replay"] == "true"
        assert orders.executions == 1


async def test_a_key_that_is_no_single_word_is_echoed_as_a_string(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        quoted = r'"two words, a \"quote\""'
        got = await send(service, headers={**ADA, "Idempotency-Key": quoted})
        assert got.headers["Idempotency-Key"] == quoted
        assert seen(orders) == [quoted.encode()]


async def test_one_key_on_two_routes_is_two_writes(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        one, two = await send(service, "/orders"), await send(service, "/refunds")
        assert one.headers["Idempotency-Replay"] == two.headers["Idempotency-Replay"] == "false"
        assert orders.executions == 2


async def test_what_is_not_guarded_streams_through_unmarked(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(ok())

    async with RawServer(handler) as upstream, proxy(upstream.url) as service:
        for method in ("GET", "PUT", "DELETE"):
            for _ in range(2):
                got = await send(service, method=method)
                assert (got.status, got.body) == (200, b"ok")
                assert "Idempotency-Replay" not in got.headers
        assert len(upstream.requests) == 6
        assert await state(rows) == []
