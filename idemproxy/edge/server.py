"""The data port: reads requests, decides which are guarded, writes replies byte for byte.

aiohttp parses and keeps the connections; what goes out is written here, because a proxy must add, drop and reorder
nothing of what is not its own.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from email.utils import formatdate
from typing import Any, assert_never, cast

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from idemproxy.core.fingerprint import LARGE_BODY
from idemproxy.core.headers import nominated, nominates_protected, to_client, to_upstream
from idemproxy.core.identity import NoKey, identify, needs_body
from idemproxy.core.messages import Headers, Request, header_value
from idemproxy.core.policy import Operation, Unguarded
from idemproxy.core.problems import Code, Problem
from idemproxy.core.record import RecordId
from idemproxy.core.replies import Reply, refusal
from idemproxy.exchange import Exchange, Heard, LiveReply, own_names
from idemproxy.mcp.door import Door, Guarded, Refused, Through
from idemproxy.ports import BodyLost, Finished, Loss, Lost, NotSent, Observer, Opened, Outcome, Upstream

log = logging.getLogger("idemproxy.http")

BODY_SECONDS = 60.0
"""For the whole body of a guarded request: a client that drips it must not hold a place for ever."""
NO_BODY = (204, 304)

Match = Callable[[str, bytes], Operation | Unguarded | None]
Publish = Callable[[Request], Awaitable[Reply | None]]
"""The answer to a request that is for the proxy itself; None for every other one."""

_LOSS_CODES = {
    Loss.TIMEOUT: Code.UPSTREAM_TIMEOUT,
    Loss.DISCONNECTED: Code.UPSTREAM_DISCONNECTED,
    Loss.INVALID: Code.UPSTREAM_INVALID_RESPONSE,
}


class Written:
    """Tells aiohttp that the reply is on the wire already, and whether the connection may stay."""

    def __init__(self, *, keep_alive: bool) -> None:
        self.keep_alive = keep_alive
        self.status = 0
        self.body_length = 0

    async def prepare(self, _: web.BaseRequest) -> None:
        """Nothing is left to be prepared."""

    async def write_eof(self) -> None:
        """Nothing is left to be written."""


class DataServer:
    """Handles every request of the data port."""

    def __init__(
        self,
        match: Match,
        exchange: Exchange,
        upstream: Upstream,
        observer: Observer,
        *,
        host: bytes,
        upstream_timeout: float,
        max_request_bytes: int,
        published: Publish,
        tools: Door | None = None,
    ) -> None:
        self._match = match
        self._exchange = exchange
        self._upstream = upstream
        self._observer = observer
        self._host = host
        self._timeout = upstream_timeout
        self._max_bytes = max_request_bytes
        self._published = published
        self._tools = tools
        self.active = 0
        self.closing = False

    def protocol_factory(self) -> _Server:
        return _Server(
            cast(Any, self._handle),
            access_log=None,
            logger=log,
            auto_decompress=False,
            handler_cancellation=False,
            keepalive_timeout=75,
            lingering_time=2,
            max_headers=128,
        )

    async def _handle(self, request: web.BaseRequest) -> Written:
        self.active += 1
        try:
            return await self._answer(request)
        except ConnectionError:
            return Written(keep_alive=False)  # the client has gone: there is nobody to tell
        except Exception:
            log.exception("a request failed")
            return await _write(request, refusal(Problem(Code.INTERNAL_ERROR), guarded=False), keep_alive=False)
        finally:
            self.active -= 1

    async def _answer(self, request: web.BaseRequest) -> Written:
        target = request.raw_path.encode("utf-8", "surrogateescape")
        headers: Headers = request.raw_headers
        keep_alive = request.keep_alive and not self.closing
        if not target.startswith(b"/") or request.version > (1, 1):
            return await _write(request, refusal(Problem(Code.BAD_REQUEST), guarded=False), keep_alive=False)
        head = Request(request.method, target, headers, b"")
        own_reply = await self._published(head)
        if own_reply is not None:
            return await _write(request, own_reply, keep_alive=keep_alive)
        if self._tools is not None and request.method == "POST" and self._tools.serves(head.path):
            return await self._tool_message(request, head, self._tools, keep_alive)
        operation = self._match(request.method, head.path)
        own = own_names(operation.policy) if isinstance(operation, Operation) else frozenset()
        if nominates_protected(nominated(headers), own):
            problem = Problem(Code.PROTECTED_HEADER_NOMINATED)
            return await _write(request, refusal(problem, guarded=False), keep_alive=False)
        if not isinstance(operation, Operation):
            return await self._pass_through(request, head, own, keep_alive, operation.marks if operation else ())
        return await self._guarded(request, head, operation, keep_alive)

    async def _guarded(
        self, request: web.BaseRequest, head: Request, operation: Operation, keep_alive: bool
    ) -> Written:
        started = time.monotonic()
        identity = None if needs_body(operation.policy) else identify(head, operation)
        own = own_names(operation.policy)
        if isinstance(identity, NoKey):
            self._observer.unkeyed(operation)
            return await self._pass_through(request, head, own, keep_alive, operation.marks)
        body = identity if isinstance(identity, Problem) else await self._body(request)
        if isinstance(body, Problem):
            # The body was not read: what follows on this connection is not a request.
            id = identity if isinstance(identity, RecordId) else None
            keep_alive = keep_alive and not request.can_read_body
            return await self._refuse(request, head, operation, body, started, id=id, keep_alive=keep_alive)
        whole = Request(head.method, head.target, head.headers, body)
        if not isinstance(identity, RecordId):
            large = len(body) >= LARGE_BODY  # a key in it, or derived from it, must not hold up everybody else
            identity = await asyncio.to_thread(identify, whole, operation) if large else identify(whole, operation)
        if isinstance(identity, NoKey):
            self._observer.unkeyed(operation)
            return await self._pass_through(request, whole, own, keep_alive, operation.marks)
        if isinstance(identity, Problem):
            return await self._refuse(request, head, operation, identity, started, keep_alive=keep_alive)
        heard = await self._exchange.guard(whole, operation, identity)
        return await self._tell(request, head, operation, identity, heard, started, keep_alive)

    async def _tool_message(self, request: web.BaseRequest, head: Request, tools: Door, keep_alive: bool) -> Written:
        """A message on the MCP path: read whole before anything is decided, for what it asks is in the body."""
        started = time.monotonic()
        own = own_names(tools.policy)
        protected = nominates_protected(nominated(head.headers), own)
        body = Problem(Code.PROTECTED_HEADER_NOMINATED) if protected else await self._body(request)
        if isinstance(body, Problem):
            keep_alive = keep_alive and not request.can_read_body
            decision: Through | Guarded | Refused = tools.refused(body, head)
        else:
            decision = await tools.decide(Request(head.method, head.target, head.headers, body), self._max_bytes)
        match decision:
            case Through(request=whole, watch=watch, unkeyed=unkeyed):
                if unkeyed is not None:
                    self._observer.unkeyed(unkeyed)
                return await self._pass_through(request, whole, own, keep_alive, (), watch)
            case Guarded(request=whole, operation=operation, id=id, wire=wire):
                heard = await self._exchange.guard(whole, operation, id, wire)
                return await self._tell(request, head, operation, id, heard, started, keep_alive)
            case Refused(operation=operation, reply=reply):
                seconds = time.monotonic() - started
                self._observer.finished(Finished(Outcome.INVALID, head, operation, None, reply.status, seconds, None))
                return await _write(request, reply, keep_alive=keep_alive)
            case _:
                assert_never(decision)

    async def _tell(
        self,
        request: web.BaseRequest,
        head: Request,
        operation: Operation,
        identity: RecordId,
        heard: Heard,
        started: float,
        keep_alive: bool,
    ) -> Written:
        reply = replace(heard.reply, headers=heard.reply.headers + operation.marks)
        seconds = time.monotonic() - started
        self._observer.finished(Finished(heard.outcome, head, operation, identity, reply.status, seconds, heard.trail))
        keep_alive = keep_alive and not self.closing
        if isinstance(reply, Reply):
            return await _write(request, reply, keep_alive=keep_alive)
        return await _write_live(request, reply, keep_alive=keep_alive)

    async def _refuse(
        self,
        request: web.BaseRequest,
        head: Request,
        operation: Operation,
        problem: Problem,
        started: float,
        *,
        id: RecordId | None = None,
        keep_alive: bool,
    ) -> Written:
        seconds = time.monotonic() - started
        reply = refusal(problem, id.key if id else None, dialect=operation.policy.dialect)
        reply = replace(reply, headers=reply.headers + operation.marks)
        self._observer.finished(Finished(Outcome.INVALID, head, operation, id, reply.status, seconds, None))
        return await _write(request, reply, keep_alive=keep_alive)

    async def _body(self, request: web.BaseRequest) -> bytes | Problem:
        """The whole body, or why it cannot be had. A client that breaks off raises ConnectionError: no answer."""
        if (request.content_length or 0) > self._max_bytes:
            return Problem(Code.REQUEST_BODY_TOO_LARGE)
        if not request.can_read_body:
            return b""
        _continue(request)
        pieces: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while piece := await request.content.readany():
                    size += len(piece)
                    if size > self._max_bytes:
                        return Problem(Code.REQUEST_BODY_TOO_LARGE)
                    pieces.append(piece)
        except TimeoutError:
            return Problem(Code.REQUEST_BODY_TIMEOUT)
        except web.RequestPayloadError:
            return Problem(Code.BAD_REQUEST)
        return b"".join(pieces)

    async def _pass_through(
        self,
        request: web.BaseRequest,
        head: Request,
        own: frozenset[bytes],
        keep_alive: bool,
        marks: Headers,
        watch: Callable[[Opened], Opened] | None = None,
    ) -> Written:
        """Not guarded: streamed both ways, never sent twice, nothing remembered."""
        framing, body = _body_stream(request, head)
        sent = await self._upstream.send(
            head.method,
            head.target,
            to_upstream(head.headers, host=self._host, framing=framing, own=own),
            body,
            timeout=self._timeout,
        )
        if isinstance(sent, NotSent):
            problem = Problem(Code.UPSTREAM_UNREACHABLE, retry_after=1)
            return await _write(request, refusal(problem, guarded=False), keep_alive=False)
        if isinstance(sent, Lost):
            problem = Problem(_LOSS_CODES[sent.loss])
            return await _write(request, refusal(problem, guarded=False), keep_alive=False)
        return await self._stream_back(request, watch(sent) if watch else sent, keep_alive, marks)

    async def _stream_back(self, request: web.BaseRequest, opened: Opened, keep_alive: bool, marks: Headers) -> Written:
        bodiless = request.method == "HEAD" or opened.status in NO_BODY
        length = header_value(opened.headers, b"content-length")
        chunked = not bodiless and length is None and request.version >= (1, 1)
        if not bodiless and length is None and not chunked:
            keep_alive = False  # HTTP/1.0 has no other way to say where the body ends
        lines = to_client(opened.headers) + marks
        if chunked:
            lines += ((b"Transfer-Encoding", b"chunked"),)
        _send(request, _head(opened.status, opened.reason, lines, request, keep_alive=keep_alive))
        try:
            while piece := await opened.body.read():
                _send(request, b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
                await request.writer.drain()
            if chunked:
                trailers = b"".join(b"%b: %b\r\n" % line for line in opened.body.trailers)
                _send(request, b"0\r\n" + trailers + b"\r\n")
        except BodyLost:
            return _cut(request)
        except BaseException:
            opened.body.close()
            raise
        return Written(keep_alive=keep_alive)


class _Handler(RequestHandler):
    """aiohttp's connection, with our words for what its parser refuses."""

    def handle_error(
        self,
        request: web.BaseRequest,  # noqa: ARG002 - aiohttp's signature
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - aiohttp's signature
    ) -> web.StreamResponse:
        log.info("refused a request that is not valid HTTP: %s", type(exc).__name__ if exc else status)
        code = Code.BAD_REQUEST if status < 500 else Code.INTERNAL_ERROR
        reply = refusal(Problem(code), guarded=False)
        transport = self.transport
        if transport is not None and not transport.is_closing():
            transport.write(_head(reply.status, reply.reason, _framed(reply), None, keep_alive=False) + reply.body)
        self.close()
        return cast(web.StreamResponse, Written(keep_alive=False))


class _Server(web.Server):
    def __call__(self) -> RequestHandler:
        return _Handler(self, loop=self._loop, **self._kwargs)


def _body_stream(
    request: web.BaseRequest, head: Request
) -> tuple[tuple[bytes, bytes] | None, bytes | AsyncIterator[bytes]]:
    """The framing of a request's body as the upstream gets it, and the body itself as a stream."""
    if head.body:
        return (b"Content-Length", str(len(head.body)).encode()), head.body
    length = header_value(head.headers, b"content-length")
    if length is not None:
        framing = (b"Content-Length", str(int(length)).encode())
        return framing, _pieces(request) if int(length) else b""
    if header_value(head.headers, b"transfer-encoding") is not None:
        return (b"Transfer-Encoding", b"chunked"), _pieces(request)
    return None, b""


async def _pieces(request: web.BaseRequest) -> AsyncIterator[bytes]:
    _continue(request)
    while piece := await request.content.readany():
        yield piece


def _continue(request: web.BaseRequest) -> None:
    """The client waits to be asked for its body; by now everything that could refuse it has looked at it."""
    expect = header_value(request.raw_headers, b"expect")
    if expect is not None and expect.strip().lower() == b"100-continue" and not request.content.is_eof():
        _send(request, b"HTTP/1.1 100 Continue\r\n\r\n")


_date: tuple[int, bytes] = (0, b"")


def _now() -> bytes:
    """The Date header, made once a second."""
    global _date
    second = int(time.time())
    if _date[0] != second:
        _date = (second, formatdate(second, usegmt=True).encode())
    return _date[1]


def _framed(reply: Reply) -> Headers:
    lines = tuple(line for line in reply.headers if line[0].lower() != b"content-length")
    if reply.status in NO_BODY:
        return lines
    return (*lines, (b"Content-Length", str(len(reply.body)).encode()))


def _head(status: int, reason: bytes, headers: Headers, request: web.BaseRequest | None, *, keep_alive: bool) -> bytes:
    lines = [b"HTTP/1.1 %d %b\r\n" % (status, reason)]
    dated = False
    for name, value in headers:
        lines.append(b"%b: %b\r\n" % (name, value))
        dated = dated or name.lower() == b"date"
    if not dated:
        lines.append(b"Date: %b\r\n" % _now())
    if not keep_alive:
        lines.append(b"Connection: close\r\n")
    elif request is not None and request.version < (1, 1):
        lines.append(b"Connection: keep-alive\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)


def _send(request: web.BaseRequest, data: bytes) -> None:
    transport = request.transport
    if transport is None or transport.is_closing():
        raise ConnectionResetError("the client has gone")
    transport.write(data)


async def _write(request: web.BaseRequest, reply: Reply, *, keep_alive: bool) -> Written:
    head = _head(reply.status, reply.reason, _framed(reply), request, keep_alive=keep_alive)
    _send(request, head if reply.status in NO_BODY else head + reply.body)
    await request.writer.drain()
    return Written(keep_alive=keep_alive)


async def _write_live(request: web.BaseRequest, reply: LiveReply, *, keep_alive: bool) -> Written:
    chunked = reply.length is None and request.version >= (1, 1)
    if reply.length is None and not chunked:
        keep_alive = False
    lines = reply.headers + (((b"Transfer-Encoding", b"chunked"),) if chunked else ())
    try:
        _send(request, _head(reply.status, reply.reason, lines, request, keep_alive=keep_alive))
        while piece := await reply.pipe.get():
            _send(request, b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            await request.writer.drain()
        if chunked:
            _send(request, b"0\r\n\r\n")
    except BodyLost:
        return _cut(request)
    finally:
        reply.pipe.leave()
    return Written(keep_alive=keep_alive)


def _cut(request: web.BaseRequest) -> Written:
    """The answer broke off after its head had gone out: the client must see that it is not whole."""
    if request.transport is not None:
        request.transport.abort()
    return Written(keep_alive=False)
