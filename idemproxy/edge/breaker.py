"""A circuit breaker: while the upstream is down, writes are turned away at once and retries do not pile up."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterable

from idemproxy.core.messages import Headers
from idemproxy.ports import Interim, Lost, NotSent, Opened, Upstream


class Breaker:
    """After `failures` tries in a row without an answer, nothing is sent for `seconds`; then one write tries it out.

    Any answer counts as one, whatever its status: an upstream that answers is not down.
    """

    def __init__(self, upstream: Upstream, *, failures: int, seconds: float) -> None:
        self._upstream = upstream
        self._limit = failures
        self._seconds = seconds
        self._failures = 0
        self._next_try = 0.0

    @property
    def open(self) -> bool:
        return self._failures >= self._limit

    async def send(
        self,
        method: str,
        target: bytes,
        headers: Headers,
        body: bytes | AsyncIterable[bytes],
        *,
        timeout: float,
        interim: Interim | None = None,
    ) -> Opened | NotSent | Lost:
        loop = asyncio.get_running_loop()
        if self.open:
            left = self._next_try - loop.time()
            if left > 0:
                return NotSent("the upstream is down", retry_after=math.ceil(left))
            self._next_try = loop.time() + self._seconds  # this one tries it out; the others wait for how it ends
        sent = await self._upstream.send(method, target, headers, body, timeout=timeout, interim=interim)
        if isinstance(sent, Opened):
            self._failures = 0
        else:
            self._failures += 1
            self._next_try = loop.time() + self._seconds
        return sent
