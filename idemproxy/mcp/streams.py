"""Answers on their way through: an event stream is handed on event by event, a list of tools once it is whole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from idemproxy.core.bodies import decoded
from idemproxy.core.messages import Headers, header_value
from idemproxy.mcp.answers import is_stream, response_in
from idemproxy.mcp.events import EventSplitter, event_data, with_data
from idemproxy.ports import AnswerBody, BodyLost, Opened

END_SECONDS = 0.1
"""The end of a stream usually comes along with its last event: worth this wait, for the connection is kept then."""
MAX_LIST_BYTES = 8 * 1024 * 1024
"""A longer list of tools goes by unread: thousands of tools, and no model would take them in."""

Rewrite = Callable[[str], str]


def until_response(opened: Opened, id: str) -> Opened:
    """An event stream that ends with the response to the request `id`, one event at a time. Other answers as they are.

    A server should close the stream after the response, but need not; its caller has all that it asked for. What the
    server may have said of the length counts what comes after the response, too.
    """
    if not is_stream(opened.headers):
        return opened
    return opened.having(headers=_without_length(opened.headers), body=_UntilResponse(opened.body, id))


def rewritten(opened: Opened, rewrite: Rewrite, *, changes: bool) -> Opened:
    """An answer each of whose messages goes through `rewrite`. `changes` says whether that can change its length."""
    if opened.status != 200:
        return opened
    headers = _without_length(opened.headers) if changes else opened.headers
    if is_stream(headers):
        return opened.having(headers=headers, body=_Rewritten(opened.body, rewrite))
    return opened.having(headers=headers, body=_Whole(opened.body, headers, rewrite))


def _without_length(headers: Headers) -> Headers:
    return tuple(line for line in headers if line[0].lower() != b"content-length")


class _Filter:
    """A body that reads another one."""

    def __init__(self, body: AnswerBody) -> None:
        self._body = body
        self._ended = False

    def close(self) -> None:
        self._body.close()

    @property
    def complete(self) -> bool:
        return self._ended

    @property
    def trailers(self) -> Headers:
        return self._body.trailers


class _UntilResponse(_Filter):
    def __init__(self, body: AnswerBody, id: str) -> None:
        super().__init__(body)
        self._id = id
        self._splitter = EventSplitter()
        self._events: list[bytes] = []

    async def read(self) -> bytes:
        while not self._events:
            if self._ended:
                return b""
            piece = await self._body.read()
            if not piece:
                self._ended = True
                return self._splitter.rest
            self._events = self._splitter.feed(piece)
        event = self._events.pop(0)
        data = event_data(event)
        if data is not None and response_in(data, self._id) is not None:
            self._events.clear()
            self._ended = True
            await self._finish()
        return event

    async def _finish(self) -> None:
        try:
            async with asyncio.timeout(END_SECONDS):
                while await self._body.read():
                    pass
        except (TimeoutError, BodyLost):
            self._body.close()


class _Rewritten(_Filter):
    def __init__(self, body: AnswerBody, rewrite: Rewrite) -> None:
        super().__init__(body)
        self._rewrite = rewrite
        self._splitter = EventSplitter()

    async def read(self) -> bytes:
        while piece := await self._body.read():
            if events := self._splitter.feed(piece):
                return b"".join(self._event(event) for event in events)
        rest, self._splitter.rest = self._splitter.rest, b""
        return rest

    def _event(self, event: bytes) -> bytes:
        data = event_data(event)
        if data is None:
            return event
        changed = self._rewrite(data)
        return event if changed == data else with_data(event, changed)


class _Whole(_Filter):
    """A JSON answer, held back until it is whole; one that grows too large goes by as it is."""

    def __init__(self, body: AnswerBody, headers: Headers, rewrite: Rewrite) -> None:
        super().__init__(body)
        self._coding = (header_value(headers, b"content-encoding") or b"").strip(b" \t").lower()
        self._rewrite = rewrite
        self._done = False

    async def read(self) -> bytes:
        if self._done:
            return await self._body.read()
        pieces: list[bytes] = []
        while sum(map(len, pieces)) <= MAX_LIST_BYTES and (piece := await self._body.read()):
            pieces.append(piece)
        self._done = True
        whole = b"".join(pieces)
        return whole if len(whole) > MAX_LIST_BYTES else self._message(whole)

    def _message(self, whole: bytes) -> bytes:
        codings = [] if self._coding in (b"", b"identity") else [self._coding]
        plain = decoded(whole, codings, MAX_LIST_BYTES)
        try:
            text = plain.decode() if plain is not None else ""
        except UnicodeDecodeError:
            return whole
        changed = self._rewrite(text)
        return whole if changed == text or codings else changed.encode()
