"""The store on a real Postgres: what each call reports, what it changes, and what it must never change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import asyncpg
import pytest

from idemproxy.core import headers as header_lines
from idemproxy.core.messages import Answer
from idemproxy.core.record import Claim, Completed, Expired, Found, Lease, Running, Unknown
from idemproxy.ports import StoreUnavailable
from idemproxy.store.batch import CALL_SECONDS
from idemproxy.store.embedded import EmbeddedPostgres
from idemproxy.store.migrate import migrate
from idemproxy.store.postgres import PostgresStore
from tests.support.records import (
    ADA,
    BOB,
    COFFEE,
    CREATED,
    EXPIRE,
    LAPSE,
    TEA,
    Noted,
    claim_of,
    count,
    record,
    store_on,
)
from tests.support.way import way_to

pytestmark = pytest.mark.usefixtures("line")

SLACK_SECONDS = 2.0
"""What a loaded machine may add to a call that is bounded."""


@pytest.fixture
async def store(database: str) -> AsyncIterator[PostgresStore]:
    async with store_on(database) as opened:
        yield opened


@pytest.fixture
async def another_replica(database: str) -> AsyncIterator[PostgresStore]:
    async with store_on(database) as opened:
        yield opened


async def won(store: PostgresStore, claim: Claim) -> Lease:
    found = await store.claim(claim)
    assert isinstance(found, Lease)
    return found


# Claims


async def test_a_free_id_is_claimed(store: PostgresStore, rows: asyncpg.Connection) -> None:
    claim = claim_of(lease_seconds=30, ttl_seconds=60)
    assert await store.claim(claim) == Lease(claim, attempt=1)
    stored = await record(rows)
    assert (stored["state"], stored["token"], stored["fingerprint"]) == ("claimed", claim.token, TEA)
    assert 25 < stored["lease_left"] <= 30  # type: ignore[operator]
    assert 85 < stored["time_left"] <= 90  # type: ignore[operator]


async def test_a_claimed_id_is_reported_as_running(store: PostgresStore) -> None:
    lease = await won(store, claim_of())
    found = await store.claim(claim_of(fingerprint=COFFEE))
    assert isinstance(found, Running)
    assert (found.token, found.fingerprint, found.lapsed) == (lease.claim.token, TEA, False)
    assert 25 < found.lease_left <= 30


async def test_the_databases_clock_decides_what_has_lapsed(
    store: PostgresStore, another_replica: PostgresStore, rows: asyncpg.Connection
) -> None:
    await won(store, claim_of())
    await rows.execute(LAPSE)
    found = await another_replica.claim(claim_of())
    assert isinstance(found, Running)
    assert (found.lapsed, found.lease_left < 0) == (True, True)


async def test_a_completed_id_is_reported_with_its_whole_answer(store: PostgresStore) -> None:
    lease = await won(store, claim_of())
    assert await store.complete(lease, CREATED, kept=True)
    assert await store.claim(claim_of()) == Completed(lease.claim.token, TEA, 201, CREATED)


async def test_an_answer_that_was_not_kept_is_reported_without_it(store: PostgresStore) -> None:
    lease = await won(store, claim_of())
    assert await store.complete(lease, CREATED, kept=False)
    assert await store.claim(claim_of()) == Completed(lease.claim.token, TEA, 201, None)


async def test_an_empty_answer_is_not_the_same_as_none(store: PostgresStore) -> None:
    lease = await won(store, claim_of())
    empty = Answer(204, b"No Content", (), b"")
    assert await store.complete(lease, empty, kept=True)
    assert await store.claim(claim_of()) == Completed(lease.claim.token, TEA, 204, empty)


async def test_an_unknown_outcome_is_reported_until_and_after_its_lease_lapses(
    store: PostgresStore, rows: asyncpg.Connection
) -> None:
    lease = await won(store, claim_of())
    assert await store.mark_unknown(lease)
    found = await store.claim(claim_of())
    assert isinstance(found, Unknown)
    assert (found.token, found.lapsed) == (lease.claim.token, False)
    await rows.execute(LAPSE)
    found = await store.claim(claim_of())
    assert isinstance(found, Unknown)
    assert found.lapsed


@pytest.mark.parametrize("settled", ["claimed", "completed", "unknown"])
async def test_a_record_past_its_ttl_is_reported_as_expired_whatever_it_was(
    store: PostgresStore, another_replica: PostgresStore, rows: asyncpg.Connection, settled: str
) -> None:
    lease = await won(store, claim_of())
    if settled == "completed":
        await store.complete(lease, CREATED, kept=True)
    elif settled == "unknown":
        await store.mark_unknown(lease)
    await rows.execute(EXPIRE)
    found = await another_replica.claim(claim_of())
    assert isinstance(found, Expired)
    assert (found.token, found.since >= 1) == (lease.claim.token, True)


@pytest.mark.parametrize(
    "other", [claim_of("order-2"), claim_of(scope=BOB), claim_of(route="POST /refunds"), claim_of("ORDER-1")]
)
async def test_key_scope_and_route_each_make_another_id(store: PostgresStore, other: Claim) -> None:
    await won(store, claim_of())
    assert await store.claim(other) == Lease(other, attempt=1)


async def test_of_many_claims_on_one_id_from_two_replicas_one_wins(database: str, rows: asyncpg.Connection) -> None:
    claims = [claim_of() for _ in range(200)]
    async with store_on(database) as one, store_on(database) as two:
        found = await asyncio.gather(*((one, two)[n % 2].claim(claim) for n, claim in enumerate(claims)))
    winners = [state for state in found if isinstance(state, Lease)]
    assert len(winners) == 1
    assert {state.token for state in found if isinstance(state, Running)} == {winners[0].claim.token}
    assert len([state for state in found if isinstance(state, Running)]) == 199
    assert await count(rows) == 1


async def test_an_id_released_while_others_ask_for_it_has_one_owner_at_a_time(
    database: str, rows: asyncpg.Connection
) -> None:
    """Between a lost insert and its read the record may go: nobody may be left without an answer."""
    owners = 0

    async def claim_and_release(store: PostgresStore) -> None:
        nonlocal owners
        for _ in range(20):
            found = await store.claim(claim_of())
            assert isinstance(found, Lease | Running)
            if isinstance(found, Lease):
                owners += 1
                assert owners == 1
                await asyncio.sleep(0)
                owners -= 1
                assert await store.release(found)

    async with store_on(database) as one, store_on(database) as two:
        await asyncio.gather(*(claim_and_release((one, two)[n % 2]) for n in range(16)))
    assert await count(rows) == 0


# Taking over


async def test_a_lapsed_claim_is_taken_over_as_the_next_attempt(store: PostgresStore, rows: asyncpg.Connection) -> None:
    first = await won(store, claim_of())
    await rows.execute(LAPSE)
    second = claim_of()
    assert await store.take_over(second, first.claim.token) == Lease(second, attempt=2)
    stored = await record(rows)
    assert (stored["state"], stored["attempt"], stored["token"]) == ("claimed", 2, second.token)
    assert 25 < stored["lease_left"] <= 30  # type: ignore[operator]


async def test_an_unknown_outcome_is_taken_over_only_once_its_lease_has_lapsed(
    store: PostgresStore, rows: asyncpg.Connection
) -> None:
    first = await won(store, claim_of())
    await store.mark_unknown(first)
    second = claim_of()
    assert isinstance(await store.take_over(second, first.claim.token), Unknown)
    await rows.execute(LAPSE)
    assert await store.take_over(second, first.claim.token) == Lease(second, attempt=2)


async def test_an_expired_record_begins_anew(store: PostgresStore, rows: asyncpg.Connection) -> None:
    first = await won(store, claim_of())
    await store.complete(first, CREATED, kept=True)
    await rows.execute(EXPIRE)
    second = claim_of(fingerprint=COFFEE)
    assert await store.take_over(second, first.claim.token) == Lease(second, attempt=1)
    stored = await record(rows)
    assert (stored["state"], stored["fingerprint"], stored["settled"]) == ("claimed", COFFEE, False)
    assert (stored["status"], stored["headers"], stored["body"]) == (None, None, None)


async def test_a_living_claim_is_not_taken_over(store: PostgresStore) -> None:
    lease = await won(store, claim_of())
    found = await store.take_over(claim_of(), lease.claim.token)
    assert isinstance(found, Running)
    assert found.token == lease.claim.token


async def test_a_completed_record_is_not_taken_over_though_its_lease_is_long_past(
    store: PostgresStore, rows: asyncpg.Connection
) -> None:
    lease = await won(store, claim_of())
    await store.complete(lease, CREATED, kept=True)
    await rows.execute(LAPSE)
    assert await store.take_over(claim_of(), lease.claim.token) == Completed(lease.claim.token, TEA, 201, CREATED)


async def test_who_saw_an_older_owner_takes_nothing_over(store: PostgresStore, rows: asyncpg.Connection) -> None:
    first = await won(store, claim_of())
    await rows.execute(LAPSE)
    second = claim_of()
    await store.take_over(second, first.claim.token)
    await rows.execute(LAPSE)
    found = await store.take_over(claim_of(), first.claim.token)
    assert isinstance(found, Running)
    assert found.token == second.token


async def test_of_many_that_take_over_one_record_one_wins(database: str, rows: asyncpg.Connection) -> None:
    async with store_on(database) as one, store_on(database) as two:
        first = await won(one, claim_of())
        await rows.execute(LAPSE)
        tries = ((one, two)[n % 2].take_over(claim_of(), first.claim.token) for n in range(100))
        found = await asyncio.gather(*tries)
    winners = [state for state in found if isinstance(state, Lease)]
    assert [winner.attempt for winner in winners] == [2]
    assert {state.token for state in found if isinstance(state, Running)} == {winners[0].claim.token}


async def test_a_record_that_has_gone_meanwhile_is_claimed_like_any_other(store: PostgresStore) -> None:
    first = await won(store, claim_of())
    await store.release(first)
    second = claim_of()
    assert await store.take_over(second, first.claim.token) == Lease(second, attempt=1)


# Settling


async def test_a_renewal_moves_the_lease_and_with_it_the_ceiling(
    store: PostgresStore, rows: asyncpg.Connection
) -> None:
    lease = await won(store, claim_of(lease_seconds=30, ttl_seconds=60))
    await rows.execute(LAPSE)
    assert await store.renew(lease)
    stored = await record(rows)
    assert 25 < stored["lease_left"] <= 30  # type: ignore[operator]
    assert 85 < stored["time_left"] <= 90  # type: ignore[operator]


async def test_the_ttl_runs_from_the_answer(store: PostgresStore, rows: asyncpg.Connection) -> None:
    lease = await won(store, claim_of(lease_seconds=30, ttl_seconds=60))
    await rows.execute("UPDATE idemproxy.records SET expires_at = now() + interval '1 day'")
    assert await store.complete(lease, CREATED, kept=True)
    stored = await record(rows)
    assert (stored["state"], stored["settled"], stored["status"], stored["body"]) == ("completed", True, 201, b"{}")
    assert stored["headers"] == header_lines.encode(CREATED.headers)
    assert 55 < stored["time_left"] <= 60  # type: ignore[operator]


async def test_an_owner_whose_lease_lapsed_unnoticed_may_still_complete(
    store: PostgresStore, rows: asyncpg.Connection
) -> None:
    lease = await won(store, claim_of())
    await rows.execute(LAPSE)
    assert await store.complete(lease, CREATED, kept=True)
    assert (await record(rows))["state"] == "completed"


async def test_an_answer_that_arrives_after_all_heals_an_unknown_outcome(
    store: PostgresStore, rows: asyncpg.Connection
) -> None:
    lease = await won(store, claim_of())
    await store.mark_unknown(lease)
    assert await store.complete(lease, CREATED, kept=True)
    assert (await record(rows))["state"] == "completed"


async def test_marking_unknown_leaves_the_lease_running(store: PostgresStore, rows: asyncpg.Connection) -> None:
    lease = await won(store, claim_of(lease_seconds=30, ttl_seconds=60))
    assert await store.mark_unknown(lease)
    stored = await record(rows)
    assert (stored["state"], stored["settled"], stored["status"]) == ("unknown", True, None)
    assert 25 < stored["lease_left"] <= 30  # type: ignore[operator]
    assert 85 < stored["time_left"] <= 90  # type: ignore[operator]


async def test_a_released_id_is_free_again(store: PostgresStore, rows: asyncpg.Connection) -> None:
    lease = await won(store, claim_of())
    assert await store.release(lease)
    assert await count(rows) == 0
    again = claim_of(fingerprint=COFFEE)
    assert await store.claim(again) == Lease(again, attempt=1)


async def test_a_completed_record_is_neither_released_nor_made_unknown_nor_renewed(
    store: PostgresStore, rows: asyncpg.Connection
) -> None:
    lease = await won(store, claim_of())
    await store.complete(lease, CREATED, kept=True)
    before = await rows.fetch("SELECT * FROM idemproxy.records")
    assert [await store.release(lease), await store.mark_unknown(lease), await store.renew(lease)] == [False] * 3
    assert await rows.fetch("SELECT * FROM idemproxy.records") == before


async def test_an_unknown_outcome_is_not_renewed(store: PostgresStore) -> None:
    lease = await won(store, claim_of())
    await store.mark_unknown(lease)
    assert not await store.renew(lease)


# Fencing

Change = Callable[[PostgresStore, Lease], Awaitable[bool]]
CHANGES: dict[str, Change] = {
    "renew": lambda store, lease: store.renew(lease),
    "complete": lambda store, lease: store.complete(lease, CREATED, kept=True),
    "mark_unknown": lambda store, lease: store.mark_unknown(lease),
    "release": lambda store, lease: store.release(lease),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("now", ["claimed", "completed", "unknown", "claimed anew"])
async def test_a_late_finisher_changes_nothing(
    store: PostgresStore, rows: asyncpg.Connection, change: str, now: str
) -> None:
    late = await won(store, claim_of())
    if now == "claimed anew":  # the counter of attempts begins again at 1: only the token tells the two apart
        await store.release(late)
        assert await store.claim(claim_of()) != late
    else:
        await rows.execute(LAPSE)
        owner = await store.take_over(claim_of(), late.claim.token)
        assert isinstance(owner, Lease)
        if now == "completed":
            await store.complete(owner, Answer(200, b"OK", (), b"theirs"), kept=True)
        elif now == "unknown":
            await store.mark_unknown(owner)
    before = await rows.fetch("SELECT * FROM idemproxy.records")
    assert await CHANGES[change](store, late) is False
    assert await rows.fetch("SELECT * FROM idemproxy.records") == before


@pytest.mark.parametrize("change", CHANGES)
async def test_a_finisher_whose_record_has_gone_makes_no_new_one(
    store: PostgresStore, rows: asyncpg.Connection, change: str
) -> None:
    lease = await won(store, claim_of())
    await rows.execute("DELETE FROM idemproxy.records")
    assert await CHANGES[change](store, lease) is False
    assert await count(rows) == 0


# Commits in doubt: the server has done it, its reply is lost


async def test_a_claim_in_doubt_recognises_its_own_token(database: str, rows: asyncpg.Connection) -> None:
    noted = Noted()
    async with way_to(database) as (way, url), store_on(url, noted) as store:
        await won(store, claim_of("warm-up"))  # the statement is prepared: from now on it is one round trip
        way.lose_next_reply()
        claim = claim_of()
        assert await store.claim(claim) == Lease(claim, attempt=1)
        assert way.lost.is_set()
        assert noted.failures == 1
        assert (await record(rows))["token"] == claim.token


@pytest.mark.parametrize("change", ["complete", "mark_unknown", "renew"])
async def test_a_settlement_in_doubt_is_made_once_and_reported_as_made(
    database: str, rows: asyncpg.Connection, change: str
) -> None:
    async with way_to(database) as (way, url), store_on(url) as store:
        await CHANGES[change](store, await won(store, claim_of("warm-up")))
        lease = await won(store, claim_of())
        way.lose_next_reply()
        assert await CHANGES[change](store, lease)
        assert way.lost.is_set()
        expected = {"complete": "completed", "mark_unknown": "unknown", "renew": "claimed"}[change]
        assert (await record(rows))["state"] == expected


async def test_a_release_in_doubt_frees_the_id(database: str, rows: asyncpg.Connection) -> None:
    async with way_to(database) as (way, url), store_on(url) as store:
        await store.release(await won(store, claim_of("warm-up")))
        lease = await won(store, claim_of())
        way.lose_next_reply()
        await store.release(lease)
        assert way.lost.is_set()
        assert await count(rows) == 0


async def test_a_take_over_in_doubt_recognises_its_own_token(database: str, rows: asyncpg.Connection) -> None:
    async with way_to(database) as (way, url), store_on(url) as store:
        for key in ("warm-up", "order-1"):
            first = await won(store, claim_of(key))
            await rows.execute(LAPSE)
            if key == "order-1":
                way.lose_next_reply()
            second = claim_of(key)
            assert await store.take_over(second, first.claim.token) == Lease(second, attempt=2)
        assert way.lost.is_set()


# Outages


async def _claimed_within(store: PostgresStore, key: str, seconds: float) -> Found:
    """Claim as a client does that comes back after each 503 and 409: an abandoned claim is given back in a moment."""
    async with asyncio.timeout(seconds):
        while True:
            try:
                found = await store.claim(claim_of(key))
                if not isinstance(found, Running):
                    return found
            except StoreUnavailable:
                pass
            await asyncio.sleep(0.05)


async def test_the_pool_heals_when_every_connection_was_terminated(
    store: PostgresStore, rows: asyncpg.Connection
) -> None:
    await asyncio.gather(*(store.claim(claim_of(f"before-{n}")) for n in range(8)))
    cut = await rows.fetchval(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'idemproxy' "
        "AND datname = current_database()"
    )
    assert cut >= 1
    claim = claim_of()
    assert await store.claim(claim) == Lease(claim, attempt=1)  # at once: within one call
    assert await store.ready()


async def test_an_outage_is_reported_in_bounded_time_and_heals_by_itself(tmp_path: Path) -> None:
    quick = {"fsync": "off"}
    server = await EmbeddedPostgres.start(tmp_path, settings=quick)
    try:
        connection = await asyncpg.connect(server.dsn)
        await migrate(connection)
        await connection.close()
        async with store_on(server.dsn) as store:
            lease = await won(store, claim_of())
            await server.stop()

            started = time.monotonic()
            with pytest.raises(StoreUnavailable):
                await store.claim(claim_of("during"))
            with pytest.raises(StoreUnavailable):
                await store.complete(lease, CREATED, kept=True)
            assert time.monotonic() - started < 2 * CALL_SECONDS + SLACK_SECONDS
            assert not await store.ready()

            server = await EmbeddedPostgres.start(tmp_path, settings=quick)
            assert isinstance(await _claimed_within(store, "after", 20), Lease)
            assert await store.ready()
            assert await store.complete(lease, CREATED, kept=True)
    finally:
        await server.stop()


async def test_a_lock_held_elsewhere_makes_a_call_fail_in_bounded_time(
    database: str, store: PostgresStore, rows: asyncpg.Connection
) -> None:
    lease = await won(store, claim_of())
    other = await asyncpg.connect(database)
    try:
        async with other.transaction():
            await other.execute("SELECT 1 FROM idemproxy.records FOR UPDATE")
            started = time.monotonic()
            with pytest.raises(StoreUnavailable):
                await store.complete(lease, CREATED, kept=True)
            assert time.monotonic() - started < CALL_SECONDS + SLACK_SECONDS
            elsewhere = claim_of("order-2")
            assert await store.claim(elsewhere) == Lease(elsewhere, attempt=1)
    finally:
        await other.close()
    assert await store.complete(lease, CREATED, kept=True)


async def test_an_insert_that_waits_for_another_transaction_is_bounded_and_leaves_no_claim(
    database: str, store: PostgresStore, rows: asyncpg.Connection
) -> None:
    other = await asyncpg.connect(database)
    try:
        async with other.transaction():
            await other.execute("LOCK TABLE idemproxy.records IN ACCESS EXCLUSIVE MODE")
            started = time.monotonic()
            with pytest.raises(StoreUnavailable):
                await store.claim(claim_of())
            assert time.monotonic() - started < CALL_SECONDS + SLACK_SECONDS
    finally:
        await other.close()
    assert isinstance(await _claimed_within(store, "order-1", 20), Lease)  # whatever came of the first is given back
    assert await count(rows) == 1


async def test_a_pool_without_a_free_connection_is_bounded_too(store: PostgresStore) -> None:
    held = [await store._pool.acquire() for _ in range(store._pool.get_max_size())]
    started = time.monotonic()
    with pytest.raises(StoreUnavailable):
        await store.claim(claim_of())
    assert time.monotonic() - started < CALL_SECONDS + SLACK_SECONDS
    for connection in held:
        await store._pool.release(connection)
    assert isinstance(await _claimed_within(store, "order-1", 20), Lease)


async def test_a_claim_that_nobody_waits_for_any_more_is_given_back(
    database: str, store: PostgresStore, rows: asyncpg.Connection
) -> None:
    other = await asyncpg.connect(database)
    try:
        async with other.transaction():
            await other.execute("LOCK TABLE idemproxy.records IN ACCESS EXCLUSIVE MODE")
            waiting = asyncio.create_task(store.claim(claim_of()))
            await asyncio.sleep(0.2)  # the statement is under way; whether it is or not, the outcome is the same
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
    finally:
        await other.close()
    assert await store._tasks.finished(20)
    assert await count(rows) == 0


# Data that the database refuses


async def test_one_bad_item_fails_alone_and_never_its_batch(store: PostgresStore, rows: asyncpg.Connection) -> None:
    good = [claim_of(f"order-{n}") for n in range(20)]
    bad = [claim_of("zero\0"), claim_of(""), claim_of("bad-scope", scope=ADA[:31]), claim_of("bad", route="r" * 513)]
    mixed = [good[0], bad[0], *good[1:10], bad[1], bad[2], *good[10:], bad[3]]
    found = await asyncio.gather(*(store.claim(claim) for claim in mixed), return_exceptions=True)
    heard = dict(zip((claim.token for claim in mixed), found, strict=True))
    assert [heard[claim.token] for claim in good] == [Lease(claim, attempt=1) for claim in good]
    assert [type(heard[claim.token]) for claim in bad] == [StoreUnavailable] * len(bad)
    assert await count(rows) == len(good)


async def test_a_bad_answer_fails_alone_and_never_its_batch(store: PostgresStore, rows: asyncpg.Connection) -> None:
    leases = [await won(store, claim_of(f"order-{n}")) for n in range(6)]
    answers = [CREATED] * 5 + [Answer(99, b"", (), b"")]
    settling = [store.complete(lease, answer, kept=True) for lease, answer in zip(leases, answers, strict=True)]
    found = await asyncio.gather(*settling, return_exceptions=True)
    assert found[:5] == [True] * 5
    assert isinstance(found[5], StoreUnavailable)
    assert await rows.fetchval("SELECT count(*) FROM idemproxy.records WHERE state = 'completed'") == 5


# Batches


async def test_each_caller_gets_its_own_result_though_the_batch_is_sorted(
    database: str, rows: asyncpg.Connection
) -> None:
    noted = Noted()
    async with store_on(database) as another_replica, store_on(database, noted) as store:
        taken = {n: await won(another_replica, claim_of(f"order-{n:02}")) for n in range(0, 40, 2)}
        claims = [claim_of(f"order-{n:02}") for n in reversed(range(40))]
        found = await asyncio.gather(*(store.claim(claim) for claim in claims))
        sizes = [items for name, items in noted.statements if name == "claim"]
        assert sizes == [40]
        for claim, state in zip(claims, found, strict=True):
            n = int(claim.id.key[6:])
            if n % 2:
                assert state == Lease(claim, attempt=1)
            else:
                assert isinstance(state, Running)
                assert state.token == taken[n].claim.token


async def test_of_duplicates_in_one_batch_the_first_to_come_wins(store: PostgresStore) -> None:
    claims = [claim_of("elsewhere"), *(claim_of() for _ in range(10))]
    found = await asyncio.gather(*(store.claim(claim) for claim in claims))
    assert found[:2] == [Lease(claims[0], 1), Lease(claims[1], 1)]
    assert all(isinstance(state, Running) and state.token == claims[1].token for state in found[2:])


async def test_replicas_that_settle_the_same_records_in_opposite_order_do_not_deadlock(database: str) -> None:
    noted = Noted()
    async with store_on(database, noted) as one, store_on(database, noted) as two:
        for turn in range(10):
            leases = [await won(one, claim_of(f"order-{turn}-{n}")) for n in range(10)]
            ahead = (one.renew(lease) for lease in leases)
            back = (two.renew(lease) for lease in reversed(leases))
            assert await asyncio.gather(*ahead, *back) == [True] * 20
    assert noted.failures == 0


# Claims and answers in one statement


NOT_BOTH = """
CREATE FUNCTION not_both() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_query() LIKE '%WITH won AS%' THEN
        RAISE EXCEPTION 'not both' USING ERRCODE = TG_ARGV[0];
    END IF;
    RETURN NULL;
END $$;
"""
REFUSE_BOTH = """
CREATE TRIGGER not_both AFTER INSERT ON idemproxy.records FOR EACH STATEMENT EXECUTE FUNCTION not_both('%s')
"""


async def both_at_once(store: PostgresStore, turn: int) -> tuple[list[Found], list[bool]]:
    """Three claims and three answers that wait together."""
    leases = [await won(store, claim_of(f"order-{turn}-{n}")) for n in range(3)]
    claims = [store.claim(claim_of(f"next-{turn}-{n}")) for n in range(3)]
    answers = [store.complete(lease, CREATED, kept=True) for lease in leases]
    found, done = await asyncio.gather(asyncio.gather(*claims), asyncio.gather(*answers))
    return found, done


async def settled(rows: asyncpg.Connection) -> list[tuple[str, int]]:
    return [
        (row["state"], row["count"])
        for row in await rows.fetch("SELECT state, count(*) FROM idemproxy.records GROUP BY state ORDER BY state")
    ]


async def test_claims_and_answers_that_wait_together_travel_in_one_statement(
    database: str, rows: asyncpg.Connection
) -> None:
    noted = Noted()
    async with store_on(database, noted) as store:
        leases = [await won(store, claim_of(f"order-{n}")) for n in range(3)]
        claims = [claim_of(f"next-{n}") for n in (2, 0, 1)]
        noted.statements.clear()
        first, *found = await asyncio.gather(
            store.complete(leases[0], CREATED, kept=True),
            *(store.claim(claim) for claim in claims),
            *(store.complete(lease, CREATED, kept=True) for lease in leases[1:]),
        )
    assert (first, found) == (True, [*(Lease(claim, 1) for claim in claims), True, True])
    assert noted.statements == [("claim_and_complete", 6)]
    assert await settled(rows) == [("claimed", 3), ("completed", 3)]


async def test_a_claim_meets_the_answer_that_it_travelled_with(store: PostgresStore) -> None:
    lease = await won(store, claim_of())
    done, found = await asyncio.gather(
        store.complete(lease.having(attempt=1), CREATED, kept=True), store.claim(claim_of(fingerprint=COFFEE))
    )
    assert done
    assert isinstance(found, Running | Completed)
    assert found.fingerprint == TEA


async def test_where_one_statement_cannot_do_both_they_go_one_after_the_other_from_then_on(
    database: str, rows: asyncpg.Connection
) -> None:
    await rows.execute(NOT_BOTH)
    await rows.execute(REFUSE_BOTH % "feature_not_supported")
    noted = Noted()
    async with store_on(database, noted) as store:
        for turn in range(2):
            found, done = await both_at_once(store, turn)
            assert all(isinstance(state, Lease) for state in found)
            assert done == [True] * 3
    assert {name for name, _ in noted.statements} == {"claim", "complete"}
    assert noted.failures == 1, "it was tried once"
    assert await settled(rows) == [("claimed", 6), ("completed", 6)]


async def test_what_fails_together_is_tried_apart_and_together_again_the_next_time(
    database: str, rows: asyncpg.Connection
) -> None:
    await rows.execute(NOT_BOTH)
    await rows.execute(REFUSE_BOTH % "deadlock_detected")
    noted = Noted()
    async with store_on(database, noted) as store:
        assert (await both_at_once(store, 0))[1] == [True] * 3
        assert "claim_and_complete" not in {name for name, _ in noted.statements}
        await rows.execute("DROP TRIGGER not_both ON idemproxy.records")
        assert (await both_at_once(store, 1))[1] == [True] * 3
        assert "claim_and_complete" in {name for name, _ in noted.statements}
    assert await settled(rows) == [("claimed", 6), ("completed", 6)]


async def test_a_bad_answer_costs_the_claims_that_travel_with_it_nothing(
    store: PostgresStore, rows: asyncpg.Connection
) -> None:
    leases = [await won(store, claim_of(f"order-{n}")) for n in range(2)]
    claim = claim_of("next")
    found, good, bad = await asyncio.gather(
        store.claim(claim),
        store.complete(leases[0], CREATED, kept=True),
        store.complete(leases[1], Answer(99, b"", (), b""), kept=True),
        return_exceptions=True,
    )
    assert (found, good) == (Lease(claim, 1), True)
    assert isinstance(bad, StoreUnavailable)
    assert await settled(rows) == [("claimed", 2), ("completed", 1)]
