"""The life of a record, as the store reports it: facts only. What follows from them is judged in `judge.py`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from idemproxy.core.messages import Answer
from idemproxy.core.value import Value


class RecordId(NamedTuple):
    """What a claim is unique by. `scope` is a hash: the caller's credentials are never stored.

    A tuple, for it is hashed and compared many times on a request's way.
    """

    key: str
    scope: bytes
    route: str


class Claim(Value):
    """The wish to execute a write. `token` is fresh for each request: by it a claim recognises itself."""

    __match_args__ = ("id", "fingerprint", "token", "lease_seconds", "ttl_seconds")
    __slots__ = __match_args__

    def __init__(
        self, id: RecordId, fingerprint: bytes, token: bytes, lease_seconds: float, ttl_seconds: float
    ) -> None:
        self.id: Final = id
        self.fingerprint: Final = fingerprint
        self.token: Final = token
        self.lease_seconds: Final = lease_seconds
        self.ttl_seconds: Final = ttl_seconds


class Lease(Value):
    """A claim that was won: the right, for a while and under one token, to execute and to settle."""

    __match_args__ = ("claim", "attempt")
    __slots__ = __match_args__

    def __init__(self, claim: Claim, attempt: int) -> None:
        self.claim: Final = claim
        self.attempt: Final = attempt


class Running(NamedTuple):
    """Somebody holds a claim. A lapsed lease means that its owner died, or was paused for too long."""

    token: bytes
    fingerprint: bytes
    lapsed: bool
    lease_left: float


@dataclass(frozen=True, slots=True)
class Unknown:
    """The request was sent and no whole answer came. The key stays taken until the lease has lapsed."""

    token: bytes
    fingerprint: bytes
    lapsed: bool
    lease_left: float


class Completed(Value):
    """The write was answered. `answer` is None when it was too large to be kept."""

    __match_args__ = ("token", "fingerprint", "status", "answer")
    __slots__ = __match_args__

    def __init__(self, token: bytes, fingerprint: bytes, status: int, answer: Answer | None) -> None:
        self.token: Final = token
        self.fingerprint: Final = fingerprint
        self.status: Final = status
        self.answer: Final = answer


@dataclass(frozen=True, slots=True)
class Expired:
    """The record is past its TTL: as good as gone, swept or not."""

    token: bytes
    since: float


@dataclass(frozen=True, slots=True)
class Step:
    """What a caller may know of its own record. One key on several routes is a workflow, and each of them a step."""

    route: str
    state: str
    """`running`, `completed`, `unknown` or `expired`."""
    first_status: int | None
    attempts: int
    claimed_at: datetime
    settled_at: datetime | None
    expires_at: datetime


Found = Lease | Running | Unknown | Completed | Expired
