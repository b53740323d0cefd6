"""`python -m tests.failure.proxy`: the real proxy, whose store and upstream wait at named points of an exchange.

    C  claimed, and nothing sent: not even a connection to the upstream is looked for
    D  connected to the upstream, and not one byte sent
    I  the answer is on record, and the client has heard nothing

The product has no hook for this: only its two ports are exchanged for ones that do the same, with a stop on the way.
The other points lie outside of the process: in the client (A, J, L), in the upstream (E, F, G), on the line to Postgres
(B, H). The kernel takes little at a time from it, so that a client that does not read holds it up (J, L).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterable, Callable
from contextvars import ContextVar

from idemproxy import service
from idemproxy.cli import cli
from idemproxy.core.messages import Answer, Headers, header_value
from idemproxy.core.record import Lease
from idemproxy.edge.connection import Connection
from idemproxy.edge.upstream import HttpUpstream
from idemproxy.ports import Interim, Lost, NotSent, Opened
from idemproxy.startup import bind
from idemproxy.store.postgres import PostgresStore
from tests.failure.control import at
from tests.failure.upstream import SMALL_BUFFER

_key: ContextVar[str] = ContextVar("key", default="")


class StoppingUpstream(HttpUpstream):
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
        _key.set((header_value(headers, b"idempotency-key") or b"").decode())
        await at("C", _key.get())
        return await super().send(method, target, headers, body, timeout=timeout, interim=interim, trailers=trailers)

    async def _connect(self, loop: asyncio.AbstractEventLoop, deadline: float) -> Connection | NotSent:
        connected = await super()._connect(loop, deadline)
        if isinstance(connected, Connection):
            await at("D", _key.get())
            if not connected.alive():  # the last thing that is looked at before the first byte
                connected.drop()
                return NotSent("the upstream closed a new connection at once")
        return connected


class StoppingStore(PostgresStore):
    async def complete(self, lease: Lease, answer: Answer, *, kept: bool) -> bool:
        done = await super().complete(lease, answer, kept=kept)
        await at("I", lease.claim.id.key)
        return done


def bind_with_little_room(address: str, setting: str) -> socket.socket:
    listener = bind(address, setting)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER)  # inherited by every connection
    return listener


if __name__ == "__main__":
    service.bind = bind_with_little_room  # type: ignore[attr-defined,assignment]
    service.HttpUpstream = StoppingUpstream  # type: ignore[attr-defined]
    service.PostgresStore = StoppingStore  # type: ignore[attr-defined]
    cli(["run"])
