"""A bounded pipe between the task that records an answer and the client that reads it live."""

from __future__ import annotations

import asyncio
from collections import deque

from idemproxy.core.messages import Headers

PIPE_BYTES = 1024 * 1024
"""How far the recording may run ahead of a slow client before it waits for it."""


class Pipe:
    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._ended = False
        self._failure: Exception | None = None
        self.trailers: Headers = ()
        """Known once `get` has returned the end."""
        self._left = False
        self._changed = asyncio.Event()

    async def put(self, piece: bytes) -> None:
        """Hand a piece on; waits while the pipe is full, and drops the piece once the reader has left."""
        while self._size >= PIPE_BYTES and not self._left:
            self._changed.clear()
            await self._changed.wait()
        if not self._left:
            self._pieces.append(piece)
            self._size += len(piece)
            self._changed.set()

    def end(self, failure: Exception | None = None, *, last: bytes = b"", trailers: Headers = ()) -> None:
        """No more will come. The `last` piece waits for no room: whoever ends the pipe has a record to let go of."""
        if last and not self._left:
            self._pieces.append(last)
            self._size += len(last)
        self._ended, self._failure, self.trailers = True, failure, trailers
        self._changed.set()

    async def get(self) -> bytes:
        """The next piece, `b""` at the end; raises what `end` was given."""
        while not self._pieces:
            if self._ended:
                if self._failure is not None:
                    raise self._failure
                return b""
            self._changed.clear()
            await self._changed.wait()
        piece = self._pieces.popleft()
        self._size -= len(piece)
        self._changed.set()
        return piece

    def leave(self) -> None:
        """The reader has gone; from now on nothing waits for it."""
        self._left = True
        self._pieces.clear()
        self._changed.set()
