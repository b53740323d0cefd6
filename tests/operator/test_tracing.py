"""OpenTelemetry spans of an exchange: claim, forward and settle under the caller's trace."""

from __future__ import annotations

import os
from collections.abc import Iterator

import aiohttp
import pytest

from idemproxy.service import Service
from tests.conftest import StartProxy
from tests.support.orders import orders_api
from tests.support.process import python

try:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
except ImportError:  # pragma: no cover - a machine without the otel extra
    if os.environ.get("CI"):
        raise
    pytest.skip("the otel extra is not installed", allow_module_level=True)

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
HEADERS = {
    "Authorization": "Bearer ada",
    "Idempotency-Key": "order-1",
    "traceparent": f"00-{TRACE}-{PARENT}-01",
}


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield exporter
    provider.shutdown()


async def post(service: Service) -> int:
    url = f"http://127.0.0.1:{service.port}/orders"
    async with aiohttp.ClientSession() as client, client.post(url, json={}, headers=HEADERS) as got:
        await got.read()
        return got.status


def span_times(span: ReadableSpan) -> tuple[int, int]:
    assert span.start_time is not None
    assert span.end_time is not None
    return span.start_time, span.end_time


def by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


async def test_a_first_write_is_claim_forward_and_settle_under_the_callers_trace(
    proxy: StartProxy, exported: InMemorySpanExporter
) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        await post(service)
    found = by_name(exported)
    assert set(found) == {"POST *", "claim", "forward", "settle"}
    whole = found["POST *"]
    assert whole.parent is not None
    assert (f"{whole.parent.trace_id:032x}", f"{whole.parent.span_id:016x}") == (TRACE, PARENT)
    assert whole.attributes is not None
    assert whole.attributes["idemproxy.outcome"] == "first_write"
    assert whole.attributes["http.response.status_code"] == 201
    for name in ("claim", "forward", "settle"):
        span = found[name]
        assert span.parent is not None
        assert span.parent.span_id == whole.context.span_id
    times = [time for name in ("claim", "forward", "settle") for time in span_times(found[name])]
    assert times == sorted(times)
    start, end = span_times(whole)
    assert start <= times[0]
    assert times[-1] <= end
    assert "order-1" not in str([span.attributes for span in found.values()])


async def test_a_replay_forwards_nothing(proxy: StartProxy, exported: InMemorySpanExporter) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        await post(service)
        exported.clear()
        await post(service)
    assert set(by_name(exported)) == {"POST *", "claim"}


async def test_without_the_extra_the_proxy_runs_and_makes_no_spans() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from idemproxy.operator import tracing\n"
        "import idemproxy.service\n"
        "print(tracing.set_up())"
    )
    finished = await python(
        "-c",
        code,
    )
    assert (finished.code, finished.out) == (0, "None\n"), finished.err


async def test_the_environment_says_where_spans_go() -> None:
    code = (
        "from opentelemetry import trace\n"
        "from idemproxy.operator import tracing\n"
        "tracing.export_by_environment({})\n"
        "before = type(trace.get_tracer_provider()).__name__\n"
        "tracing.export_by_environment({'OTEL_EXPORTER_OTLP_ENDPOINT': 'http://127.0.0.1:9'})\n"
        "after = trace.get_tracer_provider()\n"
        "print(before, type(after).__name__, after.resource.attributes['service.name'])"
    )
    finished = await python("-c", code)
    assert (finished.code, finished.out) == (0, "ProxyTracerProvider TracerProvider idemproxy\n"), finished.err
