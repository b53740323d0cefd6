"""The metrics, declared with their help texts; docs/metrics.md is generated from this page.

Labels come from fixed sets only: never a key, a path or a caller.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from idemproxy import __version__
from idemproxy.ports import Outcome

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.exchanges = Counter(
            "idemproxy_exchanges",
            "Guarded requests by how they ended; see the outcomes in the documentation.",
            ["outcome"],
            registry=registry,
        )
        self.claims = Counter(
            "idemproxy_claims",
            "Claims won, by kind: first for a new key, again for a key whose earlier attempt was lost.",
            ["kind"],
            registry=registry,
        )
        self.in_flight = Gauge(
            "idemproxy_in_flight", "Guarded writes that are being executed right now.", registry=registry
        )
        self.lease_losses = Counter(
            "idemproxy_lease_losses",
            "Leases found lost by their owner: it was paused for too long, and changed nothing.",
            registry=registry,
        )
        self.settle_failures = Counter(
            "idemproxy_settle_failures",
            "Outcomes that could not be stored at once; each may end as an unknown outcome. Alert on any.",
            registry=registry,
        )
        self.store_errors = Counter(
            "idemproxy_store_errors", "Statements that failed and were tried again or given up.", registry=registry
        )
        self.exchange_seconds = Histogram(
            "idemproxy_exchange_duration_seconds",
            "Time from the head of a guarded request to its reply.",
            registry=registry,
            buckets=SECONDS,
        )
        self.upstream_seconds = Histogram(
            "idemproxy_upstream_duration_seconds",
            "Time the upstream took for the whole answer to a guarded write.",
            registry=registry,
            buckets=SECONDS,
        )
        self.store_seconds = Histogram(
            "idemproxy_store_duration_seconds",
            "Time of one statement, by its name in queries.sql.",
            ["statement"],
            registry=registry,
            buckets=SECONDS,
        )
        self.batch_items = Histogram(
            "idemproxy_store_batch_items",
            "How many items one statement carried.",
            ["statement"],
            registry=registry,
            buckets=BATCH_SIZES,
        )
        self.build = Gauge("idemproxy_build", "Always 1; the version is its label.", ["version"], registry=registry)
        self.build.labels(__version__).set(1)
        self._outcomes = {outcome: self.exchanges.labels(outcome.value) for outcome in Outcome}
        self._first, self._again = self.claims.labels("first"), self.claims.labels("again")

    def exchange(self, outcome: Outcome, seconds: float) -> None:
        self._outcomes[outcome].inc()
        self.exchange_seconds.observe(seconds)

    def claimed(self, attempt: int) -> None:
        (self._first if attempt == 1 else self._again).inc()

    def statement(self, name: str, seconds: float, items: int) -> None:
        self.store_seconds.labels(name).observe(seconds)
        self.batch_items.labels(name).observe(items)

    def store_failed(self) -> None:
        self.store_errors.inc()
