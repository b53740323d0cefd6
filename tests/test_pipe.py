"""The pipe between a recording and the client that hears it live."""

from __future__ import annotations

import asyncio

import pytest

from idemproxy.pipe import PIPE_BYTES, Pipe


async def test_a_full_pipe_holds_the_writer_up_until_the_reader_has_read() -> None:
    pipe = Pipe()
    await pipe.put(b"x" * PIPE_BYTES)
    waiting = asyncio.create_task(pipe.put(b"y"))
    await asyncio.sleep(0)
    assert not waiting.done()
    assert await pipe.get() == b"x" * PIPE_BYTES
    await waiting
    assert await pipe.get() == b"y"


async def test_the_last_piece_waits_for_no_room() -> None:
    """What is settled has a lease no longer: a slow client must not keep its owner renewing it."""
    pipe = Pipe()
    await pipe.put(b"x" * PIPE_BYTES)
    pipe.end(last=b"end", trailers=((b"A", b"b"),))
    assert [await pipe.get() for _ in range(3)] == [b"x" * PIPE_BYTES, b"end", b""]
    assert pipe.trailers == ((b"A", b"b"),)


async def test_a_failure_is_heard_after_what_came_before_it() -> None:
    pipe = Pipe()
    await pipe.put(b"x")
    pipe.end(ValueError("broken"))
    assert await pipe.get() == b"x"
    with pytest.raises(ValueError, match="broken"):
        await pipe.get()


async def test_nothing_waits_for_a_reader_that_has_left() -> None:
    pipe = Pipe()
    await pipe.put(b"x" * PIPE_BYTES)
    pipe.leave()
    await pipe.put(b"y")
    pipe.end(last=b"z")
    assert await pipe.get() == b""
