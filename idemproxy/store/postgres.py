"""The store on Postgres: batched statements from queries.sql, rows into facts, faults into StoreUnavailable.

A statement whose reply was lost is in doubt. Each of them can simply be run again: a claim finds its own token, a
completion writes the same answer under the same token, a release deletes nothing the second time.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import asyncpg

from idemproxy.core.messages import Answer
from idemproxy.core.record import Claim, Completed, Expired, Found, Lease, RecordId, Running, Unknown
from idemproxy.core.replies import reason
from idemproxy.ports import StoreUnavailable
from idemproxy.store import queries
from idemproxy.store.batch import CALL_SECONDS, BadItem, Batcher
from idemproxy.store.cache import now
from idemproxy.store.errors import BAD_DATA, LOST_CONNECTION, WORTH_ANOTHER_TRY
from idemproxy.store.known import Known
from idemproxy.store.packing import LARGE_BYTES, pack, unpack
from idemproxy.store.pool import ACQUIRE_SECONDS, STATEMENT_SECONDS
from idemproxy.tasks import Tasks

RETRY_PAUSE_SECONDS = 0.05
"""Between two tries: short enough that a restarted Postgres is found again at once, long enough not to spin."""
SIDE_BY_SIDE = 3
"""Batches of claims, and of completions, under way at a time: see `batch.SLOW_SECONDS`."""
BATCH_ITEMS = 256
BATCH_BYTES = 8 * 1024 * 1024
"""Bounds what one completion statement carries; a single larger answer still travels, alone."""
READ_TRIES = 8
"""A record that is released between insert and read makes the next insert win, unless somebody else was quicker again.
Whoever loses so often is told the truth: others are at work on it."""
BUSY_SECONDS = 1.0
"""What is said to be left of the lease of such an owner."""

Timed = Callable[[str, float, int], None]
"""Told the name, seconds and batch size of each statement that succeeded."""


class PostgresStore:
    def __init__(self, pool: asyncpg.Pool, timed: Timed, failed: Callable[[], None], known: Known) -> None:
        self._pool = pool
        self._timed = timed
        self._failed = failed
        self._known = known
        # Duplicates of a claim under way wait for it, and learn from `known` what came of it.
        self._claiming: dict[RecordId, asyncio.Future[Found]] = {}
        self._tasks = Tasks()
        self._sql = queries.load()
        self._claims = Batcher(
            "claim",
            self._run_claims,
            tasks=self._tasks,
            max_items=BATCH_ITEMS,
            side_by_side=SIDE_BY_SIDE,
            late=self._give_back,
        )
        self._take_overs = Batcher("take_over", self._run_take_overs, tasks=self._tasks, max_items=BATCH_ITEMS)
        self._completions = Batcher(
            "complete",
            self._run_completions,
            tasks=self._tasks,
            max_items=BATCH_ITEMS,
            side_by_side=SIDE_BY_SIDE,
            size=lambda item: len(item[1].body),
            max_size=BATCH_BYTES,
        )
        self._renewals = Batcher("renew", self._run_renewals, tasks=self._tasks, max_items=BATCH_ITEMS)
        self._unknowns = Batcher("mark_unknown", self._run_unknowns, tasks=self._tasks, max_items=BATCH_ITEMS)
        self._releases = Batcher("release", self._run_releases, tasks=self._tasks, max_items=BATCH_ITEMS)

    async def close(self) -> None:
        """What still runs is given a moment; then its connections are cut."""
        await self._tasks.finished(CALL_SECONDS)
        await self._tasks.cancel()
        with contextlib.suppress(asyncpg.InterfaceError, OSError):
            try:
                await asyncio.wait_for(self._pool.close(), CALL_SECONDS)
            except TimeoutError:
                self._pool.terminate()

    # The calls: one item each, batched behind the scenes.

    async def claim(self, claim: Claim) -> Found:
        known = self._known.look(claim)
        if known is None and claim.id in self._claiming:
            await asyncio.wait({self._claiming[claim.id]}, timeout=CALL_SECONDS)
            known = self._known.look(claim)
        if known is not None:
            return known
        started = now()
        asked = self._claims.submit(claim)
        self._claiming.setdefault(claim.id, asked)
        try:
            found = await asked
        except StoreUnavailable:
            self._release_later(claim)
            reserve = self._known.reserve(claim.id)
            if reserve is None:
                raise
            return reserve
        finally:
            if self._claiming.get(claim.id) is asked:
                del self._claiming[claim.id]
        return self._won(found, started)

    def _won(self, found: Found, started: float) -> Found:
        if isinstance(found, Lease):
            self._known.hold(found, started)
        return found

    def remembered(self, id: RecordId) -> Completed | None:
        return self._known.certain(id)

    async def take_over(self, claim: Claim, seen: bytes) -> Found:
        started = now()
        return self._won(await self._take_overs.submit((claim, seen)), started)

    async def renew(self, lease: Lease) -> bool:
        started = now()
        renewed = await self._renewals.submit(lease)
        if not renewed:
            self._known.let_go(lease)
        elif self._known.holds(lease):  # and was not settled meanwhile
            self._known.hold(lease, started)
        return renewed

    async def complete(self, lease: Lease, answer: Answer, *, kept: bool) -> bool:
        started = now()
        try:
            done = await self._completions.submit((lease, answer, kept))
            if done and kept:
                self._known.completed(lease, answer, started)
            return done
        finally:
            self._known.let_go(lease)

    async def mark_unknown(self, lease: Lease) -> bool:
        try:
            return await self._unknowns.submit(lease)
        finally:
            self._known.let_go(lease)

    async def release(self, lease: Lease) -> bool:
        try:
            return await self._releases.submit(lease)
        finally:
            self._known.let_go(lease)

    async def ready(self) -> bool:
        """Whether the store answers right now, and is writable."""
        try:
            async with asyncio.timeout(1.0), self._pool.acquire(timeout=ACQUIRE_SECONDS) as connection:
                demoted: bool = await connection.fetchval("SELECT pg_is_in_recovery()")
            if demoted:
                await self._pool.expire_connections()
            return not demoted
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            return False

    # A claim that nobody waits for any more must not block its key: it is given back as soon as it can be.

    def _give_back(self, claim: Claim, found: Found) -> None:
        if isinstance(found, Lease):
            self._release_later(claim)

    def _release_later(self, claim: Claim) -> None:
        self._tasks.spawn(self._release_until_lapsed(Lease(claim, attempt=1)), "release an abandoned claim")

    async def _release_until_lapsed(self, lease: Lease) -> None:
        give_up = time.monotonic() + lease.claim.lease_seconds
        while time.monotonic() < give_up:
            with contextlib.suppress(StoreUnavailable):
                await self._releases.submit(lease)
                return
            await asyncio.sleep(1)

    # The batches: one statement for many items, sorted by id.

    async def _run_claims(self, claims: Sequence[Claim]) -> Sequence[Found]:
        won: dict[bytes, int] = {}
        found: dict[bytes, Found] = {}
        missing = sorted(claims, key=lambda claim: claim.id)
        for _ in range(READ_TRIES):
            rows = await self._execute("claim", *_claim_columns(missing))
            won.update((row["token"], 1) for row in rows)
            missing = [claim for claim in missing if claim.token not in won]
            missing = await self._read(missing, found)
            if not missing:
                break
        found.update((claim.token, Running(b"", claim.fingerprint, False, BUSY_SECONDS)) for claim in missing)
        return [Lease(claim, 1) if claim.token in won else found[claim.token] for claim in claims]

    async def _run_take_overs(self, items: Sequence[tuple[Claim, bytes]]) -> Sequence[Found]:
        ordered = sorted(items, key=lambda item: item[0].id)
        claims = [claim for claim, _ in ordered]
        rows = await self._execute("take_over", *_claim_columns(claims), [seen for _, seen in ordered])
        won = {row["token"]: row["attempt"] for row in rows}
        found: dict[bytes, Found] = {}
        gone = await self._read([claim for claim in claims if claim.token not in won], found)
        if gone:  # released or swept in the meantime: claim them like any other
            for claim, state in zip(gone, await self._run_claims(gone), strict=True):
                found[claim.token] = state
        return [Lease(claim, won[claim.token]) if claim.token in won else found[claim.token] for claim, _ in items]

    async def _read(self, claims: Sequence[Claim], found: dict[bytes, Found]) -> list[Claim]:
        """Fill `found` by token; give back the claims that have no record."""
        if not claims:
            return []
        started = now()
        rows = await self._execute(
            "read",
            list(range(len(claims))),
            [claim.id.key for claim in claims],
            [claim.id.scope for claim in claims],
            [claim.id.route for claim in claims],
        )
        for row in rows:
            claim = claims[row["n"]]
            found[claim.token] = fact = _fact(row, claim)
            self._known.read(claim.id, fact, started - row["expired_since"], started)
        return [claim for claim in claims if claim.token not in found]

    async def _run_renewals(self, leases: Sequence[Lease]) -> Sequence[bool]:
        return await self._change("renew", leases, _timed_columns)

    async def _run_unknowns(self, leases: Sequence[Lease]) -> Sequence[bool]:
        return await self._change("mark_unknown", leases, _timed_columns)

    async def _run_releases(self, leases: Sequence[Lease]) -> Sequence[bool]:
        return await self._change("release", leases, _lease_columns)

    async def _run_completions(self, items: Sequence[tuple[Lease, Answer, bool]]) -> Sequence[bool]:
        ordered = sorted(items, key=lambda item: item[0].claim.id)
        packed = [await _packed(answer) if kept else (None, None) for _, answer, kept in ordered]
        rows = await self._execute(
            "complete",
            *_lease_columns([lease for lease, _, _ in ordered]),
            [lease.claim.ttl_seconds for lease, _, _ in ordered],
            [answer.status for _, answer, _ in ordered],
            [headers for headers, _ in packed],
            [body for _, body in packed],
        )
        done = {row["token"] for row in rows}
        return [lease.claim.token in done for lease, _, _ in items]

    async def _change(
        self, name: str, leases: Sequence[Lease], columns: Callable[[Sequence[Lease]], list[list[Any]]]
    ) -> Sequence[bool]:
        rows = await self._execute(name, *columns(sorted(leases, key=lambda lease: lease.claim.id)))
        done = {row["token"] for row in rows}
        return [lease.claim.token in done for lease in leases]

    async def _execute(self, name: str, *columns: list[Any]) -> list[asyncpg.Record]:
        """Run one statement, again on another connection while there is time. Its effects are the same twice."""
        statement = self._sql[name]
        give_up = time.monotonic() + STATEMENT_SECONDS
        while True:
            started = time.monotonic()
            try:
                rows = await self._once(statement, columns)
            except BAD_DATA as bad:
                self._failed()
                raise BadItem(f"{name}: {type(bad).__name__}") from bad
            except WORTH_ANOTHER_TRY as failure:
                self._failed()
                if time.monotonic() + RETRY_PAUSE_SECONDS >= give_up:
                    raise StoreUnavailable(f"{name}: {type(failure).__name__}") from failure
                await asyncio.sleep(RETRY_PAUSE_SECONDS)
            except asyncpg.PostgresError as failure:
                self._failed()
                raise StoreUnavailable(f"{name}: {failure.sqlstate}") from failure
            else:
                self._timed(name, time.monotonic() - started, len(columns[0]))
                return rows

    async def _once(self, statement: str, columns: Sequence[list[Any]]) -> list[asyncpg.Record]:
        connection = await self._pool.acquire(timeout=ACQUIRE_SECONDS)
        try:
            return await connection.fetch(statement, *columns)
        except LOST_CONNECTION as failure:
            if not isinstance(failure, ValueError):  # an argument that cannot be encoded leaves the connection sound
                connection.terminate()
            if isinstance(failure, asyncpg.ReadOnlySQLTransactionError):
                await self._pool.expire_connections()  # a primary that was demoted: the others lead to it, too
            raise
        finally:
            await self._pool.release(connection, timeout=ACQUIRE_SECONDS)


def _claim_columns(claims: Sequence[Claim]) -> list[list[Any]]:
    return [
        [claim.id.key for claim in claims],
        [claim.id.scope for claim in claims],
        [claim.id.route for claim in claims],
        [claim.fingerprint for claim in claims],
        [claim.token for claim in claims],
        [claim.lease_seconds for claim in claims],
        [claim.ttl_seconds for claim in claims],
    ]


def _lease_columns(leases: Sequence[Lease]) -> list[list[Any]]:
    return [
        [lease.claim.id.key for lease in leases],
        [lease.claim.id.scope for lease in leases],
        [lease.claim.id.route for lease in leases],
        [lease.claim.token for lease in leases],
    ]


def _timed_columns(leases: Sequence[Lease]) -> list[list[Any]]:
    return [
        *_lease_columns(leases),
        [lease.claim.lease_seconds for lease in leases],
        [lease.claim.ttl_seconds for lease in leases],
    ]


def _fact(row: asyncpg.Record, claim: Claim) -> Found:
    token, fingerprint = row["token"], row["fingerprint"]
    if token == claim.token and row["state"] == "claimed":
        return Lease(claim, row["attempt"])  # the commit was in doubt: it had been made
    if row["expired_since"] >= 0:
        return Expired(token, row["expired_since"])
    if row["state"] == "completed":
        return Completed(token, fingerprint, row["status"], _answer(row))
    kind = Running if row["state"] == "claimed" else Unknown
    return kind(token, fingerprint, row["lapsed"], row["lease_left"])


def _answer(row: asyncpg.Record) -> Answer | None:
    if row["body"] is None:
        return None
    status = row["status"]
    return Answer(status, reason(status), *unpack(row["headers"], row["body"]))


async def _packed(answer: Answer) -> tuple[bytes, bytes]:
    if len(answer.body) >= LARGE_BYTES:
        return await asyncio.to_thread(pack, answer.headers, answer.body)
    return pack(answer.headers, answer.body)
