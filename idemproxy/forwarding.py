"""A write on its way upstream: with which fields it is sent, and again only while not one byte of it has left."""

from __future__ import annotations

import asyncio
import random
import time
from typing import assert_never

from idemproxy.core.headers import to_upstream
from idemproxy.core.hops import Hop
from idemproxy.core.identity import derived_key, wire_key
from idemproxy.core.messages import Headers, Request, digits, header_value
from idemproxy.core.policy import DerivedKey, ForwardKey, HeaderKey, Policy
from idemproxy.core.record import Lease
from idemproxy.ports import Lost, NotSent, Opened, Upstream

PAUSES = (0.05, 0.2, 0.6)
"""Before the second, third and fourth try: bridges an upstream that is being restarted, and no outage."""


async def forward(upstream: Upstream, request: Request, headers: Headers, *, timeout: float) -> Opened | NotSent | Lost:
    """Within `timeout` seconds in all. Each pause is drawn from half to one and a half times its length, so that
    the writes which an upstream's restart turned away do not all come back at the same moment."""
    deadline = time.monotonic() + timeout
    for pause in PAUSES:
        sent = await upstream.send(
            request.method, request.target, headers, request.body, timeout=deadline - time.monotonic()
        )
        if not isinstance(sent, NotSent) or sent.retry_after is not None:
            return sent
        wait = pause * random.uniform(0.5, 1.5)  # noqa: S311 - spreads load, guards nothing
        if time.monotonic() + wait >= deadline:
            return sent
        await asyncio.sleep(wait)
    return await upstream.send(
        request.method, request.target, headers, request.body, timeout=deadline - time.monotonic()
    )


def request_headers(request: Request, lease: Lease, policy: Policy, hop: Hop) -> Headers:
    """The fields of a guarded write as the upstream gets them: with its key, its length and its attempt."""
    id = lease.claim.id
    source = next((key for key in policy.keys if isinstance(key, HeaderKey)), None)
    name = source.name.encode() if source else b"Idempotency-Key"
    key: tuple[bytes, bytes] | None = None
    drop: bytes | None = None
    match policy.forward_key:
        case ForwardKey.SAME:
            # Wherever the client put it, it goes along as it is. Only a key that was derived is nowhere yet.
            derives = any(isinstance(source, DerivedKey) for source in policy.keys)
            if derives and header_value(request.headers, name.lower()) is None:
                key = (name, wire_key(id.key))
        case ForwardKey.DERIVED:
            key = (name, wire_key(derived_key(id)))
        case ForwardKey.NONE:
            drop = name.lower()
        case _:
            assert_never(policy.forward_key)
    length = (b"Content-Length", digits(len(request.body)))
    sent = to_upstream(request.headers, hop=hop, framing=length, own=policy.own, key=key, drop_key=drop)
    return (*sent, (b"Idempotency-Attempt", digits(lease.attempt)))
