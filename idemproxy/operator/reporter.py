"""The exchange's observer: counts, and one log line per guarded exchange."""

from __future__ import annotations

import logging

from idemproxy.core.identity import key_hash
from idemproxy.core.policy import Operation
from idemproxy.core.problems import Code
from idemproxy.core.record import RecordId
from idemproxy.operator import logs, tracing
from idemproxy.operator.audit import Audit
from idemproxy.operator.history import kind_of
from idemproxy.operator.metrics import Metrics
from idemproxy.operator.trace import trace_id
from idemproxy.ports import Finished

log = logging.getLogger("idemproxy")


class Reporter:
    def __init__(self, metrics: Metrics, audit: Audit | None = None) -> None:
        self._metrics = metrics
        self._audit = audit
        self._spans = tracing.set_up()

    def claimed(self, attempt: int) -> None:
        self._metrics.claimed(attempt)

    def upstream_answered(self, seconds: float) -> None:
        self._metrics.upstream_seconds.observe(seconds)

    def lease_lost(self, id: RecordId) -> None:
        self._metrics.lease_losses.inc()
        log.warning("lease lost: another owner may have this key now", extra={"fields": {"key": key_hash(id.key)}})

    def finished_late(self, id: RecordId) -> None:
        self._metrics.late_finishes.inc()
        log.warning("lease lost: finished late, another owner has it", extra={"fields": {"key": key_hash(id.key)}})

    def settle_failed(self, id: RecordId) -> None:
        self._metrics.settle_failures.inc()
        log.error("outcome not stored yet, trying on", extra={"fields": {"key": key_hash(id.key)}})

    def settled_late(self, id: RecordId, *, stored: bool) -> None:
        fields = {"fields": {"key": key_hash(id.key)}}
        if stored:
            log.info("outcome stored after all", extra=fields)
        else:
            self._metrics.settle_losses.inc()
            log.error("outcome never stored: the write was executed, and counts as unknown", extra=fields)

    def unkeyed(self, operation: Operation) -> None:
        self._metrics.unkeyed.labels(operation.label).inc()

    def refused(self, code: Code) -> None:
        self._metrics.refused(code)

    def finished(self, exchange: Finished) -> None:
        self._metrics.exchange(exchange.operation.label, exchange.outcome, exchange.seconds)
        if self._audit is not None:
            self._audit.finished(exchange)
        if self._spans is not None:
            self._spans.finished(exchange)
        if log.isEnabledFor(logging.INFO):
            logs.quick("exchange", fields(exchange))


def fields(exchange: Finished) -> dict[str, str | int | float]:
    """What is said of an exchange: the key as a hash that finds it again, nothing of the bodies or credentials."""
    said: dict[str, str | int | float] = {
        "outcome": exchange.outcome,
        "method": exchange.request.method,
        "status": exchange.status,
        "ms": int(exchange.seconds * 10_000) / 10,  # a fifth of what rounding takes
    }
    if exchange.id is not None:
        said["key"] = key_hash(exchange.id.key)
        said["scope"] = exchange.id.scope[:6].hex()
        said["route"] = exchange.id.route
    event = kind_of(exchange)
    if event is not None:
        said["event"] = event
    if exchange.trail is not None and exchange.trail.attempt > 1:
        said["attempt"] = exchange.trail.attempt
    trace = trace_id(exchange.request.headers)
    if trace is not None:
        said["trace"] = trace
    return said
