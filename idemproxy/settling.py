"""Puts outcomes on record: at once if the store answers, otherwise for as long as the lease lasts."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, assert_never

from idemproxy.core.judge import Settlement
from idemproxy.core.messages import Answer
from idemproxy.core.record import Lease, RecordId
from idemproxy.core.value import Value
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

    def _once(
        self, lease: Lease, settlement: Settlement, answer: Answer | None, kept: bool
    ) -> Coroutine[Any, Any, bool]:
        match settlement:
            case Settlement.COMPLETE:
                assert answer is not None  # noqa: S101 - only an answer completes
                return self._store.complete(lease, answer, kept=kept)
            case Settlement.RELEASE:
                return self._store.release(lease)
            case Settlement.MARK_UNKNOWN:
                return self._store.mark_unknown(lease)
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


class Renewals:
    """Renews leases while their owners work: at a third of their length, so that two tries may fail.

    Hardly any write lasts so long. One timer for all leases of a length costs each of them next to nothing: those
    that were won later are due later.
    """

    def __init__(self, store: Store, observer: Observer, tasks: Tasks) -> None:
        self._store = store
        self._observer = observer
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[float, dict[bytes, _Held]] = {}
        """By the length of the lease, then by its token, in the order in which they are due."""
        self._armed: set[float] = set()
        """The lengths that have a timer running."""
        self._asking: set[bytes] = set()
        """The tokens of those whose renewal is under way."""

    def start(self, lease: Lease, trail: Trail) -> None:
        length = lease.claim.lease_seconds
        loop = self._loop
        due = loop.time() + length / 3
        self._waiting.setdefault(length, {})[lease.claim.token] = _Held(lease, trail, due)
        if length not in self._armed:
            self._armed.add(length)
            loop.call_at(due, self._look, length)

    def stop(self, lease: Lease) -> None:
        token = lease.claim.token
        if self._waiting[lease.claim.lease_seconds].pop(token, None) is None:
            self._asking.discard(token)

    def _look(self, length: float) -> None:
        """Renew what is due, and look again when the next one will be."""
        loop = self._loop
        waiting = self._waiting[length]
        now = loop.time()
        for token, held in list(waiting.items()):
            if held.due > now:
                loop.call_at(held.due, self._look, length)
                return
            del waiting[token]
            self._asking.add(token)
            self._tasks.spawn(self._renew(held), "renew lease")
        self._armed.discard(length)

    async def _renew(self, held: _Held) -> None:
        token = held.lease.claim.token
        try:
            renewed = await self._store.renew(held.lease)
        except StoreUnavailable:
            renewed = True  # not known to be lost; the next try may succeed
        if token not in self._asking:
            return  # it has been settled meanwhile
        self._asking.discard(token)
        if renewed:
            held.trail.renewals += 1
            self.start(held.lease, held.trail)
        else:
            self._observer.lease_lost(held.lease.claim.id)


class _Held(Value):
    __match_args__ = ("lease", "trail", "due")
    __slots__ = __match_args__

    def __init__(self, lease: Lease, trail: Trail, due: float) -> None:
        self.lease: Final = lease
        self.trail: Final = trail
        self.due: Final = due
