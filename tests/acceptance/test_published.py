"""What the data port tells its clients: the contract in force, the document, and what became of their own keys."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import asyncpg
import orjson
import pytest
from aiohttp import web

from idemproxy import __version__
from idemproxy.contract.document import read
from idemproxy.contract.lint import faults
from idemproxy.contract.live import in_force
from idemproxy.contract.published import CALLER_BURST, CALLERS, Rates
from idemproxy.core.policy import Operation
from idemproxy.service import Service
from idemproxy.settings import load
from tests.acceptance.test_contract_rows import ADA, KEYED, Got, expire, send
from tests.acceptance.test_operations import DOCUMENT, with_block, write
from tests.conftest import StartProxy
from tests.support.orders import orders_api

BOB = {"Authorization": "Bearer bob"}


async def get(service: Service, path: str, headers: dict[str, str] = ADA) -> Got:
    return await send(service, f"/.well-known/idempotency{path}", method="GET", headers=headers)


async def steps(service: Service, key: str = "order-1") -> list[dict[str, Any]]:
    got = await get(service, f"/keys/{key}")
    assert (got.status, got.headers["Cache-Control"]) == (200, "no-store")
    assert got.problem["key"] == key
    found: list[dict[str, Any]] = got.problem["steps"]
    return found


# The contract


async def test_without_a_document_the_settings_are_the_contract(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url, ttl_seconds="60", profile="ietf") as service:
        got = await get(service, "", headers={})
        assert (got.status, got.headers["Content-Type"]) == (200, "application/json")
        assert got.problem["idemproxy"] == __version__
        assert (got.problem["profile"], got.problem["methods"]) == ("ietf", ["POST", "PATCH"])
        assert got.problem["key"]["from"] == ["header:Idempotency-Key"]
        assert got.problem["replay"] == {"header": "Idempotency-Replay", "status": "stored"}
        assert (got.problem["ttl_seconds"], got.problem["conflict_status"]) == (60, 422)
        assert got.problem["store"] == ["2xx", "3xx", "4xx", "!408", "!409", "!425", "!429"]
        assert orders.executions == 0


async def test_with_a_document_each_operation_is_described(proxy: StartProxy, tmp_path: Path) -> None:
    async with orders_api() as orders, proxy(orders.url, contract=write(tmp_path, DOCUMENT)) as service:
        contract = (await get(service, "")).problem
        assert contract["document"] == "/.well-known/idempotency/openapi.json"
        described = {(found["method"], found["path"]): found for found in contract["operations"]}
        create = described["POST", "/v1/orders"]
        assert (create["class"], create["operation_id"]) == ("key_idempotent", "createOrder")
        assert (create["key"]["required"], create["ttl_seconds"], create["scope"]) == (True, 3600, "account")
        assert described["GET", "/v1/orders"] == {
            "method": "GET",
            "path": "/v1/orders",
            "operation_id": "listOrders",
            "class": "read_only",
        }
        assert described["POST", "/v1/mails"]["compensation"] == {"reversal": "POST /mails/{id}/recall"}
        assert orders.executions == 0


async def test_every_guarded_answer_leads_to_the_contract(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        link = (await send(service)).headers["Link"]
        target = link[1 : link.index(">")]
        assert (await send(service, target, method="GET")).problem["idemproxy"] == __version__


async def test_a_path_beside_it_is_the_apis(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        for path in ("/.well-known/idempotency/openapi.json", "/.well-known/idempotency/x", "/.well-known/other"):
            assert (await send(service, path, method="GET")).status == 201
        assert (await send(service, "/.well-known/idempotency", headers=ADA)).status == 201
        assert orders.executions == 4


# The document


async def published(service: Service) -> dict[str, Any]:
    got = await get(service, "/openapi.json", headers={})
    assert (got.status, got.headers["Content-Type"]) == (200, "application/json")
    return got.problem


async def test_the_document_is_filled_in(proxy: StartProxy, tmp_path: Path) -> None:
    async with orders_api() as orders, proxy(orders.url, contract=write(tmp_path, DOCUMENT)) as service:
        document = await published(service)
    assert document["servers"] == [{"url": "/v1"}]
    create = document["paths"]["/orders"]["post"]
    (parameter,) = create["parameters"]
    assert (parameter["name"], parameter["in"], parameter["required"]) == ("Idempotency-Key", "header", True)
    assert parameter["schema"]["maxLength"] == 255
    assert {"200", "201", "400", "409", "413", "502", "503", "504"} <= create["responses"].keys()
    assert create["responses"]["200"]["headers"]["Idempotency-Replay"]["schema"]["enum"] == ["true", "false"]
    problem = create["responses"]["409"]["content"]["application/problem+json"]["schema"]["$ref"]
    assert problem.rpartition("/")[2] in document["components"]["schemas"]
    block = create["x-agent-idempotency"]
    assert (block["key_location"], block["key_field"], block["conflict_status"]) == ("header", "Idempotency-Key", 409)
    assert document["paths"]["/orders"]["get"]["x-agent-idempotency"] == {"class": "read_only"}
    assert "parameters" not in document["paths"]["/mails"]["post"]


@pytest.mark.parametrize(
    "block",
    [
        {},
        {"profile": "acp", "key_format": "ulid", "max_length": 26},
        {"key_location": "body", "key_field": "/meta/id", "required": True, "in_flight": "wait"},
        {"key_location": "query", "key_field": "rid", "scope": "global", "replay_header": "X-Again"},
        {"key_location": "derived", "key_field": ["header:X-Step", "path", "body"], "store": ["2xx", 404]},
        {"on_unknown": "hold", "conflict_status": 400, "fingerprint": {"ignore": ["/at"]}},
    ],
)
async def test_the_published_document_is_a_contract_itself_and_the_same(
    proxy: StartProxy, tmp_path: Path, block: dict[str, Any]
) -> None:
    async with orders_api() as orders, proxy(orders.url, contract=with_block(tmp_path, **block)) as service:
        document = await published(service)
        own = service.contract.now
    path = tmp_path / "published.json"
    path.write_bytes(orjson.dumps(document))
    assert faults(read(path)) == []
    again = in_force(path, load({}, {"upstream": "http://127.0.0.1:9"}).terms())
    first, second = (now.match("POST", b"/orders") for now in (own, again))
    assert isinstance(first, Operation)
    assert first == second


async def test_what_the_api_says_of_its_own_errors_stays(proxy: StartProxy, tmp_path: Path) -> None:
    text = """
openapi: 3.1.0
info: {title: t, version: "1"}
paths:
  /orders:
    parameters: [{name: idempotency-key, in: header, schema: {type: string}}]
    post:
      x-agent-idempotency: {class: key_idempotent, ttl_seconds: 60, scope: account, profile: stripe}
      responses:
        "201": {$ref: "#/components/responses/Created"}
        "409": {description: sold out, content: {application/json: {schema: {type: string}}}}
        default: {description: an error, content: {text/plain: {}}}
components: {responses: {Created: {description: created, content: {application/json: {schema: {type: object}}}}}}
"""
    async with orders_api() as orders, proxy(orders.url, contract=write(tmp_path, text)) as service:
        document = await published(service)
    create = document["paths"]["/orders"]["post"]
    assert create["parameters"] == [], "the path has the parameter already"
    assert "200" not in create["responses"], "a replay has the stored status here"
    assert create["responses"]["201"]["content"] == {"application/json": {"schema": {"type": "object"}}}
    conflict = create["responses"]["409"]
    assert conflict["description"].startswith("sold out")
    error = {"$ref": "#/components/schemas/IdempotencyStripeError"}
    assert conflict["content"] == {"application/json": {"schema": {"anyOf": [{"type": "string"}, error]}}}
    assert create["responses"]["502"]["content"] == {"text/plain": {}, "application/json": {"schema": error}}


# A caller's own keys


async def test_a_key_has_a_page_from_claim_to_answer(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        orders.gate.clear()
        first = asyncio.create_task(send(service))
        await orders.arrived.wait()
        (running,) = await steps(service)
        assert (running["operation"], running["state"], running["attempts"]) == ("POST /orders", "running", 1)
        assert running["first_status"] is running["settled_at"] is None
        orders.gate.set()
        await first
        (done,) = await steps(service)
        assert (done["state"], done["first_status"]) == ("completed", 201)
        assert done["claimed_at"] == running["claimed_at"] < done["settled_at"] < done["expires_at"]
        await rows.execute("UPDATE idemproxy.records SET state = 'unknown', status = NULL, headers = NULL, body = NULL")
        assert (await steps(service))[0]["state"] == "unknown"


async def test_a_claim_whose_owner_died_is_unknown(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        orders.gate.clear()
        first = asyncio.create_task(send(service))
        await orders.arrived.wait()
        await rows.execute("UPDATE idemproxy.records SET lease_until = now() - interval '1 second'")
        assert (await steps(service))[0]["state"] == "unknown"
        orders.gate.set()
        await first


async def test_one_key_on_several_operations_is_a_workflow(proxy: StartProxy, tmp_path: Path) -> None:
    async def answer(request: web.BaseRequest, _: bytes) -> web.Response:
        return web.Response(status=504 if "7" in request.path else 202)

    contract = write(tmp_path, DOCUMENT.replace("/mails:", "/other:"))
    async with orders_api() as orders, proxy(orders.url, contract=contract) as service:
        orders.answer = answer
        await send(service, "/v1/orders")
        await send(service, "/v1/orders/7")
        found = await steps(service)
        assert [(step["operation"], step["state"], step["first_status"]) for step in found] == [
            ("POST /v1/orders", "completed", 202),
            ("POST /v1/orders/{id}", "unknown", None),
        ]


async def test_nobody_else_sees_a_key(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        await send(service)
        theirs, never = await get(service, "/keys/order-1", BOB), await get(service, "/keys/never-used", BOB)
        assert (theirs.status, theirs.code) == (404, "IDEMPOTENCY_KEY_UNKNOWN")
        assert (theirs.status, theirs.body) == (never.status, never.body)
        assert theirs.headers.keys() == never.headers.keys()
        nobody = await get(service, "/keys/order-1", {})
        assert (nobody.status, nobody.code) == (400, "MISSING_IDEMPOTENCY_SCOPE")


@pytest.mark.parametrize("key", ["%00", "%FF", "x" * 256, "%0a", "no such"])
async def test_what_cannot_be_a_key_is_unknown(proxy: StartProxy, key: str) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        assert (await get(service, f"/keys/{key}")).status == 404


async def test_a_key_with_a_slash_has_a_page_too(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        await send(service, headers={**ADA, "Idempotency-Key": "a/b"})
        assert (await get(service, "/keys/a%2Fb")).status == 200


async def test_an_expired_key_is_gone_unless_it_left_a_tombstone(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    async with (
        orders_api() as orders,
        proxy(orders.url) as service,
        proxy(orders.url, tombstone_seconds="60") as keeping,
    ):
        await send(service)
        await expire(rows, 1)
        assert (await get(service, "/keys/order-1")).status == 404
        assert (await steps(keeping))[0]["state"] == "expired"


async def test_a_caller_who_guesses_keys_is_slowed_down_and_nobody_else(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        await send(service)
        guesses = await asyncio.gather(*(get(service, f"/keys/guess-{n}", BOB) for n in range(int(CALLER_BURST) * 3)))
        limited = [got for got in guesses if got.status == 429]
        assert limited
        assert {got.status for got in guesses} == {404, 429}
        assert (limited[0].code, limited[0].headers["Retry-After"]) == ("KEY_LOOKUPS_LIMITED", "1")
        assert (await steps(service))[0]["state"] == "completed"
        assert (await send(service, headers={**KEYED, **BOB})).status == 201, "writes are not slowed down"


def test_a_rate_is_a_burst_and_then_so_many_a_second() -> None:
    now = 0.0
    rates = Rates(2, 3, lambda: now)
    assert [rates.take(b"a") for _ in range(4)] == [True, True, True, False]
    assert rates.take(b"b")
    now = 0.5
    assert [rates.take(b"a") for _ in range(2)] == [True, False]
    now = 100.0
    assert [rates.take(b"a") for _ in range(4)] == [True, True, True, False]


def test_the_memory_for_rates_is_bounded() -> None:
    rates = Rates(1, 1, lambda: 0.0)
    for n in range(CALLERS + 100):
        rates.take(str(n).encode())
    assert len(rates._buckets) == CALLERS
