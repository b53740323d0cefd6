"""First writes at a fixed rate over 32 connections; latency counts from when each was due, not from when it went out.

python -m benchmarks.paced PORT RATE SECONDS PREFIX
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import deque

import uvloop

BODY = (
    b'{"customer":"cus_4711","items":[{"sku":"tea-250","quantity":2},{"sku":"cup-white","quantity":6}],'
    b'"currency":"EUR","total":"41.80","note":"%b"}'
)
HEAD = (
    b"POST /orders HTTP/1.1\r\nHost: benchmark\r\nAuthorization: Bearer benchmark\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\nIdempotency-Key: %b\r\n\r\n%b"
)
CONNECTIONS = 32


class Client(asyncio.Protocol):
    """One connection: a request at a time. Answers carry a Content-Length and arrive in one or two packets."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.buffer = b""
        self.due = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.load.idle.append(self)

    def send(self, key: bytes, due: float) -> None:
        self.due = due
        body = BODY % key
        self.transport.write(HEAD % (len(body), key, body))  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, blank, body = self.buffer.partition(b"\r\n\r\n")
        if not blank:
            return
        lines = head.lower().split(b"\r\n")
        length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
        if len(body) < length:
            return
        self.buffer = b""
        self.load.answered(self, head.startswith(b"HTTP/1.1 201"))

    def connection_lost(self, _: Exception | None) -> None:
        self.load.errors += 1


class Load:
    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self.idle: deque[Client] = deque()
        self.waiting: deque[float] = deque()
        self.latencies: list[float] = []
        self.errors = 0
        self.sent = 0
        self.loop = asyncio.get_running_loop()

    def arrive(self, due: float) -> None:
        if self.idle:
            self.send(self.idle.popleft(), due)
        else:
            self.waiting.append(due)

    def send(self, client: Client, due: float) -> None:
        self.sent += 1
        client.send(self.prefix + str(self.sent).encode(), due)

    def answered(self, client: Client, well: bool) -> None:
        self.latencies.append(self.loop.time() - client.due)
        self.errors += not well
        if self.waiting:
            self.send(client, self.waiting.popleft())
        else:
            self.idle.append(client)


async def main(port: int, rate: float, seconds: float, prefix: bytes) -> None:
    loop = asyncio.get_running_loop()
    load = Load(prefix)
    for _ in range(CONNECTIONS):
        await loop.create_connection(lambda: Client(load), "127.0.0.1", port)
    started = loop.time()
    total = int(rate * seconds)
    for number in range(total):
        due = started + number / rate
        if due > loop.time():
            await asyncio.sleep(due - loop.time())
        load.arrive(due)
    give_up = loop.time() + 10
    while len(load.latencies) < total and loop.time() < give_up:
        await asyncio.sleep(0.01)
    spent = loop.time() - started
    errors = load.errors + total - len(load.latencies)
    ordered = sorted(load.latencies) or [0.0]
    figures = {
        "rate": len(load.latencies) / spent,
        "p50_ms": ordered[len(ordered) // 2] * 1000,
        "p99_ms": ordered[int(len(ordered) * 0.99)] * 1000,
        "requests": total,
        "errors": errors,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), sys.argv[4].encode()))
