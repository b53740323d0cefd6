"""The composition root: opens everything in order, serves, and closes it in the opposite order."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import socket
from contextlib import AsyncExitStack
from typing import Any

import orjson
from aiohttp import web

from idemproxy import __version__
from idemproxy.contract.live import ContractError, LiveContract
from idemproxy.contract.published import Published
from idemproxy.contract.routes import second_reading, segments_of
from idemproxy.contract.tool_contract import declared_tools
from idemproxy.core.headers import as_it_came, to_client
from idemproxy.core.hops import Hop
from idemproxy.core.identity import key_hash
from idemproxy.core.policy import JwtScope
from idemproxy.edge.breaker import Breaker
from idemproxy.edge.limits import allow_files
from idemproxy.edge.origin import Origin
from idemproxy.edge.server import DataServer
from idemproxy.edge.shadow import ShadowUpstream, nothing_guarded, nothing_published
from idemproxy.edge.upstream import HttpUpstream
from idemproxy.exchange import Exchange, Limits
from idemproxy.garbage import settle_in
from idemproxy.mcp.asking import Asking
from idemproxy.mcp.calls import parse_derived_from
from idemproxy.mcp.door import Door
from idemproxy.mcp.listing import Additions
from idemproxy.operator.admin import application
from idemproxy.operator.metrics import Metrics
from idemproxy.operator.office import POOL_SIZE as OPERATOR_POOL
from idemproxy.operator.office import Office
from idemproxy.ports import OpenUpstream, Upstream
from idemproxy.settings import Settings
from idemproxy.siblings import Inherited, Siblings
from idemproxy.startup import bind, open_database, prepare_schema, refused, tell_refused
from idemproxy.store.cache import Cache
from idemproxy.store.connect import Primary
from idemproxy.store.errors import FAULTS
from idemproxy.store.known import Known
from idemproxy.store.pool import open_pool
from idemproxy.store.postgres import PostgresStore
from idemproxy.store.purges import Purges
from idemproxy.store.steps import Steps
from idemproxy.store.sweep import sweep_forever
from idemproxy.tasks import Tasks

log = logging.getLogger("idemproxy")


class Service:
    """A running proxy. `async with Service(settings) as service:` serves until it is left."""

    def __init__(self, settings: Settings, inherited: Inherited | None = None) -> None:
        self._settings = settings
        self._inherited = inherited
        self._stack = AsyncExitStack()
        self._draining = False
        self._hurry = asyncio.Event()
        self.metrics = Metrics()
        self.tasks = Tasks()

    async def __aenter__(self) -> Service:
        try:
            await self._open()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _open(self) -> None:
        settings = self._settings
        self.contract = LiveContract(settings.contract, settings.terms())
        if self._inherited is None:
            dsn = await open_database(settings, self._stack)
            if risk := await prepare_schema(dsn, settings):
                log.warning("IDEMPROXY_DATABASE_URL: %s", risk)
        else:
            dsn = self._inherited.database_url
        try:
            self.pool = await open_pool(dsn, settings.database_statement_cache_size)
            operators = await open_pool(
                dsn, settings.database_statement_cache_size, min_size=0, max_size=OPERATOR_POOL, searches=True
            )
        except FAULTS as failure:
            raise refused(failure) from failure
        cache = Cache(settings.cache_bytes)
        self.metrics.cache_bytes.set_function(lambda: cache.bytes)
        known = Known(cache, self.metrics.cache_hits.inc)
        self.store = PostgresStore(
            self.pool,
            self.metrics.statement,
            self.metrics.store_failed,
            known,
            among_others=self._inherited is not None,
        )
        self._stack.push_async_callback(self.store.close)
        self._stack.push_async_callback(self.tasks.cancel)
        if settings.cache_bytes and not settings.pooled:
            self.tasks.spawn(Purges(Primary(dsn), self.pool, cache).listen_forever(), "listen for purges")

        origin = Origin.parse(settings.upstream)
        upstream = HttpUpstream(origin, tls=settings.upstream_tls())
        self._stack.push_async_callback(upstream.close)
        keep, window = settings.audit_seconds, settings.duplicate_window_seconds
        largest = settings.max_request_bytes
        self.office = Office(operators, self.metrics, keep_seconds=keep, window=window, max_request_bytes=largest)
        self._stack.push_async_callback(self.office.close)
        reporter = self.office.reporter
        limits = Limits(
            settings.upstream_timeout_seconds,
            settings.max_request_bytes,
            settings.max_stored_bytes,
            settings.upstream_require_framed,
        )
        hop = Hop(
            authority=origin.authority,
            host=None if settings.upstream_host == "keep" else origin.authority,
            pseudonym=b"idemproxy-" + secrets.token_hex(4).encode(),
            forwarded=settings.forwarded,
        )
        self.exchange = Exchange(self.store, self._broken(upstream), reporter, hop, limits)
        self.metrics.in_flight.set_function(lambda: len(self.exchange.running))
        self.tools = door(settings, Asking(upstream, hop))
        if self.tools is not None and settings.mcp_contract is not None:
            self.tools.tools.declare(declared_tools(settings.mcp_contract, settings.policy()))
        shadow = settings.mode == "shadow"
        front: OpenUpstream = upstream
        if shadow:
            log.warning("shadow mode: nothing is guarded; what would have been done is only reported")
            front = ShadowUpstream(upstream, self._seen_in_shadow, self.office.shadow.saw, max_request_bytes=largest)
        self.data = DataServer(
            nothing_guarded if shadow else self.contract.match,
            self.exchange,
            front,
            reporter,
            settings.client_limits(),
            hop=hop,
            upstream_timeout=settings.upstream_timeout_seconds,
            published=(
                nothing_published if shadow else Published(self.contract, Steps(self.pool, settings.tombstone_seconds))
            ),
            shown=as_it_came if shadow else to_client,
            tools=None if shadow else self.tools,
        )
        sweeping = sweep_forever(
            self.pool,
            settings.tombstone_seconds,
            settings.sweep_interval_seconds,
            self.office.audit.expired,
            self.metrics.sweep_ended,
        )
        self.tasks.spawn(sweeping, "sweep")
        self.office.start()
        self.metrics.pool(self.pool.get_size, self.pool.get_idle_size)
        await self._listen_admin()
        await self._listen_data()

    def _seen_in_shadow(self, method: str, path: bytes) -> object:
        """Tool calls are left out: which of them would be guarded is known only by reading along with the server."""
        called = self.tools is not None and method == "POST" and self.tools.serves(path)
        return None if called else self.contract.match(method, path)

    def _broken(self, upstream: Upstream) -> Upstream:
        """The upstream behind a circuit breaker, if there shall be one. Only guarded writes go through it."""
        if not self._settings.breaker_failures:
            return upstream
        breaker = Breaker(upstream, failures=self._settings.breaker_failures, seconds=self._settings.breaker_seconds)
        self.metrics.breaker_open.set_function(lambda: breaker.open)
        return breaker

    async def _listen_admin(self) -> None:
        siblings = Siblings(self.metrics, self.office.live, self._inherited)
        await self._stack.enter_async_context(siblings)
        token = self._settings.admin_token
        app = application(
            siblings.metrics,
            siblings.live,
            self._ready,
            self.office.desk,
            self._policy,
            token=token.get_secret_value() if token else None,
        )
        runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        listener = (
            socket.socket(fileno=self._inherited.admin_fd)
            if self._inherited
            else bind(self._settings.admin_listen, "IDEMPROXY_ADMIN_LISTEN")
        )
        self.admin_port = listener.getsockname()[1]
        await web.SockSite(runner, listener).start()

    def _policy(self) -> dict[str, object]:
        """What is enforced, for operators: as clients read it, with what the lint found."""
        now = self.contract.now
        return {"mode": self._settings.mode, "in_force": orjson.loads(now.description), "findings": now.findings}

    async def _listen_data(self) -> None:
        loop = asyncio.get_running_loop()
        allow_files(self._settings.max_connections)
        listener = (
            socket.socket(fileno=self._inherited.data_fd)
            if self._inherited
            else bind(self._settings.listen, "IDEMPROXY_LISTEN")
        )
        self.port = listener.getsockname()[1]
        self._listener = await loop.create_server(self.data.clients, sock=listener, backlog=1024)
        self._stack.push_async_callback(self._close_data)

    async def _close_data(self) -> None:
        self._listener.close()
        await self.data.clients.shutdown(1.0)
        await self.exchange.tasks.cancel()

    async def _ready(self) -> str | None:
        if self._draining:
            return "draining"
        if self._settings.mode == "shadow":
            return None  # traffic passes whatever the store does
        return None if await self.store.ready() else "the store cannot be reached"

    async def serve(self) -> int:
        """Serve until SIGTERM or SIGINT, then drain; the exit code tells whether anything was cut off."""
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()

        def on_signal() -> None:
            if stop.is_set():
                self._hurry.set()
            stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal)
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        self._tell_contract("contract in force")
        if isinstance(self._settings.policy().scope_from, JwtScope):
            log.warning("callers are told apart by a claim that is not verified here: verify every token before it")
        if self._inherited is not None:
            loop.add_reader(self._inherited.parent_fd, stop.set)
        log.info("idemproxy %s before %s on %s", __version__, self._settings.upstream, self._settings.listen)
        settle_in()
        await stop.wait()
        if self._inherited is not None:
            loop.remove_reader(self._inherited.parent_fd)
        return 0 if await self.drain() else 1

    def _on_hangup(self) -> None:
        self.tasks.spawn(self._reload(), "reload the contract")

    async def _reload(self) -> None:
        """Read the contract again. Requests under way keep the policy they began with."""
        settings = self._settings
        try:
            if self.tools is not None and settings.mcp_contract is not None:
                declared = await asyncio.to_thread(declared_tools, settings.mcp_contract, settings.policy())
                await asyncio.to_thread(self.contract.reload)
                self.tools.tools.declare(declared)
                log.info("%d tools of the contract reloaded", len(declared))
            else:
                await asyncio.to_thread(self.contract.reload)
        except ContractError as refused:
            tell_refused(refused)
        else:
            self._tell_contract("contract reloaded")

    def _tell_contract(self, what: str) -> None:
        now = self.contract.now
        if now.document is not None:
            more = f"; `idemproxy contract lint` has {now.remarks} more to say" if now.remarks else ""
            log.info("%s: %d operations, version %s%s", what, now.operations, now.version, more)

    async def drain(self) -> bool:
        """Not ready, accept for the delay, then finish what is under way. False when something was cut off."""
        self._draining = True
        log.info("draining")
        await self._unless_hurried(asyncio.sleep(self._settings.drain_delay_seconds))
        self._listener.close()
        self.data.clients.stop_keeping()
        await self._unless_hurried(self._finished(), self._settings.drain_seconds)
        left = {*self.exchange.running, *self.exchange.settler.unsettled}
        if left:
            log.error("%d guarded writes were cut off; their keys stay taken until their leases lapse", len(left))
        for id in sorted(left):
            log.error("cut off", extra={"fields": {"key": key_hash(id.key), "route": id.route}})
        if self.data.active:
            log.error("%d requests were cut off before they had their whole answer", self.data.active)
        return not left and not self.data.active

    async def _finished(self) -> None:
        while self.exchange.tasks or self.data.active:
            await self.exchange.tasks.finished(1.0)
            await asyncio.sleep(0.01)

    async def _unless_hurried(self, what: Any, timeout: float | None = None) -> None:
        hurry = self.tasks.spawn(self._hurry.wait(), "second signal")
        task = self.tasks.spawn(what, "drain")
        await asyncio.wait({hurry, task}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        for left in (hurry, task):
            left.cancel()
        await asyncio.gather(hurry, task, return_exceptions=True)


def door(settings: Settings, asking: Asking) -> Door | None:
    """The MCP path, if there is one."""
    if not settings.mcp_path:
        return None
    policy = settings.policy()
    mounted = segments_of(settings.mcp_path.encode())

    def serves(path: bytes) -> bool:
        return segments_of(path) == mounted or second_reading(path) == mounted

    derived_from = parse_derived_from(settings.mcp_derive_key_from)
    return Door(serves, policy, derived_from, Additions(settings.mcp_annotate, settings.mcp_advertise_key), asking)
