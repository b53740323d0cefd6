"""One request of a client: its head, its body as it arrives, and the way back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final, Protocol

from idemproxy.core.messages import Headers
from idemproxy.core.problems import Code
from idemproxy.edge.framing import Chunked, Endless, Sized, framing_of
from idemproxy.edge.heads import Head, RefusedError
from idemproxy.edge.limits import READ_AHEAD_BYTES, TUNNEL_IDLE_SECONDS, ClientLimits

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Line(Protocol):
    """What a request needs of the connection that it came on."""

    peer: str

    @property
    def closing(self) -> bool: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def feed_ahead(self) -> None: ...

    def write(self, data: bytes) -> None: ...

    @property
    def blocked(self) -> bool: ...

    async def drain(self) -> None: ...

    def reset(self) -> None: ...


class ClientGone(Exception):
    """There is nobody to answer any more."""


class ClientRequest:
    __slots__ = ("_asked", "_connection", "_framing", "_lost", "_pieces", "_reader", "_size", "_timeout", "head", "raw")

    def __init__(self, connection: Line, head: Head, limits: ClientLimits) -> None:
        self.head = head
        self.raw: bytes | None = None
        """The whole request, if it came in one piece and nothing after it."""
        self._connection = connection
        self._framing: Sized | Chunked | Endless = framing_of(head, limits)
        self._timeout = limits.body_seconds
        self._pieces: list[bytes] = []
        self._size = 0
        self._lost: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        self._asked = not head.waits_for_continue

    @property
    def peer(self) -> str:
        return self._connection.peer

    @property
    def received(self) -> bool:
        """Whether the last byte of the body has arrived."""
        return self._framing.done

    @property
    def gone(self) -> bool:
        """Whether the client broke off, so that there is nothing to answer."""
        return isinstance(self._lost, ClientGone)

    @property
    def keep_alive(self) -> bool:
        """What is left of a body would be taken for the next request."""
        return self.head.keep_alive and self.received and not self._connection.closing

    @property
    def trailers(self) -> Headers:
        return self._framing.trailers

    # The body

    def check(self) -> None:
        """Raise what `read` would, if it is known already: nothing of such a request need be sent on."""
        if self._lost is not None:
            raise self._lost

    async def read(self) -> bytes:
        """The next bytes, `b""` at the end. RefusedError: it is no body, or late; ClientGone: it broke off."""
        self.ask()
        while not self._pieces:
            if self._lost is not None:
                raise self._lost
            if self._framing.done:
                return b""
            await self._arrival()
        return self.taken()

    def taken(self) -> bytes:
        """All that has arrived and was not read yet."""
        piece = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        self._connection.resume()
        return piece

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        piece = await self.read()
        if not piece:
            raise StopAsyncIteration
        return piece

    def ask(self) -> None:
        """Tell a client that waits for it to send its body; by now all that could refuse the request has seen it."""
        if not self._asked:
            self._asked = True
            if not self._framing.done and not self._pieces:
                self.write(CONTINUE)

    async def _arrival(self) -> None:
        loop = asyncio.get_running_loop()
        self._reader = loop.create_future()
        late = RefusedError(Code.REQUEST_BODY_TIMEOUT, "body stalled")
        timer = loop.call_later(self._timeout, self.fail, late)
        try:
            await self._reader
        finally:
            timer.cancel()
            self._reader = None

    def feed(self, data: bytes) -> bytes | None:
        """Take what belongs to the body; what comes after it, or None while it goes on."""
        try:
            piece = self._framing.feed(data)
        except RefusedError as refused:
            self.fail(refused)
            return None
        if piece:
            self._pieces.append(piece)
            self._size += len(piece)
            if self._size > READ_AHEAD_BYTES:
                self._connection.pause()
        if piece or self._framing.done:
            self._wake()
        return self._framing.rest if self._framing.done else None

    def fail(self, error: Exception) -> None:
        if self._lost is None and not self._framing.done:
            self._lost = error
            self._wake()

    def switch(self) -> None:
        """From here on the client speaks another protocol: `read` gives what it says, until it ends."""
        self._framing = Endless()
        self._timeout = TUNNEL_IDLE_SECONDS
        self._connection.feed_ahead()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    # The way back

    def write(self, data: bytes) -> None:
        self._connection.write(data)

    @property
    def blocked(self) -> bool:
        """Whether the client does not take what is written as fast as it is."""
        return self._connection.blocked

    async def drain(self) -> None:
        await self._connection.drain()

    def cut(self) -> None:
        """The reply broke off after its head had gone out: the client must see that it is not whole."""
        self._connection.reset()
