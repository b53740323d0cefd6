"""What the exchange needs from the outside world, as protocols: an upstream, a store, an observer."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final, Protocol

from idemproxy.core.judge import Settlement
from idemproxy.core.messages import Answer, Headers, Request
from idemproxy.core.policy import Operation
from idemproxy.core.problems import Code
from idemproxy.core.record import Claim, Completed, Found, Lease, RecordId, Step
from idemproxy.core.value import Value


class Loss(Enum):
    """How an answer was lost after the first byte of the request had gone out."""

    TIMEOUT = "timeout"
    DISCONNECTED = "disconnected"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class NotSent:
    """Not one byte of the request left this process: provably, nothing happened upstream."""

    why: str
    retry_after: int | None = None
    """Set when the upstream is known to be down and was not even tried: so many seconds until it is."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Some of the request was sent and no whole answer came: it may have happened, or not."""

    loss: Loss
    why: str


class BodyLost(Exception):
    """The upstream broke off in the middle of an answer's body."""

    def __init__(self, lost: Lost) -> None:
        super().__init__(lost.why)
        self.lost = lost


class AnswerBody(Protocol):
    """The body of an answer while it arrives."""

    async def read(self) -> bytes:
        """The next bytes, `b""` once the upstream has ended it whole. Raises BodyLost when it broke off."""
        ...

    def close(self) -> None:
        """Give up what has not been read; its connection is closed. Does nothing after the end."""
        ...

    @property
    def complete(self) -> bool:
        """Whether it is known already that `read` has nothing more to give."""
        ...

    @property
    def trailers(self) -> Headers:
        """The trailer section; complete only after `read` has returned `b""`."""
        ...


class Opened(Value):
    """The head of an answer has arrived; its body follows."""

    __match_args__ = ("status", "reason", "headers", "body")
    __slots__ = __match_args__

    def __init__(self, status: int, reason: bytes, headers: Headers, body: AnswerBody) -> None:
        self.status: Final = status
        self.reason: Final = reason
        self.headers: Final = headers
        self.body: Final = body


class Channel(Protocol):
    """A connection that has switched to another protocol: bytes both ways."""

    async def read(self) -> bytes:
        """The next bytes, `b""` once there will be no more."""
        ...

    async def write(self, data: bytes) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Switched:
    """The upstream agreed to speak another protocol."""

    status: int
    reason: bytes
    headers: Headers
    channel: Channel


Interim = Callable[[int, bytes, Headers], None]
"""Called with status, reason and headers of each 1xx answer that comes before the final one."""


class Upstream(Protocol):
    async def send(
        self,
        method: str,
        target: bytes,
        headers: Headers,
        body: bytes | AsyncIterable[bytes],
        *,
        timeout: float,
        interim: Interim | None = None,
    ) -> Opened | NotSent | Lost: ...


class OpenUpstream(Protocol):
    """What requests need that nobody guards: they may end in trailers, and ask for another protocol."""

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
        """`trailers` is asked once the last piece of a chunked body has gone out."""
        ...

    async def switch(
        self, method: str, target: bytes, headers: Headers, *, timeout: float
    ) -> Opened | Switched | NotSent | Lost:
        """Ask for another protocol; an upstream that declines it just answers."""
        ...


class StoreUnavailable(Exception):
    """The store cannot be reached, or did not answer in time. Nothing may be sent upstream."""


class Store(Protocol):
    """Records under their ids. Every change but the claim carries the lease's token: a late one changes nothing."""

    async def claim(self, claim: Claim) -> Found:
        """Claim, or report what is there. A claim whose commit was in doubt recognises its own token."""
        ...

    def remembered(self, id: RecordId) -> Completed | None:
        """A completed record that is in memory, and certain to be what a claim would find."""
        ...

    async def take_over(self, claim: Claim, seen: bytes) -> Found:
        """Claim a lapsed or expired record that still has the token `seen`; otherwise report what is there now."""
        ...

    async def renew(self, lease: Lease) -> bool:
        """Extend the lease; False when it is lost."""
        ...

    async def complete(self, lease: Lease, answer: Answer, *, kept: bool) -> bool:
        """Store the answer (without its body unless `kept`); False when the lease is lost."""
        ...

    async def mark_unknown(self, lease: Lease) -> bool: ...

    async def release(self, lease: Lease) -> bool: ...


class Lookup(Protocol):
    async def __call__(self, key: str, scopes: Sequence[bytes]) -> list[Step]:
        """What became of a key in these scopes, on every route, the first step first. Raises StoreUnavailable."""
        ...


class Outcome(StrEnum):
    """How a guarded exchange ended: one word each in logs, metrics and docs."""

    FIRST_WRITE = "first_write"
    REPLAY = "replay"
    PROBED = "probed"
    CONFLICT = "conflict"
    IN_PROGRESS = "in_progress"
    UNKNOWN = "unknown"
    NOT_STORED = "not_stored"
    EXPIRED = "expired"
    NOT_SENT = "not_sent"
    LOST = "lost"
    STORE_UNAVAILABLE = "store_unavailable"
    INVALID = "invalid"


class Trail:
    """The steps of one guarded request, on the monotonic clock; None for a step that was not taken."""

    __slots__ = (
        *("answered", "attempt", "decided", "fingerprint", "renewals", "sent", "settled", "settlement", "started"),
    )

    def __init__(self, started: float) -> None:
        self.started = started
        self.fingerprint = b""
        self.decided: float | None = None
        """The store has said what is there, and the judge what follows."""
        self.attempt = 0
        """Of the claim that this request won; 0 when it won none."""
        self.sent: float | None = None
        self.renewals = 0
        self.answered: float | None = None
        self.settlement: Settlement | None = None
        """What the answer came to."""
        self.settled: float | None = None


class Finished(Value):
    """A request to a guarded operation that has been answered. Without a trail, it was refused before any claim."""

    __match_args__ = ("outcome", "request", "operation", "id", "status", "seconds", "trail")
    __slots__ = __match_args__

    def __init__(
        self,
        outcome: Outcome,
        request: Request,
        operation: Operation,
        id: RecordId | None,
        status: int,
        seconds: float,
        trail: Trail | None,
    ) -> None:
        self.outcome: Final = outcome
        self.request: Final = request
        self.operation: Final = operation
        self.id: Final = id
        self.status: Final = status
        self.seconds: Final = seconds
        self.trail: Final = trail


class Observer(Protocol):
    """What the exchange tells about itself. Implementations must be quick and must not raise."""

    def claimed(self, attempt: int) -> None: ...

    def upstream_answered(self, seconds: float) -> None: ...

    def lease_lost(self, id: RecordId) -> None:
        """A renewal found the lease gone."""
        ...

    def finished_late(self, id: RecordId) -> None:
        """Settling found the lease gone: the record belongs to somebody else, and was not changed."""
        ...

    def settle_failed(self, id: RecordId) -> None: ...

    def settled_late(self, id: RecordId, *, stored: bool) -> None: ...

    def unkeyed(self, operation: Operation) -> None:
        """A request to a guarded operation came without a key, and passed unguarded."""
        ...

    def refused(self, code: Code) -> None:
        """A request was refused by a limit, or because it is not valid HTTP."""
        ...

    def finished(self, exchange: Finished) -> None: ...
