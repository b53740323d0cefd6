"""`python -m tests.failure.chaos --minutes N --seed S`: clients that retry, a nemesis that breaks things, a judge.

Two proxies under `hold`, each with 25 clients at a time, on one Postgres and before one upstream, all real processes.
The nemesis kills, stops and restarts each of them and cuts the lines between them. At the end everything is mended,
every key is asked for once more, and what was heard is held against the upstream's ledger. Exit code 1 when a promise
was broken. The same seed gives the same faults in the same order; how they meet the load is up to the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import asyncpg

from idemproxy.store.embedded import EmbeddedPostgres
from idemproxy.store.migrate import migrate
from tests.failure.history import Heard, violations
from tests.failure.rig import Child, Client, Instance
from tests.failure.upstream import DELAY, executions
from tests.support.cluster import processes
from tests.support.link import Link, far_end, through
from tests.support.process import free_port

CLIENTS = 50
LEASE_SECONDS = 6.0
"""The shortest there is, so that stops outlast it."""
THINK_SECONDS = 0.25
RETRY_SHARE = 0.5
"""Of the requests of a client: the others are first tries of a new key."""
HANG_UP_SHARE = 0.03
RECENT_KEYS = 300
PROXY_SETTINGS = {
    "on_unknown": "hold",
    "lease_seconds": f"{LEASE_SECONDS:g}",
    "upstream_timeout_seconds": "5",
    "log_format": "json",
}
SERVER_SETTINGS = {"fsync": "off", "full_page_writes": "off"}
"""Processes are killed, never the machine: what they have written is in its memory all the same."""


class World:
    """Everything that runs, and what can be done to it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = AsyncExitStack()
        self.ledger = folder / "ledger"

    async def __aenter__(self) -> World:
        self.server = await EmbeddedPostgres.start(self._folder / "pg", settings=SERVER_SETTINGS)
        connection = await asyncpg.connect(self.server.dsn)
        await migrate(connection)
        await connection.close()
        upstream_port = free_port()
        self.upstream = Child(
            *("-m", "tests.failure.upstream", str(upstream_port), str(self.ledger)),
            env={**os.environ, DELAY: "0.1"},
        )
        self.upstream.start()
        self.line_to_upstream = await self._stack.enter_async_context(Link(("127.0.0.1", upstream_port)))
        self.line_to_postgres = await self._stack.enter_async_context(Link(far_end(self.server.dsn)))
        settings = {
            **PROXY_SETTINGS,
            "upstream": f"http://127.0.0.1:{self.line_to_upstream.port}",
            "database_url": through(self.server.dsn, self.line_to_postgres.port),
        }
        self.proxies = [Instance.make("idemproxy", settings, 0) for _ in range(2)]
        await asyncio.gather(*(proxy.ready() for proxy in self.proxies))
        return self

    async def __aexit__(self, *_: object) -> None:
        for child in (*(proxy.child for proxy in self.proxies), self.upstream):
            child.close()
        await self._stack.aclose()
        await self.server.stop()

    async def restart_postgres(self) -> None:
        await self.server.stop()
        self.server = await EmbeddedPostgres.start(self._folder / "pg", settings=SERVER_SETTINGS)


class Nemesis:
    """One fault after the other, sometimes the next before the last is mended; at most one for each victim."""

    def __init__(self, world: World, dice: random.Random) -> None:
        self._world = world
        self._dice = dice
        self._busy: set[str] = set()
        self._mending: set[asyncio.Task[None]] = set()
        self.done: Counter[str] = Counter()
        self.faults: dict[str, Callable[[], Awaitable[None]]] = {
            "proxy killed": lambda: self._kill(self._proxy(), 0.1, 1.5),
            "proxy stopped": lambda: self._stop(self._proxy(), 0.5, 1.5 * LEASE_SECONDS),
            "proxy drained": self._drain,
            "upstream killed": lambda: self._kill(world.upstream, 0.1, 1.5),
            "upstream stopped": lambda: self._stop(world.upstream, 0.5, LEASE_SECONDS),
            "Postgres crashed": self._crash_postgres,
            "Postgres stopped": self._stop_postgres,
            "lines to Postgres cut": lambda: self._drop(world.line_to_postgres),
            "lines to the upstream cut": lambda: self._drop(world.line_to_upstream),
        }
        self._victims = {name: name.split()[0] for name in self.faults}

    async def run(self, until: float) -> None:
        while time.monotonic() < until:
            await asyncio.sleep(self._dice.uniform(0.2, 2.0))
            name = self._dice.choice(list(self.faults))
            victim = self._victims[name]
            if victim in self._busy:
                continue
            self._busy.add(victim)
            self.done[name] += 1
            task = asyncio.create_task(self._carry_out(name, victim))
            self._mending.add(task)
            task.add_done_callback(self._mending.discard)
        await asyncio.gather(*self._mending)

    async def _carry_out(self, name: str, victim: str) -> None:
        try:
            await self.faults[name]()
        finally:
            self._busy.discard(victim)

    def _proxy(self) -> Child:
        return self._dice.choice(self._world.proxies).child

    async def _kill(self, child: Child, shortest: float, longest: float) -> None:
        child.kill()
        await asyncio.sleep(self._dice.uniform(shortest, longest))
        child.start()

    async def _stop(self, child: Child, shortest: float, longest: float) -> None:
        child.signal(signal.SIGSTOP)
        await asyncio.sleep(self._dice.uniform(shortest, longest))
        child.signal(signal.SIGCONT)

    async def _drain(self) -> None:
        child = self._proxy()
        child.signal(signal.SIGTERM)
        await asyncio.sleep(self._dice.uniform(0.2, 4.0))
        child.kill()
        child.start()

    async def _crash_postgres(self) -> None:
        os.kill(self._world.server.pid, signal.SIGQUIT)
        await asyncio.sleep(self._dice.uniform(0.1, 4.0))
        await self._world.restart_postgres()

    async def _stop_postgres(self) -> None:
        stopped = processes(self._world.server)
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(self._dice.uniform(0.2, 4.0))
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    async def _drop(self, line: Link) -> None:
        line.drop()


class Crowd:
    """Clients that write, and write again what they or others wrote before, through either proxy."""

    def __init__(self, world: World, dice: random.Random) -> None:
        self._world = world
        self._dice = dice
        self.keys: list[str] = []
        self.history: list[Heard] = []

    async def client(self, until: float) -> None:
        while time.monotonic() < until:
            await asyncio.sleep(self._dice.expovariate(1 / THINK_SECONDS))
            if self.keys and self._dice.random() < RETRY_SHARE:
                key = self._dice.choice(self.keys[-RECENT_KEYS:])
            else:
                key = f"order-{len(self.keys):06d}"
                self.keys.append(key)
            await self.ask(key, hang_up=self._dice.random() < HANG_UP_SHARE)

    async def ask(self, key: str, *, hang_up: bool = False) -> Heard:
        port = self._dice.choice(self._world.proxies).port
        client = Client(port, key, f'{{"item": "{key}"}}'.encode())
        try:
            await client.send()
            if hang_up:
                await asyncio.sleep(self._dice.uniform(0, 0.05))
                client.abort()
                word = "hung up"
            else:
                word = await client.heard()
        except OSError:  # nobody listens, or nobody answered in time
            word = "no answer"
        heard = Heard(key, word, next(iter(client.bodies), b""))
        self.history.append(heard)
        return heard

    async def settle(self, key: str) -> str:
        """Ask until it is known what became of the key."""
        give_up = time.monotonic() + 10 * LEASE_SECONDS
        while time.monotonic() < give_up:
            word = (await self.ask(key)).word
            if word in ("created", "replay", "held"):
                return word
            await asyncio.sleep(0.2)
        return "never settled"


async def progress(crowd: Crowd, nemesis: Nemesis, world: World, until: float) -> None:
    terminal = sys.stdout.isatty()
    while (left := until - time.monotonic()) > 0:
        last = ", ".join(nemesis._busy) or "nothing"
        line = (
            f"{left:5.0f} s left  {len(crowd.history):6d} requests  {len(crowd.keys):6d} keys  "
            f"{executions(world.ledger).total():6d} executions  {nemesis.done.total():4d} faults  broken now: {last}"
        )
        print(f"\r\x1b[K{line}" if terminal else line, end="" if terminal else "\n", flush=True)
        await asyncio.sleep(min(left, 1.0 if terminal else 10.0))
    print()


async def finish(crowd: Crowd) -> Counter[str]:
    """Every key once more, now that all is mended."""
    ends: Counter[str] = Counter()
    todo = list(crowd.keys)

    async def work() -> None:
        while todo:
            ends[await crowd.settle(todo.pop())] += 1

    await asyncio.gather(*(work() for _ in range(16)))
    return ends


async def run(seconds: float, seed: int) -> bool:
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        async with World(Path(folder)) as world:
            nemesis = Nemesis(world, random.Random(seed))
            crowd = Crowd(world, random.Random(seed + 1))
            until = time.monotonic() + seconds
            await asyncio.gather(
                nemesis.run(until),
                progress(crowd, nemesis, world, until),
                *(crowd.client(until) for _ in range(CLIENTS)),
            )
            asked = len(crowd.history)
            await asyncio.gather(*(proxy.ready() for proxy in world.proxies))
            ends = await finish(crowd)
            runs = executions(world.ledger)
        broken = violations(crowd.history, runs)
        if "never settled" in ends:
            broken.append(f"{ends['never settled']} keys never settled")
        report(seconds, seed, nemesis.done, crowd, asked, runs, ends, broken)
        return not broken


def report(
    seconds: float,
    seed: int,
    faults: Counter[str],
    crowd: Crowd,
    asked: int,
    runs: Counter[str],
    ends: Counter[str],
    broken: list[str],
) -> None:
    def table(counted: Counter[str]) -> str:
        return "\n".join(f"  {number:7d}  {name}" for name, number in counted.most_common())

    print(f"{seconds:g} s with seed {seed}: {asked} requests for {len(crowd.keys)} keys from {CLIENTS} clients")
    print(f"{sum(faults.values())} faults:\n{table(faults)}")
    print(f"what the requests heard:\n{table(Counter(heard.word for heard in crowd.history[:asked]))}")
    print(f"executions: {runs.total()} of {len(runs)} keys, at most {max(runs.values(), default=0)} of one")
    print(f"in the end, of {len(crowd.keys)} keys:\n{table(ends)}")
    print(f"promises broken: {len(broken)}")
    for line in broken[:20]:
        print(f"  {line}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    return 0 if asyncio.run(run(chosen.minutes * 60, chosen.seed)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
