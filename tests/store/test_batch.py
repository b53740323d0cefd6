"""Micro-batches: an idle store sends at once, a busy one collects, and nobody pays for another's item."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from idemproxy.ports import StoreUnavailable
from idemproxy.store.batch import SLOW_SECONDS, BadItem, Batcher
from idemproxy.tasks import Tasks


class Track:
    async def close(self) -> None:
        pass


class Statement:
    """Runs batches of numbers: each ends when the gate is open, and answers with ten times the number."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.started = asyncio.Event()
        self.bad: set[int] = set()
        self.failure: BaseException | None = None

    async def __call__(self, lane: Track, items: Sequence[int]) -> Sequence[int]:
        self.batches.append(list(items))
        self.started.set()
        await self.gate.wait()
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        if self.bad & set(items):
            raise BadItem("out of range")
        return [item * 10 for item in items]


async def test_an_idle_batcher_sends_at_once() -> None:
    statement = Statement()
    batcher = Batcher("count", Track, statement, tasks=Tasks(), max_items=10)
    assert await batcher.submit(1) == 10
    assert await batcher.submit(2) == 20
    assert statement.batches == [[1], [2]]


async def test_what_arrives_while_a_statement_is_under_way_travels_together_in_order() -> None:
    statement = Statement()
    statement.gate.clear()
    batcher = Batcher("count", Track, statement, tasks=Tasks(), max_items=10)
    first = batcher.submit(1)
    await statement.started.wait()
    rest = [batcher.submit(number) for number in (5, 3, 4, 2)]
    statement.gate.set()
    assert await asyncio.gather(first, *rest) == [10, 50, 30, 40, 20]
    assert statement.batches == [[1], [5, 3, 4, 2]]


async def test_a_batch_that_waits_for_the_disk_does_not_hold_up_the_next() -> None:
    statement = Statement()
    statement.gate.clear()
    batcher = Batcher("count", Track, statement, tasks=Tasks(), max_items=10, side_by_side=2)
    results = [batcher.submit(1)]
    await statement.started.wait()
    statement.started.clear()
    results.append(batcher.submit(2))
    await statement.started.wait()
    results += [batcher.submit(3), batcher.submit(4)]
    await asyncio.sleep(2 * SLOW_SECONDS)
    assert statement.batches == [[1], [2]], "two side by side, and no third"
    statement.gate.set()
    assert await asyncio.gather(*results) == [10, 20, 30, 40]
    assert statement.batches == [[1], [2], [3, 4]]


async def test_a_quick_batch_is_waited_for() -> None:
    statement = Statement()
    batcher = Batcher("count", Track, statement, tasks=Tasks(), max_items=10, side_by_side=2)
    results = [batcher.submit(1)]
    await asyncio.sleep(0)
    results += [batcher.submit(2), batcher.submit(3)]
    assert await asyncio.gather(*results) == [10, 20, 30]
    assert statement.batches == [[1], [2, 3]]


async def test_a_worker_among_others_waits_for_those_who_come_back_at_once() -> None:
    statement = Statement()
    statement.gate.clear()
    batcher = Batcher("count", Track, statement, tasks=Tasks(), max_items=10, among_others=True)

    async def twice(number: int) -> tuple[int, int]:
        return await batcher.submit(number), await batcher.submit(number + 1)

    pairs = asyncio.gather(*(twice(number) for number in (10, 20)))
    await statement.started.wait()
    alone = batcher.submit(7)
    statement.gate.set()
    assert await pairs == [(100, 110), (200, 210)]
    assert await alone == 70
    assert statement.batches == [[10, 20], [7, 11, 21]], "without waiting, 7 would have travelled alone"


async def test_a_batch_has_at_most_so_many_items() -> None:
    statement = Statement()
    batcher = Batcher("count", Track, statement, tasks=Tasks(), max_items=3)
    assert await asyncio.gather(*(batcher.submit(n) for n in range(7))) == [n * 10 for n in range(7)]
    assert statement.batches == [[0, 1, 2], [3, 4, 5], [6]]


async def test_a_batch_has_at_most_such_a_size_and_a_single_larger_item_travels_alone() -> None:
    statement = Statement()
    batcher = Batcher("count", Track, statement, tasks=Tasks(), max_items=10, size=lambda item: item, max_size=10)
    await asyncio.gather(*(batcher.submit(n) for n in (4, 6, 1, 50, 9, 1)))
    assert statement.batches == [[4, 6], [1], [50], [9, 1]]


async def test_a_bad_item_fails_alone() -> None:
    statement = Statement()
    statement.bad = {2}
    batcher = Batcher("count", Track, statement, tasks=Tasks(), max_items=10)
    heard = await asyncio.gather(*(batcher.submit(n) for n in (1, 2, 3)), return_exceptions=True)
    assert heard[0] == 10
    assert isinstance(heard[1], StoreUnavailable)
    assert heard[2] == 30
    assert statement.batches == [[1, 2, 3], [1], [2], [3]]


async def test_an_outage_is_told_to_all_in_the_batch_and_to_nobody_after() -> None:
    statement = Statement()
    statement.failure = StoreUnavailable("gone")
    batcher = Batcher("count", Track, statement, tasks=Tasks(), max_items=2)
    heard = await asyncio.gather(*(batcher.submit(n) for n in (1, 2, 3)), return_exceptions=True)
    assert [type(one) for one in heard[:2]] == [StoreUnavailable, StoreUnavailable]
    assert heard[2] == 30


async def test_a_fault_of_ours_ends_its_batch_and_those_behind_it_still_run(caplog: pytest.LogCaptureFixture) -> None:
    statement = Statement()
    statement.failure = RuntimeError("a bug")
    batcher = Batcher("count", Track, statement, tasks=Tasks(), max_items=1)
    async with asyncio.timeout(10):
        heard = await asyncio.gather(*(batcher.submit(n) for n in (1, 2)), return_exceptions=True)
    assert isinstance(heard[0], StoreUnavailable)
    assert heard[1] == 20
    assert "a bug" in caplog.text  # nothing that is wrong in the code passes in silence


async def test_who_stops_waiting_before_the_statement_is_left_out_of_it() -> None:
    statement = Statement()
    statement.gate.clear()
    batcher = Batcher("count", Track, statement, tasks=Tasks(), max_items=10)
    first = batcher.submit(1)
    await statement.started.wait()
    gone, stays = batcher.submit(2), batcher.submit(3)
    gone.cancel()
    statement.gate.set()
    assert (await first, await stays) == (10, 30)
    assert statement.batches == [[1], [3]]


async def test_what_was_done_for_somebody_who_no_longer_waits_is_reported() -> None:
    statement = Statement()
    statement.gate.clear()
    late: list[tuple[int, int]] = []
    tasks = Tasks()
    batcher = Batcher(
        "count", Track, statement, tasks=tasks, max_items=10, late=lambda item, result: late.append((item, result))
    )
    gone, stays = batcher.submit(1), batcher.submit(2)
    await statement.started.wait()
    gone.cancel()
    statement.gate.set()
    assert await stays == 20
    assert await tasks.finished(10)
    assert late == [(1, 10)]


async def test_when_it_is_cancelled_nobody_is_left_waiting() -> None:
    statement = Statement()
    statement.gate.clear()
    tasks = Tasks()
    batcher = Batcher("count", Track, statement, tasks=tasks, max_items=1)
    waiting = [batcher.submit(n) for n in (1, 2)]
    await statement.started.wait()
    await tasks.cancel()
    async with asyncio.timeout(10):
        heard = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(one) for one in heard] == [StoreUnavailable, StoreUnavailable]


async def test_who_has_waited_too_long_is_told_and_what_was_done_for_them_is_reported() -> None:
    statement = Statement()
    statement.gate.clear()
    late: list[tuple[int, int]] = []
    batcher = Batcher(
        "count",
        Track,
        statement,
        tasks=Tasks(),
        max_items=1,
        max_seconds=0.05,
        late=lambda item, result: late.append((item, result)),
    )
    under_way, waiting = batcher.submit(1), batcher.submit(2)
    for future in (under_way, waiting):
        with pytest.raises(StoreUnavailable, match="in time"):
            await future
    statement.gate.set()
    assert await batcher.submit(3) == 30
    assert late == [(1, 10)]
    assert statement.batches == [[1], [3]]
