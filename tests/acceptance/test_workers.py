"""Several workers behave as one proxy: one port, one metrics page, one drain, and no write twice."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path

import aiohttp
import pytest

from idemproxy.siblings import merged
from tests.support.orders import orders_api
from tests.support.process import Proxy, fetch, idemproxy, running, until

WORKERS = "3"


def workers_of(proxy: Proxy) -> list[int]:
    pid = proxy.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if b"idemproxy" in Path(f"/proc/{child}/cmdline").read_bytes()]


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


async def post(client: aiohttp.ClientSession, proxy: Proxy, key: str) -> tuple[int, str | None]:
    headers = {"Authorization": "Bearer a", "Idempotency-Key": key, "Connection": "close"}
    async with client.post(f"{proxy.url}/orders", json={"item": "tea"}, headers=headers) as answer:
        await answer.read()
        return answer.status, answer.headers.get("Idempotency-Replay")


async def exchanges(proxy: Proxy, outcome: str) -> float:
    """How many ended so, over all workers and routes."""
    _, page = await fetch(proxy.admin_port, "/metrics")
    pattern = rf'^idemproxy_exchanges_total{{[^}}]*outcome="{outcome}"[^}}]*}} (\S+)$'
    return sum(float(value) for value in re.findall(pattern, page, re.MULTILINE))


async def until_started(proxy: Proxy) -> None:
    """Until every worker says that it serves, and so does their parent."""
    await until(lambda: len(workers_of(proxy)) == int(WORKERS), "all workers run")
    await until(lambda: proxy.output.count(" before ") == int(WORKERS) + 1, "all workers serve", 60)


async def test_many_duplicates_over_all_workers_run_once_and_count_once(database: str) -> None:
    async with (
        orders_api() as orders,
        running(upstream=orders.url, database_url=database, workers=WORKERS) as proxy,
    ):
        await until_started(proxy)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as client:
            for key in range(10):
                answers = await asyncio.gather(*(post(client, proxy, f"key-{key}") for _ in range(16)))
                assert sum(answer == (201, "false") for answer in answers) == 1
                assert all(answer in [(201, "false"), (200, "true"), (409, None)] for answer in answers)
        assert orders.executions == 10
        assert await exchanges(proxy, "first_write") == 10


async def test_a_worker_that_dies_is_started_again_and_clients_are_served(database: str) -> None:
    async with (
        orders_api() as orders,
        running(upstream=orders.url, database_url=database, workers=WORKERS) as proxy,
    ):
        await until_started(proxy)
        before = workers_of(proxy)
        os.kill(before[0], signal.SIGKILL)
        await until(lambda: len(set(workers_of(proxy)) - set(before)) == 1, "another worker runs", 30)
        async with aiohttp.ClientSession() as client:
            for key in range(12):  # over all workers, also the one whose listening socket was handed on
                assert await post(client, proxy, f"key-{key}") == (201, "false")
        assert "died with -9" in proxy.output


async def test_sigterm_drains_all_of_them(database: str) -> None:
    async with (
        orders_api() as orders,
        running(upstream=orders.url, database_url=database, workers=WORKERS) as proxy,
    ):
        await until_started(proxy)
        pids = workers_of(proxy)
        orders.gate.clear()
        async with aiohttp.ClientSession() as client:
            writes = [asyncio.create_task(post(client, proxy, f"key-{key}")) for key in range(6)]
            await until(lambda: orders.executions == 6, "all writes have reached the API", 60)
            proxy.signal(signal.SIGTERM)
            await until(lambda: proxy.output.count("draining") == int(WORKERS), "all are draining", 60)
            orders.gate.set()
            assert [await write for write in writes] == [(201, "false")] * 6
        assert await proxy.exit_code(60) == 0
        assert not alive(pids)


async def test_the_workers_do_not_outlive_a_parent_that_is_killed(database: str) -> None:
    async with (
        orders_api() as orders,
        running(upstream=orders.url, database_url=database, workers=WORKERS) as proxy,
    ):
        await until_started(proxy)
        pids = workers_of(proxy)
        proxy.signal(signal.SIGKILL)
        await until(lambda: not alive(pids), "they are gone", 30)


async def test_the_embedded_database_is_shared_by_the_workers(tmp_path: Path) -> None:
    async with orders_api() as orders, running(upstream=orders.url, data_dir=str(tmp_path), workers="2") as proxy:
        async with aiohttp.ClientSession() as client:
            seen = [await post(client, proxy, "key") for _ in range(8)]
        assert seen == [(201, "false"), *[(200, "true")] * 7]
        assert orders.executions == 1


async def test_a_port_in_use_is_one_clear_line(database: str) -> None:
    async with orders_api() as orders:
        port = orders.url.rpartition(":")[2]
        done = await idemproxy(
            "run", upstream=orders.url, database_url=database, workers="2", listen=f"127.0.0.1:{port}"
        )
    assert (done.code, len(done.faults)) == (2, 1)
    assert "cannot listen" in done.err


@pytest.mark.parametrize(("alike", "expected"), [(frozenset(), "3.0"), (frozenset({"idemproxy_x"}), "2.0")])
def test_gauges_add_up_unless_all_see_the_same(alike: frozenset[str], expected: str) -> None:
    pages = [f"# HELP idemproxy_x X.\n# TYPE idemproxy_x gauge\nidemproxy_x {value}\n".encode() for value in (1, 2)]
    assert f"idemproxy_x {expected}" in merged(pages, alike).decode()


def test_counters_and_histograms_add_up() -> None:
    page = (
        b"# HELP idemproxy_c C.\n# TYPE idemproxy_c counter\n"
        b'idemproxy_c_total{outcome="replay"} 2.0\n'
        b"# HELP idemproxy_h H.\n# TYPE idemproxy_h histogram\n"
        b'idemproxy_h_bucket{le="1.0"} 1.0\nidemproxy_h_bucket{le="+Inf"} 4.0\n'
        b"idemproxy_h_count 4.0\nidemproxy_h_sum 2.5\n"
    )
    text = merged([page, page, page], frozenset()).decode()
    for line in (
        'idemproxy_c_total{outcome="replay"} 6.0',
        'idemproxy_h_bucket{le="+Inf"} 12.0',
        "idemproxy_h_sum 7.5",
    ):
        assert line in text
