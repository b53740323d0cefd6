"""The client that talks to the API: a pool of connections, and the proof of what was and was not sent.

`NotSent` is given only while not one byte of the request was handed to a transport. From the first byte on,
all that is not the whole head of an answer is `Lost`. Nothing is ever sent twice, whatever the method: a
pooled connection is proved alive before it is written to; if it dies later, the caller decides what it means.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterable, Callable

from idemproxy.core.headers import on_the_wire
from idemproxy.core.messages import Headers, header_values
from idemproxy.edge.connection import Connection
from idemproxy.edge.origin import Origin
from idemproxy.edge.roundtrip import RoundTrip
from idemproxy.ports import Interim, Lost, NotSent, Opened, Switched
from idemproxy.tasks import Tasks


class HttpUpstream:
    """`ports.Upstream` over HTTP/1.1."""

    def __init__(
        self,
        origin: Origin,
        *,
        connect_timeout: float = 2.0,  # a SYN lost once is sent again after 1 s: one retransmission fits
        idle_seconds: float = 4.0,  # below the 5 s after which common servers (Node, uvicorn) close idle ones
        max_connections: int = 256,  # leaves most of the usual 1024 descriptors to the clients' side
        max_idle: int = 64,  # a burst's connections are not worth keeping
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._origin = origin
        self._tls = (tls or ssl.create_default_context()) if origin.scheme == "https" else None
        self._connect_timeout = connect_timeout
        self._idle_seconds = idle_seconds
        self._max_connections = max_connections
        self._max_idle = max_idle
        self._open: set[Connection] = set()
        self._connecting = 0
        """Slots taken by connections that are being made, or that a waiter was told to make."""
        self._idle: deque[Connection] = deque()
        """The longest idle first; taken from the other end, so that a burst's surplus grows old and goes."""
        self._waiters: deque[asyncio.Future[Connection | None]] = deque()
        """Given a connection, or None: a slot to make one."""
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = Tasks()
        self._closed = False
        self._all_gone: asyncio.Future[None] | None = None

    @property
    def authority(self) -> bytes:
        return self._origin.authority

    async def send(
        self,
        method: str,
        target: bytes,
        headers: Headers,
        body: bytes | AsyncIterable[bytes],
        *,
        timeout: float,
        interim: Interim | None = None,
        trailers: Callable[[], Headers] | None = None,
    ) -> Opened | NotSent | Lost:
        loop = self._loop
        deadline = loop.time() + timeout
        connection = self._take_idle(loop) or await self._acquire(loop, deadline)
        if isinstance(connection, NotSent):
            return connection
        trip = RoundTrip(connection, loop, head_only=method == "HEAD", timeout=timeout, interim=interim)
        head = self._head(method, target, headers)
        trip.start(head, body, chunked=_chunked(headers, body), trailers=trailers, tasks=self._tasks)
        result = await self._result(trip, deadline - loop.time())
        assert not isinstance(result, Switched)  # noqa: S101 - it was not asked for
        return result

    async def switch(
        self, method: str, target: bytes, headers: Headers, *, timeout: float
    ) -> Opened | Switched | NotSent | Lost:
        loop = self._loop
        deadline = loop.time() + timeout
        connection = self._take_idle(loop) or await self._acquire(loop, deadline)
        if isinstance(connection, NotSent):
            return connection
        trip = RoundTrip(connection, loop, head_only=method == "HEAD", timeout=timeout, may_switch=True)
        trip.start(self._head(method, target, headers), b"", chunked=False, trailers=None, tasks=self._tasks)
        return await self._result(trip, deadline - loop.time())

    def _head(self, method: str, target: bytes, headers: Headers) -> bytes:
        base = b"" if target == b"*" else self._origin.base_path
        return method.encode() + b" " + base + target + b" HTTP/1.1\r\n" + on_the_wire(headers) + b"\r\n"

    async def _result(self, trip: RoundTrip, seconds: float) -> Opened | Switched | Lost:
        head = trip.head
        assert head is not None  # noqa: S101 - nobody has asked before
        trip.watch(seconds)
        try:
            result = await head
            trip.head = None
            if trip.upload is not None and trip.upload.cancelling():
                # The body belongs to the caller again only when nobody else is reading it.
                await asyncio.wait([trip.upload])
        except BaseException:
            trip.close()
            raise
        finally:
            trip.unwatch()
        return result

    async def close(self) -> None:
        """Close every connection, in use or idle, and wait until they are gone."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self._open):
            connection.drop()
        if self._open:
            self._all_gone = asyncio.get_running_loop().create_future()
            await self._all_gone
        await self._tasks.cancel()

    # Getting a connection: nothing has been sent yet

    def _take_idle(self, loop: asyncio.AbstractEventLoop) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.alive() and loop.time() - connection.idle_since <= self._idle_seconds:
                return connection
            connection.drop()
        return None

    async def _acquire(self, loop: asyncio.AbstractEventLoop, deadline: float) -> Connection | NotSent:
        if len(self._open) + self._connecting < self._max_connections:
            self._connecting += 1
            return await self._connect(loop, deadline)
        waiter = loop.create_future()
        self._waiters.append(waiter)
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    connection = await self._turn(waiter)
            except TimeoutError:
                return NotSent(f"all {self._max_connections} connections to the upstream stayed busy")
            if connection is None:
                return await self._connect(loop, deadline)
            if connection.alive():
                return connection
            connection.drop()
            waiter = loop.create_future()
            self._waiters.appendleft(waiter)  # it has waited its time: nobody goes before it
            self._admit()  # the dead one may have given up its slot before this waiter was back in the queue

    async def _turn(self, waiter: asyncio.Future[Connection | None]) -> Connection | None:
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
            elif (connection := waiter.result()) is not None:
                self.release(connection)
            else:
                self._connecting -= 1
                self._admit()
            raise

    async def _connect(self, loop: asyncio.AbstractEventLoop, deadline: float) -> Connection | NotSent:
        """Make a connection in a slot already counted in `_connecting`."""
        connection: Connection | None = None
        try:
            if self._closed:
                return NotSent("the proxy is closing")
            connection = await self._dial(loop, min(deadline, loop.time() + self._connect_timeout))
        except TimeoutError:
            return NotSent("connecting to the upstream took too long")
        except (OSError, UnicodeError) as error:  # refused, unknown name, TLS; a name that IDNA cannot spell
            return NotSent(f"cannot connect to the upstream: {error}")
        finally:
            self._connecting -= 1
            self._admit()
        if not connection.alive():
            connection.drop()
            return NotSent("the upstream closed a new connection at once")
        return connection

    async def _dial(self, loop: asyncio.AbstractEventLoop, deadline: float) -> Connection:
        """Connect to the first address that takes it; one that keeps silent leaves time for those after it."""
        origin = self._origin
        async with asyncio.timeout_at(deadline):
            addresses = [origin.host] if origin.is_literal else await _addresses(loop, origin)
        for left, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
            connection = Connection(self)
            ready = False
            try:
                async with asyncio.timeout(max(0.0, deadline - loop.time()) / left):
                    if origin.unix_path is not None:
                        await loop.create_unix_connection(lambda: connection, origin.unix_path)  # noqa: B023
                    else:
                        name = origin.host if self._tls is not None else None
                        await loop.create_connection(
                            lambda: connection,  # noqa: B023 - called before the next turn
                            address,
                            origin.port,
                            ssl=self._tls,
                            server_hostname=name,
                        )
                ready = True
                return connection
            except OSError:  # a TimeoutError is one, too
                if left == 1:
                    raise
            finally:
                if not ready:
                    # uvloop, stopped after `connection_made`, closes the socket and never says `connection_lost`.
                    self.gone(connection)
        raise OSError(f"{origin.host} has no address")

    # Told by the connections

    def opened(self, connection: Connection) -> None:
        self._open.add(connection)
        if self._closed:
            connection.drop()

    def release(self, connection: Connection) -> None:
        if self._closed:
            connection.drop()
            return
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return
        loop = self._loop
        connection.idle_since = loop.time()
        self._idle.append(connection)
        if len(self._idle) > self._max_idle:
            self._idle.popleft().drop()
        if self._timer is None:
            self._timer = loop.call_later(self._idle_seconds, self._expire)

    def gone(self, connection: Connection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        self._admit()
        if self._all_gone is not None and not self._open and not self._all_gone.done():
            self._all_gone.set_result(None)

    def _admit(self) -> None:
        """Give free slots to those who wait, in their order."""
        while self._waiters and len(self._open) + self._connecting < self._max_connections:
            waiter = self._waiters.popleft()
            if not waiter.done():
                self._connecting += 1
                waiter.set_result(None)

    def _expire(self) -> None:
        """Close what has been idle for too long, and look again when the next one will have been."""
        loop = self._loop
        self._timer = None
        while self._idle and loop.time() - self._idle[0].idle_since >= self._idle_seconds:
            self._idle.popleft().drop()
        if self._idle:
            self._timer = loop.call_at(self._idle[0].idle_since + self._idle_seconds, self._expire)


async def _addresses(loop: asyncio.AbstractEventLoop, origin: Origin) -> list[str]:
    found = await loop.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[4][0]) for address in found))


def _chunked(headers: Headers, body: bytes | AsyncIterable[bytes]) -> bool:
    return not isinstance(body, bytes) and any(
        value.strip().lower() == b"chunked" for value in header_values(headers, b"transfer-encoding")
    )
