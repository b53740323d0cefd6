"""One connection to the upstream: a transport, and whether it may carry another request."""

from __future__ import annotations

import asyncio
import select
from typing import Protocol, cast

_END = getattr(select, "POLLRDHUP", 0)
"""The other side has ended the connection, whatever it has sent before. Only Linux tells."""


NEVER = float("inf")


class Pool(Protocol):
    """What a connection tells its owner."""

    def opened(self, connection: Connection) -> None: ...

    def release(self, connection: Connection) -> None:
        """The round trip ended well: the connection may carry another one."""

    def gone(self, connection: Connection) -> None:
        """The socket is closed, for whatever reason."""


class Traffic(Protocol):
    """What a connection carries at the moment."""

    def feed(self, data: bytes) -> None: ...

    def ended(self, error: Exception | None) -> None:
        """The connection ended: `error` is None when the upstream closed it in order."""

    def late(self) -> None:
        """It was watched, and the time has come."""


class Connection(asyncio.Protocol):
    """A transport and what is known about it."""

    __slots__ = (
        "_blocked",
        "_drained",
        "_due",
        "_loop",
        "_paused",
        "_poll",
        "_pool",
        "_timer",
        "_transport",
        "idle_since",
        "traffic",
    )

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._transport: asyncio.Transport
        self._poll: select.poll
        self._paused = False
        self._blocked = False
        self._drained: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due = NEVER
        self.traffic: Traffic | None = None
        self.idle_since = 0.0

    def alive(self) -> bool:
        """Whether a request may be written: not closing, and the kernel holds no end and no byte unread.
        Under TLS, bytes may come at any time (tickets): there it is the end alone.

        The kernel is asked because the event loop reports an end only when it next polls; a request written
        in between would be lost, and nobody could say whether it was executed.
        """
        if self._transport.is_closing():
            return False
        return not self._poll.poll(0)

    def begin(self, traffic: Traffic, data: bytes) -> None:
        self.traffic = traffic
        self._transport.write(data)

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    async def drained(self) -> None:
        """Wait until the transport takes more. Ended by cancellation when the round trip ends first."""
        while self._blocked:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    # One timer, moved only when it fires or would fire too late: hardly any request is ever late.

    def watch(self, when: float) -> None:
        """Tell the traffic that it is late, unless it is unwatched before that time of the loop's clock."""
        self._due = when
        if self._timer is None or self._timer.when() > when:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(when, self._look)

    def unwatch(self) -> None:
        self._due = NEVER

    def _look(self) -> None:
        self._timer = None
        if self._due == NEVER:
            return
        if self._loop.time() < self._due:
            self._timer = self._loop.call_at(self._due, self._look)
        else:
            self._due = NEVER
            if self.traffic is not None:
                self.traffic.late()

    def pause(self) -> None:
        if not self._paused and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    def end(self, *, reusable: bool) -> None:
        """The round trip has ended. What is still unsent belongs to a request that was answered early."""
        self.traffic = None
        self._due = NEVER
        if reusable and not self._transport.is_closing() and not self._transport.get_write_buffer_size():
            self.resume()
            self._pool.release(self)
        else:
            self.drop()

    def drop(self) -> None:
        """Close at once: `close` would go on sending what is buffered of a request that was given up."""
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's transports do not inherit from it
        self._transport = transport
        # Neither asyncio's nor uvloop's socket view can recv(MSG_PEEK); poll(0) asks the same at 0.3 µs,
        # where a dup'ed socket costs 3.5 µs. Errors and hang-ups are reported without being asked for.
        plain = transport.get_extra_info("sslcontext") is None
        self._poll = select.poll()
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN if plain else _END)
        self._pool.opened(self)

    def data_received(self, data: bytes) -> None:
        if self.traffic is not None:
            self.traffic.feed(data)
        else:
            self.drop()  # an answer nobody asked for would be taken for the answer to the next request

    def eof_received(self) -> None:
        if self.traffic is not None:
            self.traffic.ended(None)
        self.drop()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self.traffic is not None:
            self.traffic.ended(exc or ConnectionAbortedError("the connection was closed on this side"))
        self._pool.gone(self)

    def pause_writing(self) -> None:
        self._blocked = True

    def resume_writing(self) -> None:
        self._blocked = False
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
