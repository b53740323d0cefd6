"""The metrics, declared with their help texts; docs/metrics.md is generated from this page.

Labels come from fixed sets only: never a key, a path or a caller.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge

from idemproxy import __version__
from idemproxy.core.problems import Code
from idemproxy.operator.tallies import Spread, Tally
from idemproxy.ports import Outcome

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.exchanges = Tally(
            "idemproxy_exchanges",
            "Requests to guarded operations by how they ended. The route is the contract's template; without a "
            "contract it is a star, for paths have no bound.",
            ["route", "outcome"],
            registry=registry,
        )
        self.unkeyed = Counter(
            "idemproxy_unkeyed_requests",
            "Requests to guarded operations that came without a key and passed unguarded.",
            ["route"],
            registry=registry,
        )
        self.claims = Tally(
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
            "Leases that a renewal found gone: their owner was paused or cut off from the store for too long.",
            registry=registry,
        )
        self.late_finishes = Counter(
            "idemproxy_late_finishes",
            "Outcomes that came after somebody else had taken the key over: they changed nothing.",
            registry=registry,
        )
        self.settle_failures = Counter(
            "idemproxy_settle_failures",
            "Outcomes that could not be stored at once; each may end as an unknown outcome. Alert on any.",
            registry=registry,
        )
        self.settle_losses = Counter(
            "idemproxy_settle_losses",
            "Outcomes that could not be stored within their lease and were given up. Alert on any.",
            registry=registry,
        )
        self.store_errors = Counter(
            "idemproxy_store_errors", "Statements that failed and were tried again or given up.", registry=registry
        )
        self.breaker_open = Gauge(
            "idemproxy_breaker_open",
            "1 while the circuit breaker turns writes away because the upstream is down.",
            registry=registry,
        )
        self.cache_hits = Tally(
            "idemproxy_cache_hits", "Replays served from memory, without asking the store.", registry=registry
        )
        self.cache_bytes = Gauge("idemproxy_cache_bytes", "Memory taken by cached answers.", registry=registry)
        self.exchange_seconds = Spread(
            "idemproxy_exchange_duration_seconds",
            "Time from the head of a guarded request to its reply.",
            registry=registry,
            bounds=SECONDS,
        )
        self.upstream_seconds = Spread(
            "idemproxy_upstream_duration_seconds",
            "Time the upstream took for the whole answer to a guarded write.",
            registry=registry,
            bounds=SECONDS,
        )
        self.store_seconds = Spread(
            "idemproxy_store_duration_seconds",
            "Time of one statement, by its name in queries.sql.",
            ["statement"],
            registry=registry,
            bounds=SECONDS,
        )
        self.batch_items = Spread(
            "idemproxy_store_batch_items",
            "How many items one statement carried.",
            ["statement"],
            registry=registry,
            bounds=BATCH_SIZES,
        )
        self.refusals = Counter(
            "idemproxy_refusals",
            "Requests refused by a limit or because they are not valid HTTP, by error code; see the limits.",
            ["code"],
            registry=registry,
        )
        self.connections = Gauge(
            "idemproxy_store_connections",
            "Connections to the store, by state: busy, or idle and ready.",
            ["state"],
            registry=registry,
        )
        self.unknown_records = Gauge(
            "idemproxy_unknown_records",
            "Records whose outcome is unknown, claims of dead owners included; counting ends at 10000.",
            registry=registry,
        )
        self.oldest_unknown = Gauge(
            "idemproxy_oldest_unknown_seconds",
            "How long ago the oldest record with an unknown outcome was claimed; 0 when there is none.",
            registry=registry,
        )
        self.expired_records = Gauge(
            "idemproxy_expired_records",
            "Expired records that wait for the sweep; counting ends at 10000.",
            registry=registry,
        )
        self.swept = Counter("idemproxy_swept", "Expired records that this process has deleted.", registry=registry)
        self.last_sweep = Gauge(
            "idemproxy_last_sweep_timestamp_seconds",
            "When this process last ended a sweep, as Unix time; 0 before the first.",
            registry=registry,
        )
        self.events = Counter(
            "idemproxy_audit_events",
            "What happened to records, by event; none when IDEMPROXY_AUDIT_SECONDS is 0.",
            ["event"],
            registry=registry,
        )
        self.events_dropped = Counter(
            "idemproxy_audit_events_dropped",
            "Audit events that were not written: the queue was full, or the store refused them.",
            registry=registry,
        )
        self.events_waiting = Gauge("idemproxy_audit_events_waiting", "Audit events in the queue.", registry=registry)
        self.suspected_duplicates = Counter(
            "idemproxy_suspected_duplicates",
            "Writes that the same caller had sent under another key shortly before. Nothing is blocked.",
            registry=registry,
        )
        self.shadow = Counter(
            "idemproxy_shadow_requests",
            "In shadow mode: requests by what enforcing would have meant for them.",
            ["route", "would"],
            registry=registry,
        )
        self.build = Gauge("idemproxy_build", "Always 1; the version is its label.", ["version"], registry=registry)
        self.build.labels(__version__).set(1)
        self.alike = frozenset(
            {
                "idemproxy_build",
                "idemproxy_breaker_open",
                "idemproxy_unknown_records",
                "idemproxy_oldest_unknown_seconds",
                "idemproxy_expired_records",
                "idemproxy_last_sweep_timestamp_seconds",
            }
        )
        """The gauges that do not add up over the workers of one proxy."""

    def exchange(self, route: str, outcome: Outcome, seconds: float) -> None:
        self.exchanges.inc(route, outcome)
        self.exchange_seconds.observe(seconds)

    def refused(self, code: Code) -> None:
        self.refusals.labels(code.name).inc()

    def pool(self, size: Callable[[], int], idle: Callable[[], int]) -> None:
        self.connections.labels("busy").set_function(lambda: size() - idle())
        self.connections.labels("idle").set_function(idle)

    def event(self, kind: str, count: int) -> None:
        self.events.labels(kind).inc(count)

    def sweep_ended(self, count: int) -> None:
        self.swept.inc(count)
        self.last_sweep.set_to_current_time()

    def claimed(self, attempt: int) -> None:
        self.claims.inc("first" if attempt == 1 else "again")

    def statement(self, name: str, seconds: float, items: int) -> None:
        self.store_seconds.observe(seconds, name)
        self.batch_items.observe(items, name)

    def store_failed(self) -> None:
        self.store_errors.inc()
