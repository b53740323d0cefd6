"""What happened to a record, as it is kept."""

from __future__ import annotations

from enum import Enum
from typing import Any

from idemproxy.core.record import RecordId


class Kind(Enum):
    FIRST_WRITE = "first_write"
    DEDUP_HIT = "dedup_hit"
    CONFLICT = "conflict"
    IN_FLIGHT = "in_flight"
    UNKNOWN = "unknown"
    RESOLVED = "resolved"
    EXPIRED = "expired"
    SUSPECTED_DUPLICATE = "suspected_duplicate"


class Event:
    __slots__ = ("at", "attempt", "count", "detail", "fingerprint", "id", "kind", "shadow", "status", "trace")

    def __init__(
        self,
        kind: Kind,
        id: RecordId,
        at: float,
        status: int | None = None,
        attempt: int | None = None,
        fingerprint: bytes | None = None,
        trace: str | None = None,
        detail: dict[str, Any] | None = None,
        shadow: bool = False,
        count: int = 1,
    ) -> None:
        self.kind = kind
        self.id = id
        self.at = at
        """On the monotonic clock of this process."""
        self.status = status
        self.attempt = attempt
        self.fingerprint = fingerprint
        self.trace = trace
        self.detail = detail
        self.shadow = shadow
        """Whether it only would have happened: what shadow mode saw."""
        self.count = count
        """How many alike came within one batch."""
