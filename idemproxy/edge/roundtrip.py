"""One request to the upstream and its answer, on a connection of its own while it lasts.

A `RoundTrip` writes the request, parses the answer, hands out the head once and then is the answer's body. Each has
a parser of its own, so that nothing an upstream sent in one answer can colour the next. The request's body and the
answer may be under way at the same time: an upstream that answers early is heard, and goes on being sent the rest for
as long as its answer lasts.

It ends exactly once: whole, or lost. At that moment it lets go of its connection, which goes back to the pool if
nothing speaks against it and is aborted otherwise. Nothing here ever writes a request twice.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterable, Callable
from typing import Final

import httptools

from idemproxy.core.messages import Headers, interned
from idemproxy.edge.channel import Channel
from idemproxy.edge.connection import Connection
from idemproxy.edge.writing import chunk, last_chunk
from idemproxy.ports import BodyLost, Interim, Loss, Lost, Opened, Switched
from idemproxy.tasks import Tasks

MAX_HEAD_BYTES: Final = 256 * 1024  # far above any real upstream's head, far below what could hurt this process
MAX_HEAD_LINES: Final = 512  # four times what common servers allow: refusing after the effect leaves it unknown
MAX_BUFFERED: Final = 256 * 1024  # one read of the event loop: pausing any earlier could not hold less in memory

CONTROL: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")  # llhttp checks header values for these, reasons not


class _RefusedError(Exception):
    """Raised inside a parser callback: the parser takes it, the message is not acceptable."""


class RoundTrip:
    """One request and its answer; after the head, the answer's body (`ports.AnswerBody`)."""

    __slots__ = (
        "_answering",
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
        "_may_switch",
        "_parser",
        "_pieces",
        "_progress",
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
        interim: Interim | None = None,
        may_switch: bool = False,
    ) -> None:
        self._connection = connection
        self._loop = loop
        self._head_only = head_only
        self._timeout = timeout
        self._interim = interim
        self._may_switch = may_switch
        self._progress = 0.0
        """When the last piece of the request's body was taken."""
        self.head: asyncio.Future[Opened | Switched | Lost] | None = loop.create_future()
        """None once it has been given out. Whatever holds an `Opened` holds this round trip: kept any longer, it would
        be a cycle, and each request some ten objects for the garbage collector to find."""
        self.upload: asyncio.Task[None] | None = None
        self._sent = True  # False while a streamed body is under way
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        """None once the round trip is over."""
        self._begun = False
        self._reason = b""
        self._lines: list[tuple[bytes, bytes]] = []
        """The header section so far; after the head, the trailer section."""
        self._size = 0
        self._quiet = 0
        """Bytes that are no body: bounds interim answers, sections and chunk extensions without an end."""
        self._sized = False
        self._chunked = False
        self._answering = False
        """Whether the head of the final answer has arrived."""
        self._pieces: list[bytes] = []
        self._buffered = 0
        self._complete = False
        self._keep_alive = False
        self._lost: Lost | None = None
        self._reader: asyncio.Future[None] | None = None

    # The request

    def start(
        self,
        head: bytes,
        body: bytes | AsyncIterable[bytes],
        *,
        chunked: bool,
        trailers: Callable[[], Headers] | None,
        tasks: Tasks,
    ) -> None:
        if isinstance(body, bytes):
            self._connection.begin(self, head + body)
            return
        self._sent = False
        self._connection.begin(self, head)
        self.upload = tasks.spawn(self._upload(body, chunked, trailers), "upstream upload")

    async def _upload(self, body: AsyncIterable[bytes], chunked: bool, trailers: Callable[[], Headers] | None) -> None:
        connection = self._connection
        try:
            async for piece in body:
                if piece:  # an empty chunk would end the body
                    connection.write(chunk(piece) if chunked else piece)
                    await connection.drained()
                    self._progress = self._loop.time()
            if chunked:
                connection.write(last_chunk(trailers() if trailers is not None else ()))
            self._sent = True
        except asyncio.CancelledError:
            if not self._answering:  # otherwise an early answer stopped the upload, and its body goes on
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
        except httptools.HttpParserUpgrade as upgrade:
            self._switch(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError as error:
            if not self._complete:
                self._reject(error)
                return
            self._keep_alive = False  # bytes after the answer: whatever they are, they answer nothing
        if self._complete:
            # The parser cannot be told that HEAD has no body: only a read that ends with a head is clean.
            self._finish(clean=not self._head_only or data.endswith(b"\r\n\r\n"))
        elif self._quiet > MAX_HEAD_BYTES:
            self.lose(Loss.INVALID, f"the answer's heads or trailer are larger than {MAX_HEAD_BYTES} bytes")
        else:
            if self._buffered > MAX_BUFFERED:
                self._connection.pause()
            self._wake()

    def _switch(self, rest: bytes) -> None:
        """The upstream speaks another protocol from here on: the connection belongs to whoever asked for that."""
        channel = Channel(self._connection, rest)
        self._parser = None
        self._give(Switched(101, self._reason, tuple(self._lines), channel))

    def ended(self, error: Exception | None) -> None:
        """The connection ended: `error` is None when the upstream closed it in order."""
        if not self._answering:
            self.lose(Loss.DISCONNECTED, f"the upstream closed the connection before its answer{_because(error)}")
        elif error is None and not self._sized and not self._chunked:
            self._complete = True
            self._finish(clean=False)
        else:
            self.lose(Loss.DISCONNECTED, f"the upstream broke off its answer{_because(error)}")

    def lose(self, loss: Loss, why: str) -> None:
        """Give the round trip up. Does nothing once it is over."""
        if self._parser is not None:
            self._lost = Lost(loss, why)
            self._over(reusable=False)

    def watch(self, seconds: float) -> None:
        """From now on, so long without an answer, or without the next piece of one, is too long."""
        self._connection.watch(self._loop.time() + seconds)

    def unwatch(self) -> None:
        if self._connection.traffic is self:  # otherwise it may carry another round trip already
            self._connection.unwatch()

    def late(self) -> None:
        left = self._progress + self._timeout - self._loop.time()
        if left > 0:  # the request's body was still on its way: an upload may last longer than the timeout
            self.watch(left)
        else:
            self.lose(Loss.TIMEOUT, f"the upstream gave no answer within {self._timeout:g} s")

    def _reject(self, error: httptools.HttpParserError) -> None:
        cause = error.__context__  # what a callback raised
        if isinstance(cause, Exception) and not isinstance(cause, _RefusedError):
            self._fail(cause)
        else:
            self.lose(Loss.INVALID, f"the upstream's answer is not valid: {cause or error}")

    def _fail(self, error: Exception) -> None:
        """The caller's own code raised: it gets its exception back, from `send` if that still waits."""
        if self._parser is not None and self.head is not None and not self.head.done():
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

    def _give(self, head: Opened | Switched | Lost) -> None:
        if self.head is not None and not self.head.done():
            self.head.set_result(head)

    def _wake(self) -> None:
        """Tell who waits for the head that there will be none, or who reads the body that there is more, or its end."""
        if self._lost is not None:
            self._give(self._lost)
        if self._reader is not None and not self._reader.done() and (self._pieces or self._parser is None):
            self._reader.set_result(None)

    # Called by the parser

    def on_message_begin(self) -> None:
        if self._complete:
            raise _RefusedError("bytes after the answer")

    def on_status(self, reason: bytes) -> None:
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        self._lines.append((interned(name), value))
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
        if status == 101 and self._may_switch:
            return  # the parser stops here by itself
        self._lines, self._reason, self._size = [], b"", 0
        if 100 <= status <= 199 and status != 101:
            self._sized = self._chunked = False  # `Content-Length: 0` is seen here; it means nothing
            if self._interim is not None:
                self._interim(status, reason, tuple(lines))
            return
        if not 200 <= status <= 599:  # 101 among them: nobody asked for another protocol
            raise _RefusedError(f"status {status:03}")
        self._quiet = 0
        self._answering = True
        self._give(Opened(status, reason, tuple(lines), self))
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
        if self._answering and self._parser is not None:  # an interim answer is a message, too
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
        self.watch(self._timeout)
        try:
            await self._reader
        finally:
            self.unwatch()
            self._reader = None

    def close(self) -> None:
        if self._parser is not None:
            self._pieces.clear()
            self.lose(Loss.DISCONNECTED, "the answer was given up on this side")

    @property
    def complete(self) -> bool:
        return self._complete and not self._pieces

    @property
    def trailers(self) -> Headers:
        return tuple(self._lines) if self._answering else ()


def _because(error: Exception | None) -> str:
    return f": {error}" if error is not None else ""
