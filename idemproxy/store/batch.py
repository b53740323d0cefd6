"""Micro-batches: what arrives while a statement is under way travels in the next one. An idle store sends at once.

A statement that takes long is waiting for the disk, not for us: another one may start beside it, and their commits are
flushed together.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from idemproxy.ports import StoreUnavailable
from idemproxy.tasks import Tasks

log = logging.getLogger("idemproxy")

CALL_SECONDS: Final = 1.8
"""What one call may take, waiting for its batch included: with it, a refusal reaches the client within 2 s."""

SLOW_SECONDS: Final = 0.002
"""A batch that has been under way for so long does not hold up the next one: quicker ones leave larger batches, which
cost less each; on a slow disk, everybody would wait for two flushes instead of one. In whole milliseconds: uvloop's
timers know no others, and one of less than half a millisecond fires at once."""

SLOW_AMONG_OTHERS_SECONDS = 0.008
"""The same where several workers share the cores: there a batch mostly takes long because it waits for one of them."""

TURNS_AMONG_OTHERS = 4
"""Of the event loop, before a worker among others sends its next batch. The last one's results have just been told, and
most of those who heard them will be back by then, with their answers or with their next writes: the batches grow by a
half, and another worker uses the cores meanwhile (together a fifth more writes on two cores). Alone, it would leave the
database without work. Where little happens, four turns take some microseconds."""


class Lane(Protocol):
    """What a series of batches is run on, one after the other."""

    async def close(self) -> None: ...


Item = TypeVar("Item")
Result = TypeVar("Result")
LaneT = TypeVar("LaneT", bound=Lane)

_Entry = tuple[Item, "asyncio.Future[Result]", float]
"""What is waited for, by whom, and until when."""
NEVER: Final = float("inf")


class BadItem(Exception):
    """The database refused the data itself; raised by `run` when the batch has to be tried one by one."""


class Batcher(Generic[LaneT, Item, Result]):
    """Collects items of one kind and runs them together, at most `side_by_side` batches at a time.

    `late` is called with each result whose caller has stopped waiting: a claim that was won after all must be given
    back, or nobody would ever settle it.
    """

    def __init__(
        self,
        name: str,
        lane: Callable[[], LaneT],
        run: Callable[[LaneT, Sequence[Item]], Awaitable[Sequence[Result]]],
        *,
        tasks: Tasks,
        max_items: int,
        side_by_side: int = 1,
        among_others: bool = False,
        max_seconds: float = CALL_SECONDS,
        size: Callable[[Item], int] | None = None,
        max_size: int = 0,
        late: Callable[[Item, Result], None] | None = None,
    ) -> None:
        self._name = name
        self._lane = lane
        self._run = run
        self._tasks = tasks
        self._max_items = max_items
        self._side_by_side = side_by_side
        self._slow = SLOW_AMONG_OTHERS_SECONDS if among_others else SLOW_SECONDS
        self._turns = TURNS_AMONG_OTHERS if among_others else 0
        self._max_seconds = max_seconds
        self._size = size
        self._max_size = max_size
        self._late = late
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Entry[Item, Result]] = deque()
        self._under_way: list[list[_Entry[Item, Result]]] = []
        self._pumps = 0
        self._last_start = 0.0
        self._late_start: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None

    def submit(self, item: Item) -> asyncio.Future[Result]:
        """Its result in due course, or StoreUnavailable after `max_seconds`, waiting for its batch included."""
        loop = self._loop
        future: asyncio.Future[Result] = loop.create_future()
        due = loop.time() + self._max_seconds
        self._waiting.append((item, future, due))
        if self._timer is None:  # one timer for all: those that come later are due later
            self._timer = loop.call_at(due, self._give_up)
        if self._pumps == 0:
            self._start_pump()
        elif self._pumps < self._side_by_side and self._late_start is None:
            self._late_start = loop.call_later(self._slow, self._start_beside)
        return future

    def _start_beside(self) -> None:
        self._late_start = None
        if not self._waiting or self._pumps == self._side_by_side:
            return
        loop = self._loop
        if self._pumps and loop.time() < self._last_start + self._slow:  # another batch has begun meanwhile
            self._late_start = loop.call_later(self._slow, self._start_beside)
        else:
            self._start_pump()

    def _start_pump(self) -> None:
        self._pumps += 1
        self._tasks.spawn(self._pump(), f"store {self._name}")

    def _give_up(self) -> None:
        """Fail what is overdue, and come again for the first of the others."""
        now = self._loop.time()
        first = NEVER
        for entries in (*self._under_way, self._waiting):
            for _, future, due in entries:
                if future.done():
                    continue
                if due > now:
                    first = min(first, due)
                    break
                future.set_exception(StoreUnavailable("the store did not answer in time"))
        self._timer = self._loop.call_at(first, self._give_up) if first < NEVER else None

    async def _pump(self) -> None:
        lane = self._lane()
        try:
            while self._waiting:
                batch = self._next_batch()
                self._under_way.append(batch)
                try:
                    await self._run_batch(lane, batch)
                finally:
                    self._under_way.remove(batch)
                for _ in range(self._turns):
                    await asyncio.sleep(0)
        except BaseException:
            self._tasks.spawn(lane.close(), "give a connection back")
            raise
        finally:
            self._pumps -= 1
            if self._pumps == 0:
                self._fail(self._waiting, StoreUnavailable("the store is closed"))
                self._waiting.clear()
        await lane.close()

    def _next_batch(self) -> list[_Entry[Item, Result]]:
        self._last_start = self._loop.time()
        batch: list[_Entry[Item, Result]] = []
        size = 0
        while self._waiting and len(batch) < self._max_items:
            if self._size is not None:
                size += self._size(self._waiting[0][0])
                if batch and size > self._max_size:
                    break
            entry = self._waiting.popleft()
            if not entry[1].done():
                batch.append(entry)
        return batch

    async def _run_batch(self, lane: LaneT, batch: list[_Entry[Item, Result]]) -> None:
        if not batch:
            return
        try:
            results = await self._run(lane, [item for item, _, _ in batch])
        except BadItem as bad:
            if len(batch) == 1:
                self._fail(batch, StoreUnavailable(str(bad)))
                return
        except StoreUnavailable as failure:
            self._fail(batch, failure)
            return
        except Exception:  # a fault of ours, which must not stop those who come behind
            log.exception("store statement %s failed", self._name)
            self._fail(batch, StoreUnavailable("the statement failed"))
            return
        except BaseException:
            self._fail(batch, StoreUnavailable("the statement was given up"))
            raise
        else:
            for (item, future, _), result in zip(batch, results, strict=True):
                if not future.done():
                    future.set_result(result)
                elif self._late is not None:
                    self._late(item, result)
            return
        for single in batch:  # a bad item fails alone, never its batch
            await self._run_batch(lane, [single])

    @staticmethod
    def _fail(batch: Iterable[_Entry[Item, Result]], failure: StoreUnavailable) -> None:
        for _, future, _ in batch:
            if not future.done():
                future.set_exception(failure)
