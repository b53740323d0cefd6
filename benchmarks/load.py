"""Load: wrk at full rate, and paced requests from `benchmarks.paced` at a given one."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.stage import ROOT, Server

CONNECTIONS = 32
SCRIPT = Path(__file__).with_name("orders.lua")
_prefixes = itertools.count(1)


@dataclass(frozen=True)
class Figures:
    rate: float
    p50_ms: float
    p99_ms: float
    requests: int


class LoadError(Exception):
    """The server did not do its job: a figure would mean nothing."""


def fresh_prefix() -> str:
    return f"b{next(_prefixes)}-"


async def _output(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    text = output.decode()
    if process.returncode:
        raise LoadError(f"{' '.join(command[:3])}: {text.strip()}")
    return text


async def at_full_rate(
    server: Server,
    mode: str,
    seconds: float,
    *,
    prefix: str | None = None,
    keys: int = 1,
    connections: int = CONNECTIONS,
) -> Figures:
    """`mode`: first, replay or read, as in orders.lua. Any answer but 2xx makes the figure void."""
    text = await _output(
        *("wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--latency", "-s", str(SCRIPT), server.url),
        *("--", mode, prefix or fresh_prefix(), str(keys)),
    )
    line = next(line for line in text.splitlines() if line.startswith("FIGURES "))
    found = json.loads(line.removeprefix("FIGURES "))
    if found["errors"]:
        raise LoadError(f"{server.name}: {found['errors']} of {found['requests']} {mode} requests failed")
    rate = found["requests"] / (found["microseconds"] / 1e6)
    return Figures(rate, found["p50_us"] / 1000, found["p99_us"] / 1000, found["requests"])


async def paced(server: Server, rate: float, seconds: float) -> Figures:
    """First writes that arrive at a fixed rate, however long each of them takes."""
    text = await _output(
        *(sys.executable, "-m", "benchmarks.paced", str(server.port), f"{rate:.1f}", f"{seconds:g}", fresh_prefix())
    )
    found = json.loads(text)
    if found["errors"]:
        raise LoadError(f"{server.name}: {found['errors']} paced requests failed")
    return Figures(found["rate"], found["p50_ms"], found["p99_ms"], found["requests"])
