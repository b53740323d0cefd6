"""A retry that comes byte for byte as before is answered as every other replay is, only without being read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
import pytest

from idemproxy.edge.heads import read_head
from idemproxy.edge.limits import ClientLimits
from idemproxy.edge.recall import MAX_KNOWN
from idemproxy.service import Service
from tests.conftest import StartProxy
from tests.support.compiled import interpreted_only
from tests.support.orders import orders_api
from tests.support.process import until
from tests.support.wire import Wire, connected

MIB = str(1024 * 1024)


def write(key: str = "order-1", body: bytes = b'{"item":"tea"}', caller: str = "ada", more: bytes = b"") -> bytes:
    head = f"POST /orders HTTP/1.1\r\nHost: api\r\nAuthorization: Bearer {caller}\r\nIdempotency-Key: {key}\r\n"
    fields = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
    return head.encode() + fields + more + b"\r\n" + body


async def trusted(service: Service) -> None:
    await until(lambda: service.store._known._cache.trusted, "purges are heard of")


async def ask(wire: Wire, data: bytes) -> tuple[bytes, bytes]:
    await wire.say(data)
    return await wire.answer()


@pytest.fixture
def heads(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The heads that were read."""
    read: list[bytes] = []

    def note(data: bytes, limits: ClientLimits) -> object:
        read.append(data)
        return read_head(data, limits)

    monkeypatch.setattr("idemproxy.edge.clients.read_head", note)
    return read


@interpreted_only
async def test_from_the_second_replay_on_it_is_not_read_again(proxy: StartProxy, heads: list[bytes]) -> None:
    async with orders_api() as orders, proxy(orders.url, cache_bytes=MIB) as service, connected(service.port) as wire:
        await trusted(service)
        first, replay = await ask(wire, write()), await ask(wire, write())
        assert b"Idempotency-Replay: false" in first[0]
        assert b"Idempotency-Replay: true" in replay[0]
        for _ in range(3):
            assert await ask(wire, write()) == replay
        async with connected(service.port) as other:
            assert await ask(other, write()) == replay
        assert len(heads) == 2
        assert orders.executions == 1
        exchanges = service.metrics.exchanges.collect()[0].samples
        assert {sample.labels["outcome"]: sample.value for sample in exchanges} == {"first_write": 1, "replay": 5}
        assert next(iter(service.metrics.cache_hits.collect())).samples[0].value == 5


async def test_in_the_audit_each_counts(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    async with orders_api() as orders, proxy(orders.url, cache_bytes=MIB) as service, connected(service.port) as wire:
        await trusted(service)
        for _ in range(5):
            await ask(wire, write())
    counted = await rows.fetchval("SELECT sum(count) FROM idemproxy.events WHERE event = 'dedup_hit'")
    assert counted == 4


@pytest.mark.parametrize(
    ("other", "status", "executions"),
    [
        (write(body=b'{"item":"cup"}'), b"409", 1),
        (write(key="order-2"), b"201", 2),
        (write(caller="bob"), b"201", 2),
    ],
    ids=["another body", "another key", "another caller"],
)
async def test_one_byte_of_difference_is_another_request(
    proxy: StartProxy, other: bytes, status: bytes, executions: int
) -> None:
    async with orders_api() as orders, proxy(orders.url, cache_bytes=MIB) as service, connected(service.port) as wire:
        await trusted(service)
        for _ in range(3):
            await ask(wire, write())
        head, _ = await ask(wire, other)
        assert head.split()[1] == status
        assert orders.executions == executions


async def test_what_was_purged_runs_again(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    async with orders_api() as orders, proxy(orders.url, cache_bytes=MIB) as service, connected(service.port) as wire:
        await trusted(service)
        for _ in range(3):
            await ask(wire, write())
        await rows.execute("DELETE FROM idemproxy.records")
        service.store._known._cache.purge_all()
        head, _ = await ask(wire, write())
        assert b"Idempotency-Replay: false" in head
        assert orders.executions == 2


async def test_the_same_bytes_from_another_peer_are_another_callers(proxy: StartProxy) -> None:
    async with (
        orders_api() as orders,
        proxy(orders.url, cache_bytes=MIB, scope_from="header:X-Forwarded-For") as service,
        connected(service.port) as wire,
    ):
        await trusted(service)
        for _ in range(3):
            await ask(wire, write())
        assert orders.executions == 1
        elsewhere = Wire(*await asyncio.open_connection("127.0.0.1", service.port, local_addr=("127.0.0.2", 0)))
        assert b"Idempotency-Replay: false" in (await ask(elsewhere, write()))[0]
        elsewhere.writer.close()
        assert orders.executions == 2


CONTRACT = """
openapi: 3.1.0
info: {title: Orders, version: "1"}
paths:
  /orders:
    post:
      operationId: createOrder
      x-agent-idempotency: {class: key_idempotent, required: true, replay_status: %s}
      responses: {"201": {description: created}}
"""


async def test_a_new_contract_is_in_force_at_once(proxy: StartProxy, tmp_path: Path) -> None:
    path = tmp_path / "openapi.yaml"
    path.write_text(CONTRACT % "stored")
    async with (
        orders_api() as orders,
        proxy(orders.url, cache_bytes=MIB, contract=str(path)) as service,
        connected(service.port) as wire,
    ):
        await trusted(service)
        said = [(await ask(wire, write()))[0] for _ in range(3)]
        assert [head.split()[1] for head in said] == [b"201"] * 3
        assert all(b"Idempotency-Class: key_idempotent" in head for head in said)
        path.write_text(CONTRACT % "200")
        service.contract.reload()
        for _ in range(3):
            assert (await ask(wire, write()))[0].split()[1] == b"200"


async def test_sent_together_both_are_answered_in_order(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url, cache_bytes=MIB) as service, connected(service.port) as wire:
        await trusted(service)
        await ask(wire, write())
        await ask(wire, write())
        replay = await ask(wire, write())
        await wire.say(write() + write() + write()[:40])
        assert [await wire.answer(), await wire.answer()] == [replay, replay]
        await wire.say(write()[40:])
        assert await wire.answer() == replay


async def test_a_connection_that_shall_end_ends(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url, cache_bytes=MIB) as service:
        await trusted(service)
        for _ in range(3):
            async with connected(service.port) as wire:
                await wire.say(write(more=b"Connection: close\r\n"))
                head, _ = await wire.answer()
                assert b"Connection: close" in head
                assert await wire.rest() == b""
        assert orders.executions == 1


@interpreted_only
async def test_only_so_many_are_known(proxy: StartProxy, monkeypatch: pytest.MonkeyPatch, heads: list[bytes]) -> None:
    assert MAX_KNOWN > 2
    monkeypatch.setattr("idemproxy.edge.recall.MAX_KNOWN", 2)
    async with orders_api() as orders, proxy(orders.url, cache_bytes=MIB) as service, connected(service.port) as wire:
        await trusted(service)
        for key in ("a", "b", "c"):
            for _ in range(2):
                await ask(wire, write(key))
        assert len(service.data._recall._known) == 2
        heads.clear()
        for key in ("c", "b", "a"):
            assert b"Idempotency-Replay: true" in (await ask(wire, write(key)))[0]
        assert len(heads) == 1
