"""What a worker knows of its parent and of the other workers, and how their figures become one page."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import orjson
from aiohttp import web
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from idemproxy.operator.live import Live, together
from idemproxy.operator.metrics import Metrics
from idemproxy.operator.views import View

VARIABLE = "_IDEMPROXY_WORKER"
ASK_SECONDS = 1.0
"""A sibling that does not answer in time is left out: its figures come back with it."""


@dataclass(frozen=True, slots=True)
class Inherited:
    """What a worker gets from its parent: file descriptors, the prepared database, and where its siblings are."""

    number: int
    data_fd: int
    admin_fd: int
    parent_fd: int
    """Nothing is ever written to it: its end says that the parent is gone."""
    siblings: str
    database_url: str
    documents: dict[str, str]
    """The parent's copies of the documents, by the names of their settings."""


def inherited(environment: Mapping[str, str]) -> Inherited | None:
    given = environment.get(VARIABLE)
    return Inherited(**json.loads(given)) if given else None


class Siblings:
    """Gives this worker's figures to the others, and the figures of all of them to whoever asks."""

    def __init__(self, metrics: Metrics, live: Live, given: Inherited | None) -> None:
        self._metrics = metrics
        self._live = live
        self._given = given
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Siblings:
        if self._given is not None:
            runner = web.ServerRunner(web.Server(self._answer, access_log=None))
            await runner.setup()
            self._stack.push_async_callback(runner.cleanup)
            path = Path(self._given.siblings) / f"{self._given.number}.sock"
            path.unlink(missing_ok=True)  # of a worker that died
            await web.UnixSite(runner, str(path)).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        if request.path == "/live":
            return web.Response(body=orjson.dumps(self._live.own()))
        return web.Response(body=generate_latest(self._metrics.registry))

    async def metrics(self) -> bytes:
        """The metrics page: of this process, or of all workers together."""
        own = generate_latest(self._metrics.registry)
        return own if self._given is None else merged([own, *await self._others("/metrics")], self._metrics.alike)

    async def live(self) -> View:
        """The last minutes: of this process, or of all workers together."""
        others = [orjson.loads(page) for page in await self._others("/live")]
        return together([self._live.own(), *others])

    async def _others(self, path: str) -> list[bytes]:
        sockets = _sockets(self._given) if self._given else []
        pages = await asyncio.gather(*(_ask(file, path) for file in sockets))
        return [page for page in pages if page is not None]


def _sockets(given: Inherited) -> list[Path]:
    return [file for file in Path(given.siblings).glob("*.sock") if file.stem != str(given.number)]


async def _ask(file: Path, path: str) -> bytes | None:
    timeout = aiohttp.ClientTimeout(total=ASK_SECONDS)
    with contextlib.suppress(aiohttp.ClientError, OSError):
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(file)), timeout=timeout) as client,
            client.get(f"http://worker{path}") as answer,
        ):
            return await answer.read()
    return None


def merged(pages: list[bytes], alike: frozenset[str]) -> bytes:
    """One page from several. Figures add up, but for the gauges named `alike`, which each worker sees the same."""
    families: dict[str, Metric] = {}
    values: dict[tuple[str, str, tuple[tuple[str, str], ...]], float] = {}
    for page in pages:
        for family in text_string_to_metric_families(page.decode()):
            families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                key = (family.name, sample.name, tuple(sample.labels.items()))
                before = values.get(key)
                if before is None:
                    values[key] = sample.value
                elif sample.name.endswith("_created"):
                    values[key] = min(before, sample.value)
                elif family.name in alike:
                    values[key] = max(before, sample.value)
                else:
                    values[key] = before + sample.value
    for (family_name, name, labels), value in values.items():
        families[family_name].add_sample(name, dict(labels), value)
    registry = CollectorRegistry()
    registry.register(_Merged(list(families.values())))
    return generate_latest(registry)


class _Merged(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)
