"""What an upstream says about its own answer, in three fields that the client never sees.

    Idempotency-Store: no                            do not keep this answer
    Idempotency-TTL: 3600                            keep it for so many seconds
    Idempotency-Outcome: none | partial | unknown    what became of the write, whatever the status says

A field with any other value, or given twice with different values, counts as absent: the status decides, as always.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from idemproxy.core.messages import Headers, header_values, lower
from idemproxy.core.record import Lease

STORE, TTL, OUTCOME = b"idempotency-store", b"idempotency-ttl", b"idempotency-outcome"
FIELDS = frozenset({STORE, TTL, OUTCOME})
TTL_LIMIT = 31_536_000
"""A year, as for the setting: longer ones are more likely milliseconds than meant."""


class Became(Enum):
    """What became of the write, by the upstream's own word."""

    NONE = b"none"
    """Nothing happened: the key is free again."""
    PARTIAL = b"partial"
    """Some of it happened: running it again would repeat that part, so the answer is kept, whatever its status."""
    UNKNOWN = b"unknown"
    """The upstream itself cannot tell, for it lost somebody's answer further down."""


@dataclass(frozen=True, slots=True)
class Steering:
    store: bool = True
    ttl_seconds: float | None = None
    became: Became | None = None


SILENT = Steering()


def steering(headers: Headers) -> Steering:
    if FIELDS.isdisjoint([lower(name) for name, _ in headers]):
        return SILENT
    ttl = _value(headers, TTL)
    outcome = _value(headers, OUTCOME)
    return Steering(
        store=_value(headers, STORE) != b"no",
        ttl_seconds=_seconds(ttl) if ttl is not None else None,
        became=next((became for became in Became if became.value == outcome), None),
    )


def _value(headers: Headers, name: bytes) -> bytes | None:
    values = {value.strip(b" \t").lower() for value in header_values(headers, name)}
    return values.pop() if len(values) == 1 else None


def _seconds(text: bytes) -> float | None:
    if not text.isdigit() or len(text) > len(str(TTL_LIMIT)):
        return None
    seconds = int(text)
    return float(seconds) if 0 < seconds <= TTL_LIMIT else None


def lasting(lease: Lease, said: Steering) -> Lease:
    """The lease, with the time to live that the upstream asked for."""
    if said.ttl_seconds is None:
        return lease
    return lease.having(claim=lease.claim.having(ttl_seconds=said.ttl_seconds))
