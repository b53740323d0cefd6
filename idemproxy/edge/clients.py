"""The connections of clients: their requests in, replies out, one at a time and in order.

A connection is idle, in the middle of a head, or busy with one request; while it is busy, what a client sends ahead
waits. It has one timer, and reads nothing more than it can hand on. A client that hangs up does not stop the handler.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import cast

from idemproxy.core.problems import Code, Problem
from idemproxy.core.replies import refusal
from idemproxy.edge.heads import Refused, read_head, unfinished
from idemproxy.edge.limits import LINGER_SECONDS, MAX_LINGERING, READ_AHEAD_BYTES, WRITE_STALL_SECONDS, ClientLimits
from idemproxy.edge.requests import ClientGone, ClientRequest
from idemproxy.edge.writing import whole_reply
from idemproxy.tasks import Tasks

log = logging.getLogger("idemproxy.http")

SHED_RETRY_SECONDS = 1
ALLOW = (b"Allow", b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")


Handler = Callable[[ClientRequest], Awaitable[bool]]
"""Answers a request; True when the connection may carry another one."""
Recalled = Callable[[str, bytes], bytes | None]
"""The reply to these bytes from this peer, if they are a whole request that has been answered before."""


class Clients:
    """All connections of clients, and the protocol factory that makes them."""

    def __init__(
        self, handler: Handler, recalled: Recalled, limits: ClientLimits, refused: Callable[[Code], None]
    ) -> None:
        self.handler = handler
        self.recalled = recalled
        self.limits = limits
        self._refused = refused
        self._open: set[ClientConnection] = set()
        self.idle: dict[ClientConnection, None] = {}
        """In the order in which they became idle."""
        self.lingering: set[ClientConnection] = set()
        self.tasks = Tasks()
        self.active = 0
        """Requests under way."""
        self.closing = False

    def __call__(self) -> ClientConnection:
        return ClientConnection(self)

    def admit(self, connection: ClientConnection) -> bool:
        """Count a new connection in; at the limit, at the expense of the one that has been idle the longest."""
        if len(self._open) >= self.limits.max_connections:
            oldest = next(iter(self.idle), None)
            if oldest is None:
                return False
            oldest.abort()
            self.forget(oldest)
        self._open.add(connection)
        return True

    def forget(self, connection: ClientConnection) -> None:
        self._open.discard(connection)
        self.idle.pop(connection, None)
        self.lingering.discard(connection)

    def count_refusal(self, refused: Refused) -> None:
        self._refused(refused.code)
        log.info("refused: %s", refused.why, extra={"fields": {"code": refused.code.name}})

    def stop_keeping(self) -> None:
        """Close what is idle now, and everything else after its reply."""
        self.closing = True
        for connection in list(self.idle):
            connection.close()

    async def shutdown(self, timeout: float) -> None:
        self.stop_keeping()
        await self.tasks.finished(timeout)
        for connection in self._open | self.lingering:
            connection.abort()
        await self.tasks.cancel()


class ClientConnection(asyncio.Protocol):
    __slots__ = (
        "_clients",
        "_deadline",
        "_drained",
        "_ended",
        "_late",
        "_loop",
        "_paused",
        "_request",
        "_skip_empty_line",
        "_timer",
        "_transport",
        "_unread",
        "blocked",
        "peer",
    )

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._request: ClientRequest | None = None
        self._unread = b""
        """Sent ahead of a reply, or the beginning of a head."""
        self._skip_empty_line = True
        self._paused = False
        self._ended = False
        """The client has sent all it will ever send: the answer is still written."""
        self.blocked = False
        self._drained: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0
        self._late: Callable[[], None] | None = None
        """What happens at the deadline; None when there is none."""
        self.peer = ""

    # From the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports do not inherit from it
        peer = transport.get_extra_info("peername")
        self.peer = peer[0] if isinstance(peer, tuple) else ""
        if self._clients.admit(self):
            self._rest()
        else:
            self._refuse(Refused(Code.TOO_MANY_CONNECTIONS, "too many connections"))

    def data_received(self, data: bytes) -> None:
        request = self._request
        if self in self._clients.lingering:
            pass
        elif request is None:
            if not self._recall(data):
                self._unread += data
                self._next_request()
        elif request.received:
            self._unread += data
            if len(self._unread) > READ_AHEAD_BYTES:
                self.pause()
        else:
            rest = request.feed(data)
            if rest:
                self._unread = rest

    def eof_received(self) -> bool:
        self._ended = True
        request = self._request
        if request is None:
            return False
        request.fail(ClientGone("the client broke off its request"))
        return not request.gone

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._clients.forget(self)
        self._late = None
        if self._timer is not None:
            self._timer.cancel()
        if self._request is not None:
            self._request.fail(ClientGone("the client has gone"))
        self.resume_writing()

    def pause_writing(self) -> None:
        self.blocked = True

    def resume_writing(self) -> None:
        self.blocked = False
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    # Requests

    @property
    def closing(self) -> bool:
        return self._clients.closing or (self._ended and not self._unread)

    def _rest(self) -> None:
        """Between two requests."""
        if self.closing:
            self.close()
            return
        self._clients.idle[self] = None
        self._set_deadline(self._clients.limits.idle_seconds, self.close)

    def _next_request(self) -> None:
        limits = self._clients.limits
        if self._skip_empty_line and self._unread.startswith(b"\r\n"):
            self._skip_empty_line = False  # one is forgiven (RFC 9112 §2.2): old clients end a body with it
            self._unread = self._unread[2:]
        end = self._unread.find(b"\r\n\r\n")
        if end < 0:
            self._wait_for_head(limits)
            return
        head = read_head(self._unread[:end], limits)
        whole, rest = self._unread, self._unread[end + 4 :]
        self._late = None
        self._clients.idle.pop(self, None)
        if isinstance(head, Refused):
            self._refuse(head)
        elif self._clients.active >= limits.max_in_flight:
            self._refuse(Refused(Code.TOO_MANY_REQUESTS_IN_FLIGHT, "too many requests in flight"), head.method)
        else:
            self._unread = b""
            self._skip_empty_line = True
            self._request = request = ClientRequest(self, head, limits)
            self._unread = rest if request.received else request.feed(rest) or b""
            if request.received and not self._unread:
                request.raw = whole
            if self._ended:
                request.fail(ClientGone("the client broke off its request"))
            self._clients.active += 1
            self._clients.tasks.spawn(self._serve(request), "request")

    def _recall(self, data: bytes) -> bool:
        """Answer a retry that needs no reading, if this connection could carry another request after it."""
        if self._unread or self.blocked or self.closing:
            return False
        reply = self._clients.recalled(self.peer, data)
        if reply is None:
            return False
        self._transport.write(reply)
        self._skip_empty_line = True
        self._clients.idle.pop(self, None)
        self._rest()
        return True

    def _wait_for_head(self, limits: ClientLimits) -> None:
        if not self._unread:
            self._rest()
            return
        wrong = unfinished(self._unread, limits)
        if wrong is not None:
            self._refuse(wrong)
        elif self._ended:
            self.close()
        elif self._late != self._head_late:
            self._clients.idle.pop(self, None)
            self._set_deadline(limits.head_seconds, self._head_late)

    def _head_late(self) -> None:
        self._refuse(Refused(Code.REQUEST_HEAD_TIMEOUT, "head did not arrive in time"))

    def feed_ahead(self) -> None:
        """What the client sent before its request was answered belongs to the protocol it has switched to."""
        ahead, self._unread = self._unread, b""
        if ahead:
            self.data_received(ahead)
        if self._ended and self._request is not None:
            self._request.fail(ClientGone("the client has ended"))

    async def _serve(self, request: ClientRequest) -> None:
        keep_alive = False
        try:
            keep_alive = await self._clients.handler(request)
        finally:
            self._request = None
            self._clients.active -= 1
            if self._transport.is_closing():
                pass
            elif not keep_alive or self._clients.closing:
                self._close_gently(unread=not request.received or bool(self._unread))
            else:
                self.resume()
                self._next_request()

    def _refuse(self, refused: Refused, method: str = "") -> None:
        """Answer what cannot be served, and close: whatever follows is not known to be a request."""
        self._clients.idle.pop(self, None)
        self._clients.count_refusal(refused)
        shed = refused.code in (Code.TOO_MANY_CONNECTIONS, Code.TOO_MANY_REQUESTS_IN_FLIGHT)
        problem = Problem(refused.code, retry_after=SHED_RETRY_SECONDS if shed else None)
        reply = refusal(problem, guarded=False)
        if refused.code is Code.METHOD_NOT_ALLOWED:
            reply = reply.with_fields((ALLOW,))
        self._transport.write(whole_reply(reply, method=method, minor=1, keep_alive=False))
        self._close_gently(unread=True)

    # The deadline: one timer that is moved only when it fires or would fire too late

    def _set_deadline(self, seconds: float, late: Callable[[], None]) -> None:
        self._deadline = self._loop.time() + seconds
        self._late = late
        if self._timer is None or self._timer.when() > self._deadline:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(self._deadline, self._due)

    def _due(self) -> None:
        self._timer = None
        if self._late is None:
            return
        if self._loop.time() < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._due)
        else:
            late, self._late = self._late, None
            late()

    # Back-pressure and the end

    def pause(self) -> None:
        if not self._paused and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    def write(self, data: bytes) -> None:
        if self._transport.is_closing():
            raise ClientGone("the client has gone")
        self._transport.write(data)

    async def drain(self) -> None:
        """Wait until the client has taken enough of what was written."""
        while self.blocked:
            self._drained = self._loop.create_future()
            stalled = self._loop.call_later(WRITE_STALL_SECONDS, self.abort)
            try:
                await self._drained
            finally:
                stalled.cancel()
        if self._transport.is_closing():
            raise ClientGone("the client has gone")

    def _close_gently(self, *, unread: bool) -> None:
        if not unread or self._ended or len(self._clients.lingering) >= MAX_LINGERING:
            self.close()
            return
        self._clients.lingering.add(self)
        self._unread = b""
        self.resume()
        self._transport.write_eof()
        self._set_deadline(LINGER_SECONDS, self._lingered)

    def _lingered(self) -> None:
        if self._transport.get_write_buffer_size():
            self._set_deadline(WRITE_STALL_SECONDS, self.abort)  # a slow client is still taking its answer
        else:
            self.abort()

    def close(self) -> None:
        """Close once what was written has been taken."""
        self._transport.close()
        if self._transport.get_write_buffer_size():
            self._set_deadline(WRITE_STALL_SECONDS, self.abort)

    def abort(self) -> None:
        self._transport.abort()

    def reset(self) -> None:
        """Abort, and not with the end in good order that would make a body without a length look whole."""
        sock = self._transport.get_extra_info("socket")
        if sock is not None and not self._transport.is_closing():
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()
