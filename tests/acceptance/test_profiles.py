"""Each row of the table of profiles, by what a client of the running proxy sees."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import pytest
import stripe
from aiohttp import web

from idemproxy.service import Service
from tests.acceptance.test_contract_rows import ADA, LINK, Got, expire, send, state
from tests.conftest import StartProxy
from tests.support.orders import Orders, orders_api

ACTS = {"retriable", "retry_after_seconds", "safe_new_key", "action"}
"""What every dialect adds to its own members: whether to retry, with which key, and what to do instead."""


@dataclass(frozen=True)
class Dialect:
    name: str
    replay_status: int
    first_marker: dict[str, str]
    replay_marker: dict[str, str]
    mismatch: tuple[int, str]
    running: tuple[int, str]
    missing: tuple[int, str] | None
    kept: set[int]
    released: set[int]
    titles: dict[str, str] = field(default_factory=dict)


OWN = {"Idempotency-Replay": "false"}, {"Idempotency-Replay": "true"}
STRIPES: tuple[dict[str, str], dict[str, str]] = {}, {"Idempotent-Replayed": "true"}
MARKERS = ("Idempotency-Replay", "Idempotent-Replayed")

DIALECTS = [
    Dialect(
        "agent",
        200,
        *OWN,
        mismatch=(409, "IDEMPOTENCY_CONFLICT"),
        running=(409, "IDEMPOTENCY_IN_PROGRESS"),
        missing=(400, "MISSING_IDEMPOTENCY_KEY"),
        kept={200, 201, 202, 303},
        released={400, 402, 404, 409, 422, 429, 500, 503},
    ),
    Dialect(
        "ietf",
        201,
        *OWN,
        mismatch=(422, "IDEMPOTENCY_KEY_REUSE"),
        running=(409, "IDEMPOTENCY_IN_PROGRESS"),
        missing=(400, "MISSING_IDEMPOTENCY_KEY"),
        kept={200, 201, 303, 400, 402, 404, 422},
        released={408, 409, 425, 429, 500, 503},
        titles={
            "missing": "Idempotency-Key is missing",
            "mismatch": "Idempotency-Key is already used",
            "running": "A request is outstanding for this Idempotency-Key",
        },
    ),
    Dialect(
        "stripe",
        201,
        *STRIPES,
        mismatch=(400, "idempotency_error"),
        running=(409, "idempotency_key_in_use"),
        missing=None,
        kept={200, 201, 303, 402, 404, 422, 500, 503},
        released={400, 401, 403, 408, 409, 425, 429},
    ),
    Dialect(
        "acp",
        201,
        *STRIPES,
        mismatch=(422, "idempotency_conflict"),
        running=(409, "idempotency_in_flight"),
        missing=(400, "idempotency_key_required"),
        kept={200, 201, 303, 400, 402, 404, 422},
        released={408, 409, 425, 429, 500, 503},
    ),
]
each_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)


def markers(got: Got) -> dict[str, str]:
    return {name: got.headers[name] for name in MARKERS if name in got.headers}


def error_of(dialect: Dialect, got: Got) -> dict[str, Any]:
    """The object that has the code in it, after the shape around it was found to be the dialect's own."""
    document: dict[str, Any] = got.problem
    assert got.headers["Content-Language"] == "en"
    assert got.headers["Link"] == LINK
    if dialect.name == "acp":
        assert got.headers["Content-Type"] == "application/json"
        assert document.keys() == {"type", "code", "message"} | ACTS
        assert document["type"] in ("invalid_request", "processing_error", "service_unavailable")
        return document
    error: dict[str, Any] = document["error"]
    assert error.keys() == {"type", "code", "message"} | ACTS
    assert error["type"] in ("idempotency_error", "invalid_request_error", "api_error")
    if dialect.name == "stripe":
        assert got.headers["Content-Type"] == "application/json"
        assert document.keys() == {"error"}
    else:
        assert got.headers["Content-Type"] == "application/problem+json"
        assert document["status"] == got.status
        assert document["type"].endswith(f":{error['code']}")
    return error


def assert_refused(dialect: Dialect, got: Got, row: str, expected: tuple[int, str]) -> None:
    assert (got.status, error_of(dialect, got)["code"]) == expected
    if row in dialect.titles:
        assert got.problem["title"] == dialect.titles[row]
    assert markers(got) == {}


@each_dialect
async def test_a_replay_has_the_profiles_status_and_marker(proxy: StartProxy, dialect: Dialect) -> None:
    async with orders_api() as orders, proxy(orders.url, profile=dialect.name) as service:
        first, again = await send(service), await send(service)
        assert (first.status, markers(first)) == (201, dialect.first_marker)
        assert (again.status, markers(again)) == (dialect.replay_status, dialect.replay_marker)
        assert again.body == first.body
        assert orders.executions == 1


@each_dialect
async def test_only_the_proxy_marks_replays(proxy: StartProxy, dialect: Dialect) -> None:
    async def liar(_: web.BaseRequest, __: bytes) -> web.Response:
        return web.Response(status=201, headers=dialect.replay_marker)

    async with orders_api() as orders, proxy(orders.url, profile=dialect.name) as service:
        orders.answer = liar
        assert markers(await send(service)) == dialect.first_marker
        again = await send(service)
        assert markers(again) == dialect.replay_marker
        assert len(again.headers.getall(*dialect.replay_marker)) == 1


@each_dialect
async def test_another_request_under_the_key_is_refused_in_the_profiles_words(
    proxy: StartProxy, dialect: Dialect
) -> None:
    async with orders_api() as orders, proxy(orders.url, profile=dialect.name) as service:
        await send(service)
        other = await send(service, json={"item": "milk"})
        assert_refused(dialect, other, "mismatch", dialect.mismatch)
        assert other.headers["Idempotency-Conflict"] == "payload-mismatch"
        assert other.headers["Stripe-Should-Retry"] == other.headers["x-should-retry"] == "false"
        assert orders.executions == 1


@each_dialect
async def test_a_running_write_is_refused_in_the_profiles_words(proxy: StartProxy, dialect: Dialect) -> None:
    async with orders_api() as orders, proxy(orders.url, profile=dialect.name) as service:
        orders.gate.clear()
        first = asyncio.create_task(send(service))
        await orders.arrived.wait()
        again = await send(service)
        assert_refused(dialect, again, "running", dialect.running)
        assert again.headers["Retry-After"] == "1"
        orders.gate.set()
        assert (await first).status == 201
        assert orders.executions == 1


@each_dialect
async def test_a_missing_key_is_refused_in_the_profiles_words(proxy: StartProxy, dialect: Dialect) -> None:
    settings = {} if dialect.name in ("stripe", "acp") else {"key_required": "true"}
    async with orders_api() as orders, proxy(orders.url, profile=dialect.name, **settings) as service:
        got = await send(service, headers=ADA)
        if dialect.missing is None:
            assert (got.status, orders.executions) == (201, 1)
        else:
            assert_refused(dialect, got, "missing", dialect.missing)
            assert orders.executions == 0


@pytest.mark.parametrize("name", ["agent", "ietf", "stripe"])
async def test_a_key_is_optional_unless_a_setting_or_the_contract_asks_for_it(proxy: StartProxy, name: str) -> None:
    async with orders_api() as orders, proxy(orders.url, profile=name) as service:
        assert (await send(service, headers=ADA)).status == 201


async def answers(service: Service, orders: Orders, status: int, key: str) -> tuple[Got, Got]:
    async def answer(_: web.BaseRequest, __: bytes) -> web.Response:
        return web.Response(status=status, text=f"execution {orders.executions}")

    orders.answer = answer
    headers = {**ADA, "Idempotency-Key": key}
    return await send(service, headers=headers), await send(service, headers=headers)


@each_dialect
async def test_the_answers_that_the_profile_keeps_are_replayed_and_no_others(
    proxy: StartProxy, rows: asyncpg.Connection, dialect: Dialect
) -> None:
    async with orders_api() as orders, proxy(orders.url, profile=dialect.name) as service:
        for status in sorted(dialect.kept):
            first, again = await answers(service, orders, status, f"kept-{status}")
            assert (first.body, markers(again)) == (again.body, dialect.replay_marker), status
        assert len(await state(rows)) == len(dialect.kept)
        for status in sorted(dialect.released):
            first, again = await answers(service, orders, status, f"released-{status}")
            assert (again.status, markers(again)) == (status, dialect.first_marker), status
            assert first.body != again.body, status
        assert len(await state(rows)) == len(dialect.kept)


@each_dialect
@pytest.mark.parametrize("status", [502, 504])
async def test_a_gateways_lost_answer_is_unknown_in_every_profile(
    proxy: StartProxy, rows: asyncpg.Connection, dialect: Dialect, status: int
) -> None:
    async with orders_api() as orders, proxy(orders.url, profile=dialect.name) as service:
        first, again = await answers(service, orders, status, "k")
        assert first.status == status
        assert error_of(dialect, again)["code"].upper() == "IDEMPOTENCY_OUTCOME_UNKNOWN"
        assert (await state(rows), orders.executions) == ([("unknown", 1)], 1)


@each_dialect
async def test_a_key_has_up_to_255_characters(proxy: StartProxy, dialect: Dialect) -> None:
    async with orders_api() as orders, proxy(orders.url, profile=dialect.name) as service:
        assert (await send(service, headers={**ADA, "Idempotency-Key": "k" * 255})).status == 201
        longer = await send(service, headers={**ADA, "Idempotency-Key": "k" * 256})
        assert longer.status == 400
        assert error_of(dialect, longer)["code"].upper() == "INVALID_IDEMPOTENCY_KEY"
        assert orders.executions == 1


@each_dialect
async def test_a_tombstone_is_refused_in_the_profiles_shape(
    proxy: StartProxy, rows: asyncpg.Connection, dialect: Dialect
) -> None:
    async with orders_api() as orders, proxy(orders.url, profile=dialect.name, tombstone_seconds="60") as service:
        await send(service)
        await expire(rows, 1)
        got = await send(service)
        assert (got.status, error_of(dialect, got)["code"].upper()) == (409, "IDEMPOTENCY_KEY_EXPIRED")


@each_dialect
async def test_an_upstream_that_cannot_be_reached_is_told_in_the_profiles_shape(
    proxy: StartProxy, dialect: Dialect
) -> None:
    async with proxy("http://127.0.0.1:9", profile=dialect.name) as service:
        got = await send(service)
        assert (got.status, error_of(dialect, got)["code"].upper()) == (502, "UPSTREAM_UNREACHABLE")


async def test_stripes_own_client_understands_the_stripe_profile(proxy: StartProxy) -> None:
    async def customer(_: web.BaseRequest, __: bytes) -> web.Response:
        return web.json_response({"id": f"cus_{orders.executions}", "object": "customer"})

    async with orders_api() as orders, proxy(orders.url, profile="stripe") as service:
        orders.answer = customer
        address = f"http://127.0.0.1:{service.port}"
        client = stripe.StripeClient("sk_test_1", base_addresses={"api": address}, max_network_retries=0)

        def create(name: str) -> stripe.Customer:
            return client.v1.customers.create({"name": name}, {"idempotency_key": "customer-1"})

        first, again = await asyncio.to_thread(create, "ada"), await asyncio.to_thread(create, "ada")
        assert (first.id, again.id, orders.executions) == ("cus_1", "cus_1", 1)
        assert again.last_response is not None
        assert again.last_response.headers["Idempotent-Replayed"] == "true"
        with pytest.raises(stripe.IdempotencyError, match="different method, path, query or body") as refused:
            await asyncio.to_thread(create, "bob")
        assert refused.value.http_status == 400
        assert orders.executions == 1
