"""The document is the configuration: each class, each field of a block, by what a client of the running proxy sees."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import asyncpg
import orjson
import pytest
from aiohttp import web

from idemproxy.contract.live import ContractError
from tests.acceptance.test_contract_rows import ADA, Got, send, state
from tests.conftest import StartProxy
from tests.core.test_derived_keys import bearer
from tests.support.orders import orders_api

DOCUMENT = """
openapi: 3.1.0
info: {title: Orders, version: "1"}
servers: [{url: https://api.example.com/v1}]
paths:
  /orders:
    get: {operationId: listOrders, responses: {"200": {description: all}}}
    post:
      operationId: createOrder
      responses: {"201": {description: created}}
      x-agent-idempotency:
        {class: key_idempotent, required: true, ttl_seconds: 3600, scope: account, replay_status: 200}
  /orders/export:
    post: {x-agent-idempotency: {class: read_only}, responses: {"200": {description: all}}}
  /orders/{id}:
    put: {x-agent-idempotency: {class: naturally_idempotent}, responses: {"200": {description: changed}}}
    delete: {responses: {"204": {description: gone}}}
    post:
      x-agent-idempotency: {class: key_idempotent, ttl_seconds: 3600, scope: account, replay_status: 200}
      responses: {"200": {description: changed}}
  /mails:
    post:
      x-agent-idempotency:
        class: non_idempotent
        compensation: {reversal: "POST /mails/{id}/recall"}
      responses: {"202": {description: sent}}
  /mails/{id}/recall:
    post: {x-agent-idempotency: {class: naturally_idempotent}, responses: {"200": {description: recalled}}}
"""


def write(folder: Path, text: str, name: str = "openapi.yaml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


@pytest.fixture
def contract(tmp_path: Path) -> str:
    return write(tmp_path, DOCUMENT)


def with_block(folder: Path, path: str = "/orders", body: str = "application/json", **block: Any) -> str:
    """A document with one guarded operation."""
    operation = {
        "requestBody": {"content": {body: {}}},
        "responses": {"201": {"description": "created"}},
        "x-agent-idempotency": {"class": "key_idempotent", "ttl_seconds": 3600, "scope": "account", **block},
    }
    tree = {"openapi": "3.0.3", "info": {"title": "t", "version": "1"}, "paths": {path: {"post": operation}}}
    return write(folder, orjson.dumps(tree).decode())


def kind(got: Got) -> str | None:
    return got.headers.get("Idempotency-Class")


def links(got: Got, relation: str) -> list[str]:
    return [link for link in got.headers.getall("Link", []) if f'rel="{relation}"' in link]


# The four classes


async def test_a_key_idempotent_operation_is_guarded(
    proxy: StartProxy, contract: str, rows: asyncpg.Connection
) -> None:
    async with orders_api() as orders, proxy(orders.url, contract=contract) as service:
        first, again = await send(service, "/v1/orders"), await send(service, "/v1/orders")
        assert [first.status, again.status] == [201, 200]
        assert [got.headers["Idempotency-Replay"] for got in (first, again)] == ["false", "true"]
        assert kind(first) == kind(again) == "key_idempotent"
        assert len(links(first, "describedby")) == len(links(again, "describedby")) == 1
        assert orders.executions == 1
        record = await rows.fetchrow("SELECT route, expires_at - settled_at AS ttl FROM idemproxy.records")
        assert record is not None
        assert (record["route"], record["ttl"].total_seconds()) == ("POST /v1/orders", 3600)


async def test_its_refusals_carry_the_class_too(proxy: StartProxy, contract: str) -> None:
    async with orders_api() as orders, proxy(orders.url, contract=contract) as service:
        missing = await send(service, "/v1/orders", headers=ADA)
        assert (missing.status, missing.code, kind(missing)) == (400, "MISSING_IDEMPOTENCY_KEY", "key_idempotent")
        await send(service, "/v1/orders")
        other = await send(service, "/v1/orders", json={"item": "milk"})
        assert (other.status, other.code, kind(other)) == (409, "IDEMPOTENCY_CONFLICT", "key_idempotent")
        assert orders.executions == 1


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/v1/orders", "read_only"),
        ("POST", "/v1/orders/export", "read_only"),
        ("PUT", "/v1/orders/7", "naturally_idempotent"),
        ("DELETE", "/v1/orders/7", None),
        ("POST", "/v1/mails", "non_idempotent"),
        ("POST", "/v1/unknown", None),
        ("POST", "/orders", None),
    ],
)
async def test_everything_else_streams_through_under_its_class(
    proxy: StartProxy, contract: str, rows: asyncpg.Connection, method: str, path: str, expected: str | None
) -> None:
    async def boast(_: web.BaseRequest, __: bytes) -> web.Response:
        return web.Response(headers={"Idempotency-Class": "key_idempotent"})

    async with orders_api() as orders, proxy(orders.url, contract=contract) as service:
        orders.answer = boast
        for _ in range(2):
            got = await send(service, path, method=method)
            assert (got.status, kind(got)) == (200, expected)
            assert "Idempotency-Replay" not in got.headers
        assert orders.executions == 2
        assert await state(rows) == []


async def test_what_cannot_be_retried_names_its_reversal(proxy: StartProxy, contract: str) -> None:
    async with orders_api() as orders, proxy(orders.url, contract=contract) as service:
        got = await send(service, "/v1/mails")
        expected = '</v1/mails/%7Bid%7D/recall>; rel="compensation"; method="POST"'
        assert links(got, "compensation") == [expected]
        assert links(await send(service, "/v1/orders"), "compensation") == []


async def test_an_optional_key_may_be_left_out(proxy: StartProxy, contract: str, rows: asyncpg.Connection) -> None:
    async with orders_api() as orders, proxy(orders.url, contract=contract) as service:
        got = await send(service, "/v1/orders/7", headers=ADA)
        assert (got.status, kind(got)) == (201, "key_idempotent")
        assert await state(rows) == []
        assert orders.executions == 1


async def test_one_template_is_one_route_and_two_paths_are_two_requests(
    proxy: StartProxy, contract: str, rows: asyncpg.Connection
) -> None:
    async with orders_api() as orders, proxy(orders.url, contract=contract) as service:
        assert (await send(service, "/v1/orders/7")).status == 201
        other = await send(service, "/v1/orders/8")
        assert (other.status, other.code) == (409, "IDEMPOTENCY_CONFLICT")
        assert await rows.fetchval("SELECT route FROM idemproxy.records") == "POST /v1/orders/{id}"


@pytest.mark.parametrize(
    "path", ["//v1/orders", "/v1/x/../orders", "/v1/x/%2e%2e/orders", "/v1%2Forders", "/v1\\orders"]
)
async def test_a_guarded_path_in_disguise_is_refused_and_never_sent_unguarded(
    proxy: StartProxy, contract: str, path: str
) -> None:
    async with orders_api() as orders, proxy(orders.url, contract=contract) as service:
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        lines = [f"POST {path} HTTP/1.1", "Host: a", "Authorization: ada", "Idempotency-Key: k", "Content-Length: 0"]
        writer.write("\r\n".join([*lines, "Connection: close", "", ""]).encode())
        answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"AMBIGUOUS_PATH" in answer
        assert orders.executions == 0


async def test_a_slash_too_many_is_guarded_all_the_same(proxy: StartProxy, contract: str) -> None:
    async with orders_api() as orders, proxy(orders.url, contract=contract) as service:
        await send(service, "/v1/orders/")
        again = await send(service, "/v1/orders/")
        assert again.headers["Idempotency-Replay"] == "true"
        assert orders.executions == 1


async def test_a_template_need_not_be_ascii(proxy: StartProxy, tmp_path: Path, rows: asyncpg.Connection) -> None:
    contract = with_block(tmp_path, path="/cafés/{id}")
    async with orders_api() as orders, proxy(orders.url, contract=contract) as service:
        await send(service, "/caf%C3%A9s/7")
        assert (await send(service, "/caf%C3%A9s/7")).headers["Idempotency-Replay"] == "true"
        assert await rows.fetchval("SELECT route FROM idemproxy.records") == "POST /caf%C3%A9s/{id}"


# The fields of a block


@pytest.mark.parametrize(
    ("block", "path", "how"),
    [
        ({"key_field": "X-Request-Id"}, "/orders", {"headers": {**ADA, "X-Request-Id": "k-1"}}),
        ({"key_location": "query", "key_field": "rid"}, "/orders?rid=k-1", {"headers": ADA}),
        (
            {"key_location": "body", "key_field": "/meta/id"},
            "/orders",
            {"headers": ADA, "json": {"meta": {"id": "k-1"}}},
        ),
        ({"key_location": "body", "key_field": "id"}, "/orders", {"headers": ADA, "json": {"id": "k-1"}}),
    ],
)
async def test_each_operation_has_its_own_place_for_the_key(
    proxy: StartProxy, tmp_path: Path, rows: asyncpg.Connection, block: dict[str, Any], path: str, how: dict[str, Any]
) -> None:
    contract = with_block(tmp_path, **block)
    async with orders_api() as orders, proxy(orders.url, contract=contract) as service:
        first, again = await send(service, path, **how), await send(service, path, **how)
        assert [got.headers["Idempotency-Replay"] for got in (first, again)] == ["false", "true"]
        assert await rows.fetchval("SELECT key FROM idemproxy.records") == "k-1"
        assert orders.executions == 1


async def test_a_form_can_carry_the_key(proxy: StartProxy, tmp_path: Path) -> None:
    form = "application/x-www-form-urlencoded"
    contract = with_block(tmp_path, body=form, key_location="form", key_field="id")
    async with orders_api() as orders, proxy(orders.url, contract=contract) as service:
        how: dict[str, Any] = {"headers": ADA, "data": {"id": "k-1", "item": "tea"}}
        assert (await send(service, **how)).headers["Idempotency-Replay"] == "false"
        assert (await send(service, **how)).headers["Idempotency-Replay"] == "true"


async def test_a_key_is_derived_for_callers_that_have_none(proxy: StartProxy, tmp_path: Path) -> None:
    contract = with_block(
        tmp_path, key_location="derived", key_field=["header:X-Conversation", "header:X-Step", "route"], required=True
    )
    step = {**ADA, "X-Conversation": "c-1", "X-Step": "1"}
    async with orders_api() as orders, proxy(orders.url, contract=contract) as service:
        first, again = await send(service, headers=step), await send(service, headers=step)
        assert [got.headers["Idempotency-Replay"] for got in (first, again)] == ["false", "true"]
        key = first.headers["Idempotency-Key"]
        assert key.startswith("derived-")
        assert dict(orders.headers[0])[b"Idempotency-Key"] == key.encode(), "the upstream can deduplicate too"
        changed = await send(service, headers=step, json={"item": "milk"})
        assert (changed.status, changed.code) == (409, "IDEMPOTENCY_CONFLICT")
        assert (await send(service, headers={**step, "X-Step": "2"})).headers["Idempotency-Replay"] == "false"
        assert (await send(service, headers=ADA)).code == "MISSING_IDEMPOTENCY_KEY"
        assert orders.executions == 2


async def test_a_key_has_the_form_and_length_that_its_operation_asks_for(proxy: StartProxy, tmp_path: Path) -> None:
    contract = with_block(tmp_path, key_format="uuid_v4", max_length=36)
    async with orders_api() as orders, proxy(orders.url, contract=contract) as service:
        refused = await send(service)
        assert (refused.status, refused.code) == (400, "INVALID_IDEMPOTENCY_KEY")
        assert refused.error["action"] == "Send one key that is a UUID, version 4."
        good = {**ADA, "Idempotency-Key": "0b8f8a3c-6f0e-4f7b-9a51-0d3f5d1c2b4a"}
        assert (await send(service, headers=good)).status == 201
        assert orders.executions == 1


async def test_an_operation_decides_how_its_answers_are_kept_and_said(proxy: StartProxy, tmp_path: Path) -> None:
    contract = with_block(
        tmp_path,
        replay_header="X-Replayed",
        replay_status="stored",
        conflict_status=422,
        in_flight_status=425,
        store=["2xx", 404],
        fingerprint={"ignore": ["/at"]},
    )

    async def missing(_: web.BaseRequest, __: bytes) -> web.Response:
        return web.Response(status=404)

    async with orders_api() as orders, proxy(orders.url, contract=contract) as service:
        orders.gate.clear()
        running = asyncio.create_task(send(service, json={"item": "tea", "at": 1}))
        await orders.arrived.wait()
        assert (await send(service, json={"item": "tea", "at": 2})).status == 425
        orders.gate.set()
        first, again = await running, await send(service, json={"item": "tea", "at": 3})
        assert [(got.status, got.headers["X-Replayed"]) for got in (first, again)] == [(201, "false"), (201, "true")]
        assert "Idempotency-Replay" not in again.headers
        assert (await send(service, json={"item": "milk"})).status == 422
        orders.answer = missing
        other = {**ADA, "Idempotency-Key": "k-2"}
        await send(service, headers=other)
        assert (await send(service, headers=other)).headers["X-Replayed"] == "true"
        assert orders.executions == 2


async def test_a_profile_of_an_operation_wins_over_the_proxys(proxy: StartProxy, tmp_path: Path) -> None:
    contract = with_block(tmp_path, profile="stripe")
    async with orders_api() as orders, proxy(orders.url, contract=contract, profile="acp") as service:
        await send(service)
        again, other = await send(service), await send(service, json={"item": "milk"})
        assert (again.status, again.headers["Idempotent-Replayed"]) == (201, "true")
        assert (other.status, other.code) == (400, "idempotency_error")
        assert (await send(service, headers=ADA)).status == 201, "Stripe's keys are optional"


async def test_a_block_says_only_what_differs_from_the_settings(proxy: StartProxy, tmp_path: Path) -> None:
    contract = with_block(tmp_path)
    settings = {"key_required": "true", "replay_status": "stored", "key_from": "header:X-Key"}
    async with orders_api() as orders, proxy(orders.url, contract=contract, **settings) as service:
        assert (await send(service)).code == "MISSING_IDEMPOTENCY_KEY"
        keyed = {**ADA, "X-Key": "k"}
        assert [(await send(service, headers=keyed)).status for _ in range(2)] == [201, 201]
        assert orders.executions == 1


async def test_keys_of_a_global_scope_are_everybodys(proxy: StartProxy, tmp_path: Path) -> None:
    contract = with_block(tmp_path, scope="global")
    async with orders_api() as orders, proxy(orders.url, contract=contract) as service:
        await send(service, headers={"Idempotency-Key": "k"})
        again = await send(service, headers={"Idempotency-Key": "k", "Authorization": "Bearer bob"})
        assert again.headers["Idempotency-Replay"] == "true"


async def test_a_refreshed_token_is_the_same_caller_by_its_claim(
    proxy: StartProxy, contract: str, rows: asyncpg.Connection
) -> None:
    def token(**claims: Any) -> dict[str, str]:
        return {"Authorization": bearer(claims).decode(), "Idempotency-Key": "order-1"}

    async with orders_api() as orders, proxy(orders.url, contract=contract, scope_from="jwt:sub") as service:
        await send(service, "/v1/orders", headers=token(sub="ada", iss="a", exp=1))
        again = await send(service, "/v1/orders", headers=token(sub="ada", iss="a", exp=2))
        assert again.headers["Idempotency-Replay"] == "true"
        for other in (token(sub="bob", iss="a"), token(sub="ada", iss="b")):
            assert (await send(service, "/v1/orders", headers=other)).headers["Idempotency-Replay"] == "false"
        assert (await send(service, "/v1/orders")).code == "MISSING_IDEMPOTENCY_SCOPE"
        assert orders.executions == 3
        assert {len(row["scope"]) for row in await rows.fetch("SELECT scope FROM idemproxy.records")} == {32}


async def test_a_lost_write_is_probed_where_the_document_says_how(
    proxy: StartProxy, tmp_path: Path, rows: asyncpg.Connection
) -> None:
    detection = "GET /found?reference={key}"
    contract = with_block(tmp_path, on_unknown="probe", compensation={"detection": detection})

    async def answer(request: web.BaseRequest, _: bytes) -> web.Response:
        return web.json_response({"order": 1}) if request.method == "GET" else web.Response(status=504)

    async with orders_api() as orders, proxy(orders.url, contract=contract) as service:
        orders.answer = answer
        assert (await send(service)).status == 504
        await rows.execute("UPDATE idemproxy.records SET lease_until = now() - interval '1 second'")
        found = await send(service)
        assert (found.status, found.body) == (200, b'{"order": 1}')
        assert [entry[:2] for entry in orders.ledger] == [("POST", "/orders"), ("GET", "/found?reference=order-1")]


async def test_a_write_that_may_have_run_is_told_with_what_to_do_about_it(proxy: StartProxy, tmp_path: Path) -> None:
    told = {"reversal": "DELETE /orders/{id}", "detection": "GET /orders?reference={key}", "window_seconds": 3600}
    contract = with_block(tmp_path, on_unknown="hold", compensation=told)

    async def break_off(request: web.BaseRequest, _: bytes) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with orders_api() as orders, proxy(orders.url, contract=contract) as service:
        orders.answer = break_off
        lost, unknown = await send(service), await send(service)
        assert (lost.status, lost.code) == (502, "UPSTREAM_DISCONNECTED")
        assert (unknown.status, unknown.code) == (409, "IDEMPOTENCY_OUTCOME_UNKNOWN")
        assert lost.problem["compensation"] == unknown.problem["compensation"] == told
        assert "compensation" not in (await send(service, json={"item": "milk"})).problem
        assert orders.executions == 1


async def test_a_profile_without_a_word_about_keys_leaves_them_to_the_settings(
    proxy: StartProxy, tmp_path: Path
) -> None:
    contract = with_block(tmp_path, profile="ietf")
    async with orders_api() as orders, proxy(orders.url, contract=contract, key_required="true") as service:
        assert (await send(service, headers=ADA)).code == "MISSING_IDEMPOTENCY_KEY"


# Documents that cannot be enforced


async def refused(proxy: StartProxy, contract: str) -> list[str]:
    with pytest.raises(ContractError) as wrong:
        async with proxy("http://127.0.0.1:9", contract=contract):
            raise AssertionError("started")
    return wrong.value.faults


async def test_every_fault_of_a_document_is_told_at_once(proxy: StartProxy, tmp_path: Path) -> None:
    text = DOCUMENT.replace("key_idempotent, required", "key_idempotnt, required").replace(
        '{class: naturally_idempotent}, responses: {"200": {description: changed}}',
        '{class: key_idempotent, ttl: forever, scope: ip}, responses: {"200": {description: changed}}',
    )
    text += "  /orders/{name}:\n    put: {responses: {'200': {description: same path}}}\n"
    faults = await refused(proxy, write(tmp_path, text))
    told = "\n".join(faults)
    for words in ("key_idempotent?", "ttl", "scope", "matches the same requests"):
        assert words in told
    assert len(faults) >= 4
    assert all("openapi.yaml" in fault and "line" in fault for fault in faults)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("swagger: '2.0'", "Swagger"),
        ("a: [", "line"),
        ("a: &a [*a]", "a"),
        ("[]", "mapping"),
        ("openapi: 3.1.0\npaths: {/a: {$ref: 'https://example.com/a.yaml'}}", "leads out of this document"),
    ],
)
async def test_a_document_that_is_none_is_refused(proxy: StartProxy, tmp_path: Path, text: str, words: str) -> None:
    assert words in "\n".join(await refused(proxy, write(tmp_path, text)))


async def test_a_document_that_is_not_there_is_refused(proxy: StartProxy, tmp_path: Path) -> None:
    (fault,) = await refused(proxy, str(tmp_path / "nowhere.yaml"))
    assert "nowhere.yaml" in fault


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"ttl_seconds": 20}, "lease"),
        ({"on_unknown": "probe", "compensation": {"detection": "POST /search"}}, "only GET can ask"),
        ({"on_unknown": "probe", "compensation": {"detection": "GET /orders/{id}"}}, "neither {key}"),
        ({"key_location": "derived", "key_field": ["cookie:x"]}, "key_field"),
        ({"replay_header": "Content-Type"}, "has a meaning of its own"),
        ({"replay_header": "Link"}, "has a meaning of its own"),
    ],
)
async def test_what_does_not_go_together_is_refused(
    proxy: StartProxy, tmp_path: Path, block: dict[str, Any], words: str
) -> None:
    faults = await refused(proxy, with_block(tmp_path, **block))
    assert words in "\n".join(faults)
