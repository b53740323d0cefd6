"""Hears of purged records, so that no replica replays them from memory.

A connection that listens can look sound and hear nothing: a pooler between us and Postgres does not hand notifications
on. So the cache is trusted only while a notification that we send ourselves, by way of the pool, comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from typing import Any

import asyncpg
import orjson

from idemproxy.core.record import RecordId
from idemproxy.store.cache import Cache
from idemproxy.store.connect import Primary
from idemproxy.store.errors import FAULTS

log = logging.getLogger("idemproxy.store")

CHANNEL = "idemproxy_purged"
PING_SECONDS = 10.0
"""Between two pings: how long a purge can go unheard when the connection has died in silence."""
ANSWER_SECONDS = 2.0
RETRY_SECONDS = 1.0
_PING = "ping "


def purged(id: RecordId) -> str:
    """What is announced for a purged record."""
    return orjson.dumps([id.key, id.scope.hex(), id.route]).decode()


class Purges:
    def __init__(self, primary: Primary, pool: asyncpg.Pool, cache: Cache) -> None:
        self._primary = primary
        self._pool = pool
        self._cache = cache
        self._heard: dict[str, asyncio.Event] = {}

    async def listen_forever(self) -> None:
        while True:
            try:
                connection = await self._primary.connect(timeout=ANSWER_SECONDS, command_timeout=ANSWER_SECONDS)
            except FAULTS:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            try:
                await self._listen(connection)
            except FAULTS as failure:
                log.info("not listening for purges (%s): answers are read from the store", type(failure).__name__)
            finally:
                # What is purged from now on is not known: until the first ping has come back, nothing is served from
                # memory but as a reserve, and memory starts afresh when listening does.
                self._cache.trusted = False
                with contextlib.suppress(Exception):
                    connection.terminate()
            await asyncio.sleep(RETRY_SECONDS)

    async def _listen(self, connection: asyncpg.Connection) -> None:
        await connection.add_listener(CHANNEL, self._on_notification)
        self._cache.purge_all()
        while True:
            await self._ping()
            self._cache.trusted = True
            await asyncio.sleep(PING_SECONDS)

    async def _ping(self) -> None:
        """Raises TimeoutError when our own notification does not come back."""
        ping = secrets.token_hex(8)
        heard = self._heard[ping] = asyncio.Event()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                async with self._pool.acquire(timeout=ANSWER_SECONDS) as connection:
                    await connection.execute("SELECT pg_notify($1, $2)", CHANNEL, _PING + ping)
                await heard.wait()
        finally:
            del self._heard[ping]

    def _on_notification(self, _connection: Any, _pid: int, _channel: str, payload: object) -> None:
        text = str(payload)
        if text.startswith(_PING):
            heard = self._heard.get(text.removeprefix(_PING))
            if heard is not None:
                heard.set()
            return
        try:
            key, scope, route = orjson.loads(text)
            self._cache.purge(RecordId(key, bytes.fromhex(scope), route))
        except (ValueError, TypeError):
            self._cache.purge_all()  # a purge that cannot be read may be of anything
