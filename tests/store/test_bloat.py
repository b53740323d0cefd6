"""Keys come and go, and the table stays as large as one cycle of them: the room of the swept is used again."""

from __future__ import annotations

import asyncpg

from benchmarks.bloat import cycle
from tests.support.records import pool_on

KEYS = 3000
CYCLES = 10


async def test_ten_cycles_take_no_more_room_than_two(database: str, rows: asyncpg.Connection) -> None:
    """Autovacuum comes when it likes; here it is its own command that comes, once after each cycle."""
    await rows.execute("ALTER TABLE idemproxy.records SET (autovacuum_enabled = off)")
    async with await pool_on(database) as pool:
        heights = []
        for _ in range(CYCLES):
            heights.append(await cycle(pool, KEYS))
            await rows.execute("VACUUM idemproxy.records")
    second, last = heights[1], heights[-1]
    assert last.rows <= 1.1 * second.rows, heights
    assert last.indexes <= 1.3 * second.indexes, heights
