"""The last minutes in numbers, for the dashboard's charts: a sample every few seconds, kept in memory.

All workers take their samples at the same beats of the wall clock, so that theirs add up.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence

from prometheus_client import Counter, Gauge
from prometheus_client.registry import Collector

from idemproxy.operator.metrics import Metrics
from idemproxy.operator.views import View
from idemproxy.ports import StoreUnavailable
from idemproxy.store.records import Records

log = logging.getLogger("idemproxy")

SAMPLE_SECONDS = 2.0
SAMPLES = 150
"""Five minutes: what somebody who has just been called wants to see first."""
COUNT_EVERY = 5
"""Counting open records costs a few indexed reads: once in ten seconds is plenty for an alert."""

TIMES = ("_upstream_sum", "_upstream_count", "_store_sum", "_store_count")
ADD_UP = ("in_flight", *TIMES)
"""What the workers have each a part of. Of what is unknown, each sees the whole."""


class Live:
    def __init__(self, metrics: Metrics, records: Records) -> None:
        self._metrics = metrics
        self._records = records
        self._samples: deque[View] = deque(maxlen=SAMPLES)
        self._before = self._totals()

    async def run(self) -> None:
        turn = 0
        while True:
            if turn % COUNT_EVERY == 0:
                await self.count()
            turn += 1
            await asyncio.sleep(SAMPLE_SECONDS - time.time() % SAMPLE_SECONDS)
            self.sample()

    async def count(self) -> None:
        try:
            counts = await self._records.counts()
        except StoreUnavailable:
            return  # /readyz and the store's own metrics tell; the last counts stay
        self._metrics.unknown_records.set(counts.unknown)
        self._metrics.oldest_unknown.set(counts.oldest_unknown_seconds)
        self._metrics.expired_records.set(counts.expired)

    def sample(self) -> None:
        now = self._totals()
        before, self._before = self._before, now
        change = {name: value - before.get(name, 0.0) for name, value in now.items()}
        self._samples.append(
            {
                "at": round(time.time() / SAMPLE_SECONDS) * SAMPLE_SECONDS,
                "outcomes": {name: change[name] for name in change if not name.startswith("_")},
                "in_flight": _value(self._metrics.in_flight),
                "unknown": _value(self._metrics.unknown_records),
                **{name: change[name] for name in TIMES},
            }
        )

    def own(self) -> View:
        """This process's part of the view."""
        return {
            "samples": list(self._samples),
            "totals": {name: value for name, value in self._totals().items() if not name.startswith("_")},
        }

    def _totals(self) -> dict[str, float]:
        totals = _by_label(self._metrics.exchanges, "outcome")
        for would, value in _by_label(self._metrics.shadow, "would").items():
            totals[f"shadow_{would}"] = value
        totals["unkeyed"] = sum(_by_label(self._metrics.unkeyed, "route").values())
        totals["refused"] = sum(_by_label(self._metrics.refusals, "code").values())
        totals["suspected_duplicate"] = _value(self._metrics.suspected_duplicates)
        for name, histogram in (("_upstream", self._metrics.upstream_seconds), ("_store", self._metrics.store_seconds)):
            totals[f"{name}_sum"], totals[f"{name}_count"] = _histogram(histogram)
        return totals


def _by_label(counter: Collector, label: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for family in counter.collect():
        for sample in family.samples:
            if sample.name.endswith("_total"):
                found[sample.labels[label]] = found.get(sample.labels[label], 0.0) + sample.value
    return found


def _value(metric: Counter | Gauge) -> float:
    return next(iter(metric.collect())).samples[0].value


def _histogram(histogram: Collector) -> tuple[float, float]:
    total = count = 0.0
    for family in histogram.collect():
        for sample in family.samples:
            if sample.name.endswith("_sum"):
                total += sample.value
            elif sample.name.endswith("_count"):
                count += sample.value
    return total, count


def together(parts: Sequence[View]) -> View:
    """One view from those of all workers, up to the last beat that all of them have sampled."""
    last = min((part["samples"][-1]["at"] for part in parts if part["samples"]), default=0.0)
    beats: dict[float, View] = {}
    totals: dict[str, float] = {}
    for part in parts:
        _add(totals, part["totals"])
        for sample in part["samples"]:
            if sample["at"] > last:
                break
            beat = beats.setdefault(sample["at"], {"outcomes": {}, "unknown": 0.0, **dict.fromkeys(ADD_UP, 0.0)})
            _add(beat["outcomes"], sample["outcomes"])
            _add(beat, {name: sample[name] for name in ADD_UP})
            beat["unknown"] = max(beat["unknown"], sample["unknown"])
    samples = [{"at": at, **_shown(beats[at])} for at in sorted(beats)[-SAMPLES:]]
    return {"interval_seconds": SAMPLE_SECONDS, "samples": samples, "totals": totals}


def _add(sums: View, more: dict[str, float]) -> None:
    for name, value in more.items():
        sums[name] = sums.get(name, 0.0) + value


def _shown(beat: View) -> View:
    times = {f"{name}_ms": _mean(beat[f"_{name}_sum"], beat[f"_{name}_count"]) for name in ("upstream", "store")}
    return {**{name: beat[name] for name in ("outcomes", "in_flight", "unknown")}, **times}


def _mean(seconds: float, count: float) -> float | None:
    return round(seconds / count * 1000, 3) if count else None
