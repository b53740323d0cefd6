"""OpenTelemetry spans of guarded exchanges, where the `otel` extra is installed: claim, forward, settle.

They are made when the exchange has ended, from the times on its trail, so that nothing on a request's way waits for
them. Where they go is said by OpenTelemetry's own variables: OTEL_EXPORTER_OTLP_ENDPOINT and its kin.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from idemproxy.core.messages import header_value
from idemproxy.ports import Finished

try:
    from opentelemetry import trace
    from opentelemetry.trace import SpanKind, Status, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    INSTALLED = False
else:
    INSTALLED = True

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def export_by_environment(environment: Mapping[str, str]) -> None:
    """Send spans where OpenTelemetry's variables say; without them, whoever embeds the proxy may have set it up."""
    if not INSTALLED or not any(environment.get(name) for name in ENDPOINTS):
        return
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    service = {} if "OTEL_SERVICE_NAME" in environment else {"service.name": "idemproxy"}
    provider = TracerProvider(resource=Resource.create(service))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


class Spans:
    def __init__(self) -> None:
        self._tracer = trace.get_tracer("idemproxy")
        self._propagator = TraceContextTextMapPropagator()

    def finished(self, exchange: Finished) -> None:
        trail = exchange.trail
        if trail is None:
            return
        # The trail is on the monotonic clock; spans are on the wall's.
        offset = time.time_ns() - time.monotonic_ns()

        def at(monotonic: float) -> int:
            return int(monotonic * 1e9) + offset

        headers = exchange.request.headers
        carrier = {name: header_value(headers, name.encode()) for name in ("traceparent", "tracestate")}
        parent = self._propagator.extract({name: value.decode("latin-1") for name, value in carrier.items() if value})
        span = self._tracer.start_span(
            f"{exchange.request.method} {exchange.operation.label}",
            parent,
            SpanKind.SERVER,
            {
                "idemproxy.outcome": exchange.outcome.value,
                "http.request.method": exchange.request.method,
                "http.route": exchange.operation.label,
                "http.response.status_code": exchange.status,
                "idemproxy.attempt": trail.attempt,
            },
            start_time=at(trail.started),
        )
        if exchange.status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        within = trace.set_span_in_context(span, parent)
        steps = (
            ("claim", SpanKind.INTERNAL, trail.started, trail.decided),
            ("forward", SpanKind.CLIENT, trail.sent, trail.answered or trail.settled),
            ("settle", SpanKind.INTERNAL, trail.answered, trail.settled),
        )
        for name, kind, start, end in steps:
            if start is not None and end is not None:
                self._tracer.start_span(name, within, kind, start_time=at(start)).end(at(end))
        span.end(at(trail.settled or trail.decided or trail.started))


def set_up() -> Spans | None:
    """None unless spans are wanted: the extra is installed, and somebody has said where they go."""
    export_by_environment(os.environ)
    if not INSTALLED or isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    return Spans()
