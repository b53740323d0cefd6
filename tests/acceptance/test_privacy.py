"""What must stay private does: no caller hears of another, and no secret is found in a log line, a metric or a file."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import asyncpg
import pytest
from aiohttp import web

from idemproxy.core.identity import key_hash
from tests.conftest import StartProxy
from tests.support.orders import Orders, orders_api
from tests.support.process import Proxy, fetch, running, until
from tests.support.rawserver import RawServer, answering, closing_after
from tests.support.talk import Client

TEA = {"item": "tea"}

TOKEN = "canary-token-7f3a"
COOKIE = "canary-cookie-51bc"
KEY = "canary-key-90de"
BODY = "canary-body-2c44"
QUERY = "canary-query-e811"
HEADER = "canary-header-63a9"
ANSWER = "canary-answer-0b7d"
SESSION = "canary-session-d25e"
CANARIES = (TOKEN, COOKIE, KEY, BODY, QUERY, HEADER, ANSWER, SESSION)


@dataclass(frozen=True)
class Heard:
    status: int
    replay: str | None
    body: bytes


async def post(port: int, key: str, *, body: bytes = b'{"note":"canary-body-2c44"}', token: str = TOKEN) -> Heard:
    headers = {
        "Authorization": f"Bearer {token}",
        "Cookie": f"session={COOKIE}",
        "X-Note": HEADER,
        "Content-Type": "application/json",
        "Idempotency-Key": key,
    }
    url = f"http://127.0.0.1:{port}/orders?note={QUERY}"
    async with aiohttp.ClientSession() as client, client.post(url, data=body, headers=headers) as got:
        return Heard(got.status, got.headers.get("Idempotency-Replay"), await got.read())


# Callers


async def test_another_callers_key_never_replays(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        ada = await post(service.port, "order-1", token="ada")
        bob = await post(service.port, "order-1", token="bob")
        assert (ada.status, ada.replay, ada.body) == (201, "false", b'{"order": 1}')
        assert (bob.status, bob.replay, bob.body) == (201, "false", b'{"order": 2}')
        assert (await post(service.port, "order-1", token="ada")).body == ada.body
        assert (await post(service.port, "order-1", token="bob")).body == bob.body
        assert orders.executions == 2
        assert await rows.fetchval("SELECT count(DISTINCT scope) FROM idemproxy.records") == 2


@pytest.mark.parametrize("token", ["ADA", "ada ada", "ad", "adaa", "ada,bob"])
async def test_a_token_that_is_only_like_anothers_is_another_caller(proxy: StartProxy, token: str) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        await post(service.port, "order-1", token="ada")
        assert (await post(service.port, "order-1", token=token)).replay == "false"
        assert orders.executions == 2


async def test_another_callers_key_gives_no_hint_that_it_is_taken(proxy: StartProxy) -> None:
    """Neither a conflict with another body, nor a word that something is running."""
    async with orders_api() as orders, proxy(orders.url) as service:
        await post(service.port, "order-1", token="ada")
        assert (await post(service.port, "order-1", token="bob", body=b'{"other":1}')).status == 201
        orders.gate.clear()
        orders.arrived.clear()
        running_one = asyncio.create_task(post(service.port, "order-2", token="ada"))
        await orders.arrived.wait()
        second = asyncio.create_task(post(service.port, "order-2", token="bob"))
        await until(lambda: orders.executions == 4, "the other caller's write is executed as well")
        orders.gate.set()
        assert [(await running_one).status, (await second).status] == [201, 201]


async def test_a_caller_without_a_name_is_refused_rather_than_thrown_together(
    proxy: StartProxy, rows: asyncpg.Connection
) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        for lines in (b"", b"Authorization:\r\n", b"Authorization: ada\r\nAuthorization: bob\r\n"):
            async with await Client.to(service.port) as client, asyncio.timeout(10):
                await client.say(
                    b"POST /orders HTTP/1.1\r\nHost: orders\r\nIdempotency-Key: order-1\r\n"
                    b"%bContent-Length: 2\r\n\r\n{}" % lines
                )
                said = await client.hear()
                assert (said.status, b"MISSING_IDEMPOTENCY_SCOPE" in said.body) == (400, True)
        assert orders.executions == 0
        assert await rows.fetchval("SELECT count(*) FROM idemproxy.records") == 0


async def test_the_anonymous_share_no_scope_with_anybody_who_has_a_name(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url, scope_from="header:X-Account?") as service:
        url = f"http://127.0.0.1:{service.port}/orders"
        async with aiohttp.ClientSession(headers={"Idempotency-Key": "order-1"}) as client:
            for account, expected in ((None, "false"), ("anonymous", "false"), ("global", "false"), (None, "true")):
                headers = {"X-Account": account} if account else {}
                async with client.post(url, json=TEA, headers=headers) as got:
                    assert got.headers["Idempotency-Replay"] == expected
        assert orders.executions == 3


# Logs and metrics


async def answer_with_secrets(_: web.BaseRequest, __: bytes) -> web.StreamResponse:
    return web.Response(status=201, text=ANSWER, headers={"Set-Cookie": f"session={SESSION}", "X-Answer": ANSWER})


async def raw(port: int, data: bytes) -> bytes:
    """What is heard until the proxy closes the connection."""
    async with await Client.to(port) as client, asyncio.timeout(20):
        await client.say(data)
        return await client.reader.read()


@asynccontextmanager
async def table_away(rows: asyncpg.Connection) -> AsyncIterator[None]:
    """The store fails in a way that names things in its errors."""
    await rows.execute("ALTER TABLE idemproxy.records RENAME TO elsewhere")
    try:
        yield
    finally:
        await rows.execute("ALTER TABLE idemproxy.elsewhere RENAME TO records")


async def every_kind_of_exchange(proxy: Proxy, orders: Orders, rows: asyncpg.Connection) -> None:
    """First write, replay, conflict, in progress, refusals of every kind, a store that fails before and after."""
    orders.answer = answer_with_secrets
    statuses = [
        (await post(proxy.port, KEY)).status,
        (await post(proxy.port, KEY)).status,
        (await post(proxy.port, KEY, body=b'["canary-body-2c44"]')).status,
        (await post(proxy.port, f"{KEY}é")).status,
        (await post(proxy.port, KEY * 30)).status,
        (await post(proxy.port, f"{KEY}-large", body=b"canary-body-2c44" * 1000)).status,
        (await post(proxy.port, f"{KEY}-json", body=b'{"canary-body-2c44":')).status,
    ]
    assert statuses == [201, 200, 409, 400, 400, 413, 201]

    orders.gate.clear()
    orders.arrived.clear()
    held = asyncio.create_task(post(proxy.port, f"{KEY}-held"))
    await orders.arrived.wait()
    assert (await post(proxy.port, f"{KEY}-held")).status == 409
    async with table_away(rows):
        assert (await post(proxy.port, f"{KEY}-away")).status == 503
        orders.gate.set()
        assert (await held).status == 201  # its settling goes on in the background

    not_http = f"POST /orders?{QUERY} HTTP/1.1\r\nHost: x\r\nIdempotency-Key: {KEY}\r\nX-{HEADER}\x00: {TOKEN}\r\n\r\n"
    assert b" 400 " in await raw(proxy.port, not_http.encode())
    bad_length = f"POST /{QUERY} HTTP/1.1\r\nHost: x\r\nContent-Length: {BODY}\r\n\r\n{BODY}"
    assert b" 400 " in await raw(proxy.port, bad_length.encode())
    bad_chunk = (
        f"POST /orders HTTP/1.1\r\nHost: x\r\nAuthorization: {TOKEN}\r\nIdempotency-Key: {KEY}-chunk\r\n"
        f"Transfer-Encoding: chunked\r\n\r\n{BODY}\r\n"
    )
    assert b" 400 " in await raw(proxy.port, bad_chunk.encode())
    broken_off = (
        f"POST /orders HTTP/1.1\r\nHost: x\r\nAuthorization: {TOKEN}\r\nIdempotency-Key: {KEY}-off\r\n"
        f"Content-Length: 500\r\n\r\n{BODY}"
    )
    async with await Client.to(proxy.port) as client:
        await client.say(broken_off.encode())


def assert_no_canary(text: str, where: str) -> None:
    found = [line for line in text.splitlines() if any(canary in line for canary in CANARIES)]
    assert found == [], f"in {where}"


@pytest.mark.parametrize("log_format", ["json", "text"])
async def test_no_secret_is_in_a_log_line_or_a_metric(database: str, rows: asyncpg.Connection, log_format: str) -> None:
    async with (
        orders_api() as orders,
        running(upstream=orders.url, database_url=database, log_format=log_format, max_request_bytes="4096") as proxy,
    ):
        await every_kind_of_exchange(proxy, orders, rows)
        _, metrics = await fetch(proxy.admin_port, "/metrics")
        _, published = await fetch(proxy.port, "/.well-known/idempotency")
        proxy.signal(signal.SIGTERM)
        await proxy.exit_code(40)
        output = proxy.output
    assert_no_canary(output, "the log")
    assert_no_canary(metrics, "the metrics")
    assert_no_canary(published, "what is published")
    assert key_hash(KEY) in output  # by which the line of a key can still be found
    words = ("first_write", "replay", "conflict", "in_progress", "invalid", "store_unavailable")
    assert all(word in output for word in words)
    assert "outcome not stored yet" in output
    assert 'outcome="first_write"' in metrics
    if log_format == "json":
        lines = [json.loads(line) for line in output.splitlines()]
        exchange = next(line for line in lines if line.get("outcome") == "replay")
        assert (exchange["key"], exchange["route"]) == (key_hash(KEY), "POST /orders")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ncanary-answer-0b7d",
        b"HTTP/1.1 200 OK\r\ncanary-answer-0b7d\x00: 1\r\n\r\n",
        b"canary-answer-0b7d\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\ncanary-answer-0b7d\r\n",
        b"HTTP/1.1 999 canary-answer-0b7d\r\nContent-Length: 0\r\n\r\n",
    ],
)
async def test_no_secret_is_in_the_log_when_the_upstream_fails(database: str, answer: bytes) -> None:
    async with (
        RawServer(closing_after(answer)) as upstream,
        running(upstream=upstream.url, database_url=database, log_format="text") as proxy,
    ):
        heard = await post(proxy.port, KEY)
        assert heard.status == 502
        assert_no_canary(heard.body.decode(), "the refusal")
        assert_no_canary(proxy.output, "the log")
        assert key_hash(KEY) in proxy.output


async def test_an_upstream_that_cannot_be_reached_tells_nothing_either(database: str) -> None:
    async with running(upstream="http://127.0.0.1:9", database_url=database, log_format="text") as proxy:
        assert (await post(proxy.port, KEY)).status == 502
        assert_no_canary(proxy.output, "the log")


# The store


async def test_on_disk_there_is_the_key_and_the_answer_and_nothing_else(tmp_path: Path) -> None:
    """Every file of the store is searched, its log and its write-ahead log among them."""
    async with (
        orders_api() as orders,
        running(upstream=orders.url, data_dir=str(tmp_path / "store"), log_format="text") as proxy,
    ):
        orders.answer = answer_with_secrets
        assert (await post(proxy.port, KEY)).replay == "false"
        assert (await post(proxy.port, KEY)).replay == "true"
        assert (await post(proxy.port, KEY, body=b"[1]")).status == 409
        proxy.signal(signal.SIGTERM)
        assert await proxy.exit_code(40) == 0
    everything = b"".join(path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file())
    found = {canary for canary in CANARIES if canary.encode() in everything}
    assert found == {KEY, ANSWER}


async def test_each_canary_is_in_its_column_only(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        orders.answer = answer_with_secrets
        await post(service.port, KEY)
    row = await rows.fetchrow("SELECT * FROM idemproxy.records")
    assert row is not None
    as_text = {name: value.decode("latin-1") if isinstance(value, bytes) else str(value) for name, value in row.items()}
    places = {canary: {name for name, text in as_text.items() if canary in text} for canary in CANARIES}
    assert places == {
        **{canary: set() for canary in CANARIES},
        KEY: {"key"},
        ANSWER: {"headers", "body"},
    }


async def test_a_cookie_is_set_for_the_first_client_and_never_replayed(
    proxy: StartProxy, rows: asyncpg.Connection
) -> None:
    answer = b"HTTP/1.1 201 Created\r\nSet-Cookie: session=%b\r\nContent-Length: 2\r\n\r\n{}" % SESSION.encode()
    request = (
        b"POST /orders HTTP/1.1\r\nHost: orders\r\nAuthorization: ada\r\nIdempotency-Key: order-1\r\n"
        b"Content-Length: 2\r\n\r\n{}"
    )
    async with RawServer(answering(answer)) as upstream, proxy(upstream.url) as service:
        async with await Client.to(service.port) as client, asyncio.timeout(10):
            await client.say(request)
            assert (await client.hear()).headers["set-cookie"] == f"session={SESSION}"
            await client.say(request)
            replayed = await client.hear()
        assert replayed.headers["idempotency-replay"] == "true"
        assert "set-cookie" not in replayed.headers
        assert SESSION.encode() not in await rows.fetchval("SELECT headers FROM idemproxy.records")
