"""Operators see several workers as one proxy: whichever of them answers, it speaks for all."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import asyncpg
import pytest

from idemproxy.operator.live import SAMPLE_SECONDS, SAMPLES, together
from tests.support.orders import Orders, orders_api
from tests.support.process import Proxy, fetch, free_port, running, until

WRITES = 24
LOOKS = 8
"""Questions on connections of their own: with two workers, each is asked some of them."""


@asynccontextmanager
async def two_workers(database: str, **settings: str) -> AsyncIterator[tuple[Proxy, Orders]]:
    async with (
        orders_api() as orders,
        running(upstream=orders.url, database_url=database, workers="2", **settings) as proxy,
    ):
        await until(lambda: proxy.output.count(" before ") == 3, "both workers serve", 60)
        yield proxy, orders


async def post(proxy: Proxy, key: str, item: str) -> int:
    headers = {"Authorization": "Bearer ada", "Idempotency-Key": key}
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"{proxy.url}/orders", json={"item": item}, headers=headers) as got,
    ):
        await got.read()
        return got.status


async def asked(proxy: Proxy, path: str) -> Any:
    status, text = await fetch(proxy.admin_port, path)
    assert status == 200, text
    return json.loads(text)


async def until_all_say(proxy: Proxy, path: str, said: Callable[[Any], bool]) -> None:
    """Until every one of several answers is right: a worker that speaks for itself alone would be caught."""
    async with asyncio.timeout(60):
        while not all([said(await asked(proxy, path)) for _ in range(LOOKS)]):
            await asyncio.sleep(0.2)


async def test_numbers_and_events_are_those_of_both(database: str, rows: asyncpg.Connection) -> None:
    async with two_workers(database) as (proxy, _):
        assert {await post(proxy, f"order-{n}", f"tea {n}") for n in range(WRITES)} == {201}
        await until_all_say(proxy, "/api/live", lambda live: live["totals"]["first_write"] == WRITES)
        await until_all_say(
            proxy,
            "/api/live",
            lambda live: sum(sample["outcomes"].get("first_write", 0) for sample in live["samples"]) == WRITES,
        )
        await until_all_say(proxy, "/api/events", lambda found: len(found["events"]) == WRITES)
        assert await rows.fetchval("SELECT count(*) FROM idemproxy.events WHERE event = 'first_write'") == WRITES


async def test_the_same_write_under_other_keys_is_suspected_whichever_worker_it_comes_to(database: str) -> None:
    async with two_workers(database) as (proxy, _):
        for n in range(WRITES):
            await post(proxy, f"try-{n}", "tea")
        await until_all_say(proxy, "/api/suspected-duplicates", lambda found: len(found["pairs"]) == WRITES - 1)


async def test_in_shadow_the_report_is_of_both(database: str) -> None:
    async with two_workers(database, mode="shadow") as (proxy, orders):
        assert await post(proxy, "order-1", "tea") == 201
        await until_all_say(proxy, "/api/live", lambda live: live["totals"].get("shadow_first_write") == 1)
        assert {await post(proxy, "order-1", "tea") for _ in range(WRITES)} == {201}
        assert orders.executions == WRITES + 1
        await until_all_say(proxy, "/api/live", lambda live: live["totals"].get("shadow_replay") == WRITES)


async def test_an_expired_record_is_swept_and_told_of_once(database: str, rows: asyncpg.Connection) -> None:
    async with two_workers(database, sweep_interval_seconds="0.3") as (proxy, _):
        for n in range(WRITES):
            await post(proxy, f"order-{n}", f"tea {n}")
        await rows.execute("UPDATE idemproxy.records SET expires_at = now() - interval '1 second'")

        def expired(found: Any) -> int:
            return sum(event["event"] == "expired" for event in found["events"])

        await until_all_say(proxy, "/api/events", lambda found: expired(found) == WRITES)
        _, page = await fetch(proxy.admin_port, "/metrics")
        assert f"\nidemproxy_swept_total {WRITES}.0\n" in page


def own_address() -> str | None:
    """An address of this machine that is not loopback, if it has one. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        address: str = probe.getsockname()[0]
        return None if address.startswith("127.") else address


async def test_every_worker_knows_who_asks_from_elsewhere(database: str) -> None:
    address = own_address()
    if address is None:
        pytest.skip("this machine has no address but loopback")
    async with (
        two_workers(database, admin_listen=f"0.0.0.0:{free_port()}") as (proxy, _),
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as client,
    ):
        port = proxy.admin_port
        for _ in range(LOOKS):
            for name in (f"{address}:{port}", f"localhost:{port}"):
                async with client.get(f"http://{address}:{port}/api/counts", headers={"Host": name}) as got:
                    assert got.status == 403
            async with client.get(f"http://{address}:{port}/metrics") as got:
                assert got.status == 200
            assert (await fetch(port, "/api/counts"))[0] == 200


def part(*samples: tuple[int, float], **totals: float) -> dict[str, Any]:
    return {
        "totals": totals,
        "samples": [
            {
                "at": beat * SAMPLE_SECONDS,
                "outcomes": {"replay": count},
                "in_flight": 1.0,
                "unknown": 3.0,
                "_upstream_sum": count / 100,
                "_upstream_count": count,
                "_store_sum": 0.0,
                "_store_count": 0.0,
            }
            for beat, count in samples
        ],
    }


def test_samples_add_up_beat_by_beat_until_the_last_that_all_have() -> None:
    view = together([part((1, 2.0), (2, 4.0), (3, 8.0), replay=14), part((2, 1.0), replay=1), part(replay=0)])
    assert view["totals"] == {"replay": 15}
    first, second = view["samples"]
    assert (first["at"], first["outcomes"], first["in_flight"]) == (SAMPLE_SECONDS, {"replay": 2.0}, 1.0)
    assert (second["outcomes"], second["in_flight"], second["unknown"]) == ({"replay": 5.0}, 2.0, 3.0)
    assert (second["upstream_ms"], second["store_ms"]) == (10.0, None)


def test_no_more_than_the_last_minutes_are_kept() -> None:
    many = [(beat, 1.0) for beat in range(SAMPLES)]
    view = together([part(*many), part(*((beat + 5, count) for beat, count in many))])
    assert len(view["samples"]) == SAMPLES
