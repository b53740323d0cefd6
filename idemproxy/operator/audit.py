"""The audit trail of exchanges: what happened to which record, kept for a time of its own, off the clients' way.

An exchange leaves its event in a bounded queue and goes on; once a second the queue is written as a batch. What does
not fit, or cannot be written, is dropped and counted: an audit must never hold up or fail a payment.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from idemproxy.core.identity import key_hash
from idemproxy.core.record import RecordId
from idemproxy.operator import logs
from idemproxy.operator.history import event_of, flows
from idemproxy.operator.metrics import Metrics
from idemproxy.pace import at_half_speed
from idemproxy.ports import Finished
from idemproxy.store.batch import BadItem
from idemproxy.store.errors import FAULTS
from idemproxy.store.event import Event, Kind
from idemproxy.store.events import SWEEP_BATCH, WRITE_BATCH, Events, Pair

log = logging.getLogger("idemproxy")

FLUSH_SECONDS = 1.0
QUEUE_MAX = 20_000
"""A second's worth at more than the proxy's full speed; some ten megabytes."""
SWEEP_SECONDS = 60.0
UNWRITTEN: tuple[type[Exception], ...] = (*FAULTS, BadItem)
"""What ends in events that are dropped and counted."""


class Audit:
    def __init__(self, events: Events, metrics: Metrics, *, keep_seconds: float, window: float) -> None:
        self._events = events
        self._metrics = metrics
        self._keep = keep_seconds
        self._window = window
        self._queue: list[Event | Finished] = []
        self._written: list[Event] = []
        """First writes to be compared with the next flush: by then, every worker and replica has written its own."""
        self._alike: dict[tuple[RecordId, str], int] = {}
        """How often the same has happened to the same record within this batch: a storm of retries is one row."""

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def finished(self, exchange: Finished) -> None:
        """Put the exchange into the queue: what has to be said of it, and nothing that would hold on to its request."""
        trail, id = exchange.trail, exchange.id
        if self._keep <= 0 or trail is None or id is None:
            return
        if trail.attempt:
            item = exchange if flows(exchange) else event_of(exchange, {})
            if item is not None:
                self._put(item)
            return
        place = (id, exchange.outcome)
        if place in self._alike:
            self._alike[place] += 1
        elif self._put(exchange):
            self._alike[place] = 1

    def expired(self, ids: Sequence[RecordId]) -> None:
        """Records that the sweep has deleted."""
        now = asyncio.get_running_loop().time()
        for id in ids:
            logs.quick("audit", {"event": "expired", "key": key_hash(id.key), "route": id.route})
            if self._keep > 0:
                self.put(Event(Kind.EXPIRED, id, now))

    def put(self, event: Event) -> None:
        self._put(event)

    def _put(self, item: Event | Finished) -> bool:
        if len(self._queue) >= QUEUE_MAX:
            self._metrics.events_dropped.inc()
            return False
        self._queue.append(item)
        return True

    async def flush(self) -> None:
        """Compare what was written last time, and write what has come since."""
        written, self._written = self._written, []
        for start in range(0, len(written), WRITE_BATCH):
            async with at_half_speed():
                await self._look_for_pairs(written[start : start + WRITE_BATCH])
        queue = [item for item in self._queue if not flows(item)]
        self._queue = [item for item in self._queue if flows(item)]
        alike, self._alike = self._alike, {}
        for start in range(0, len(queue), WRITE_BATCH):
            async with at_half_speed():
                await self._write(queue[start : start + WRITE_BATCH], alike)

    async def _write(self, items: Sequence[Event | Finished], alike: Mapping[tuple[RecordId, str], int]) -> None:
        batch = [event for item in items if (event := event_of(item, alike)) is not None]
        if not batch:
            return
        for kind in {event.kind for event in batch}:
            self._metrics.event(kind.value, sum(event.count for event in batch if event.kind is kind))
        try:
            await self._events.write(batch)
        except UNWRITTEN as failure:
            self._metrics.events_dropped.inc(len(batch))
            log.warning("%d audit events were dropped: %s", len(batch), type(failure).__name__)
            return
        self._written += [event for event in batch if event.kind is Kind.FIRST_WRITE]

    async def _look_for_pairs(self, writes: list[Event]) -> None:
        try:
            pairs = await self._events.same_writes(writes, self._window)
            self._metrics.suspected_duplicates.inc(len(pairs))
            self._metrics.event(Kind.SUSPECTED_DUPLICATE.value, len(pairs))
            for pair in {_write_of(pair.event): pair for pair in reversed(pairs)}.values():
                _warn(pair)
            if pairs:
                await self._events.write([_suspected(pair) for pair in pairs])
        except UNWRITTEN as failure:
            log.warning("suspected duplicates were not looked for: %s", type(failure).__name__)

    async def sweep(self) -> None:
        try:
            while await self._events.sweep(self._keep) == SWEEP_BATCH:
                pass
        except FAULTS as failure:
            log.warning("sweep of audit events put off: %s", type(failure).__name__)


def _write_of(event: Event) -> tuple[bytes, str, bytes | None]:
    """What suspected duplicates have in common: one line tells of all of them within a batch."""
    return event.id.scope, event.id.route, event.fingerprint


def _warn(pair: Pair) -> None:
    fields = {
        "event": Kind.SUSPECTED_DUPLICATE.value,
        "key": key_hash(pair.event.id.key),
        "other_key": key_hash(pair.other_key),
        "scope": pair.event.id.scope.hex()[:12],
        "route": pair.event.id.route,
        "seconds_apart": pair.seconds,
    }
    log.warning("the same write came under two keys: is the key made anew on each retry?", extra={"fields": fields})


def _suspected(pair: Pair) -> Event:
    event = pair.event
    detail = {"other_key": pair.other_key, "seconds": pair.seconds}
    return Event(Kind.SUSPECTED_DUPLICATE, event.id, event.at, detail=detail, shadow=event.shadow)
