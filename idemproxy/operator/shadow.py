"""Shadow mode: what an enforcing proxy would have done, told in metrics, log lines and events.

No record is ever written: what was seen is remembered in the events alone, marked as shadow, and no enforcing proxy
reads those. The verdicts are made where the audit's batches are, off the traffic's way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from idemproxy.core.fingerprint import LARGE_BODY, fingerprint
from idemproxy.core.identity import NoKey, identify, key_hash
from idemproxy.core.judge import Settlement, after_answer
from idemproxy.core.problems import Code, Problem
from idemproxy.core.record import RecordId
from idemproxy.edge.shadow import Sighting
from idemproxy.operator.audit import QUEUE_MAX, Audit
from idemproxy.operator.metrics import Metrics
from idemproxy.operator.trace import trace_id
from idemproxy.store.errors import FAULTS
from idemproxy.store.event import Event, Kind
from idemproxy.store.events import WRITE_BATCH, Events, Seen
from idemproxy.tasks import Tasks

log = logging.getLogger("idemproxy")


class Would(Enum):
    """What enforcing would have meant for a request."""

    FIRST_WRITE = "first_write"
    REPLAY = "replay"
    CONFLICT = "conflict"
    IN_PROGRESS = "in_progress"
    MISSING_KEY = "missing_key"
    INVALID = "invalid"


_WORDS = {
    Kind.FIRST_WRITE: Would.FIRST_WRITE,
    Kind.DEDUP_HIT: Would.REPLAY,
    Kind.CONFLICT: Would.CONFLICT,
    Kind.IN_FLIGHT: Would.IN_PROGRESS,
}


@dataclass(slots=True)
class Pending:
    event: Event
    label: str
    ttl: float


class Shadow:
    def __init__(self, events: Events, audit: Audit, metrics: Metrics, *, max_request_bytes: int) -> None:
        self._events = events
        self._audit = audit
        self._metrics = metrics
        self._max_bytes = max_request_bytes
        self._pending: list[Pending] = []
        self.tasks = Tasks()

    def saw(self, sighting: Sighting) -> None:
        if len(sighting.request.body) >= LARGE_BODY:
            self.tasks.spawn(asyncio.to_thread(self._look, sighting), "look at a large request").add_done_callback(
                lambda task: self._take(task.result()) if not task.cancelled() and task.exception() is None else None
            )
        else:
            self._take(self._look(sighting))

    def _look(self, sighting: Sighting) -> Pending | None:
        """What the request would have been under its key; None when it would not have got that far."""
        operation, request = sighting.operation, sighting.request
        identity = identify(request, operation)
        missing = isinstance(identity, Problem) and identity.code is Code.MISSING_IDEMPOTENCY_KEY
        if missing or isinstance(identity, NoKey):
            self._tell(Would.MISSING_KEY, operation.label, None)
            return None
        if isinstance(identity, Problem) or not sighting.whole:
            self._tell(Would.INVALID, operation.label, None if isinstance(identity, Problem) else identity)
            return None
        known = fingerprint(request, operation.policy.rules, self._max_bytes).to_bytes()
        status = sighting.status
        settlement = (
            Settlement.MARK_UNKNOWN if status is None else after_answer(status, operation.policy, sighting.said)
        )
        milliseconds = round((sighting.ended - sighting.started) * 1000, 1)
        detail = {"settled": milliseconds, "kept": settlement is Settlement.COMPLETE}
        trace = trace_id(request.headers)
        event = Event(Kind.FIRST_WRITE, identity, sighting.started, status, 1, known, trace, detail, shadow=True)
        return Pending(event, operation.label, operation.policy.ttl_seconds)

    def _take(self, pending: Pending | None) -> None:
        if pending is None:
            return
        if len(self._pending) >= QUEUE_MAX:
            self._metrics.events_dropped.inc()
            return
        self._pending.append(pending)

    async def judge(self) -> None:
        """Decide what has been seen since the last time, and hand it to the audit."""
        pending, self._pending = self._pending, []
        pending.sort(key=lambda each: each.event.at)
        for start in range(0, len(pending), WRITE_BATCH):
            batch = pending[start : start + WRITE_BATCH]
            try:
                seen = await self._events.shadow_writes([(each.event, each.ttl) for each in batch])
            except FAULTS as failure:
                self._metrics.events_dropped.inc(len(batch))
                log.warning("%d sightings of shadow mode were dropped: %s", len(batch), type(failure).__name__)
                continue
            for each in batch:
                event = each.event
                event.kind = verdict(event, seen.get(event.id, ()))
                if event.kind is Kind.FIRST_WRITE and event.detail and event.detail["kept"]:
                    ended = event.at + event.detail["settled"] / 1000
                    seen.setdefault(event.id, []).append(Seen(event.fingerprint or b"", event.at, ended))
                self._tell(_WORDS[event.kind], each.label, event.id)
                self._audit.put(event)

    def _tell(self, would: Would, label: str, id: RecordId | None) -> None:
        self._metrics.shadow.labels(label, would.value).inc()
        fields = {"would": would.value}
        if id is not None:
            fields |= {"key": key_hash(id.key), "scope": id.scope.hex()[:12], "route": id.route}
        log.info("shadow", extra={"fields": fields})


def verdict(event: Event, seen: Sequence[Seen]) -> Kind:
    """By the first write that was seen under the same id: nothing, another request, still running, or a replay."""
    earlier = [each for each in seen if each.at < event.at]
    if not earlier:
        return Kind.FIRST_WRITE
    first = min(earlier, key=lambda each: each.at)
    if first.fingerprint != event.fingerprint:
        return Kind.CONFLICT
    return Kind.IN_FLIGHT if event.at < first.ended else Kind.DEDUP_HIT
