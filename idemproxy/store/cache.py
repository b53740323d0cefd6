"""Completed answers in memory, bounded in bytes: a completed record never changes until it expires.

Only an operator's purge ends one early, and that is announced to every replica. Answers are served from here while
the announcements are known to arrive (`trusted`); otherwise only as a reserve, while the store cannot be reached.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Final

from idemproxy.core.headers import decode, encode
from idemproxy.core.messages import Answer
from idemproxy.core.record import Completed, RecordId
from idemproxy.core.replies import reason

CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Goes on while a machine is suspended, where there is such a clock: a record does not wait for us to expire."""
ENTRY_BYTES: Final = 900
"""What an entry takes besides its answer: the id, the token, the fingerprint, and Python's own share."""


def now() -> float:
    return time.clock_gettime(CLOCK)


_Entry = tuple[float, int, bytes, bytes, int, bytes, bytes]
"""Until when, size, token, fingerprint, status, header block, body. A plain tuple of plain values, under another one:
those the garbage collector lets go of, where it would walk over a tree of objects again and again."""


class Cache:
    """`until` is by `now`, counted from before the statement that told how long is left: an entry ends before its
    record does, never after it."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[tuple[str, bytes, str], _Entry] = OrderedDict()
        self.bytes = 0
        self.trusted = False
        self._purged = float("-inf")
        """When the last purge was heard of, of whatever record: they are rare, and one time is enough."""

    def get(self, id: RecordId) -> Completed | None:
        entry = self._entries.get(id)
        if entry is None:
            return None
        until, _, token, fingerprint, status, block, body = entry
        if until <= now():
            self.drop(id)
            return None
        self._entries.move_to_end(id)
        return Completed(token, fingerprint, status, Answer(status, reason(status), decode(block), body))

    def put(self, id: RecordId, completed: Completed, until: float, *, asked: float) -> None:
        """`asked` is when the statement began that told of it: it may have been told before a purge, and be late."""
        answer = completed.answer
        if answer is None or asked <= self._purged:
            return
        block = encode(answer.headers)
        size = ENTRY_BYTES + len(answer.body) + len(block)
        if size > self._max_bytes:
            return
        self.drop(id)
        entry = (until, size, completed.token, completed.fingerprint, answer.status, block, answer.body)
        self._entries[id.key, id.scope, id.route] = entry
        self.bytes += size
        while self.bytes > self._max_bytes:
            _, oldest = self._entries.popitem(last=False)
            self.bytes -= oldest[1]

    def drop(self, id: RecordId) -> None:
        entry = self._entries.pop(id, None)
        if entry is not None:
            self.bytes -= entry[1]

    def purge(self, id: RecordId) -> None:
        self._purged = now()
        self.drop(id)

    def purge_all(self) -> None:
        self._purged = now()
        self._entries.clear()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)
