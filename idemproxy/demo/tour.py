"""The tour: a real Postgres, a real API and real proxies. Every claim on screen is checked."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import click
import orjson
from aiohttp import web

from idemproxy.demo.orders import Orders
from idemproxy.service import Service
from idemproxy.settings import PREFIX, Settings, SettingsError, load
from idemproxy.startup import StartError, bind
from idemproxy.store.embedded import EmbeddedPostgres
from idemproxy.tasks import Tasks

DUPLICATES = 50
SLOW_SECONDS = 2.0
"""How long the API takes where something is cut off meanwhile: long enough on any machine."""
PATIENCE_SECONDS = 15.0
END_LEASE = "UPDATE idemproxy.records SET lease_until = now() - interval '1 second' WHERE key = $1"
CALLER = "Bearer demo"
TEA = b'{"item":"tea","quantity":2}'
COFFEE = b'{"item":"coffee","quantity":1}'

INTERRUPTED = 128 + signal.SIGINT

log = logging.getLogger("idemproxy")


async def show(listen: str, *, stay: bool) -> int:
    """Give the tour, and if it is to `stay`, keep everything up until a signal. 1 when a claim is not so."""
    # A taken port is worth knowing before Postgres has been started.
    bind(_settings(listen).listen, "--listen").close()
    this = asyncio.current_task()
    staying = False

    def on_signal() -> None:
        # Only the first one counts: the cleaning up that follows it is bounded and has to be finished.
        if this is not None and not this.cancelling():
            this.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    level = log.level
    log.setLevel(logging.ERROR)  # the tour tells itself what happens
    try:
        async with _stage(listen) as stage:
            await _scenes(stage)
            if stage.failures or not stay:
                return 1 if stage.failures else 0
            staying = True
            log.setLevel(level)
            _invite(stage)
            await asyncio.Event().wait()
    except asyncio.CancelledError:
        return 0 if staying else INTERRUPTED
    finally:
        log.setLevel(level)
    return 0


@dataclass(frozen=True)
class Heard:
    """An answer as the client got it."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    seconds: float

    @property
    def replay(self) -> str | None:
        return self.headers.get("Idempotency-Replay")

    @property
    def error(self) -> Mapping[str, object]:
        """The `error` member of a refusal; empty for every other answer."""
        if self.headers.get("Content-Type") != "application/problem+json":
            return {}
        error: Mapping[str, object] = orjson.loads(self.body).get("error", {})
        return error


@dataclass
class Scene:
    title: str
    executed_before: int
    requests: int = 0
    executed: int = 0


@dataclass
class Stage:
    """Everything that is running, and what has been seen so far."""

    client: aiohttp.ClientSession
    orders: Orders
    orders_url: str
    dsn: str
    folder: Path
    host: str
    service: Service
    scenes: list[Scene] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    failures: int = 0

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.service.port}"

    def begin(self, title: str) -> None:
        self.end()
        self.scenes.append(Scene(title, self.orders.executions))
        _say("")
        _say(click.style(f"{len(self.scenes)}. {title}", bold=True, fg="cyan"))

    def end(self) -> None:
        if self.scenes:
            self.scenes[-1].executed = self.executed

    @property
    def executed(self) -> int:
        """How many writes the API has executed since the scene began."""
        return self.orders.executions - self.scenes[-1].executed_before

    def claim(self, text: str, holds: bool) -> None:
        """Say what is to be seen, and whether it is so."""
        self.failures += not holds
        mark = click.style("✓", fg="green") if holds else click.style("✗ NOT SO:", fg="red", bold=True)
        _say(f"   {mark} {text if holds else click.style(text, fg='red')}")

    async def send(self, key: str, body: bytes, *, base: str | None = None) -> Heard:
        """One POST /orders; `base` is another proxy's address."""
        self.count(key)
        headers = {"Authorization": CALLER, "Idempotency-Key": key, "Content-Type": "application/json"}
        started = time.perf_counter()
        async with self.client.post(f"{base or self.url}/orders", data=body, headers=headers) as answer:
            content = await answer.read()
            return Heard(answer.status, answer.headers, content, time.perf_counter() - started)

    def count(self, key: str, requests: int = 1) -> None:
        self.keys.add(key)
        self.scenes[-1].requests += requests

    async def tell(self, key: str, body: bytes) -> Heard:
        """Send it, and show it with its answer."""
        _show_request(key, body)
        heard = await self.send(key, body)
        _show_answer(heard)
        return heard


def _say(text: str) -> None:
    click.echo(text, color=False if os.environ.get("NO_COLOR") else None)


def _note(text: str) -> None:
    _say(click.style(f"   {text}", dim=True))


def _show_request(key: str, body: bytes) -> None:
    line = click.style("→ POST /orders", fg="yellow")
    _say(f"   {line}   Idempotency-Key: {key}   {body.decode()}")


def _show_answer(heard: Heard) -> None:
    colour = "green" if heard.status < 400 else "magenta"
    status = click.style(f"← {heard.status} {HTTPStatus(heard.status).phrase}", fg=colour)
    _say(f"   {status}   {heard.seconds * 1000:.0f} ms")
    for name, value in heard.headers.items():
        if name.lower().startswith("idempotency-") or name.lower() == "retry-after":
            _say(f"     {name}: {value}")
    if heard.error:
        for name in ("code", "retriable", "safe_new_key", "action"):
            _say(f"     error.{name}: {orjson.dumps(heard.error.get(name)).decode()}")
    else:
        _say(f"     {heard.body.decode()}")


@asynccontextmanager
async def _stage(listen: str) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="idemproxy-demo-", ignore_cleanup_errors=True))
        )
        _say(click.style("idemproxy: each write once, every retry answered", bold=True))
        _note("starting a Postgres of its own, a small orders API, and the proxy before it ...")
        postgres = await EmbeddedPostgres.start(folder / "data")
        stack.push_async_callback(postgres.stop)
        orders = Orders()
        orders_url = await _serve(orders, stack)
        service = await stack.enter_async_context(
            Service(_settings(listen, upstream=orders_url, database_url=postgres.dsn))
        )
        # Without a limit: duplicates that wait for a connection would not be concurrent.
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=PATIENCE_SECONDS)
        client = await stack.enter_async_context(aiohttp.ClientSession(connector=connector, timeout=timeout))
        yield Stage(client, orders, orders_url, postgres.dsn, folder, _reachable(listen), service)


def _settings(listen: str, **values: str) -> Settings:
    """The environment is left out: the tour shows the same wherever it is given."""
    flags = {
        "upstream": "http://127.0.0.1:9",
        "listen": listen,
        "admin_listen": "127.0.0.1:0",
        "auto_migrate": "true",
        "on_unknown": "hold",
        **values,
    }
    try:
        return load({}, flags)
    except SettingsError as wrong:
        raise StartError("; ".join(wrong.faults)) from wrong


def _reachable(listen: str) -> str:
    """The host to connect to: a wildcard is only an address to listen on."""
    host = listen.rpartition(":")[0]
    return {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104 - nothing is bound here


async def _serve(orders: Orders, stack: AsyncExitStack) -> str:
    runner = web.AppRunner(orders.application(), access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    listener = bind("127.0.0.1:0", "the orders API")
    port = listener.getsockname()[1]
    await web.SockSite(runner, listener).start()
    return f"http://127.0.0.1:{port}"


async def _scenes(stage: Stage) -> None:
    _note(f"orders API {stage.orders_url}, proxy {stage.url}, all writes as Authorization: {CALLER}")
    try:
        first = await _first_write(stage)
        await _replay(stage, first)
        await _conflict(stage)
        await _duplicates(stage)
        await _client_crash(stage)
        await _proxy_crash(stage)
    except (aiohttp.ClientError, TimeoutError) as failure:
        stage.claim(f"every request was answered ({type(failure).__name__}: {failure})", False)
    stage.end()
    _summary(stage)


async def _first_write(stage: Stage) -> Heard:
    stage.begin("A first write goes through")
    heard = await stage.tell("order-1", TEA)
    stage.claim("it was executed, and its answer is on record", stage.executed == 1)
    stage.claim("201, Idempotency-Replay: false", (heard.status, heard.replay) == (201, "false"))
    return heard


async def _replay(stage: Stage, first: Heard) -> None:
    stage.begin("The same write again is a replay")
    heard = await stage.tell("order-1", TEA)
    stage.claim("200, Idempotency-Replay: true", (heard.status, heard.replay) == (200, "true"))
    stage.claim("byte-identical to the first answer, its random reference too", heard.body == first.body)
    stage.claim("the API was not called", stage.executed == 0)


async def _conflict(stage: Stage) -> None:
    stage.begin("The same key with another payload is a conflict")
    heard = await stage.tell("order-1", COFFEE)
    stage.claim(
        "409 IDEMPOTENCY_CONFLICT, not retriable, and it says what to do instead",
        (heard.status, heard.error.get("code"), heard.error.get("retriable")) == (409, "IDEMPOTENCY_CONFLICT", False)
        and bool(heard.error.get("action")),
    )
    stage.claim("the API was not called", stage.executed == 0)


async def _duplicates(stage: Stage) -> None:
    stage.begin(f"{DUPLICATES} duplicates at the same time")
    key = "order-2"
    _show_request(key, TEA)
    _note(f"... {DUPLICATES} times at once")
    answers = await asyncio.gather(*(stage.send(key, TEA) for _ in range(DUPLICATES)))
    counts = Counter(_kind(heard) for heard in answers)
    for kind, count in counts.most_common():
        _say(f"   {click.style('←', fg='yellow')} {count:3d} × {kind}")
    # A machine that takes longer to send them than the API to answer one sees some replays already.
    others = counts["409 IDEMPOTENCY_IN_PROGRESS"] + counts["200 replay"]
    stage.claim("one execution", stage.executed == 1)
    stage.claim(
        "one first answer; the others were told to come back, or got its replay",
        (counts["201 first write"], others) == (1, DUPLICATES - 1),
    )
    _note("one of them comes back:")
    heard = await stage.tell(key, TEA)
    first = next((answer.body for answer in answers if answer.status == 201), None)
    stage.claim("a replay of the one answer there is", heard.replay == "true" and heard.body == first)
    stage.claim("still one execution", stage.executed == 1)


def _kind(heard: Heard) -> str:
    if heard.error:
        return f"{heard.status} {heard.error.get('code')}"
    return f"{heard.status} {'replay' if heard.replay == 'true' else 'first write'}"


async def _client_crash(stage: Stage) -> None:
    stage.begin("A crash-safe retry: the client dies before it hears the answer")
    key = "order-3"
    _show_request(key, TEA)
    reader, writer = await asyncio.open_connection(stage.host.strip("[]"), stage.service.port)
    stage.count(key)
    writer.write(
        b"POST /orders HTTP/1.1\r\nHost: demo\r\nContent-Type: application/json\r\n"
        + f"Authorization: {CALLER}\r\nIdempotency-Key: {key}\r\nContent-Length: {len(TEA)}\r\n\r\n".encode()
        + TEA
    )
    began = await _until(lambda: stage.executed == 1)
    writer.transport.abort()
    _say(click.style("   ✂ the client's connection is cut while the API is at work", fg="red"))
    stage.claim("the API had begun, and the client got nothing", began and not await _anything(reader))
    settled = await _until(lambda: not stage.service.exchange.running)
    _note("the client starts again and repeats its write:")
    heard = await stage.tell(key, TEA)
    stage.claim("the answer that it missed was waiting for it", settled and heard.replay == "true")
    stage.claim("executed once", stage.executed == 1)


async def _anything(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""


async def _proxy_crash(stage: Stage) -> None:
    stage.begin("A crash-safe retry: the proxy is killed in the middle of a write")
    key = "order-4"
    usual = stage.orders.seconds
    async with _second_proxy(stage) as (process, base):
        _note(f"a second proxy on the same database: {base}, process {process.pid}")
        _note(f"the API now takes {SLOW_SECONDS:g} s for an order")
        stage.orders.seconds = SLOW_SECONDS
        tasks = Tasks()
        try:
            _show_request(key, TEA)
            write = tasks.spawn(_unless_broken(stage.send(key, TEA, base=base)), "a write that is cut off")
            began = await _until(lambda: stage.executed == 1)
            process.kill()
            _say(click.style(f"   ✂ kill -9 {process.pid}: the order is placed, its answer is lost", fg="red"))
            heard = await write
        finally:
            await tasks.cancel()
            stage.orders.seconds = usual
    stage.claim("the API had executed it, and the client saw its connection break", began and heard is None)
    _note("the client repeats its write at the proxy that is left:")
    heard = await stage.tell(key, TEA)
    stage.claim(
        "409 with Retry-After: the dead proxy's lease still holds",
        (heard.status, heard.error.get("code")) == (409, "IDEMPOTENCY_IN_PROGRESS") and "Retry-After" in heard.headers,
    )
    stage.claim("executed once", stage.executed == 1)
    _note("To spare you the wait, the tour ends the lease by hand:")
    _note(END_LEASE.replace("$1", f"'{key}'"))
    stage.claim("one record was changed", await _end_lease(stage.dsn, key) == "UPDATE 1")
    heard = await stage.tell(key, TEA)
    stage.claim(
        "409 IDEMPOTENCY_OUTCOME_UNKNOWN, not retriable: nobody can know from here whether it ran",
        (heard.status, heard.error.get("code"), heard.error.get("retriable"))
        == (409, "IDEMPOTENCY_OUTCOME_UNKNOWN", False),
    )
    stage.claim("executed once, and never again by itself", stage.executed == 1)
    _note("This proxy runs with IDEMPROXY_ON_UNKNOWN=hold: strictly at most once, a person looks the result up.")
    _note("With retry, the default, the write would now be sent again, under the same key: for APIs that")
    _note("recognise the key themselves, or where a lost write is worse than a double one.")


async def _unless_broken(write: Coroutine[Any, Any, Heard]) -> Heard | None:
    try:
        return await write
    except aiohttp.ClientConnectionError:
        return None


@asynccontextmanager
async def _second_proxy(stage: Stage) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    with bind("127.0.0.1:0", "the second proxy") as free:
        port = free.getsockname()[1]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    environment |= {
        f"{PREFIX}UPSTREAM": stage.orders_url,
        f"{PREFIX}DATABASE_URL": stage.dsn,
        f"{PREFIX}LISTEN": f"127.0.0.1:{port}",
        f"{PREFIX}ADMIN_LISTEN": "127.0.0.1:0",
    }
    log_path = stage.folder / "second-proxy.log"
    with log_path.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "idemproxy", "run", env=environment, stdout=output, stderr=output
        )
    try:
        ready = await _until(lambda: process.returncode is not None or _accepts(port))
        if not ready or process.returncode is not None:
            said = log_path.read_text(encoding="utf-8", errors="replace").strip()
            raise StartError(f"the second proxy did not start: {said.splitlines()[-1] if said else 'it said nothing'}")
        yield process, f"http://127.0.0.1:{port}"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def _end_lease(dsn: str, key: str) -> str:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.execute(END_LEASE, key)
    finally:
        await connection.close()


async def _until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.01)
    return True


def _summary(stage: Stage) -> None:
    _say("")
    _say(click.style("Summary", bold=True, fg="cyan"))
    _say(click.style(f"   {'requests':>8}  {'executed':>8}", bold=True))
    for scene in stage.scenes:
        _say(f"   {scene.requests:8d}  {scene.executed:8d}  {scene.title}")
    requests = sum(scene.requests for scene in stage.scenes)
    executed = stage.orders.executions
    _say(click.style(f"   {requests:8d}  {executed:8d}  in all", bold=True))
    stage.claim(
        f"{len(stage.keys)} different writes asked for, in {requests} requests; {executed} writes executed",
        len(stage.keys) == executed,
    )
    if stage.failures:
        _say(click.style(f"   {stage.failures} of the claims above did not hold", fg="red", bold=True))


def _invite(stage: Stage) -> None:
    write = f"curl -sS -i {stage.url}/orders -H 'Authorization: {CALLER}' -H 'Content-Type: application/json'"
    admin = f"http://127.0.0.1:{stage.service.admin_port}"
    _say("")
    _say(click.style("Now you", bold=True, fg="cyan"))
    for comment, line in (
        ("a write; run it twice", f"{write} -H 'Idempotency-Key: mine-1' -d '{TEA.decode()}'"),
        ("another payload under its key", f"{write} -H 'Idempotency-Key: mine-1' -d '{COFFEE.decode()}'"),
        ("what the API has executed", f"curl -sS {stage.url}/orders"),
        ("how writes are guarded here", f"curl -sS {stage.url}/.well-known/idempotency"),
        ("the operator's side", f"curl -sS {admin}/readyz"),
        ("", f"curl -sS {admin}/metrics"),
    ):
        if comment:
            _note(f"# {comment}")
        _say(f"   {line}")
    _note("# and a dashboard, in a browser")
    _say(f"   {admin}/")
    _say("")
    _say("   Ctrl-C ends it; nothing is left behind.")
