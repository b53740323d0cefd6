"""A connection to the upstream that has switched to another protocol."""

from __future__ import annotations

import asyncio

from idemproxy.edge.connection import Connection
from idemproxy.edge.limits import READ_AHEAD_BYTES


class Channel:
    """`ports.Channel`: bytes as they come, read no faster than they are taken."""

    def __init__(self, connection: Connection, first: bytes) -> None:
        self._connection = connection
        self._pieces = [first] if first else []
        self._size = len(first)
        self._over = False
        self._arrived = asyncio.Event()
        if first:
            self._arrived.set()
        connection.traffic = self

    def feed(self, data: bytes) -> None:
        self._pieces.append(data)
        self._size += len(data)
        if self._size > READ_AHEAD_BYTES:
            self._connection.pause()
        self._arrived.set()

    def ended(self, error: Exception | None) -> None:  # noqa: ARG002 - either way there is no more
        self._over = True
        self._arrived.set()

    def late(self) -> None:
        """Nobody watches it: how long a tunnel may be silent is its client's side to say."""

    async def read(self) -> bytes:
        while not self._pieces:
            if self._over:
                return b""
            self._arrived.clear()
            await self._arrived.wait()
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        self._connection.resume()
        return data

    async def write(self, data: bytes) -> None:
        """Once the other side has ended, there is nobody to take it: `read` tells that."""
        if not self._over:
            self._connection.write(data)
            await self._connection.drained()

    def close(self) -> None:
        self._connection.drop()
