"""Background tasks: none is lost sight of, and none fails in silence."""

from __future__ import annotations

import asyncio
import logging

import pytest

from idemproxy.tasks import Tasks


async def test_a_task_is_counted_until_it_has_ended() -> None:
    tasks = Tasks()
    go = asyncio.Event()
    tasks.spawn(go.wait(), "wait")
    assert len(tasks) == 1
    go.set()
    assert await tasks.finished(10)
    assert len(tasks) == 0


async def test_with_nothing_to_wait_for_it_is_finished_at_once() -> None:
    assert await Tasks().finished(0)


async def test_what_a_task_starts_before_it_ends_is_waited_for_too() -> None:
    tasks = Tasks()
    done: list[int] = []

    async def count_down(left: int) -> None:
        await asyncio.sleep(0.01)
        if left:
            tasks.spawn(count_down(left - 1), "count down")
        done.append(left)

    tasks.spawn(count_down(3), "count down")
    assert await tasks.finished(10)
    assert done == [3, 2, 1, 0]


async def test_what_takes_too_long_is_not_finished_and_can_be_cancelled() -> None:
    tasks = Tasks()
    task = tasks.spawn(asyncio.Event().wait(), "for ever")
    assert not await tasks.finished(0.01)
    await tasks.cancel()
    assert task.cancelled()
    assert await tasks.finished(10)


async def test_a_failure_is_reported_under_the_tasks_name(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise RuntimeError("broken")

    tasks = Tasks()
    with caplog.at_level(logging.ERROR):
        tasks.spawn(fail(), "the work")
        assert await tasks.finished(10)
    assert [record.getMessage() for record in caplog.records] == ["task the work failed"]
