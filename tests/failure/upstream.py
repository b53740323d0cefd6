"""`python -m tests.failure.upstream PORT LEDGER`: an upstream whose ledger alone tells how often a write ran.

A write is executed when its line is in the ledger, which is a file: what was written there has survived whatever
happens to this process. Only then is anything answered. Points at which a test can make it wait:

    E  the head of the request is in, its body is not read
    F  executed, and not one byte answered
    G  the head and half of the body of the answer are out

A key that begins with J is answered with more than the connections on the way can hold. `Idempotency-Key` of a GET
under /orders/{key} tells whether that key was executed, as a detection endpoint does.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import sys
from collections import Counter
from pathlib import Path

from tests.failure.control import at

LARGE_ANSWERS = {"J": 250_000, "L": 3_900_000}
"""By the first letter of the key. Both are stored; J is answered when that is done, L flows live. Neither fits into
what the kernel buffers for a client that does not read."""
SMALL_BUFFER = 4096
DELAY = "IDEMPROXY_TEST_DELAY"
"""In the environment: up to how many seconds an execution takes, and as many its answer."""


def executions(ledger: Path) -> Counter[str]:
    """How often each key ran."""
    lines = ledger.read_text(encoding="ascii").splitlines() if ledger.exists() else []
    return Counter(line.partition(" ")[0] for line in lines)


class Orders:
    def __init__(self, ledger: Path) -> None:
        self._ledger = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._executions = executions(ledger)  # of the process before this one
        self._delay = float(os.environ.get(DELAY, "0"))
        # The loop knows a connection only while it reads from it. One that waits at E with its buffer full is known to
        # its own task alone, and both would be collected as garbage.
        self._serving: set[asyncio.Task[None] | None] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving.add(task := asyncio.current_task())
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            if head.startswith("GET "):
                await self._look_up(head, writer)
            else:
                await self._execute(head, reader, writer)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._serving.discard(task)
            writer.close()

    async def _execute(self, head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in head.split("\r\n"))}
        key, attempt = fields["idempotency-key"], fields.get("idempotency-attempt", "-")
        await at("E", key)
        await reader.readexactly(int(fields["content-length"]))
        await asyncio.sleep(self._delay * random.random())
        os.write(self._ledger, f"{key} {attempt}\n".encode())
        self._executions[key] += 1
        nth = self._executions[key]
        answer = f'{{"key":"{key}","execution":{nth}}}'.encode()
        answer = answer.ljust(LARGE_ANSWERS.get(key[0], 0))
        await asyncio.sleep(self._delay * random.random())
        await at("F", key)
        writer.write(b"HTTP/1.1 201 Created\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(answer))
        writer.write(answer[: len(answer) // 2])
        await at("G", key)
        writer.write(answer[len(answer) // 2 :])

    async def _look_up(self, head: str, writer: asyncio.StreamWriter) -> None:
        key = head.split(" ")[1].rpartition("/")[2]
        found = self._executions[key]
        answer = f'{{"key":"{key}","execution":{found}}}'.encode()
        status = b"200 OK" if found else b"404 Not Found"
        writer.write(
            b"HTTP/1.1 %b\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (status, len(answer), answer)
        )


async def main(port: int, ledger: Path) -> None:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)  # so that point E is half-way
    listener.bind(("127.0.0.1", port))
    server = await asyncio.start_server(Orders(ledger).serve, sock=listener)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2])))
