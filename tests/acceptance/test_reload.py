"""The contract of a running process: refused at its start, read again on SIGHUP, never half."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import aiohttp

from tests.acceptance.test_operations import DOCUMENT, write
from tests.support.orders import orders_api
from tests.support.process import Proxy, idemproxy, running, until

BROKEN = DOCUMENT.replace("class: key_idempotent, required", "class: key_idempotnt, required").replace(
    "scope: account, replay_status: 200}\n      responses", "scope: ip, replay_status: 200}\n      responses"
)


async def post(proxy: Proxy, path: str, key: str | None = None) -> tuple[int, str | None]:
    headers = {"Authorization": "Bearer ada"} | ({"Idempotency-Key": key} if key else {})
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"{proxy.url}{path}", json={"item": "tea"}, headers=headers) as got,
    ):
        return got.status, got.headers.get("Idempotency-Class")


def put(path: Path, text: str | None) -> None:
    if text is None:
        path.unlink()
    else:
        path.write_text(text)


async def reload(proxy: Proxy, path: Path, text: str | None, said: str) -> None:
    put(path, text)
    times = proxy.output.count(said)
    proxy.signal(signal.SIGHUP)
    await until(lambda: proxy.output.count(said) > times, said)


async def test_a_new_document_is_taken_over_and_a_bad_one_is_not(database: str, tmp_path: Path) -> None:
    contract = Path(write(tmp_path, DOCUMENT))
    async with (
        orders_api() as orders,
        running(upstream=orders.url, database_url=database, contract=str(contract)) as proxy,
    ):
        assert await post(proxy, "/v1/orders") == (400, "key_idempotent")
        assert await post(proxy, "/v2/orders") == (201, None)

        await reload(proxy, contract, DOCUMENT.replace("/v1", "/v2"), "contract reloaded")
        assert await post(proxy, "/v1/orders") == (201, None)
        assert await post(proxy, "/v2/orders") == (400, "key_idempotent")

        for bad in (BROKEN, "not: [openapi", "", None):
            await reload(proxy, contract, bad, "contract not reloaded")
            assert await post(proxy, "/v2/orders") == (400, "key_idempotent")
        output = proxy.output
        assert "key_idempotent?" in output
        assert "scope" in output
        assert "Traceback" not in output

        await reload(proxy, contract, DOCUMENT, "contract reloaded")
        assert await post(proxy, "/v1/orders", "k") == (201, "key_idempotent")
        proxy.signal(signal.SIGTERM)
        assert await proxy.exit_code() == 0


async def test_a_write_under_way_ends_by_the_rules_it_began_with(database: str, tmp_path: Path) -> None:
    contract = Path(write(tmp_path, DOCUMENT))
    async with (
        orders_api() as orders,
        running(upstream=orders.url, database_url=database, contract=str(contract)) as proxy,
    ):
        orders.gate.clear()
        writing = asyncio.create_task(post(proxy, "/v1/orders", "k"))
        await orders.arrived.wait()
        await reload(proxy, contract, DOCUMENT.replace("/v1", "/v2"), "contract reloaded")
        orders.gate.set()
        assert await writing == (201, "key_idempotent")
        await reload(proxy, contract, DOCUMENT, "contract reloaded")
        assert await post(proxy, "/v1/orders", "k") == (200, "key_idempotent")
        assert orders.executions == 1


async def test_the_document_can_be_exported_as_it_is_published(tmp_path: Path) -> None:
    exported = await idemproxy("contract", "export", write(tmp_path, DOCUMENT), profile="acp")
    assert (exported.code, exported.err) == (0, "")
    created = json.loads(exported.out)["paths"]["/orders"]["post"]
    assert created["x-agent-idempotency"]["conflict_status"] == 422
    refused = await idemproxy("contract", "export", write(tmp_path, BROKEN))
    assert (refused.code, refused.out) == (2, "")
    assert len(refused.faults) >= 2


async def test_without_a_contract_a_hangup_changes_nothing(database: str) -> None:
    async with orders_api() as orders, running(upstream=orders.url, database_url=database) as proxy:
        proxy.signal(signal.SIGHUP)
        assert await post(proxy, "/orders", "k") == (201, None)
        assert await post(proxy, "/orders", "k") == (200, None)
        assert orders.executions == 1


async def test_a_bad_document_stops_run_and_check_with_every_fault(database: str, tmp_path: Path) -> None:
    contract = write(tmp_path, BROKEN)
    for verb in ("run", "check"):
        ended = await idemproxy(verb, upstream="http://127.0.0.1:9", database_url=database, contract=contract)
        assert ended.code == 2
        faults = [line for line in ended.faults if "openapi.yaml" in line]
        assert len(faults) >= 2
        assert all(line.startswith("error: ") and "line " in line for line in faults)
        assert "Traceback" not in ended.err
    good = write(tmp_path, DOCUMENT)
    checked = await idemproxy(
        "check",
        upstream="http://127.0.0.1:9",
        database_url=database,
        contract=good,
        listen="127.0.0.1:0",
        admin_listen="127.0.0.1:0",
    )
    assert (checked.code, checked.err) == (0, "")


def workers_of(proxy: Proxy) -> list[int]:
    pid = proxy.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def test_a_worker_that_is_started_again_enforces_what_its_siblings_do(database: str, tmp_path: Path) -> None:
    contract = Path(write(tmp_path, DOCUMENT))
    async with (
        orders_api() as orders,
        running(upstream=orders.url, database_url=database, contract=str(contract), workers="2") as proxy,
    ):
        await until(lambda: proxy.output.count("contract in force") == 2, "both workers serve", 60)
        put(contract, DOCUMENT.replace("/v1", "/v2"))
        proxy.signal(signal.SIGHUP)
        await until(lambda: proxy.output.count("contract reloaded") == 2, "both have the new contract", 30)
        await reload(proxy, contract, BROKEN, "contract not reloaded")
        assert proxy.output.count("contract not reloaded") == 1, "it is told once, not by each worker"
        assert str(contract) in proxy.output

        for worker in workers_of(proxy):
            os.kill(worker, signal.SIGKILL)
        await until(lambda: proxy.output.count("contract in force") == 4, "both were started again", 60)
        for _ in range(4):
            assert await post(proxy, "/v2/orders") == (400, "key_idempotent")
        proxy.signal(signal.SIGTERM)
        assert await proxy.exit_code(30) == 0


async def test_a_bad_document_is_told_once_however_many_workers_there_are(database: str, tmp_path: Path) -> None:
    where = {"listen": "127.0.0.1:0", "admin_listen": "127.0.0.1:0", "workers": "3"}
    bad = write(tmp_path, BROKEN)
    ended = await idemproxy("run", upstream="http://127.0.0.1:9", database_url=database, contract=bad, **where)
    assert ended.code == 2
    assert len(ended.faults) == len(set(ended.faults)) >= 2
    assert all(f"error: {bad}: " in fault for fault in ended.faults)
