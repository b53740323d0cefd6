"""What happened to a record, as it is kept, and as the columns of a batch (store/columns.py)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

import orjson

from idemproxy.core.record import RecordId
from idemproxy.store.columns import hashes, identified, numbers, texts


class Kind(StrEnum):
    FIRST_WRITE = "first_write"
    DEDUP_HIT = "dedup_hit"
    CONFLICT = "conflict"
    IN_FLIGHT = "in_flight"
    UNKNOWN = "unknown"
    RESOLVED = "resolved"
    EXPIRED = "expired"
    SUSPECTED_DUPLICATE = "suspected_duplicate"


class Event:
    __slots__ = (
        *("at", "attempt", "count", "detail", "fingerprint", "id", "kind", "recorded", "shadow", "status", "trace"),
    )

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
        self.recorded = 0
        """When it was by the database's clock, in microseconds of Unix time; known once it is written."""


_NO_FINGERPRINT: Final = bytes(33)


def event_columns(events: Sequence[Event], number: int) -> tuple[str | bytes | int, ...]:
    """Of `write_events`."""
    separator, keys, routes, details = texts(
        [event.id.key for event in events],
        [event.id.route for event in events],
        [orjson.dumps(event.detail).decode() if event.detail else "-" for event in events],
    )
    return (
        separator,
        keys,
        routes,
        hashes([event.id.scope for event in events], 32),
        hashes([event.fingerprint or _NO_FINGERPRINT for event in events], 33),
        numbers([event.recorded for event in events]),
        number,
        " ".join([event.kind for event in events]),
        numbers([event.shadow for event in events]),
        numbers([event.count for event in events]),
        numbers([event.status for event in events]),
        numbers([event.attempt for event in events]),
        " ".join([event.trace or "-" for event in events]),
        details,
    )


def write_columns(writes: Sequence[Event]) -> tuple[str | bytes, ...]:
    """Of `find_same_writes`."""
    separator, keys, routes, scopes = identified([write.id for write in writes])
    fingerprints = hashes([write.fingerprint or _NO_FINGERPRINT for write in writes], 33)
    return separator, keys, routes, scopes, fingerprints, numbers([write.recorded for write in writes])
