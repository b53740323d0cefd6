"""Everything for operators that runs inside the proxy, opened and closed as one."""

from __future__ import annotations

import asyncio

import asyncpg

from idemproxy.operator.audit import FLUSH_SECONDS, SWEEP_SECONDS, Audit
from idemproxy.operator.desk import Desk
from idemproxy.operator.live import Live
from idemproxy.operator.metrics import Metrics
from idemproxy.operator.reporter import Reporter
from idemproxy.operator.shadow import Shadow
from idemproxy.store.batch import CALL_SECONDS
from idemproxy.store.events import Events
from idemproxy.store.records import Records
from idemproxy.tasks import Tasks

POOL_SIZE = 3
"""A pool of their own, so that operators never take a connection from clients: the audit, the counts, a reader."""


class Office:
    def __init__(
        self, pool: asyncpg.Pool, metrics: Metrics, *, keep_seconds: float, window: float, max_request_bytes: int
    ) -> None:
        self._pool = pool
        self._tasks = Tasks()
        records = Records(pool)
        events = Events(pool)
        self.audit = Audit(events, metrics, keep_seconds=keep_seconds, window=window)
        self.shadow = Shadow(events, self.audit, metrics, max_request_bytes=max_request_bytes)
        self.desk = Desk(records)
        self.live = Live(metrics, records)
        self.reporter = Reporter(metrics, self.audit)
        metrics.events_waiting.set_function(lambda: self.audit.waiting)

    def start(self) -> None:
        self._tasks.spawn(self._write_events(), "audit")
        self._tasks.spawn(self.live.run(), "live numbers")

    async def flush(self) -> None:
        """Judge what shadow mode has seen, and write what the audit has collected."""
        await self.shadow.judge()
        await self.audit.flush()

    async def _write_events(self) -> None:
        loop = asyncio.get_running_loop()
        sweep_at = loop.time() + SWEEP_SECONDS
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            await self.flush()
            if loop.time() >= sweep_at:
                sweep_at = loop.time() + SWEEP_SECONDS
                await self.audit.sweep()

    async def close(self) -> None:
        """Write what is left of the audit, then let go of the store."""
        await self._tasks.cancel()
        await self.shadow.tasks.finished(CALL_SECONDS)
        await self.flush()
        await self.audit.flush()  # compares what the first has written
        try:
            async with asyncio.timeout(CALL_SECONDS):
                await self._pool.close()
        except (TimeoutError, asyncpg.InterfaceError, OSError):
            self._pool.terminate()
