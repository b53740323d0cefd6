"""The store on Postgres: batched statements from queries.sql, rows into facts, faults into StoreUnavailable.

A statement whose reply was lost is in doubt. Each of them can simply be run again: a claim finds its own token, a
completion writes the same answer under the same token, a release deletes nothing the second time.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Final, cast

import asyncpg

from idemproxy.core.messages import Answer
from idemproxy.core.record import Claim, Completed, Expired, Found, Lease, RecordId, Running, Unknown
from idemproxy.core.replies import reason
from idemproxy.core.value import Value
from idemproxy.ports import StoreUnavailable
from idemproxy.store import queries
from idemproxy.store.batch import CALL_SECONDS, Batcher
from idemproxy.store.cache import now
from idemproxy.store.columns import answers, hashes, identified, numbers
from idemproxy.store.known import Known
from idemproxy.store.lane import Apart, Lane, Timed
from idemproxy.store.packing import LARGE_BYTES, pack, unpack
from idemproxy.store.pool import is_writable
from idemproxy.tasks import Tasks

SIDE_BY_SIDE: Final = 3
"""Batches of claims and completions under way at a time: see `batch.SLOW_SECONDS`."""
BATCH_ITEMS: Final = 256
BATCH_BYTES: Final = 256 * 1024
"""Bounds what one statement carries of answers, for everything else in its batch waits until that has been sent and
written. A single larger answer still travels, alone."""
READ_TRIES: Final = 8
"""A record that is released between insert and read makes the next insert win, unless somebody else was quicker again.
Whoever loses so often is told the truth: others are at work on it."""
BUSY_SECONDS: Final = 1.0
"""What is said to be left of the lease of such an owner."""

Columns = tuple[str | bytes, ...]
"""See `store.columns`."""


class Completion(Value):
    __match_args__ = ("lease", "answer", "kept")
    __slots__ = __match_args__

    def __init__(self, lease: Lease, answer: Answer, kept: bool) -> None:
        self.lease: Final = lease
        self.answer: Final = answer
        self.kept: Final = kept


class PostgresStore:
    def __init__(
        self,
        pool: asyncpg.Pool,
        timed: Timed,
        failed: Callable[[], None],
        known: Known,
        *,
        among_others: bool = False,
    ) -> None:
        """`among_others`: this process is one of several workers that share the machine's cores."""
        self._pool = pool
        self._known = known
        # Duplicates of a claim under way wait for it, and learn from `known` what came of it.
        self._claiming: dict[RecordId, asyncio.Future[Found]] = {}
        self._tasks = Tasks()
        statements = queries.load()

        def lane() -> Lane:
            return Lane(pool, statements, timed, failed)

        self._together = True
        """Whether one statement may claim and complete."""
        self._writes = Batcher(
            "claim and complete",
            lane,
            self._run_writes,
            tasks=self._tasks,
            max_items=BATCH_ITEMS,
            side_by_side=SIDE_BY_SIDE,
            among_others=among_others,
            size=_body_size,
            max_size=BATCH_BYTES,
            late=self._give_back,
        )
        self._take_overs = Batcher("take_over", lane, self._run_take_overs, tasks=self._tasks, max_items=BATCH_ITEMS)
        self._renewals = Batcher("renew", lane, self._run_renewals, tasks=self._tasks, max_items=BATCH_ITEMS)
        self._unknowns = Batcher("mark_unknown", lane, self._run_unknowns, tasks=self._tasks, max_items=BATCH_ITEMS)
        self._releases = Batcher("release", lane, self._run_releases, tasks=self._tasks, max_items=BATCH_ITEMS)

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
        asked = cast("asyncio.Future[Found]", self._writes.submit(claim))
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
            done = await cast("asyncio.Future[bool]", self._writes.submit(Completion(lease, answer, kept)))
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
        return await is_writable(self._pool)

    # A claim that nobody waits for any more must not block its key: it is given back as soon as it can be.

    def _give_back(self, item: Claim | Completion, result: Found | bool) -> None:
        if isinstance(item, Claim) and isinstance(result, Lease):
            self._release_later(item)

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

    async def _run_writes(self, lane: Lane, items: Sequence[Claim | Completion]) -> Sequence[Found | bool]:
        claims = sorted([item for item in items if isinstance(item, Claim)], key=_id_of_claim)
        completions = sorted([item for item in items if isinstance(item, Completion)], key=_id_of_completion)
        tokens = await self._write(lane, claims, completions)
        found = await self._instead(lane, [claim for claim in claims if claim.token not in tokens])
        results: list[Found | bool] = []
        for item in items:
            if isinstance(item, Completion):
                results.append(item.lease.claim.token in tokens)
            else:
                results.append(Lease(item, 1) if item.token in tokens else found[item.token])
        return results

    async def _write(self, lane: Lane, claims: Sequence[Claim], completions: Sequence[Completion]) -> set[bytes]:
        """The tokens of the claims that were won and of the completions that took place."""
        claimed = _claim_columns(claims) if claims else ()
        completed = await _completion_columns(completions) if completions else ()
        if claims and completions and self._together:
            try:
                rows = await lane.attempt("claim_and_complete", len(claims) + len(completions), *claimed, *completed)
                return {row["token"] for row in rows}
            except Apart as apart:
                self._together = not apart.for_good
        rows = await lane.execute("claim", len(claims), *claimed) if claims else []
        if completions:
            rows += await lane.execute("complete", len(completions), *completed)
        return {row["token"] for row in rows}

    async def _instead(self, lane: Lane, lost: Sequence[Claim]) -> dict[bytes, Found]:
        """What has these claims' places, by their tokens. A place that has become free meanwhile is claimed again."""
        found: dict[bytes, Found] = {}
        for _ in range(READ_TRIES):
            lost = await self._read(lane, lost, found)
            if not lost:
                return found
            rows = await lane.execute("claim", len(lost), *_claim_columns(lost))
            won = {row["token"] for row in rows}
            found.update((claim.token, Lease(claim, 1)) for claim in lost if claim.token in won)
            lost = [claim for claim in lost if claim.token not in won]
        found.update((claim.token, Running(b"", claim.fingerprint, False, BUSY_SECONDS)) for claim in lost)
        return found

    async def _run_take_overs(self, lane: Lane, items: Sequence[tuple[Claim, bytes]]) -> Sequence[Found]:
        ordered = sorted(items, key=lambda item: item[0].id)
        claims = [claim for claim, _ in ordered]
        rows = await lane.execute(
            "take_over", len(claims), *_claim_columns(claims), hashes([seen for _, seen in ordered], 16)
        )
        won = {row["token"]: row["attempt"] for row in rows}
        found = await self._instead(lane, [claim for claim in claims if claim.token not in won])
        return [Lease(claim, won[claim.token]) if claim.token in won else found[claim.token] for claim, _ in items]

    async def _read(self, lane: Lane, claims: Sequence[Claim], found: dict[bytes, Found]) -> list[Claim]:
        """Fill `found` by token; give back the claims that have no record."""
        if not claims:
            return []
        started = now()
        rows = await lane.execute("read", len(claims), *identified([claim.id for claim in claims]))
        for row in rows:
            claim = claims[row["n"] - 1]
            found[claim.token] = fact = _fact(row, claim)
            self._known.read(claim.id, fact, started - row["expired_since"], started)
        return [claim for claim in claims if claim.token not in found]

    async def _run_renewals(self, lane: Lane, leases: Sequence[Lease]) -> Sequence[bool]:
        return await self._change(lane, "renew", leases, _timed_columns)

    async def _run_unknowns(self, lane: Lane, leases: Sequence[Lease]) -> Sequence[bool]:
        return await self._change(lane, "mark_unknown", leases, _timed_columns)

    async def _run_releases(self, lane: Lane, leases: Sequence[Lease]) -> Sequence[bool]:
        return await self._change(lane, "release", leases, _lease_columns)

    async def _change(
        self,
        lane: Lane,
        name: str,
        leases: Sequence[Lease],
        columns: Callable[[Sequence[Lease]], tuple[str | bytes, ...]],
    ) -> Sequence[bool]:
        rows = await lane.execute(name, len(leases), *columns(sorted(leases, key=lambda lease: lease.claim.id)))
        done = {row["token"] for row in rows}
        return [lease.claim.token in done for lease in leases]


def _id_of_claim(claim: Claim) -> RecordId:
    return claim.id


def _id_of_completion(completion: Completion) -> RecordId:
    return completion.lease.claim.id


def _body_size(item: Claim | Completion) -> int:
    return len(item.answer.body) if isinstance(item, Completion) else 0


async def _completion_columns(completions: Sequence[Completion]) -> Columns:
    # A large answer travels alone, so that no other one waits for it.
    large = any(_body_size(done) >= LARGE_BYTES for done in completions)
    packed = await asyncio.to_thread(_packed, completions) if large else _packed(completions)
    return (
        *_lease_columns([done.lease for done in completions]),
        numbers([done.lease.claim.ttl_seconds for done in completions]),
        numbers([done.answer.status for done in completions]),
        *answers(packed),
    )


def _claim_columns(claims: Sequence[Claim]) -> Columns:
    return (
        *identified([claim.id for claim in claims]),
        hashes([claim.fingerprint for claim in claims], 33),
        hashes([claim.token for claim in claims], 16),
        numbers([claim.lease_seconds for claim in claims]),
        numbers([claim.ttl_seconds for claim in claims]),
    )


def _lease_columns(leases: Sequence[Lease]) -> Columns:
    return (
        *identified([lease.claim.id for lease in leases]),
        hashes([lease.claim.token for lease in leases], 16),
    )


def _timed_columns(leases: Sequence[Lease]) -> Columns:
    return (
        *_lease_columns(leases),
        numbers([lease.claim.lease_seconds for lease in leases]),
        numbers([lease.claim.ttl_seconds for lease in leases]),
    )


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


def _packed(completions: Sequence[Completion]) -> list[tuple[bytes, bytes] | None]:
    return [pack(done.answer.headers, done.answer.body) if done.kept else None for done in completions]
