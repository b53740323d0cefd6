"""What is measured: each row of the table sets two things side by side, in turns, and gives the ratio."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import asyncpg

from benchmarks.load import LoadError, at_full_rate, fresh_prefix, paced
from benchmarks.stage import Server, Stage

REPLAY_KEYS = 500


@dataclass(frozen=True)
class Effort:
    """How long to measure: the whole thing, or a quick look."""

    rounds: int
    seconds: float
    live_records: int
    expired_records: int


THOROUGH = Effort(rounds=5, seconds=5, live_records=5_000_000, expired_records=1_000_000)
QUICK = Effort(rounds=3, seconds=1.5, live_records=200_000, expired_records=100_000)


@dataclass
class Row:
    """One line of the table. `pairs` are (ours, theirs), one for each round."""

    title: str
    unit: str
    bound: float
    at_most: bool = False
    pairs: list[tuple[float, float]] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        return statistics.median(ours / theirs for ours, theirs in self.pairs)

    @property
    def ours(self) -> float:
        return statistics.median(ours for ours, _ in self.pairs)

    @property
    def theirs(self) -> float:
        return statistics.median(theirs for _, theirs in self.pairs)

    @property
    def reached(self) -> bool:
        return self.ratio <= self.bound if self.at_most else self.ratio >= self.bound


Measure = Callable[[Stage, Effort], AsyncIterator[Row]]
"""Yields its rows again and again as rounds go by; the last state of each counts."""


async def full_rates(stage: Stage, effort: Effort) -> AsyncIterator[Row]:
    """Everything that is measured at full rate, all contenders in each round."""
    ours = await stage.idemproxy()
    uncached = await stage.idemproxy("idemproxy-uncached", cache_bytes="0")
    bare = await stage.rival("bare", stage.upstream)
    textbook = await stage.rival("textbook", stage.upstream, await stage.database())
    middleware = await stage.rival("middleware", stage.redis)
    constant = await stage.rival("constant")
    rows = {
        "bare": Row("first writes, against a bare aiohttp proxy without idempotency", "writes/s", 1.0),
        "textbook": Row("first writes, against the textbook build", "writes/s", 2.5),
        "middleware": Row("first writes, against asgi-idempotency-header on Redis", "writes/s", 4.0),
        "cpu": Row("CPU of the proxy per first write, against the textbook build's", "µs", 0.4, at_most=True),
        "memory": Row("replays from memory, against an aiohttp handler that returns a constant", "replays/s", 0.75),
        "stored": Row("replays from Postgres, against the textbook build's", "replays/s", 1.5),
        "reads": Row("unguarded reads, against the bare aiohttp proxy", "reads/s", 1.0),
    }
    replayed = fresh_prefix()
    for server in (ours, uncached, textbook):
        await at_full_rate(server, "replay", 1, prefix=replayed, keys=REPLAY_KEYS, connections=1)
    for _ in range(effort.rounds):
        first: dict[str, float] = {}
        cpu: dict[str, float] = {}
        for server in (ours, bare, textbook, middleware):
            before = server.cpu_seconds()
            figures = await at_full_rate(server, "first", effort.seconds)
            first[server.name] = figures.rate
            cpu[server.name] = (server.cpu_seconds() - before) / figures.requests * 1e6
        for rival in ("bare", "textbook", "middleware"):
            rows[rival].pairs.append((first["idemproxy"], first[rival]))
        rows["cpu"].pairs.append((cpu["idemproxy"], cpu["textbook"]))
        replays = [
            (await at_full_rate(server, "replay", effort.seconds, prefix=replayed, keys=REPLAY_KEYS)).rate
            for server in (ours, constant, uncached, textbook)
        ]
        rows["memory"].pairs.append((replays[0], replays[1]))
        rows["stored"].pairs.append((replays[2], replays[3]))
        reads = [(await at_full_rate(server, "read", effort.seconds)).rate for server in (ours, bare)]
        rows["reads"].pairs.append((reads[0], reads[1]))
        for row in rows.values():
            yield row


async def latency(stage: Stage, effort: Effort) -> AsyncIterator[Row]:
    """p99 at half of what the textbook build can do at most: a rate that both of them carry."""
    ours = await stage.idemproxy()
    textbook = await stage.rival("textbook", stage.upstream, await stage.database())
    row = Row("p99 of a first write at half of the textbook build's maximum rate", "ms", 1.0, at_most=True)
    for server in (ours, textbook):
        await at_full_rate(server, "first", effort.seconds)
    rate = (await at_full_rate(textbook, "first", effort.seconds)).rate / 2
    for _ in range(effort.rounds):
        row.pairs.append(
            (
                (await paced(ours, rate, effort.seconds)).p99_ms,
                (await paced(textbook, rate, effort.seconds)).p99_ms,
            )
        )
        yield row


FILL = """
INSERT INTO idemproxy.records
    (key, scope, route, fingerprint, state, token, attempt, claimed_at, lease_until, settled_at, expires_at, status,
     headers, body)
SELECT md5(n::text), decode(md5('a') || md5('b'), 'hex'), 'POST /orders', decode('01' || md5('a') || md5('b'), 'hex'),
       'completed', decode(md5(n::text), 'hex'), 1, now(), now(), now(),
       now() + $3::float8 * interval '1 second' + n * interval '1 millisecond', 201, '\\x00', convert_to($4, 'UTF8')
  FROM generate_series($1::bigint, $2::bigint) AS n
"""
ANSWER = '{"id":"ord_0001","state":"accepted","total":"41.80","currency":"EUR"}'
DAY = 86400.0


async def fill(dsn: str, records: int, seconds_left: float) -> None:
    connection = await asyncpg.connect(dsn)
    for start in range(1, records + 1, 250_000):
        await connection.execute(FILL, start, min(start + 249_999, records), seconds_left, ANSWER)
    await connection.execute("VACUUM ANALYZE idemproxy.records")
    await connection.close()


async def scale(stage: Stage, effort: Effort) -> AsyncIterator[Row]:
    """The cost of a first write beside millions of live records: the inverse of the rate."""
    empty, full = await stage.database(), await stage.database()
    small, large = await stage.idemproxy("empty", empty), await stage.idemproxy("full", full)
    await fill(full, effort.live_records, DAY)
    row = Row(
        f"cost of a first write beside {effort.live_records:,} live records, against none", "µs", 1.15, at_most=True
    )
    for _ in range(effort.rounds):
        costs = [1e6 / (await at_full_rate(server, "first", effort.seconds)).rate for server in (large, small)]
        row.pairs.append((costs[0], costs[1]))
        yield row


async def sweeping(stage: Stage, effort: Effort) -> AsyncIterator[Row]:
    """p99 while a sweep is under way, against none, at a rate that leaves room for it."""
    dsn = await stage.database()
    server = await stage.idemproxy("idemproxy", dsn, sweep_interval_seconds="86400")
    row = Row(
        f"p99 of a first write while {effort.expired_records:,} expired records are swept", "ms", 1.5, at_most=True
    )
    rate = (await at_full_rate(server, "first", effort.seconds)).rate / 4
    for _ in range(effort.rounds):
        quiet = await paced(server, rate, effort.seconds)
        await fill(dsn, effort.expired_records, -2 * DAY)
        sweep = await _sweep(stage, dsn)
        busy = await paced(server, rate, effort.seconds)
        if await sweep and await (await _sweep(stage, dsn)):  # the next round needs an empty table
            raise LoadError("the sweep was given up twice")
        row.pairs.append((busy.p99_ms, quiet.p99_ms))
        yield row


async def _sweep(stage: Stage, dsn: str) -> Awaitable[int]:
    environment = {**os.environ, "IDEMPROXY_UPSTREAM": stage.upstream, "IDEMPROXY_DATABASE_URL": dsn}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "idemproxy", "sweep"), env=environment, stdout=asyncio.subprocess.DEVNULL
    )
    return process.wait()


async def workers(stage: Stage, effort: Effort) -> AsyncIterator[Row]:
    one = await stage.idemproxy("one")
    two = await stage.idemproxy("two", workers="2")
    row = Row("first writes of two workers, against one", "writes/s", 1.2)
    await at_full_rate(two, "first", 1)
    for _ in range(effort.rounds):
        rates = [(await at_full_rate(server, "first", effort.seconds)).rate for server in (two, one)]
        row.pairs.append((rates[0], rates[1]))
        yield row


IDLE_MIB = 90.0


async def memory(stage: Stage, _: Effort) -> AsyncIterator[Row]:
    server: Server = await stage.idemproxy()
    row = Row(f"idle memory of one worker, against {IDLE_MIB:g} MiB", "MiB", 1.0, at_most=True)
    await asyncio.sleep(2)
    row.pairs.append((server.resident_mib(), IDLE_MIB))
    yield row


MEASURES: dict[str, Measure] = {
    "rates": full_rates,
    "latency": latency,
    "scale": scale,
    "sweep": sweeping,
    "workers": workers,
    "memory": memory,
}
