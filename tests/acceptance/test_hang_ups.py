"""A client that hangs up, at each step of an exchange: its write runs at most once, and its retry gets the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest
from aiohttp import web

from idemproxy.service import Service
from tests.conftest import StartProxy
from tests.support.orders import Orders, orders_api
from tests.support.process import until
from tests.support.talk import Client, Said, post

TEA = b'{"item":"tea"}'
BOTH_WAYS = pytest.mark.parametrize("how", ["fin", "reset"])


@asynccontextmanager
async def talking(service: Service, **how: int) -> AsyncIterator[Client]:
    async with await Client.to(service.port, **how) as client:
        yield client


async def retry(service: Service, body: bytes = TEA) -> Said:
    async with asyncio.timeout(20), talking(service) as client:
        await client.say(post(body))
        return await client.hear()


async def until_quiet(service: Service) -> None:
    """Until the proxy has nothing in hand any more."""
    await until(lambda: not service.data.active and not service.exchange.tasks, "the exchange is over", 20)


async def states(rows: asyncpg.Connection) -> list[str]:
    return [row["state"] for row in await rows.fetch("SELECT state FROM idemproxy.records")]


def assert_first(said: Said, orders: Orders) -> None:
    """The retry is the first to be executed: of the write that was broken off, nothing went anywhere."""
    assert (said.status, said.headers["idempotency-replay"]) == (201, "false")
    assert [body for _, _, body in orders.ledger] == [TEA]


def assert_replay(said: Said, orders: Orders) -> None:
    assert (said.status, said.headers["idempotency-replay"]) == (200, "true")
    assert said.body == b'{"order": 1}'
    assert [body for _, _, body in orders.ledger] == [TEA]


# Before the whole request is here: nothing is claimed, nothing is sent

WHOLE = post(TEA)
HEAD, _, _ = WHOLE.partition(b"\r\n\r\n")
CHUNKED = WHOLE.replace(b"Content-Length: 14", b"Transfer-Encoding: chunked").removesuffix(TEA)

BROKEN_OFF = {
    "at once": b"",
    "in the request line": WHOLE[:8],
    "in a header": WHOLE[:60],
    "before the empty line": HEAD + b"\r\n",
    "after the head": HEAD + b"\r\n\r\n",
    "in the body": WHOLE[:-1],
    "before the first chunk": CHUNKED,
    "in a chunk": CHUNKED + b"e\r\n" + TEA[:7],
    "between chunks": CHUNKED + b"7\r\n" + TEA[:7] + b"\r\n",
    "before the last chunk": CHUNKED + b"e\r\n" + TEA + b"\r\n",
    "in the last chunk": CHUNKED + b"e\r\n" + TEA + b"\r\n0\r\n",
    "in a body whose first part is a whole document": post(b'{"item":"tea"}', length=40),
    "in a large body": post(b"x" * 300_000, length=500_000),
}


@BOTH_WAYS
@pytest.mark.parametrize("said", BROKEN_OFF.values(), ids=BROKEN_OFF)
async def test_a_request_that_is_not_whole_goes_nowhere(
    proxy: StartProxy, rows: asyncpg.Connection, said: bytes, how: str
) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        async with talking(service) as client:
            await client.say(said)
            if b"\r\n\r\n" in said:
                await until(lambda: service.data.active == 1, "the proxy reads the request")
            client.hang_up(how)
        await until_quiet(service)
        assert orders.executions == 0
        assert await states(rows) == []
        assert_first(await retry(service), orders)


async def test_a_body_that_is_broken_off_in_order_is_not_taken_for_a_whole_one(
    proxy: StartProxy, rows: asyncpg.Connection
) -> None:
    """The client closes its sending side only, and listens: what it hears is no success."""
    async with orders_api() as orders, proxy(orders.url) as service:
        async with talking(service) as client, asyncio.timeout(20):
            await client.say(post(TEA, length=40))
            client.writer.write_eof()
            heard = await client.reader.read()
            assert not heard or heard.startswith(b"HTTP/1.1 4")
        await until_quiet(service)
        assert orders.executions == 0
        assert await states(rows) == []


async def test_a_body_that_waits_for_leave_is_never_asked_for_again(
    proxy: StartProxy, rows: asyncpg.Connection
) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        async with talking(service) as client, asyncio.timeout(20):
            await client.say(post(b"", b"Expect: 100-continue", length=len(TEA)))
            assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.hang_up("fin")
        await until_quiet(service)
        assert orders.executions == 0
        assert await states(rows) == []
        assert_first(await retry(service), orders)


# Once it is here: the client's absence changes nothing


@BOTH_WAYS
async def test_during_the_claim(proxy: StartProxy, rows: asyncpg.Connection, database: str, how: str) -> None:
    other = await asyncpg.connect(database)
    try:
        async with orders_api() as orders, proxy(orders.url) as service:
            async with other.transaction():
                await other.execute("LOCK TABLE idemproxy.records IN ACCESS EXCLUSIVE MODE")
                async with talking(service) as client:
                    await client.say(WHOLE)
                    await until_a_claim_waits(rows)
                    assert orders.executions == 0
                    client.hang_up(how)
                    await asyncio.sleep(0.05)  # the hang-up arrives while the claim is under way
            await until_quiet(service)
            # The claim was won in time and went its way, or it was given up and nothing was sent: never both.
            said = await retry(service)
            assert_replay(said, orders) if said.status == 200 else assert_first(said, orders)
            assert await states(rows) == ["completed"]
    finally:
        await other.close()


async def until_a_claim_waits(rows: asyncpg.Connection) -> None:
    waiting = """
        SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND wait_event_type = 'Lock' AND application_name = 'idemproxy'
    """
    async with asyncio.timeout(10):
        while not await rows.fetchval(waiting):
            await asyncio.sleep(0.005)


@BOTH_WAYS
async def test_while_the_upstream_works(proxy: StartProxy, rows: asyncpg.Connection, how: str) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        orders.gate.clear()
        async with talking(service) as client:
            await client.say(WHOLE)
            await orders.arrived.wait()
            client.hang_up(how)
        duplicate = await retry(service)
        assert (duplicate.status, duplicate.headers["idempotency-conflict"]) == (409, "in-flight")
        orders.gate.set()
        await until_quiet(service)
        assert await states(rows) == ["completed"]
        assert_replay(await retry(service), orders)


@BOTH_WAYS
async def test_while_the_answer_arrives(proxy: StartProxy, rows: asyncpg.Connection, how: str) -> None:
    half_way, go_on = asyncio.Event(), asyncio.Event()

    async def answer(request: web.BaseRequest, _: bytes) -> web.StreamResponse:
        response = web.StreamResponse(status=201, headers={"Content-Length": "12"})
        await response.prepare(request)
        await response.write(b'{"order"')
        half_way.set()
        await go_on.wait()
        await response.write(b": 1}")
        return response

    async with orders_api() as orders, proxy(orders.url) as service:
        orders.answer = answer
        async with talking(service) as client:
            await client.say(WHOLE)
            await half_way.wait()
            client.hang_up(how)
        await asyncio.sleep(0.05)  # the hang-up arrives before the rest of the answer
        go_on.set()
        await until_quiet(service)
        assert_replay(await retry(service), orders)


@BOTH_WAYS
async def test_during_the_reply(proxy: StartProxy, rows: asyncpg.Connection, how: str) -> None:
    large = b"x" * 3_000_000

    async def answer(_: web.BaseRequest, __: bytes) -> web.StreamResponse:
        return web.Response(status=201, body=large)

    async with orders_api() as orders, proxy(orders.url) as service:
        orders.answer = answer
        async with talking(service, receive_buffer=4096) as client:
            await client.say(WHOLE)
            await client.reader.readuntil(b"\r\n\r\n")
            client.hang_up(how)
        await until_quiet(service)
        assert await states(rows) == ["completed"]
        said = await retry(service)
        assert (said.status, said.headers["idempotency-replay"], said.body) == (200, "true", large)
        assert orders.executions == 1


@BOTH_WAYS
async def test_during_the_reply_of_an_answer_too_large_to_be_kept(
    proxy: StartProxy, rows: asyncpg.Connection, how: str
) -> None:
    async def answer(_: web.BaseRequest, __: bytes) -> web.StreamResponse:
        return web.Response(status=201, body=b"x" * 8_000_000)

    async with orders_api() as orders, proxy(orders.url, max_stored_bytes="1000") as service:
        orders.answer = answer
        async with talking(service, receive_buffer=4096) as client:
            await client.say(WHOLE)
            await client.reader.readuntil(b"\r\n\r\n")
            client.hang_up(how)
        await until_quiet(service)
        assert await states(rows) == ["completed"]
        said = await retry(service)
        assert (said.status, said.headers["idempotency-conflict"]) == (409, "response-not-stored")
        assert orders.executions == 1


async def test_a_duplicate_that_waits_and_hangs_up_disturbs_nobody(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    async with orders_api() as orders, proxy(orders.url, in_flight="wait") as service:
        orders.gate.clear()
        async with talking(service) as first, talking(service) as second:
            await first.say(WHOLE)
            await orders.arrived.wait()
            await second.say(WHOLE)
            await until(lambda: service.data.active == 2, "the duplicate waits")
            second.hang_up("reset")
            orders.gate.set()
            async with asyncio.timeout(20):
                heard = await first.hear()
        assert (heard.status, heard.headers["idempotency-replay"]) == (201, "false")
        await until_quiet(service)
        assert_replay(await retry(service), orders)


# What is not guarded


@BOTH_WAYS
async def test_an_unguarded_body_that_is_broken_off_is_broken_off_upstream_too(
    proxy: StartProxy, rows: asyncpg.Connection, how: str
) -> None:
    """Streamed as it comes: the upstream sees a request without an end, never one that ends early."""
    async with orders_api() as orders, proxy(orders.url) as service:
        for said in (post(TEA, length=40), CHUNKED + b"e\r\n" + TEA + b"\r\n"):
            async with talking(service) as client:
                await client.say(said.replace(b"Idempotency-Key: order-1\r\n", b""))
                await until(lambda: service.data.active == 1, "the proxy reads the request")
                client.hang_up(how)
            await until_quiet(service)
        assert orders.executions == 0


async def test_a_storm_of_clients_that_hang_up_anywhere_executes_once(
    proxy: StartProxy, rows: asyncpg.Connection
) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:

        async def one(number: int) -> None:
            async with talking(service) as client:
                await client.say(WHOLE[: len(WHOLE) - (number % 3) * 7])
                for _ in range(number % 8):
                    await asyncio.sleep(0.002)
                client.hang_up("fin" if number % 2 else "reset")

        await asyncio.gather(*(one(number) for number in range(60)))
        await until_quiet(service)
        said = await retry(service)
        assert_replay(said, orders) if said.status == 200 else assert_first(said, orders)
        assert await states(rows) == ["completed"]
