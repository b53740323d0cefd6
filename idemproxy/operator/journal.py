"""Log lines of the kind that is written thousands of times a second: held for a moment, written together."""

from __future__ import annotations

import asyncio
import contextlib
import select
import time
from collections.abc import Mapping
from typing import BinaryIO

import orjson


class Journal:
    """The lines of exchanges and the like, as `logs.JsonFormatter` would write them.

    A system call for each of them would cost more than the rest of a replay. What a kill loses is the last moment's.
    """

    HOLD_SECONDS = 0.02
    MAX_BYTES = select.PIPE_BUF
    """The lines of several workers stay whole in one pipe only up to this size of a write."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lines: list[bytes] = []
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None
        self._second = 0
        self._date = b""

    def add(self, message: str, fields: Mapping[str, object]) -> None:
        """`message` is a plain word, and there are fields."""
        now = time.time()
        second = int(now)
        if second != self._second:
            self._second, self._date = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second)).encode()
        said = (self._date, int((now - second) * 1000), message.encode())
        line = b'{"time":"%b.%03d+00:00","level":"info","message":"%b",' % said
        line += orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)[1:]
        if self._size + len(line) > self.MAX_BYTES:
            self.flush()
        self._lines.append(line)
        self._size += len(line)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.HOLD_SECONDS, self._due)

    def _due(self) -> None:
        self._timer = None
        self.flush()

    def flush(self) -> None:
        if self._lines:
            block = b"".join(self._lines)
            self._lines.clear()
            self._size = 0
            with contextlib.suppress(OSError, ValueError):  # nobody reads it any more: no reason to fail a payment
                self._stream.write(block)
                self._stream.flush()
