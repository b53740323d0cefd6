"""Several processes on one port. The parent binds, starts the workers, starts those again that die, and drains all.

Each worker has a listening socket of its own on the shared port (SO_REUSEPORT: the kernel spreads the connections),
but the parent keeps it open too: what waits in it when a worker dies is served by the next one. The operator port is
one socket that all workers share; whoever answers for /metrics asks its siblings, over sockets in a private folder.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import tempfile
from asyncio.subprocess import Process
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path

from idemproxy.contract.live import ContractError
from idemproxy.settings import Settings
from idemproxy.siblings import VARIABLE, Inherited
from idemproxy.snapshots import Snapshots
from idemproxy.startup import bind, bind_shared, open_database, prepare_schema, tell_refused
from idemproxy.tasks import Tasks

log = logging.getLogger("idemproxy")

CANNOT_START = 2
"""A worker's exit code when starting it again would end the same way: a fault that it has told in one line."""
PAUSES = (0.1, 0.5, 1.0, 2.0, 5.0)
"""Before a worker is started again: at once for an accident, slower when it dies again and again."""
STEADY_SECONDS = 60.0
"""A worker that has lived so long has recovered; its next death counts as the first."""


class Workers:
    def __init__(self, settings: Settings, arguments: list[str]) -> None:
        self._settings = settings
        self._arguments = arguments
        self._tasks = Tasks()
        self._running: dict[int, Process] = {}
        self._stopping = asyncio.Event()
        self._code = 0

    async def serve(self) -> int:
        """Run until a signal, or until a worker says that it cannot start; the exit code is the worst of theirs."""
        async with AsyncExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="idemproxy-"))
            self._snapshots = Snapshots(self._settings, Path(folder))
            self._snapshots.take()
            dsn = await open_database(self._settings, stack)
            if risk := await prepare_schema(dsn, self._settings):
                log.warning("IDEMPROXY_DATABASE_URL: %s", risk)
            data = bind_shared(self._settings.listen, "IDEMPROXY_LISTEN", self._settings.workers)
            admin = bind(self._settings.admin_listen, "IDEMPROXY_ADMIN_LISTEN")
            sockets = [*data, admin]
            for listener in sockets:
                listener.listen(1024)
            parent_end, worker_end = os.pipe()
            stack.callback(os.close, worker_end)
            self._signals()
            log.info("%d workers before %s on %s", len(data), self._settings.upstream, self._settings.listen)
            keepers = []
            for number, listener in enumerate(data):
                given = Inherited(
                    number, listener.fileno(), admin.fileno(), parent_end, folder, dsn, self._snapshots.paths
                )
                keepers.append(self._tasks.spawn(self._keep(given), f"worker {number}"))
            await self._stopping.wait()
            # A connection that arrives now must be refused, not wait for a worker that has stopped to accept.
            for listener in sockets:
                listener.close()
            await asyncio.gather(*keepers)
            os.close(parent_end)
        return self._code

    def _signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, lambda: self._tasks.spawn(self._reload(), "reload the contract"))

    async def _reload(self) -> None:
        """The workers are told only of documents that all of them can enforce."""
        try:
            await asyncio.to_thread(self._snapshots.take)
        except ContractError as refused:
            tell_refused(refused)
        else:
            self._tell(signal.SIGHUP)

    def _stop(self) -> None:
        """Once: drain. Twice: hurry. The workers know the difference."""
        self._stopping.set()
        self._tell(signal.SIGTERM)

    def _tell(self, number: signal.Signals) -> None:
        for process in self._running.values():
            if process.returncode is None:
                process.send_signal(number)

    async def _keep(self, given: Inherited) -> None:
        """One worker, and after its death the next one, until all are to stop."""
        loop = asyncio.get_running_loop()
        deaths = 0
        while not self._stopping.is_set():
            started = loop.time()
            process = self._running[given.number] = await self._start(given)
            code = await process.wait()
            if self._stopping.is_set():
                self._code = max(self._code, abs(code))
                return
            if code == CANNOT_START:
                self._code = CANNOT_START
                self._stop()
                return
            deaths = 0 if loop.time() - started > STEADY_SECONDS else deaths + 1
            pause = PAUSES[min(deaths, len(PAUSES) - 1)]
            log.error("worker %d died with %d; the next one starts in %g s", given.number, code, pause)
            await self._unless_stopping(pause)

    async def _start(self, given: Inherited) -> Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "idemproxy", *self._arguments),
            env={**os.environ, VARIABLE: json.dumps(asdict(given))},
            pass_fds=(given.data_fd, given.admin_fd, given.parent_fd),
            start_new_session=True,  # a terminal's Ctrl-C is for the parent, who drains
        )

    async def _unless_stopping(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass
