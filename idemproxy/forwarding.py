"""Sends a write upstream, again only while it is certain that not one byte of it has left."""

from __future__ import annotations

import asyncio
import random

from idemproxy.core.messages import Headers, Request
from idemproxy.ports import Lost, NotSent, Opened, Upstream

PAUSES = (0.05, 0.2, 0.6)
"""Before the second, third and fourth try: bridges an upstream that is being restarted, and no outage."""


async def forward(upstream: Upstream, request: Request, headers: Headers, *, timeout: float) -> Opened | NotSent | Lost:
    """Within `timeout` seconds in all. Each pause is drawn from half to one and a half times its length, so that
    the writes which an upstream's restart turned away do not all come back at the same moment."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    for pause in PAUSES:
        sent = await upstream.send(
            request.method, request.target, headers, request.body, timeout=deadline - loop.time()
        )
        wait = pause * random.uniform(0.5, 1.5)  # noqa: S311 - spreads load, guards nothing
        if not isinstance(sent, NotSent) or sent.retry_after is not None or loop.time() + wait >= deadline:
            return sent
        await asyncio.sleep(wait)
    return await upstream.send(request.method, request.target, headers, request.body, timeout=deadline - loop.time())
