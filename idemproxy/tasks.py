"""The one place where background tasks are made: each has a name, is kept alive, and reports its failure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

log = logging.getLogger("idemproxy")

T = TypeVar("T")


class Tasks:
    """A group of background tasks. The event loop holds tasks weakly; this set is what keeps them alive."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def __len__(self) -> int:
        return len(self._running)

    def spawn(self, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        if self._loop is None:  # asked for once: it takes a system call
            self._loop = asyncio.get_running_loop()
        task = self._loop.create_task(coroutine, name=name)
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            log.error("task %s failed", task.get_name(), exc_info=failure)

    async def finished(self, timeout: float) -> bool:
        """Wait until every task has ended, those that they start meanwhile too; False when `timeout` came first."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + timeout
        while self._running and (left := give_up - loop.time()) > 0:
            await asyncio.wait(self._running, timeout=left)
            await asyncio.sleep(0)  # what has ended leaves the set in a callback, which may not have run yet
        return not self._running

    async def cancel(self) -> None:
        """Cancel what is left and wait until it has gone."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
