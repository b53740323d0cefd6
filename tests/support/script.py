"""Streams step by step: an upstream that waits for its cue, and a look at what has been settled meanwhile."""

from __future__ import annotations

import asyncio

import asyncpg

from tests.support.rawserver import read_request

EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
HOLD = """  -- while somebody has the lock, no record changes: a claim is an insert, settling it an update
CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NEW; END';
CREATE TRIGGER hold BEFORE UPDATE ON idemproxy.records FOR EACH ROW EXECUTE FUNCTION hold();
"""


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Script:
    """An upstream that answers a write step by step: `go` lets it take the next one."""

    def __init__(self, *steps: bytes) -> None:
        self._steps = steps
        self._turns = asyncio.Semaphore(1)

    def go(self) -> None:
        self._turns.release()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        await self.steps(writer)

    async def steps(self, writer: asyncio.StreamWriter) -> None:
        for step in self._steps:
            await self._turns.acquire()
            writer.write(step)
            await writer.drain()


async def state(rows: asyncpg.Connection) -> str:
    return str(await rows.fetchval("SELECT state FROM idemproxy.records"))


async def until_state(rows: asyncpg.Connection, wanted: str) -> None:
    async with asyncio.timeout(20):
        while await state(rows) != wanted:
            await asyncio.sleep(0.02)
