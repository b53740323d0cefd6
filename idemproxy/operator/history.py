"""From an exchange to what is kept of it: which event it was, and its steps."""

from __future__ import annotations

from collections.abc import Mapping

from idemproxy.core.judge import Settlement
from idemproxy.core.record import RecordId
from idemproxy.operator.trace import trace_id
from idemproxy.ports import Finished, Outcome, Trail
from idemproxy.store.event import Event, Kind

KINDS = {
    Outcome.FIRST_WRITE: Kind.FIRST_WRITE,
    Outcome.REPLAY: Kind.DEDUP_HIT,
    Outcome.PROBED: Kind.RESOLVED,
    Outcome.NOT_STORED: Kind.DEDUP_HIT,
    Outcome.CONFLICT: Kind.CONFLICT,
    Outcome.IN_PROGRESS: Kind.IN_FLIGHT,
    Outcome.UNKNOWN: Kind.UNKNOWN,
    Outcome.LOST: Kind.UNKNOWN,
    Outcome.EXPIRED: Kind.EXPIRED,
}
"""Where nothing was claimed or the key was given back, there is no record to tell of."""


def kind_of(exchange: Finished) -> Kind | None:
    trail = exchange.trail
    if exchange.outcome is Outcome.FIRST_WRITE and trail and trail.settlement is Settlement.MARK_UNKNOWN:
        return Kind.UNKNOWN
    return KINDS.get(exchange.outcome)


def flows(item: Event | Finished) -> bool:
    """An answer that is still on its way to a client that has stopped reading it, so that its end is not known."""
    return isinstance(item, Finished) and item.trail is not None and item.trail.attempt > 0 and not item.trail.settled


def event_of(item: Event | Finished, alike: Mapping[tuple[RecordId, str], int]) -> Event | None:
    if isinstance(item, Event):
        return item
    kind, id, trail = kind_of(item), item.id, item.trail
    if kind is None or id is None or trail is None:
        return None
    trace = trace_id(item.request.headers)
    if not trail.attempt:
        return Event(kind, id, trail.started, item.status, trace=trace, count=alike[id, item.outcome])
    return Event(kind, id, trail.started, item.status, trail.attempt, trail.fingerprint, trace, _steps(trail))


def _steps(trail: Trail) -> dict[str, float]:
    """The steps of a request that won a claim, in milliseconds since it came."""
    steps: dict[str, float] = {}
    for name, at in (
        ("decided", trail.decided),
        ("sent", trail.sent),
        ("answered", trail.answered),
        ("settled", trail.settled),
    ):
        if at is not None:
            steps[name] = int((at - trail.started) * 10_000) / 10
    steps["kept"] = trail.settlement is Settlement.COMPLETE
    if trail.renewals:
        steps["renewals"] = trail.renewals
    return steps
