"""Audit events: written off the clients' way, bounded, swept; and the same write seen under two keys."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import aiohttp
import asyncpg
import orjson
import pytest
from aiohttp import web

from idemproxy.core.record import RecordId
from idemproxy.operator import audit as audit_module
from idemproxy.operator.audit import Audit
from idemproxy.operator.metrics import Metrics
from idemproxy.service import Service
from idemproxy.store.event import Event, Kind
from idemproxy.store.events import Events
from idemproxy.store.pool import open_pool
from tests.conftest import StartProxy
from tests.operator.support import ask
from tests.support.compiled import interpreted_only
from tests.support.orders import orders_api

ADA = {"Authorization": "Bearer ada", "Idempotency-Key": "order-1"}
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


async def post(service: Service, key: str = "order-1", item: str = "tea", caller: str = "ada", **headers: str) -> int:
    url = f"http://127.0.0.1:{service.port}/orders"
    sent = {"Authorization": f"Bearer {caller}", "Idempotency-Key": key, **headers}
    async with aiohttp.ClientSession() as client, client.post(url, json={"item": item}, headers=sent) as got:
        await got.read()
        return got.status


async def events(rows: asyncpg.Connection) -> list[tuple[str, int]]:
    found = await rows.fetch("SELECT event, count FROM idemproxy.events ORDER BY at, id")
    return [(row["event"], row["count"]) for row in found]


def sample(service: Service, name: str, **labels: str) -> float:
    return service.metrics.registry.get_sample_value(name, labels) or 0.0


async def test_each_kind_of_exchange_leaves_its_event(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    async with (
        orders_api() as orders,
        proxy(
            orders.url, upstream_timeout_seconds="0.3", tombstone_seconds="3600", sweep_interval_seconds="3600"
        ) as service,
    ):
        await post(service, traceparent=f"00-{TRACE}-00f067aa0ba902b7-01")
        await post(service)
        await post(service)
        await post(service, item="milk")
        orders.gate.clear()
        orders.arrived.clear()
        lost = asyncio.create_task(post(service, key="order-2", item="jam"))
        await orders.arrived.wait()
        await post(service, key="order-2", item="jam")
        assert await lost == 504
        await post(service, key="order-2", item="jam")
        await rows.execute("UPDATE idemproxy.records SET expires_at = now() - interval '1 s' WHERE key = 'order-1'")
        await post(service)
        await service.office.audit.flush()
        assert sample(service, "idemproxy_audit_events_total", event="dedup_hit") == 2
    by_kind: dict[str, int] = {}
    for kind, count in await events(rows):
        by_kind[kind] = by_kind.get(kind, 0) + count
    assert by_kind == {"first_write": 1, "dedup_hit": 2, "conflict": 1, "in_flight": 1, "unknown": 2, "expired": 1}
    first = await rows.fetchrow("SELECT * FROM idemproxy.events WHERE event = 'first_write'")
    assert first is not None
    assert (first["key"], first["status"], first["attempt"], first["trace"]) == ("order-1", 201, 1, TRACE)
    steps = orjson.loads(first["detail"])
    assert 0 <= steps["decided"] <= steps["sent"] <= steps["answered"] <= steps["settled"]


async def test_a_swept_record_leaves_an_expired_event(
    proxy: StartProxy, rows: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "idemproxy")
    async with orders_api() as orders, proxy(orders.url, sweep_interval_seconds="0.05") as service:
        await post(service)
        await rows.execute("UPDATE idemproxy.records SET expires_at = now() - interval '1 s'")
        async with asyncio.timeout(10):
            while sample(service, "idemproxy_swept_total") == 0:
                await asyncio.sleep(0.02)
        assert sample(service, "idemproxy_last_sweep_timestamp_seconds") > 0
        await service.office.audit.flush()
        assert ("expired", 1) in await events(rows)
    assert any(vars(record).get("fields", {}).get("event") == "expired" for record in caplog.records)


async def test_events_are_on_the_exchange_lines(proxy: StartProxy, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "idemproxy")
    async with orders_api() as orders, proxy(orders.url) as service:
        await post(service)
        await post(service)
    said = [vars(record)["fields"].get("event") for record in caplog.records if record.getMessage() == "exchange"]
    assert said == ["first_write", "dedup_hit"]


async def test_events_have_a_retention_of_their_own(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    async with orders_api() as orders, proxy(orders.url, audit_seconds="600") as service:
        await post(service)
        await post(service)
        await service.office.audit.flush()
        await rows.execute("UPDATE idemproxy.events SET at = at - interval '1 hour' WHERE event = 'dedup_hit'")
        await service.office.audit.sweep()
        assert await events(rows) == [("first_write", 1)]


async def test_without_retention_nothing_is_written(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    async with orders_api() as orders, proxy(orders.url, audit_seconds="0") as service:
        await post(service)
        await service.office.audit.flush()
        assert await events(rows) == []


async def test_what_is_left_in_the_queue_is_written_at_the_end(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        await post(service)
    assert await events(rows) == [("first_write", 1)]


@interpreted_only
async def test_a_full_queue_drops_and_counts_and_never_grows(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "QUEUE_MAX", 3)
    pool = await open_pool(database, 100)
    metrics = Metrics()
    audit = Audit(Events(pool), metrics, keep_seconds=60, window=60)
    for number in range(5):
        audit.put(Event(Kind.CONFLICT, RecordId(str(number), bytes(32), "POST /"), 0.0))
    assert audit.waiting == 3
    assert metrics.registry.get_sample_value("idemproxy_audit_events_dropped_total") == 2
    await pool.close()


async def test_events_that_cannot_be_written_are_dropped_and_counted(database: str) -> None:
    """No column of a batch can be told apart where its texts hold every separator there is."""
    pool = await open_pool(database, 100)
    metrics = Metrics()
    audit = Audit(Events(pool), metrics, keep_seconds=60, window=60)
    every = "".join(map(chr, (*range(32), *range(0xE000, 0xF900))))
    for route in (every, "POST /"):
        audit.put(Event(Kind.CONFLICT, RecordId("order-1", bytes(32), route), 0.0))
    await audit.flush()
    assert metrics.registry.get_sample_value("idemproxy_audit_events_dropped_total") == 2
    audit.put(Event(Kind.CONFLICT, RecordId("order-1", bytes(32), "POST /"), 0.0))
    await audit.flush()
    assert await pool.fetchval("SELECT count(*) FROM idemproxy.events") == 1
    await pool.close()


async def test_a_store_that_fails_costs_events_and_no_exchange(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        await rows.execute("ALTER TABLE idemproxy.events RENAME TO gone")
        assert await post(service) == 201
        await service.office.audit.flush()
        assert sample(service, "idemproxy_audit_events_dropped_total") >= 1
        assert await post(service) == 200


# Suspected duplicates


async def pairs(service: Service) -> list[dict[str, Any]]:
    for _ in range(2):  # written, then compared
        await service.office.audit.flush()
    found: list[dict[str, Any]] = (await ask(service, "/api/suspected-duplicates")).json["pairs"]
    return found


async def test_the_same_write_under_two_keys_is_reported_with_the_pair_and_not_blocked(
    proxy: StartProxy, caplog: pytest.LogCaptureFixture
) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        assert await post(service, key="try-1") == 201
        assert await post(service, key="try-2") == 201
        assert orders.executions == 2
        found = await pairs(service)
        assert [(pair["key"], pair["other_key"]) for pair in found] == [("try-2", "try-1")]
        assert found[0]["seconds_apart"] >= 0
        assert sample(service, "idemproxy_suspected_duplicates_total") == 1
    said = [record for record in caplog.records if "two keys" in record.getMessage()]
    assert len(said) == 1
    assert "try-" not in str(vars(said[0])["fields"])


async def test_two_replicas_find_the_pair_together(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url) as one, proxy(orders.url) as other:
        await post(one, key="try-1")
        await one.office.audit.flush()
        await post(other, key="try-2")
        assert len(await pairs(other)) == 1


async def test_two_replicas_find_the_pair_although_the_second_write_is_told_of_first(
    proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("idemproxy.operator.office.FLUSH_SECONDS", 3600.0)
    async with orders_api() as orders, proxy(orders.url) as one, proxy(orders.url) as other:
        await post(one, key="try-1")
        await post(other, key="try-2")
        for replica in (other, one, other, one):
            await replica.office.audit.flush()
        found = (await ask(one, "/api/suspected-duplicates")).json["pairs"]
        assert [(pair["key"], pair["other_key"]) for pair in found] == [("try-2", "try-1")]


async def test_an_event_says_what_the_answer_came_to_and_not_what_its_status_looks_like(
    proxy: StartProxy, rows: asyncpg.Connection
) -> None:
    async def answer(_: web.BaseRequest, body: bytes) -> web.Response:
        return web.Response(status=200, headers={"Idempotency-Outcome": json.loads(body)["item"]})

    async with orders_api() as orders, proxy(orders.url) as service:
        orders.answer = answer
        for outcome in ("none", "unknown", "partial"):
            await post(service, key=outcome, item=outcome)
        await service.office.audit.flush()
        found = await rows.fetch("SELECT key, event, detail->>'kept' AS kept FROM idemproxy.events ORDER BY at")
        assert [tuple(row) for row in found] == [
            ("none", "first_write", "false"),
            ("unknown", "unknown", "false"),
            ("partial", "first_write", "true"),
        ]


async def test_an_answer_that_is_lost_while_it_flows_is_told_as_unknown(
    proxy: StartProxy, rows: asyncpg.Connection
) -> None:
    async def broken_off(request: web.BaseRequest, _: bytes) -> web.StreamResponse:
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        await stream.write(b"data: 1\n\n")
        assert request.transport is not None
        request.transport.abort()
        return stream

    async with orders_api() as orders, proxy(orders.url) as service:
        orders.answer = broken_off
        with pytest.raises(aiohttp.ClientPayloadError):
            await post(service)
        await service.office.audit.flush()
        assert await events(rows) == [("unknown", 1)]


async def test_other_callers_other_writes_and_retries_are_no_duplicates(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        await post(service, key="a")
        await post(service, key="a")
        await post(service, key="b", item="milk")
        await post(service, key="c", caller="bob")
        assert await pairs(service) == []


async def test_after_the_window_the_same_write_is_a_new_one(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    async with orders_api() as orders, proxy(orders.url, duplicate_window_seconds="60") as service:
        await post(service, key="a")
        await service.office.audit.flush()
        await rows.execute("UPDATE idemproxy.events SET at = at - interval '2 minutes'")
        await post(service, key="b")
        assert await pairs(service) == []
