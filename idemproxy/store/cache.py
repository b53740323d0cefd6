"""Completed answers in memory, bounded in bytes: a completed record never changes until it expires.

Only an operator's purge ends one early, and that is announced to every replica. Answers are served from here while
the announcements are known to arrive (`trusted`); otherwise only as a reserve, while the store cannot be reached.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass

from idemproxy.core.record import Completed, RecordId

CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Goes on while a machine is suspended, where there is such a clock: a record does not wait for us to expire."""
ENTRY_BYTES = 1200
"""What an entry takes besides its answer: the id, the fingerprint, header tuples, and Python's own share."""


def now() -> float:
    return time.clock_gettime(CLOCK)


@dataclass(frozen=True, slots=True)
class _Entry:
    completed: Completed
    until: float
    size: int


class Cache:
    """`until` is by `now`, counted from before the statement that told how long is left: an entry ends before its
    record does, never after it."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[RecordId, _Entry] = OrderedDict()
        self.bytes = 0
        self.trusted = False
        self._purged = float("-inf")
        """When the last purge was heard of, of whatever record: they are rare, and one time is enough."""

    def get(self, id: RecordId) -> Completed | None:
        entry = self._entries.get(id)
        if entry is None:
            return None
        if entry.until <= now():
            self.drop(id)
            return None
        self._entries.move_to_end(id)
        return entry.completed

    def put(self, id: RecordId, completed: Completed, until: float, *, asked: float) -> None:
        """`asked` is when the statement began that told of it: it may have been told before a purge, and be late."""
        if completed.answer is None or asked <= self._purged:
            return
        answer = completed.answer
        size = ENTRY_BYTES + len(answer.body) + sum(len(name) + len(value) for name, value in answer.headers)
        if size > self._max_bytes:
            return
        self.drop(id)
        self._entries[id] = _Entry(completed, until, size)
        self.bytes += size
        while self.bytes > self._max_bytes:
            _, oldest = self._entries.popitem(last=False)
            self.bytes -= oldest.size

    def drop(self, id: RecordId) -> None:
        entry = self._entries.pop(id, None)
        if entry is not None:
            self.bytes -= entry.size

    def purge(self, id: RecordId) -> None:
        self._purged = now()
        self.drop(id)

    def purge_all(self) -> None:
        self._purged = now()
        self._entries.clear()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)
