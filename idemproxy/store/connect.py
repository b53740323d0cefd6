"""Connections to the primary, whichever of the hosts that is, and found soon even when another host is silent.

A URL may name several hosts (`postgresql://user@a,b/name`). Each new connection goes to the one that takes writes; the
one that did so last is asked first. asyncpg alone would ask them one after the other, and a host that has vanished
without a word would use up all the time there is.
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import asyncpg
from asyncpg.connect_utils import SessionAttribute

from idemproxy.store.errors import FAULTS
from idemproxy.tasks import Tasks

STAGGER_SECONDS = 0.15
"""Ahead of the next host: a healthy one answers within this, so that mostly one connection is made, not several."""


class Primary:
    def __init__(self, dsn: str, *, pooled: bool = False) -> None:
        """`pooled`: a pooler stands before Postgres and chooses the host itself."""
        self._dsns = [dsn] if pooled else one_each(dsn)
        self._wanted = SessionAttribute.any if pooled else SessionAttribute.read_write

    async def connect(self, *_: Any, **how: Any) -> asyncpg.Connection:
        """As `asyncpg.connect`, whose place it takes in a pool; raises what the last host to fail said."""
        tasks = Tasks()
        waiting = list(self._dsns)
        pending: set[asyncio.Task[asyncpg.Connection | Exception]] = set()
        failure: Exception | None = None
        try:
            while waiting or pending:
                if waiting:
                    pending.add(tasks.spawn(self._try(waiting.pop(0), how), "connect"))
                pause = STAGGER_SECONDS if waiting else None
                done, pending = await asyncio.wait(pending, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                for ended in done:
                    got = ended.result()
                    if not isinstance(got, Exception):
                        return got
                    failure = got
        finally:
            for task in pending:
                task.add_done_callback(_discard)
                task.cancel()
        assert failure is not None  # noqa: S101 - there is at least one host
        raise failure

    async def _try(self, dsn: str, how: dict[str, Any]) -> asyncpg.Connection | Exception:
        try:
            connection: asyncpg.Connection = await asyncpg.connect(dsn, target_session_attrs=self._wanted, **how)
        except FAULTS as failure:
            return failure
        self._dsns.sort(key=lambda other: other != dsn)
        return connection


def _discard(task: asyncio.Task[asyncpg.Connection | Exception]) -> None:
    """A connection that came too late."""
    if not task.cancelled() and not isinstance(late := task.result(), Exception):
        late.terminate()


def one_each(dsn: str) -> list[str]:
    """A URL for each of its hosts. Hosts and ports stand before the path, or in the query, as libpq reads them."""
    parts = urlsplit(dsn)
    login, at, places = parts.netloc.rpartition("@")
    query = parse_qsl(parts.query, keep_blank_values=True)
    given = dict(query)
    hosts = given["host"].split(",") if "host" in given else [_split(place)[0] for place in places.split(",")]
    ports = given["port"].split(",") if "port" in given else [_split(place)[1] for place in places.split(",")]
    if len(hosts) < 2:
        return [dsn]
    if len(ports) == 1:
        ports *= len(hosts)
    rest = [(name, value) for name, value in query if name not in ("host", "port", "target_session_attrs")]
    urls = []
    for host, port in zip(hosts, ports, strict=True):
        socket = [("host", host)] if host.startswith("/") else []
        place = "" if socket else host
        where = [*rest, *socket, *([("port", port)] if port and socket else [])]
        netloc = f"{login}{at}{place}{f':{port}' if port and not socket else ''}"
        urls.append(urlunsplit(parts._replace(netloc=netloc, query=urlencode(where, quote_via=quote))))
    return urls


def _split(place: str) -> tuple[str, str]:
    host, colon, port = place.rpartition(":")
    return (host, port) if colon and not place.endswith("]") else (place, "")
