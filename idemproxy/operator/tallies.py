"""Counters and histograms for what happens on every request.

The client library's own take a lock, check their labels and walk their buckets, several times per request. These are
counted in one thread, the event loop's, and read in it: a dictionary will do.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector


class Tally(Collector):
    """A counter. Without labels it is there from the start; with them, each series from its first event on."""

    def __init__(self, name: str, text: str, labels: Sequence[str] = (), *, registry: CollectorRegistry) -> None:
        self._name, self._text, self._labelnames = name, text, tuple(labels)
        self._counts: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}
        registry.register(self)

    def inc(self, *labels: str) -> None:
        self._counts[labels] = self._counts.get(labels, 0.0) + 1.0

    def describe(self) -> list[CounterMetricFamily]:
        return [CounterMetricFamily(self._name, self._text, labels=self._labelnames)]

    def collect(self) -> list[CounterMetricFamily]:
        (family,) = self.describe()
        for labels, count in self._counts.items():
            family.add_metric([str(label) for label in labels], count)
        return [family]


class Spread(Collector):
    """A histogram: how often a value was up to each of `bounds`, and the sum of all."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str] = (), *, bounds: Sequence[float], registry: CollectorRegistry
    ) -> None:
        self._name, self._text, self._labelnames, self._bounds = name, text, tuple(labels), tuple(bounds)
        self._series: dict[tuple[str, ...], list[float]] = {}
        """A count for each bound, one for what is above all of them, and the sum."""
        if not labels:
            self._begun(())
        registry.register(self)

    def _begun(self, labels: tuple[str, ...]) -> list[float]:
        self._series[labels] = series = [0.0] * (len(self._bounds) + 2)
        return series

    def observe(self, value: float, *labels: str) -> None:
        series = self._series.get(labels) or self._begun(labels)
        series[bisect_left(self._bounds, value)] += 1.0
        series[-1] += value

    def describe(self) -> list[HistogramMetricFamily]:
        return [HistogramMetricFamily(self._name, self._text, labels=self._labelnames)]

    def collect(self) -> list[HistogramMetricFamily]:
        (family,) = self.describe()
        for labels, series in self._series.items():
            upto, buckets = 0.0, []
            for bound, count in zip((*map(float, self._bounds), "+Inf"), series[:-1], strict=True):
                upto += count
                buckets.append((str(bound), upto))
            family.add_metric(labels, buckets, sum_value=series[-1])
        return [family]
