"""How fast background work may go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def at_half_speed() -> AsyncIterator[None]:
    """A piece of work that nobody waits for: after it, a pause of the same length. The database and this process are
    there for those who do wait, and never more than half taken by it."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    yield
    await asyncio.sleep(loop.time() - started)
