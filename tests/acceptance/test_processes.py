"""Several proxy processes on one database: crowds, signals, and owners that die or freeze in the middle."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections import Counter, deque
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import aiohttp
import asyncpg
import pytest
from aiohttp import web

from idemproxy.core.identity import key_hash
from tests.support.orders import Orders, orders_api
from tests.support.process import Proxy, fetch, running, until

HEADERS = {"Authorization": "Bearer ada", "Idempotency-Key": "order-1"}
LAPSE = "UPDATE idemproxy.records SET lease_until = now() - interval '1 second'"

KEYS = 500
DUPLICATES = 64
CONNECTIONS = 96


class LeanUpstream(asyncio.Protocol):
    """Notes each execution in the ledger, then answers after a moment in which duplicates can arrive."""

    def __init__(self, ledger: Counter[bytes]) -> None:
        self._ledger = ledger
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, end, body = self._buffer.partition(b"\r\n\r\n")
        if not end or len(body) < len(b'{"item":"0000"}'):
            return
        self._buffer = b""
        key = head.lower().partition(b"idempotency-key: ")[2].partition(b"\r\n")[0]
        self._ledger[key] += 1
        answer = b'{"key":"%b","execution":%d}' % (key, self._ledger.total())
        whole = b"HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n%b" % (len(answer), answer)
        asyncio.get_running_loop().call_later(0.01, self._transport.write, whole)


@dataclass
class Crowd:
    """What was heard under each key."""

    work: deque[bytes]
    bodies: dict[bytes, Counter[bytes]] = field(default_factory=dict)
    in_progress: int = 0
    unexpected: list[bytes] = field(default_factory=list)

    async def client(self, port: int) -> None:
        """One connection, kept alive; what is still in progress goes to the end of the queue."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while self.work:
            key = self.work.popleft()
            writer.write(
                b"POST /orders HTTP/1.1\r\nHost: orders\r\nAuthorization: Bearer ada\r\n"
                b"Content-Type: application/json\r\nContent-Length: 15\r\n"
                b'Idempotency-Key: %b\r\n\r\n{"item":"%04d"}' % (key, int(key[6:]))
            )
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            body = await reader.readexactly(length)
            if head.startswith(b"HTTP/1.1 2"):
                self.bodies.setdefault(key, Counter())[body] += 1
            elif head.startswith(b"HTTP/1.1 409") and b'"IDEMPOTENCY_IN_PROGRESS"' in body:
                self.in_progress += 1
                self.work.append(key)
            else:
                self.unexpected.append(head + body)
        writer.close()


async def test_a_crowd_of_duplicates_over_two_processes_executes_each_key_once(database: str) -> None:
    ledger: Counter[bytes] = Counter()
    upstream = await asyncio.get_running_loop().create_server(lambda: LeanUpstream(ledger), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{upstream.sockets[0].getsockname()[1]}"
    keys = [b"order-%04d" % number for number in range(KEYS)]
    work = keys * DUPLICATES
    random.Random(64).shuffle(work)
    crowd = Crowd(deque(work))
    async with (
        upstream,
        running(upstream=url, database_url=database) as one,
        running(upstream=url, database_url=database) as two,
    ):
        await asyncio.gather(*(crowd.client((one, two)[n % 2].port) for n in range(CONNECTIONS)))
    assert crowd.unexpected == []
    assert ledger == dict.fromkeys(keys, 1)
    assert {key: len(bodies) for key, bodies in crowd.bodies.items()} == dict.fromkeys(keys, 1)
    assert {key: bodies.total() for key, bodies in crowd.bodies.items()} == dict.fromkeys(keys, DUPLICATES)


async def test_a_crowd_on_one_key_executes_it_once(database: str, rows: asyncpg.Connection) -> None:
    ledger: Counter[bytes] = Counter()
    upstream = await asyncio.get_running_loop().create_server(lambda: LeanUpstream(ledger), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{upstream.sockets[0].getsockname()[1]}"
    crowd = Crowd(deque([b"order-0001"] * 200))
    async with (
        upstream,
        running(upstream=url, database_url=database) as one,
        running(upstream=url, database_url=database) as two,
    ):
        await asyncio.gather(*(crowd.client((one, two)[n % 2].port) for n in range(64)))
    assert crowd.unexpected == []
    assert crowd.in_progress > 0
    assert ledger == {b"order-0001": 1}
    assert list(crowd.bodies[b"order-0001"].values()) == [200]
    assert await rows.fetchval("SELECT count(*) FROM idemproxy.records") == 1


@dataclass(frozen=True)
class Heard:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        return str(json.loads(self.body)["error"]["code"])


async def post(proxy: Proxy) -> Heard:
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"{proxy.url}/orders", json={"item": "tea"}, headers=HEADERS) as answer,
    ):
        return Heard(answer.status, dict(answer.headers), await answer.read())


async def post_and_hold(stack: AsyncExitStack, orders: Orders, proxy: Proxy) -> asyncio.Task[Heard]:
    """A write that has reached the upstream, whose answer is held back by the gate."""
    orders.gate.clear()
    task = asyncio.create_task(post(proxy))
    stack.callback(task.cancel)
    async with asyncio.timeout(10):
        await orders.arrived.wait()
    return task


async def record(rows: asyncpg.Connection) -> dict[str, object]:
    row = await rows.fetchrow("SELECT state, attempt, token, status, body FROM idemproxy.records")
    assert row is not None
    return dict(row)


async def refuses_connections(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return True
    writer.close()
    return False


async def until_refused(port: int) -> None:
    async with asyncio.timeout(10):
        while not await refuses_connections(port):
            await asyncio.sleep(0.01)


async def test_sigterm_lets_the_write_under_way_finish_and_settle(database: str, rows: asyncpg.Connection) -> None:
    async with (
        AsyncExitStack() as stack,
        orders_api() as orders,
        running(upstream=orders.url, database_url=database) as proxy,
    ):
        writing = await post_and_hold(stack, orders, proxy)
        proxy.signal(signal.SIGTERM)
        assert await proxy.until_ready_says(503) == "draining\n"
        await until_refused(proxy.port)
        assert not writing.done()
        orders.gate.set()
        heard = await writing
        assert (heard.status, heard.headers["Idempotency-Replay"]) == (201, "false")
        assert await proxy.exit_code() == 0
        assert orders.executions == 1
        stored = await record(rows)
        assert (stored["state"], stored["status"], stored["body"]) == ("completed", 201, heard.body)


async def test_an_idle_connection_does_not_hold_up_the_end(database: str) -> None:
    async with orders_api() as orders, running(upstream=orders.url, database_url=database) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"GET /orders HTTP/1.1\r\nHost: orders\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        proxy.signal(signal.SIGTERM)
        assert await proxy.exit_code(5) == 0
        writer.close()


async def test_a_second_sigterm_hurries_and_loses_nothing(database: str, rows: asyncpg.Connection) -> None:
    async with (
        AsyncExitStack() as stack,
        orders_api() as orders,
        running(upstream=orders.url, database_url=database) as proxy,
    ):
        writing = await post_and_hold(stack, orders, proxy)
        proxy.signal(signal.SIGTERM)
        await until_refused(proxy.port)
        proxy.signal(signal.SIGTERM)
        assert await proxy.exit_code(5) == 1
        assert "1 guarded writes were cut off" in proxy.output
        assert f'"message":"cut off","key":"{key_hash("order-1")}"' in proxy.output
        assert (await record(rows))["state"] == "claimed"
        cut_off = (await asyncio.gather(writing, return_exceptions=True))[0]
        assert isinstance(cut_off, aiohttp.ClientError) or (isinstance(cut_off, Heard) and cut_off.status >= 500)


async def test_what_is_not_guarded_is_not_cut_off_in_silence_either(database: str) -> None:
    async with orders_api() as orders, running(upstream=orders.url, database_url=database) as proxy:
        orders.gate.clear()
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"GET /orders HTTP/1.1\r\nHost: orders\r\n\r\n")
        await orders.arrived.wait()
        proxy.signal(signal.SIGTERM)
        await until_refused(proxy.port)
        proxy.signal(signal.SIGTERM)
        assert await proxy.exit_code(5) == 1
        assert "1 requests were cut off" in proxy.output
        assert b"HTTP/1.1 2" not in await reader.read()
        writer.close()


async def test_during_the_drain_delay_it_is_not_ready_but_still_serves(database: str) -> None:
    async with (
        orders_api() as orders,
        running(upstream=orders.url, database_url=database, drain_delay_seconds="60") as proxy,
    ):
        proxy.signal(signal.SIGTERM)
        assert await proxy.until_ready_says(503) == "draining\n"
        assert (await post(proxy)).status == 201
        assert (await fetch(proxy.admin_port, "/livez"))[0] == 200
        proxy.signal(signal.SIGTERM)
        assert await proxy.exit_code() == 0


@pytest.mark.parametrize("on_unknown", ["retry", "hold"])
async def test_a_write_whose_owner_was_killed_stays_taken_until_its_lease_lapses(
    database: str, rows: asyncpg.Connection, on_unknown: str
) -> None:
    async with (
        AsyncExitStack() as stack,
        orders_api() as orders,
        running(upstream=orders.url, database_url=database, on_unknown=on_unknown) as owner,
        running(upstream=orders.url, database_url=database, on_unknown=on_unknown) as other,
    ):
        writing = await post_and_hold(stack, orders, owner)
        owner.signal(signal.SIGKILL)
        assert await owner.exit_code() == -signal.SIGKILL
        with pytest.raises(aiohttp.ClientError):
            await writing
        orders.gate.set()

        early = await post(other)
        assert (early.status, early.code) == (409, "IDEMPOTENCY_IN_PROGRESS")
        assert orders.executions == 1

        await rows.execute(LAPSE)
        late = await post(other)
        stored = await record(rows)
        if on_unknown == "retry":
            assert (late.status, late.headers["Idempotency-Replay"]) == (201, "false")
            assert (stored["state"], stored["attempt"], stored["body"]) == ("completed", 2, late.body)
            assert orders.executions == 2
        else:
            assert (late.status, late.code) == (409, "IDEMPOTENCY_OUTCOME_UNKNOWN")
            assert (stored["state"], stored["attempt"]) == ("claimed", 1)
            assert orders.executions == 1


async def test_an_owner_that_wakes_up_too_late_changes_nothing(database: str, rows: asyncpg.Connection) -> None:
    answer_first = asyncio.Event()

    async def answer(_: web.BaseRequest, __: bytes) -> web.StreamResponse:
        execution = orders.executions
        if execution == 1:
            await answer_first.wait()
        return web.json_response({"execution": execution}, status=201)

    async with (
        AsyncExitStack() as stack,
        orders_api() as orders,
        running(upstream=orders.url, database_url=database) as owner,
        running(upstream=orders.url, database_url=database) as other,
    ):
        stack.callback(answer_first.set)
        orders.answer = answer
        writing = await post_and_hold(stack, orders, owner)
        orders.gate.set()
        owner.signal(signal.SIGSTOP)

        await rows.execute(LAPSE)
        taken_over = await post(other)
        assert (taken_over.status, taken_over.body) == (201, b'{"execution": 2}')
        before = await record(rows)

        answer_first.set()
        owner.signal(signal.SIGCONT)
        heard = await writing
        assert (heard.status, heard.headers["Idempotency-Replay"]) == (200, "true")
        assert heard.body == taken_over.body
        assert await record(rows) == before
        assert (before["state"], before["attempt"]) == ("completed", 2)
        await until(lambda: "lease lost" in owner.output, "the late finisher is reported")
