"""Puts outcomes on record: at once if the store answers, otherwise for as long as the lease lasts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import assert_never

from idemproxy.core.judge import Settlement
from idemproxy.core.messages import Answer
from idemproxy.core.record import Lease, RecordId
from idemproxy.ports import Observer, Store, StoreUnavailable, Trail
from idemproxy.tasks import Tasks

PAUSE_SECONDS = 0.5
"""Between two tries in the background. Each is itself a series of tries for as long as a store call may take."""


class Settler:
    """One try has the length of a store call, which is the grace: the client waits for it, and no longer."""

    def __init__(self, store: Store, observer: Observer, tasks: Tasks) -> None:
        self._store = store
        self._observer = observer
        self._tasks = tasks
        self.unsettled: set[RecordId] = set()
        """Writes that were answered, to the client too, and are not on record yet."""

    async def settle(
        self, lease: Lease, settlement: Settlement, answer: Answer | None = None, *, kept: bool = True
    ) -> bool | None:
        """True when it is on record, None when the lease was lost, False when settling goes on in the background."""
        try:
            settled = await self._once(lease, settlement, answer, kept)
        except StoreUnavailable:
            self._observer.settle_failed(lease.claim.id)
            self.unsettled.add(lease.claim.id)
            self._tasks.spawn(self._later(lease, settlement, answer, kept), "settle later")
            return False
        if not settled:
            self._observer.finished_late(lease.claim.id)
        return True if settled else None

    async def _once(self, lease: Lease, settlement: Settlement, answer: Answer | None, kept: bool) -> bool:
        match settlement:
            case Settlement.COMPLETE:
                assert answer is not None  # noqa: S101 - only an answer completes
                return await self._store.complete(lease, answer, kept=kept)
            case Settlement.RELEASE:
                return await self._store.release(lease)
            case Settlement.MARK_UNKNOWN:
                return await self._store.mark_unknown(lease)
            case _:
                assert_never(settlement)

    async def _later(self, lease: Lease, settlement: Settlement, answer: Answer | None, kept: bool) -> None:
        """Keep trying for a lease's length: after that, somebody else may own the record."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + lease.claim.lease_seconds
        settled: bool | None = None
        while settled is None and loop.time() < give_up:
            await asyncio.sleep(PAUSE_SECONDS)
            try:
                settled = await self._once(lease, settlement, answer, kept)
            except StoreUnavailable:
                settled = None
        self.unsettled.discard(lease.claim.id)
        done = settled is True or (settled is False and settlement is Settlement.RELEASE)  # the row may be gone by now
        self._observer.settled_late(lease.claim.id, stored=done)


class Renewal:
    """Renews a lease while its owner works: at a third of its length, so that two tries may fail."""

    def __init__(self, store: Store, lease: Lease, tasks: Tasks, trail: Trail, lost: Callable[[], None]) -> None:
        self._store = store
        self._lease = lease
        self._tasks = tasks
        self._trail = trail
        self._lost = lost
        self._stopped = False
        self._schedule()

    def _schedule(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._lease.claim.lease_seconds / 3, self._due)

    def _due(self) -> None:
        self._tasks.spawn(self._renew(), "renew lease")

    async def _renew(self) -> None:
        try:
            held = await self._store.renew(self._lease)
        except StoreUnavailable:
            held = True  # not known to be lost; the next try may succeed
        if self._stopped:
            return
        if held:
            self._trail.renewals += 1
            self._schedule()
        else:
            self._lost()

    def stop(self) -> None:
        self._stopped = True
        self._timer.cancel()
