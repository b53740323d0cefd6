"""What the data port itself answers: the contract, the document, and what became of a caller's own key.

A key is asked for together with the caller's scopes, in one statement: somebody else's key and one that was never
used get the same answer, found in the same way and time.
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from urllib.parse import unquote_to_bytes

import orjson

from idemproxy.contract.live import LiveContract
from idemproxy.contract.publish import DESCRIPTION, DOCUMENT, KEYS
from idemproxy.core.identity import scope_of
from idemproxy.core.messages import Request
from idemproxy.core.problems import Code, Problem
from idemproxy.core.record import Step
from idemproxy.core.replies import Reply, refusal
from idemproxy.ports import Lookup, StoreUnavailable

CALLER_RATE = 10.0
CALLER_BURST = 20.0
"""Looks per second for each caller: plenty for somebody who waits for a write, little for somebody who guesses keys."""
ALL_RATE = 200.0
"""For all callers of this process together: the claims of real writes share the database with them."""
CALLERS = 10_000
"""Callers remembered; beyond, the one who was quiet for longest begins anew."""

_KEY = re.compile(rb"[\x20-\x7e]{1,255}")
_DESCRIPTION, _DOCUMENT, _KEYS = DESCRIPTION.encode(), DOCUMENT.encode(), KEYS.encode()


class Published:
    def __init__(self, contract: LiveContract, lookup: Lookup, clock: Callable[[], float] = time.monotonic) -> None:
        self._contract = contract
        self._lookup = lookup
        self._callers = Rates(CALLER_RATE, CALLER_BURST, clock)
        self._all = Rates(ALL_RATE, ALL_RATE, clock)

    def __call__(self, request: Request) -> Awaitable[Reply | None] | None:
        """The answer; None, or an awaited None, for a request that is not for the proxy itself."""
        if not request.target.startswith(_DESCRIPTION) or request.method != "GET":
            return None
        return self._reply(request)

    async def _reply(self, request: Request) -> Reply | None:
        path, now = request.path, self._contract.now
        if path == _DESCRIPTION:
            return _json(now.description, b"no-cache")
        if path == _DOCUMENT and now.document is not None:
            return _json(now.document, b"no-cache")
        if path.startswith(_KEYS) and len(path) > len(_KEYS):
            return await self._key(request, unquote_to_bytes(path[len(_KEYS) :]))
        return None

    async def _key(self, request: Request, key: bytes) -> Reply:
        if not _KEY.fullmatch(key):
            return self._refused(Problem(Code.IDEMPOTENCY_KEY_UNKNOWN))
        scopes: list[bytes] = []
        missing: Problem | None = None
        for policy in self._contract.now.policies:
            scope = scope_of(request, policy)
            if isinstance(scope, Problem):
                missing = scope
            else:
                scopes.append(scope)
        if not scopes:
            return self._refused(missing or Problem(Code.IDEMPOTENCY_KEY_UNKNOWN))
        if not self._callers.take(scopes[0]) or not self._all.take(b""):
            return self._refused(Problem(Code.KEY_LOOKUPS_LIMITED, retry_after=1))
        try:
            steps = await self._lookup(key.decode(), scopes)
        except StoreUnavailable:
            return self._refused(Problem(Code.IDEMPOTENCY_STORE_UNAVAILABLE, retry_after=1))
        if not steps:
            return self._refused(Problem(Code.IDEMPOTENCY_KEY_UNKNOWN))
        shown = {"key": key.decode(), "steps": [_shown(step) for step in steps]}
        return _json(orjson.dumps(shown, option=orjson.OPT_INDENT_2), b"no-store")

    def _refused(self, problem: Problem) -> Reply:
        return refusal(problem, dialect=self._contract.dialect)


class Rates:
    """Token buckets, one for each name, the least recently used forgotten first."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._buckets: OrderedDict[bytes, tuple[float, float]] = OrderedDict()

    def take(self, name: bytes) -> bool:
        now = self._clock()
        left, at = self._buckets.pop(name, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._rate)
        allowed = left >= 1
        self._buckets[name] = (left - 1 if allowed else left, now)
        if len(self._buckets) > CALLERS:
            self._buckets.popitem(last=False)
        return allowed


def _shown(step: Step) -> dict[str, object]:
    return {
        "operation": step.route,
        "state": step.state,
        "first_status": step.first_status,
        "attempts": step.attempts,
        "claimed_at": step.claimed_at.isoformat(),
        "settled_at": step.settled_at.isoformat() if step.settled_at else None,
        "expires_at": step.expires_at.isoformat(),
    }


def _json(body: bytes, caching: bytes) -> Reply:
    return Reply(200, b"OK", ((b"Content-Type", b"application/json"), (b"Cache-Control", caching)), body)
