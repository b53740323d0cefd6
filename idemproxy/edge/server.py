"""The data port: decides which requests are guarded, and tells the clients what came of them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import assert_never

from idemproxy.core.fingerprint import LARGE_BODY
from idemproxy.core.headers import nominated, nominates_protected, to_client
from idemproxy.core.hops import Hop
from idemproxy.core.identity import NoKey, identify
from idemproxy.core.messages import Headers, Request
from idemproxy.core.policy import Operation, Unguarded
from idemproxy.core.problems import Code, Problem
from idemproxy.core.record import RecordId
from idemproxy.core.replies import Reply, refusal
from idemproxy.edge.clients import Clients
from idemproxy.edge.heads import RefusedError
from idemproxy.edge.limits import ClientLimits
from idemproxy.edge.passthrough import Shown, Watch, pass_through
from idemproxy.edge.recall import Recall
from idemproxy.edge.requests import ClientGone, ClientRequest
from idemproxy.edge.streams import write_live
from idemproxy.edge.writing import whole_reply
from idemproxy.exchange import Exchange, Heard
from idemproxy.mcp.door import Door, Guarded, Refused, Through
from idemproxy.ports import Finished, Observer, OpenUpstream, Outcome, Trail
from idemproxy.wire import Http

log = logging.getLogger("idemproxy.http")

Match = Callable[[str, bytes], Operation | Unguarded | None]
Publish = Callable[[Request], Awaitable[Reply | None] | None]
"""The answer to a request that is for the proxy itself; None for every other one."""


class DataServer:
    """Handles every request of the data port."""

    def __init__(
        self,
        match: Match,
        exchange: Exchange,
        upstream: OpenUpstream,
        observer: Observer,
        limits: ClientLimits,
        *,
        hop: Hop,
        upstream_timeout: float,
        published: Publish,
        shown: Shown = to_client,
        tools: Door | None = None,
    ) -> None:
        self._match = match
        self._exchange = exchange
        self._upstream = upstream
        self._observer = observer
        self._limits = limits
        self._hop = hop
        self._timeout = upstream_timeout
        self._published = published
        self._shown = shown
        self._tools = tools
        self._recall = Recall(match, exchange, observer)
        self.clients = Clients(self._handle, self._recall, limits, observer.refused)

    @property
    def active(self) -> int:
        """Requests under way."""
        return self.clients.active

    async def _handle(self, request: ClientRequest) -> bool:
        try:
            try:
                request.check()
                return await self._answer(request)
            except RefusedError as refused:
                self.clients.count_refusal(refused.refused)
                problem = Problem(refused.refused.code)
            except ClientGone:
                raise
            except Exception:
                log.exception("a request failed")
                problem = Problem(Code.INTERNAL_ERROR)
            return await self._write(request, refusal(problem, guarded=False), keep_alive=False)
        except ClientGone:
            return False

    async def _answer(self, request: ClientRequest) -> bool:
        if self._hop.has_seen(request.head.headers):
            raise RefusedError(Code.LOOP_DETECTED, "the request came back to this proxy")
        headers = self._hop.introduce(request.head.headers, request.peer)
        head = Request(request.head.method, request.head.target, headers, b"")
        published = self._published(head)
        if published is not None and (own_reply := await published) is not None:
            return await self._write(request, own_reply)
        if self._tools is not None and head.method == "POST" and self._tools.serves(head.path):
            return await self._tool_message(request, head, self._tools)
        operation = self._match(head.method, head.path)
        own = operation.policy.own if isinstance(operation, Operation) else frozenset()
        if nominates_protected(nominated(head.headers), own):
            raise RefusedError(Code.PROTECTED_HEADER_NOMINATED, "Connection names an end-to-end field")
        if not isinstance(operation, Operation):
            return await self._pass_through(request, head, own, operation.marks if operation else ())
        return await self._guarded(request, head, operation)

    async def _guarded(self, request: ClientRequest, head: Request, operation: Operation) -> bool:
        started = time.monotonic()
        policy = operation.policy
        identity = None if policy.in_body else identify(head, operation)
        if isinstance(identity, NoKey):
            self._observer.unkeyed(operation)
            return await self._pass_through(request, head, policy.own, operation.marks)
        body = identity if isinstance(identity, Problem) else await self._body(request)
        if isinstance(body, Problem):
            id = identity if isinstance(identity, RecordId) else None
            return await self._refuse(request, head, operation, body, started, id=id)
        whole = Request(head.method, head.target, head.headers, body)
        if not isinstance(identity, RecordId):
            large = len(body) >= LARGE_BODY  # a key in it, or derived from it, must not hold up everybody else
            identity = await asyncio.to_thread(identify, whole, operation) if large else identify(whole, operation)
        if isinstance(identity, NoKey):
            self._observer.unkeyed(operation)
            return await self._pass_through(request, whole, policy.own, operation.marks)
        if isinstance(identity, Problem):
            return await self._refuse(request, head, operation, identity, started)
        trail = Trail(time.monotonic())
        heard = await self._exchange.guard(whole, identity, Http(policy), trail)
        if heard.outcome is Outcome.REPLAY:
            self._recall.learn(request, head, operation, identity, trail.fingerprint)
        return await self._tell(request, head, operation, identity, heard, trail, started)

    async def _tool_message(self, request: ClientRequest, head: Request, tools: Door) -> bool:
        """A message on the MCP path: read whole before anything is decided, for what it asks is in the body."""
        started = time.monotonic()
        own = tools.policy.own
        protected = nominates_protected(nominated(head.headers), own)
        body = Problem(Code.PROTECTED_HEADER_NOMINATED) if protected else await self._body(request)
        if isinstance(body, Problem):
            decision: Through | Guarded | Refused = tools.refused(body, head)
        else:
            whole = Request(head.method, head.target, head.headers, body)
            decision = await tools.decide(whole, self._limits.max_request_bytes)
        match decision:
            case Through(request=whole, watch=watch, unkeyed=unkeyed):
                if unkeyed is not None:
                    self._observer.unkeyed(unkeyed)
                return await self._pass_through(request, whole, own, (), watch)
            case Guarded(request=whole, operation=operation, id=id, wire=wire):
                trail = Trail(time.monotonic())
                heard = await self._exchange.guard(whole, id, wire, trail)
                return await self._tell(request, head, operation, id, heard, trail, started)
            case Refused(operation=operation, reply=reply):
                seconds = time.monotonic() - started
                self._observer.finished(Finished(Outcome.INVALID, head, operation, None, reply.status, seconds, None))
                return await self._write(request, reply)
            case _:
                assert_never(decision)

    async def _tell(
        self,
        request: ClientRequest,
        head: Request,
        operation: Operation,
        identity: RecordId,
        heard: Heard,
        trail: Trail,
        started: float,
    ) -> bool:
        reply = heard.reply.with_fields(operation.marks) if operation.marks else heard.reply
        seconds = time.monotonic() - started
        finished = Finished(heard.outcome, head, operation, identity, reply.status, seconds, trail)
        if isinstance(reply, Reply):
            self._observer.finished(finished)
            return await self._write(request, reply)
        try:
            return await write_live(request, reply)
        finally:  # how a live answer ended is known with its end
            self._observer.finished(finished)

    async def _refuse(
        self,
        request: ClientRequest,
        head: Request,
        operation: Operation,
        problem: Problem,
        started: float,
        *,
        id: RecordId | None = None,
    ) -> bool:
        seconds = time.monotonic() - started
        reply = refusal(problem, id.key if id else None, dialect=operation.policy.dialect).with_fields(operation.marks)
        self._observer.finished(Finished(Outcome.INVALID, head, operation, id, reply.status, seconds, None))
        if problem.code in (Code.REQUEST_BODY_TOO_LARGE, Code.REQUEST_BODY_TIMEOUT):
            self._observer.refused(problem.code)
        return await self._write(request, reply)

    async def _body(self, request: ClientRequest) -> bytes | Problem:
        """The whole body, or why it cannot be had. A client that breaks off raises ClientGone: no answer."""
        limit = self._limits.max_request_bytes
        if (request.head.length or 0) > limit:
            return Problem(Code.REQUEST_BODY_TOO_LARGE)
        if not request.head.has_body:
            return b""
        if request.received:
            body = request.taken()
            return body if len(body) <= limit else Problem(Code.REQUEST_BODY_TOO_LARGE)
        pieces: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                while piece := await request.read():
                    size += len(piece)
                    if size > limit:
                        return Problem(Code.REQUEST_BODY_TOO_LARGE)
                    pieces.append(piece)
        except TimeoutError:
            return Problem(Code.REQUEST_BODY_TIMEOUT)
        return b"".join(pieces)

    async def _pass_through(
        self,
        request: ClientRequest,
        whole: Request,
        own: frozenset[bytes],
        marks: Headers,
        watch: Watch | None = None,
    ) -> bool:
        passed = await pass_through(
            request,
            whole,
            self._upstream,
            hop=self._hop,
            own=own,
            marks=marks,
            shown=self._shown,
            watch=watch,
            timeout=self._timeout,
        )
        if isinstance(passed, Problem):
            return await self._write(request, refusal(passed, guarded=False), keep_alive=False)
        return passed

    async def _write(self, request: ClientRequest, reply: Reply, *, keep_alive: bool = True) -> bool:
        keep_alive = keep_alive and request.keep_alive
        head = request.head
        request.write(whole_reply(reply, method=head.method, minor=head.minor, keep_alive=keep_alive))
        if request.blocked:
            await request.drain()
        return keep_alive
