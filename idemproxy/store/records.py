"""Records as operators find and change them. Every change is written down, with who and why, in its transaction."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import asyncpg
import orjson
from asyncpg.pool import PoolConnectionProxy

from idemproxy.core.messages import Answer, Headers
from idemproxy.core.record import RecordId
from idemproxy.core.steer import Action, Facts, Refusal, State, refused, state_of
from idemproxy.ports import StoreUnavailable
from idemproxy.store import queries
from idemproxy.store.errors import FAULTS
from idemproxy.store.packing import pack, unpack
from idemproxy.store.purges import CHANNEL, purged
from idemproxy.store.search import ORDERS, Search, end_of_part, statement

ACQUIRE_SECONDS = 1.0
COUNT_LIMIT = 10_000
"""Counts end here: beyond it, the exact number helps nobody and would cost a scan."""
HISTORY_LIMIT = 200
LOOKING_SECONDS = 0.5
"""How long a page is looked for before it is given back unfilled, with the place where to go on: as long as nobody
minds, and far below what a statement is given."""


@dataclass(frozen=True, slots=True)
class Record:
    id: RecordId
    fingerprint: bytes
    state: State
    attempt: int
    claimed_at: datetime
    lease_until: datetime
    settled_at: datetime | None
    expires_at: datetime
    status: int | None
    size: int | None
    """What the stored body takes, which may be compressed; None when there is no answer, or it was not kept."""
    facts: Facts
    headers: Headers | None = None
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class Page:
    records: list[Record]
    next: tuple[Any, ...] | None


@dataclass(frozen=True, slots=True)
class Counts:
    """`COUNT_LIMIT` stands for "that many or more"; the total is an estimate, None before the first vacuum."""

    running: int
    unknown: int
    oldest_unknown_seconds: float
    expired: int
    total: int | None


@dataclass(frozen=True, slots=True)
class Changed:
    before: Record


class Records:
    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool
        self._sql = queries.load("operator.sql")

    async def find(self, search: Search) -> Page:
        give_up = time.monotonic() + LOOKING_SECONDS
        rows: list[asyncpg.Record] = []
        async with self._connection() as connection:
            while True:
                end = await self._end_of_part(connection, search)
                sql, arguments = statement(search, self._sql["record_columns"], end)
                rows += await connection.fetch(sql, *arguments)
                if end is None or len(rows) > search.limit or time.monotonic() > give_up:
                    break
                search = replace(search, after=end)
        page = rows[: search.limit]
        more = len(rows) > search.limit
        last = tuple(page[-1][column] for column in ORDERS[search.order].columns) if more else end
        return Page([_record(row) for row in page], last)

    async def _end_of_part(self, connection: PoolConnectionProxy, search: Search) -> tuple[Any, ...] | None:
        """How far a search may look at a time; None where it goes to the end."""
        if not search.in_parts:
            return None
        sql, arguments = end_of_part(search)
        row = await connection.fetchrow(sql, *arguments)
        return tuple(row) if row else None

    async def show(self, id: RecordId, *, answer: bool = False) -> Record | None:
        async with self._connection() as connection:
            row = await connection.fetchrow(self._sql["show_record"], id.key, id.scope, id.route, answer)
        return _record(row) if row else None

    async def counts(self) -> Counts:
        async with self._connection() as connection:
            running = await connection.fetchval(self._sql["count_running"], COUNT_LIMIT)
            unknown = await connection.fetchrow(self._sql["count_unknown"], COUNT_LIMIT)
            expired = await connection.fetchval(self._sql["count_expired"], COUNT_LIMIT)
            total = await connection.fetchval(self._sql["estimate_total"])
        assert unknown is not None  # noqa: S101 - an aggregate always has a row
        return Counts(running, unknown["count"], unknown["oldest"] or 0.0, expired, total if total >= 0 else None)

    async def change(
        self,
        id: RecordId,
        action: Action,
        *,
        who: str,
        reason: str,
        seen_attempt: int | None = None,
        answer: Answer | None = None,
    ) -> Changed | Refusal | None:
        """Change one record and write it down; a refusal when its state forbids it, None when it is not there."""
        place = (id.key, id.scope, id.route)
        async with self._connection() as connection, connection.transaction():
            row = await connection.fetchrow(self._sql["lock_record"], *place)
            if row is None:
                return None
            record = _record(row)
            refusal = refused(action, record.facts, seen_attempt)
            if refusal is not None:
                return refusal
            if action is Action.RESOLVE_HAPPENED:
                assert answer is not None  # noqa: S101 - what happened is replayed: the caller brings the answer
                result = (os.urandom(16), answer.status, *pack(answer.headers, answer.body))
                await connection.execute(self._sql["resolve_record"], *place, row["token"], *result)
            else:
                await connection.execute(self._sql["delete_record"], *place, row["token"])
            number = int.from_bytes(os.urandom(8), signed=True)
            before = orjson.dumps(_before(record)).decode()
            await connection.execute(self._sql["write_change"], *place, number, action.value, who, reason, before)
            if action is Action.PURGE:
                await connection.execute(self._sql["announce_purge"], CHANNEL, purged(id))
            else:
                await connection.execute(self._sql["write_resolved"], *place, number, record.attempt, action.value)
        return Changed(record)

    async def changes_of(self, id: RecordId) -> list[dict[str, Any]]:
        return await self._rows("record_changes", id.key, id.scope, id.route, HISTORY_LIMIT)

    async def events_of(self, id: RecordId) -> list[dict[str, Any]]:
        return await self._rows("record_events", id.key, id.scope, id.route, HISTORY_LIMIT)

    async def latest_changes(self, limit: int) -> list[dict[str, Any]]:
        return await self._rows("latest_changes", limit)

    async def latest_events(self, limit: int) -> list[dict[str, Any]]:
        return await self._rows("latest_events", limit)

    async def suspected_duplicates(self, limit: int) -> list[dict[str, Any]]:
        return await self._rows("suspected_duplicates", limit)

    async def _rows(self, name: str, *arguments: Any) -> list[dict[str, Any]]:
        """Newest first; JSON columns as values."""
        async with self._connection() as connection:
            rows = await connection.fetch(self._sql[name], *arguments)
        found = [dict(row) for row in rows]
        for row in found:
            for column in ("detail", "before"):
                if isinstance(row.get(column), str):
                    row[column] = orjson.loads(row[column])
        return found

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[PoolConnectionProxy]:
        try:
            async with self._pool.acquire(timeout=ACQUIRE_SECONDS) as connection:
                yield connection
        except FAULTS as failure:
            raise StoreUnavailable(f"{type(failure).__name__}: {failure}") from failure


def _record(row: asyncpg.Record) -> Record:
    state = state_of(row["state"], held=row["held"], expired=row["expired"])
    headers, body = (None, None) if row.get("body") is None else unpack(row["headers"], row["body"])
    return Record(
        id=RecordId(row["key"], row["scope"], row["route"]),
        fingerprint=row["fingerprint"],
        state=state,
        attempt=row["attempt"],
        claimed_at=row["claimed_at"],
        lease_until=row["lease_until"],
        settled_at=row["settled_at"],
        expires_at=row["expires_at"],
        status=row["status"],
        size=row["size"],
        facts=Facts(state, row["attempt"], row["held"], row["lease_left"]),
        headers=headers,
        body=body,
    )


def _before(record: Record) -> dict[str, Any]:
    return {
        "state": record.state.value,
        "attempt": record.attempt,
        "claimed_at": record.claimed_at,
        "settled_at": record.settled_at,
        "status": record.status,
        "fingerprint": record.fingerprint.hex(),
    }
