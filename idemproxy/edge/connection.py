"""One connection to the upstream, and one exchange on it at a time.

A `Connection` owns a transport and knows whether it may carry another request. An `Exchange` is one request
on it: it parses the answer, hands out the head once and then is the answer's body. Each exchange has a parser
of its own, so that nothing an upstream sent in one answer can colour the next.

An exchange ends exactly once: whole, or lost. At that moment it lets go of its connection, which goes back to
the pool if nothing speaks against it and is aborted otherwise. Nothing here ever writes a request twice.
"""

from __future__ import annotations

import asyncio
import re
import select
from collections.abc import AsyncIterable
from typing import Protocol, cast

import httptools

from idemproxy.core.messages import Headers
from idemproxy.ports import BodyLost, Interim, Loss, Lost, Opened
from idemproxy.tasks import Tasks

MAX_HEAD_BYTES = 256 * 1024  # far above any real upstream's head, far below what could hurt this process
MAX_HEAD_LINES = 512  # four times what common servers allow: refusing after the effect leaves it unknown
MAX_BUFFERED = 256 * 1024  # one read of the event loop: pausing any earlier could not hold less in memory

CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")  # llhttp checks header values for these, reasons not


class Pool(Protocol):
    """What a connection tells its owner."""

    def opened(self, connection: Connection) -> None: ...

    def release(self, connection: Connection) -> None:
        """The exchange ended well: the connection may carry another one."""

    def gone(self, connection: Connection) -> None:
        """The socket is closed, for whatever reason."""


class Connection(asyncio.Protocol):
    """A transport and what is known about it."""

    __slots__ = ("_blocked", "_drained", "_paused", "_poll", "_pool", "_transport", "exchange", "idle_since")

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._transport: asyncio.Transport
        self._poll: select.poll | None = None
        self._paused = False
        self._blocked = False
        self._drained: asyncio.Future[None] | None = None
        self.exchange: Exchange | None = None
        self.idle_since = 0.0

    def alive(self) -> bool:
        """Whether a request may be written: not closing, and the kernel holds no end and no byte unread.

        The kernel is asked because the event loop reports an end only when it next polls; a request written
        in between would be lost, and nobody could say whether it was executed.
        """
        if self._transport.is_closing():
            return False
        return self._poll is None or not self._poll.poll(0)

    def begin(self, exchange: Exchange, data: bytes) -> None:
        self.exchange = exchange
        self._transport.write(data)

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    async def drained(self) -> None:
        """Wait until the transport takes more. Ended by cancellation when the exchange ends first."""
        while self._blocked:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    def pause(self) -> None:
        if not self._paused and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    def end(self, *, reusable: bool) -> None:
        """The exchange has ended. What is still unsent belongs to a request that was answered early."""
        self.exchange = None
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
        if transport.get_extra_info("sslcontext") is None:  # under TLS, tickets may arrive at any time
            # Neither asyncio's nor uvloop's socket view can recv(MSG_PEEK); poll(0) asks the same at 0.3 µs,
            # where a dup'ed socket costs 3.5 µs. Errors and hang-ups are reported without being asked for.
            self._poll = select.poll()
            self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        self._pool.opened(self)

    def data_received(self, data: bytes) -> None:
        if self.exchange is not None:
            self.exchange.feed(data)
        else:
            self.drop()  # an answer nobody asked for would be taken for the answer to the next request

    def eof_received(self) -> None:
        if self.exchange is not None:
            self.exchange.ended(None)
        self.drop()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.exchange is not None:
            self.exchange.ended(exc or ConnectionAbortedError("the connection was closed on this side"))
        self._pool.gone(self)

    def pause_writing(self) -> None:
        self._blocked = True

    def resume_writing(self) -> None:
        self._blocked = False
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)


class _RefusedError(Exception):
    """Raised inside a parser callback: the parser takes it, the message is not acceptable."""


class Exchange:
    """One request and its answer; after the head, the answer's body (`ports.AnswerBody`)."""

    __slots__ = (
        "_begun",
        "_buffered",
        "_chunked",
        "_complete",
        "_connection",
        "_head_only",
        "_interim",
        "_keep_alive",
        "_lines",
        "_loop",
        "_lost",
        "_opened",
        "_parser",
        "_pieces",
        "_quiet",
        "_reader",
        "_reason",
        "_sent",
        "_size",
        "_sized",
        "_timeout",
        "head",
        "upload",
    )

    def __init__(
        self,
        connection: Connection,
        loop: asyncio.AbstractEventLoop,
        *,
        head_only: bool,
        timeout: float,
        interim: Interim | None,
    ) -> None:
        self._connection = connection
        self._loop = loop
        self._head_only = head_only
        self._timeout = timeout
        self._interim = interim
        self.head: asyncio.Future[Opened | Lost] = loop.create_future()
        self.upload: asyncio.Task[None] | None = None
        self._sent = True  # False while a streamed body is under way
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        """None once the exchange is over."""
        self._begun = False
        self._reason = b""
        self._lines: list[tuple[bytes, bytes]] = []
        """The header section so far; after the head, the trailer section."""
        self._size = 0
        self._quiet = 0
        """Bytes since the last head or piece of body: bounds sections and chunk extensions without an end."""
        self._sized = False
        self._chunked = False
        self._opened: Opened | None = None
        self._pieces: list[bytes] = []
        self._buffered = 0
        self._complete = False
        self._keep_alive = False
        self._lost: Lost | None = None
        self._reader: asyncio.Future[None] | None = None

    # The request

    def start(self, head: bytes, body: bytes | AsyncIterable[bytes], *, chunked: bool, tasks: Tasks) -> None:
        if isinstance(body, bytes):
            self._connection.begin(self, head + body)
            return
        self._sent = False
        self._connection.begin(self, head)
        self.upload = tasks.spawn(self._upload(body, chunked), "upstream upload")

    async def _upload(self, body: AsyncIterable[bytes], chunked: bool) -> None:
        connection = self._connection
        try:
            async for piece in body:
                if piece:  # an empty chunk would end the body
                    connection.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
                    await connection.drained()
            if chunked:
                connection.write(b"0\r\n\r\n")
            self._sent = True
        except asyncio.CancelledError:
            if self._opened is None:  # otherwise an early answer stopped the upload, and its body goes on
                self.lose(Loss.DISCONNECTED, "the request body was cancelled")
            raise
        except Exception as error:
            self._fail(error)

    # The answer, as the connection delivers it

    def feed(self, data: bytes) -> None:
        parser = self._parser
        if parser is None:
            return
        if not self._begun:
            self._begun = True
            if not data.startswith(b"H"):  # the parser would take RTSP and empty lines in front, too
                self.lose(Loss.INVALID, "the upstream's answer is not HTTP")
                return
        self._quiet += len(data)
        try:
            parser.feed_data(data)
        except httptools.HttpParserError as error:
            if not self._complete:
                self._reject(error)
                return
            self._keep_alive = False  # bytes after the answer: whatever they are, they answer nothing
        if self._complete:
            # The parser cannot be told that HEAD has no body: only a read that ends with a head is clean.
            self._finish(clean=not self._head_only or data.endswith(b"\r\n\r\n"))
        elif self._quiet > MAX_HEAD_BYTES:
            self.lose(Loss.INVALID, f"the answer's head or trailer is larger than {MAX_HEAD_BYTES} bytes")
        else:
            if self._buffered > MAX_BUFFERED:
                self._connection.pause()
            self._wake()

    def ended(self, error: Exception | None) -> None:
        """The connection ended: `error` is None when the upstream closed it in order."""
        if self._opened is None:
            self.lose(Loss.DISCONNECTED, f"the upstream closed the connection before its answer{_because(error)}")
        elif error is None and not self._sized and not self._chunked:
            self._complete = True
            self._finish(clean=False)
        else:
            self.lose(Loss.DISCONNECTED, f"the upstream broke off its answer{_because(error)}")

    def lose(self, loss: Loss, why: str) -> None:
        """Give the exchange up. Does nothing once it is over."""
        if self._parser is not None:
            self._lost = Lost(loss, why)
            self._over(reusable=False)

    def time_out(self) -> None:
        self.lose(Loss.TIMEOUT, f"the upstream gave no answer within {self._timeout:g} s")

    def _reject(self, error: httptools.HttpParserError) -> None:
        cause = error.__context__  # what a callback raised
        if isinstance(cause, Exception) and not isinstance(cause, _RefusedError):
            self._fail(cause)
        else:
            self.lose(Loss.INVALID, f"the upstream's answer is not valid: {cause or error}")

    def _fail(self, error: Exception) -> None:
        """The caller's own code raised: it gets its exception back, from `send` if that still waits."""
        if self._parser is not None and not self.head.done():
            self.head.set_exception(error)
        self.lose(Loss.DISCONNECTED, f"the request broke off on this side: {error!r}")

    def _finish(self, *, clean: bool) -> None:
        self._over(reusable=clean and self._keep_alive and self._sent)

    def _over(self, *, reusable: bool) -> None:
        self._parser = None  # also breaks the reference cycle, so that no garbage is left per request
        if self.upload is not None and not self._sent:
            self.upload.cancel()
        self._connection.end(reusable=reusable)
        self._wake()

    def _wake(self) -> None:
        if not self.head.done():
            if (result := self._opened or self._lost) is not None:
                self.head.set_result(result)
                if self.upload is not None and not self._sent:
                    self.upload.cancel()  # answered early: whoever did that does not want the rest
        elif self._reader is not None and not self._reader.done() and (self._pieces or self._parser is None):
            self._reader.set_result(None)

    # Called by the parser

    def on_message_begin(self) -> None:
        if self._complete:
            raise _RefusedError("bytes after the answer")

    def on_status(self, reason: bytes) -> None:
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        self._lines.append((name, value))
        self._size += len(name) + len(value) + 4  # colon, space, CR, LF
        if self._size > MAX_HEAD_BYTES or len(self._lines) > MAX_HEAD_LINES:
            raise _RefusedError(f"more than {MAX_HEAD_LINES} header lines or {MAX_HEAD_BYTES} bytes of them")
        length = len(name)
        if length == 14 and name.lower() == b"content-length":
            # Its syntax, its repetition and its clash with Transfer-Encoding are the parser's to refuse.
            self._sized = True
        elif length == 17 and name.lower() == b"transfer-encoding":
            # Another coding would be handed on undecoded, without the header that says so.
            if self._chunked or value.strip(b" \t").lower() != b"chunked":
                raise _RefusedError("a Transfer-Encoding other than one `chunked`")
            self._chunked = True

    def on_headers_complete(self) -> None:
        parser, lines, reason = self._parser, self._lines, self._reason
        assert parser is not None  # noqa: S101 - only the parser calls this
        status = parser.get_status_code()
        if parser.get_http_version() not in ("1.1", "1.0"):
            raise _RefusedError("an HTTP version other than 1.1 and 1.0")
        if CONTROL.search(reason):
            raise _RefusedError("a control character in the reason")
        self._lines, self._reason, self._size, self._quiet = [], b"", 0, 0
        if 100 <= status <= 199 and status != 101:
            self._sized = self._chunked = False  # `Content-Length: 0` is seen here; it means nothing
            if self._interim is not None:
                self._interim(status, reason, tuple(lines))
            return
        if not 200 <= status <= 599:  # 101 among them: no request here asks for another protocol
            raise _RefusedError(f"status {status:03}")
        self._opened = Opened(status, reason, tuple(lines), self)
        if self._head_only:
            self._complete = True
            self._keep_alive = parser.should_keep_alive()

    def on_chunk_header(self) -> None:
        if self._complete:
            raise _RefusedError("a body in the answer to HEAD")

    def on_body(self, piece: bytes) -> None:
        if self._complete:
            raise _RefusedError("a body in the answer to HEAD")
        self._pieces.append(piece)
        self._buffered += len(piece)
        self._quiet = 0

    def on_message_complete(self) -> None:
        if self._opened is not None and self._parser is not None:  # an interim answer is a message, too
            self._complete = True
            self._keep_alive = self._parser.should_keep_alive()  # forgotten by the parser after this callback

    # The body, as the caller reads it

    async def read(self) -> bytes:
        while not self._pieces:
            if self._lost is not None:
                raise BodyLost(self._lost)
            if self._complete:
                return b""
            await self._arrival()
        piece = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._buffered = 0
        if self._parser is not None:
            self._connection.resume()
        return piece

    async def _arrival(self) -> None:
        self._reader = self._loop.create_future()
        timer = self._loop.call_later(self._timeout, self.time_out)
        try:
            await self._reader
        finally:
            timer.cancel()
            self._reader = None

    def close(self) -> None:
        if self._parser is not None:
            self._pieces.clear()
            self.lose(Loss.DISCONNECTED, "the answer was given up on this side")

    @property
    def trailers(self) -> Headers:
        return tuple(self._lines) if self._opened is not None else ()


def _because(error: Exception | None) -> str:
    return f": {error}" if error is not None else ""
