"""Shadow mode: traffic is untouched, the report says what would have been done, and no record is made."""

from __future__ import annotations

import asyncio
import logging

import aiohttp
import asyncpg
import pytest
from aiohttp import web

from idemproxy.service import Service
from idemproxy.settings import SettingsError, load
from tests.conftest import StartProxy
from tests.operator.support import ask
from tests.support.orders import orders_api
from tests.support.rawserver import RawServer, closing_after, ok

ADA = {"Authorization": "Bearer ada"}


async def post(service: Service, key: str | None, item: str = "tea") -> tuple[int, bytes, set[str]]:
    url = f"http://127.0.0.1:{service.port}/orders"
    headers = {**ADA, **({"Idempotency-Key": key} if key else {})}
    async with aiohttp.ClientSession() as client, client.post(url, json={"item": item}, headers=headers) as got:
        return got.status, await got.read(), {name.lower() for name in got.headers}


async def would(service: Service) -> dict[str, float]:
    for _ in range(2):  # judged and written, then compared
        await service.office.flush()
    names = ("first_write", "replay", "conflict", "in_progress", "missing_key", "invalid")
    registry = service.metrics.registry
    found = {
        name: registry.get_sample_value("idemproxy_shadow_requests_total", {"route": "*", "would": name})
        for name in names
    }
    return {name: value for name, value in found.items() if value}


async def test_every_request_reaches_the_api_and_the_report_says_what_would_have_been(
    proxy: StartProxy, rows: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "idemproxy")
    async with orders_api() as orders, proxy(orders.url, mode="shadow") as service:
        for number, (key, item) in enumerate(
            [("a", "tea"), ("a", "tea"), ("a", "milk"), (None, "tea"), ("b", "tea"), ("k" * 300, "tea")], start=1
        ):
            status, body, names = await post(service, key, item)
            assert (status, body) == (201, b'{"order": %d}' % number)
            assert not {name for name in names if name.startswith("idempotency")}
        assert orders.executions == 6
        assert await would(service) == {
            "first_write": 2,
            "replay": 1,
            "conflict": 1,
            "missing_key": 1,
            "invalid": 1,
        }
        pairs = (await ask(service, "/api/suspected-duplicates")).json["pairs"]
        assert [(pair["key"], pair["other_key"], pair["shadow"]) for pair in pairs] == [("b", "a", True)]
        assert (await ask(service, "/api/policy")).json["mode"] == "shadow"
        totals = (await ask(service, "/api/live")).json["totals"]
        assert totals["shadow_replay"] == 1
    said = [vars(record)["fields"]["would"] for record in caplog.records if record.getMessage() == "shadow"]
    assert sorted(said) == ["conflict", "first_write", "first_write", "invalid", "missing_key", "replay"]
    assert await rows.fetchval("SELECT count(*) FROM idemproxy.records") == 0


async def test_what_was_seen_in_shadow_is_never_replayed_by_an_enforcing_proxy(proxy: StartProxy) -> None:
    async with orders_api() as orders:
        async with proxy(orders.url, mode="shadow") as service:
            await post(service, "a")
        async with proxy(orders.url) as service:
            status, body, _ = await post(service, "a")
            assert (status, body) == (201, b'{"order": 2}')
            status, body, _ = await post(service, "a")
            assert (status, body) == (200, b'{"order": 2}')
            await service.office.flush()
            assert (await ask(service, "/api/suspected-duplicates")).json["pairs"] == []


async def test_replicas_and_restarts_share_what_was_seen(proxy: StartProxy) -> None:
    async with orders_api() as orders:
        async with proxy(orders.url, mode="shadow") as service:
            await post(service, "a")
        async with proxy(orders.url, mode="shadow") as service:
            await post(service, "a")
            assert await would(service) == {"replay": 1}


async def test_an_answer_that_would_not_be_kept_leaves_the_key_free(proxy: StartProxy) -> None:
    failing = b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"
    async with RawServer(closing_after(failing)) as server, proxy(server.url, mode="shadow") as service:
        await post(service, "a")
        await post(service, "a")
        assert await would(service) == {"first_write": 2}


async def test_a_duplicate_that_overlaps_would_have_been_in_progress(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url, mode="shadow") as service:
        orders.gate.clear()
        first = asyncio.create_task(post(service, "a"))
        await orders.arrived.wait()
        orders.arrived.clear()
        second = asyncio.create_task(post(service, "a"))
        await orders.arrived.wait()
        orders.gate.set()
        await asyncio.gather(first, second)
        assert await would(service) == {"first_write": 1, "in_progress": 1}


async def test_a_body_is_streamed_and_one_too_large_to_guard_passes_and_is_told(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url, mode="shadow", max_request_bytes="2048") as service:
        status, _, _ = await post(service, "a", "x" * 4000)
        assert status == 201
        assert len(orders.ledger[0][2]) > 4000
        assert await would(service) == {"invalid": 1}


async def test_the_store_may_fail_and_traffic_flows_on(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    async with orders_api() as orders, proxy(orders.url, mode="shadow") as service:
        await rows.execute("ALTER TABLE idemproxy.events RENAME TO gone")
        assert (await post(service, "a"))[0] == 201
        assert await would(service) == {}
        assert (await post(service, "a"))[0] == 201
        assert (await ask(service, "/readyz")).status == 200


async def test_answers_pass_byte_for_byte(proxy: StartProxy) -> None:
    odd = ok(b"\x00\xff", b"X-Odd:  Case")
    async with RawServer(closing_after(odd)) as server, proxy(server.url, mode="shadow") as service:
        status, body, names = await post(service, "a")
        assert (status, body) == (200, b"\x00\xff")
        assert "x-odd" in names


async def test_the_apis_own_word_on_its_answer_counts_in_the_report_and_stays_in_the_answer(proxy: StartProxy) -> None:
    async def nothing_done(_: web.BaseRequest, __: bytes) -> web.Response:
        return web.Response(status=200, headers={"Idempotency-Outcome": "none", "Idempotency-Key": "echoed"})

    async with orders_api() as orders, proxy(orders.url, mode="shadow") as service:
        orders.answer = nothing_done
        for _ in range(2):
            _, _, names = await post(service, "a")
            assert {"idempotency-outcome", "idempotency-key"} <= names
        assert await would(service) == {"first_write": 2}


async def test_tool_calls_pass_and_are_not_taken_for_writes_without_a_key(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url, mode="shadow", mcp_path="/mcp") as service:
        url = f"http://127.0.0.1:{service.port}/mcp"
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "pay", "arguments": {}}}
        async with aiohttp.ClientSession() as client, client.post(url, json=call, headers=ADA) as got:
            assert got.status == 201
        assert orders.executions == 1
        assert await would(service) == {}


def test_shadow_mode_without_a_memory_is_refused() -> None:
    given = {"IDEMPROXY_UPSTREAM": "http://127.0.0.1:9", "IDEMPROXY_MODE": "shadow", "IDEMPROXY_AUDIT_SECONDS": "0"}
    with pytest.raises(SettingsError, match="IDEMPROXY_AUDIT_SECONDS: shadow mode"):
        load(given)
