"""Shadow mode at the edge: everything streams through as if nothing were guarded, and what would have been is seen.

It stands between the server and the upstream, where all traffic passes, and changes nothing of it: request bodies are
copied while they flow, as far as a guarded request could be large; answers are only watched for their end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable
from dataclasses import dataclass

from idemproxy.core.messages import Headers, Request
from idemproxy.core.policy import Operation
from idemproxy.core.steering import Steering, steering
from idemproxy.ports import BodyLost, Interim, Lost, NotSent, Opened, OpenUpstream, Switched

log = logging.getLogger("idemproxy")


@dataclass(frozen=True, slots=True)
class Sighting:
    """A request that would have been guarded. `status` is None when its answer was lost."""

    operation: Operation
    request: Request
    whole: bool
    """Whether all of its body was copied: a larger one would have been refused."""
    started: float
    ended: float
    status: int | None
    said: Steering
    """What the upstream says about its answer."""


Saw = Callable[[Sighting], None]
"""Must be quick; what it raises is logged and harms no traffic."""


def nothing_guarded(_: str, __: bytes) -> None:
    """What the server is told instead of the contract's operations: every request streams through."""


def nothing_published(_: Request) -> None:
    """What the server is told of the proxy's own paths: every path is the upstream's."""


class ShadowUpstream:
    def __init__(
        self, upstream: OpenUpstream, match: Callable[[str, bytes], object], saw: Saw, *, max_request_bytes: int
    ) -> None:
        self._upstream = upstream
        self._match = match
        self._saw = saw
        self._max_bytes = max_request_bytes

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
        operation = self._match(method, target.partition(b"?")[0])
        if not isinstance(operation, Operation):
            return await self._upstream.send(
                method, target, headers, body, timeout=timeout, interim=interim, trailers=trailers
            )
        copy = _Copy(self._max_bytes)
        started = time.monotonic()

        def ended(status: int | None, answered: Headers = ()) -> None:
            request = Request(method, target, headers, b"".join(copy.pieces))
            said = steering(answered)
            try:
                self._saw(Sighting(operation, request, copy.whole, started, time.monotonic(), status, said))
            except Exception:
                log.exception("shadow mode failed to look at a request")

        flowing = copy.keep(body) if isinstance(body, bytes) else copy.follow(body)
        sent = await self._upstream.send(
            method, target, headers, flowing, timeout=timeout, interim=interim, trailers=trailers
        )
        if isinstance(sent, Opened):
            return Opened(sent.status, sent.reason, sent.headers, _Watched(sent, ended))
        if isinstance(sent, Lost):
            ended(None)
        return sent

    async def switch(
        self, method: str, target: bytes, headers: Headers, *, timeout: float
    ) -> Opened | Switched | NotSent | Lost:
        return await self._upstream.switch(method, target, headers, timeout=timeout)


class _Copy:
    """What flows by, up to a limit."""

    def __init__(self, limit: int) -> None:
        self.pieces: list[bytes] = []
        self.whole = True
        self._left = limit

    def keep(self, piece: bytes) -> bytes:
        self._left -= len(piece)
        if self._left < 0:
            self.whole = False
            self.pieces.clear()
        else:
            self.pieces.append(piece)
        return piece

    async def follow(self, body: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
        async for piece in body:
            yield self.keep(piece)


class _Watched:
    """An answer's body that tells, once, how it ended."""

    def __init__(self, answer: Opened, ended: Callable[[int | None, Headers], None]) -> None:
        self._answer = answer
        self._body = answer.body
        self._ended: Callable[[int | None, Headers], None] | None = ended

    async def read(self) -> bytes:
        try:
            piece = await self._body.read()
        except BodyLost:
            self._tell(None)
            raise
        if not piece:
            self._tell(self._answer.status)
        return piece

    def close(self) -> None:
        self._body.close()
        self._tell(self._answer.status)  # the client has gone; a guarded answer would have been read to its end

    @property
    def complete(self) -> bool:
        return self._body.complete

    @property
    def trailers(self) -> Headers:
        return self._body.trailers

    def _tell(self, status: int | None) -> None:
        if self._ended is not None:
            ended, self._ended = self._ended, None
            ended(status, self._answer.headers)
