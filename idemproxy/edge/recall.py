"""A retry that comes byte for byte as before: known again by one hash, and answered from memory at once.

Whoever retries mostly sends the very same bytes. What they ask for has been worked out before, and the answer to a
completed write never changes: reading them again would come to the same end. Kept are hashes, ids and fingerprints,
never a request or a credential. The peer counts, for a scope may come from `X-Forwarded-For`.

Learned only from a request that was replayed: a first write pays nothing for what may never be retried. Whatever
memory is not certain of goes the ordinary way.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import sha256
from typing import NamedTuple

from idemproxy.core.messages import Request
from idemproxy.core.policy import Operation
from idemproxy.core.record import RecordId
from idemproxy.edge.requests import ClientRequest
from idemproxy.edge.writing import whole_reply
from idemproxy.exchange import Exchange
from idemproxy.ports import Finished, Observer, Outcome, Trail

MAX_BYTES = 64 * 1024
"""Of a request: hashing more than that would hold up the others."""
MAX_KNOWN = 4096
"""Requests known again, the oldest forgotten first: a few megabytes, and more than are retried within one storm."""
_TRACE = (b"traceparent", b"tracestate")


class _Known(NamedTuple):
    request: Request
    """Its method, its path and what traces it."""
    operation: Operation
    id: RecordId
    fingerprint: bytes


class Recall:
    def __init__(self, match: Callable[[str, bytes], object], exchange: Exchange, observer: Observer) -> None:
        self._match = match
        self._exchange = exchange
        self._observer = observer
        self._known: dict[bytes, _Known] = {}

    def __call__(self, peer: str, data: bytes) -> bytes | None:
        """The reply to all that a client has sent since its last one; None when it is not a retry known as such."""
        if not self._known or len(data) > MAX_BYTES:
            return None
        digest = _digest(peer, data)
        known = self._known.get(digest)
        if known is None:
            return None
        started = time.monotonic()
        request, operation, id, fingerprint = known
        if self._match(request.method, request.path) != operation:  # the contract has changed
            del self._known[digest]
            return None
        replayed = self._exchange.recall(id, fingerprint, operation.policy)
        if replayed is None:
            return None
        reply, trail = replayed.with_fields(operation.marks), Trail(started)
        trail.fingerprint, trail.decided = fingerprint, time.monotonic()
        seconds = time.monotonic() - started
        self._observer.finished(Finished(Outcome.REPLAY, request, operation, id, reply.status, seconds, trail))
        return whole_reply(reply, method=request.method, minor=1, keep_alive=True)

    def learn(
        self, request: ClientRequest, head: Request, operation: Operation, id: RecordId, fingerprint: bytes
    ) -> None:
        """This request was just replayed."""
        raw = request.raw
        if raw is None or len(raw) > MAX_BYTES or request.head.minor != 1 or not request.head.keep_alive:
            return
        while len(self._known) >= MAX_KNOWN:
            del self._known[next(iter(self._known))]
        traced = tuple(line for line in head.headers if line[0].lower() in _TRACE)
        known = Request(head.method, head.path, traced, b"")
        self._known[_digest(request.peer, raw)] = _Known(known, operation, id, fingerprint)


def _digest(peer: str, data: bytes) -> bytes:
    return sha256(b"%b\n%b" % (peer.encode(), data)).digest()
