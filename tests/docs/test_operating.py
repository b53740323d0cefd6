"""What operators are told to type about a write whose outcome is unknown, typed, with records in that state."""

from __future__ import annotations

from pathlib import Path

import asyncpg
import pytest

from tests.operator.support import several_states
from tests.support.pages import Block, blocks
from tests.support.shell import Stage

VERDICTS = [block for block in blocks("sh") if "keys resolve" in block.text]


@pytest.mark.parametrize("block", VERDICTS, ids=str)
async def test_the_verdicts_of_the_page_are_taken(
    block: Block, rows: asyncpg.Connection, database: str, tmp_path: Path
) -> None:
    await several_states(rows)
    await rows.execute("UPDATE idemproxy.records SET key = 'order-17' WHERE key = 'unknown-1'")
    await rows.execute("UPDATE idemproxy.records SET key = 'order-18' WHERE key = 'lapsed-1'")
    stage = Stage.set_up(tmp_path, api="http://127.0.0.1:9", database=database)
    stage.settings["database_url"] = database
    code, said = await stage.shell(block.text)
    assert code == 0, said
    answer = await rows.fetch("SELECT state, status, body FROM idemproxy.records WHERE key = 'order-17'")
    assert [tuple(row) for row in answer] == [("completed", 201, b'{"order": 4711}\n')]
    assert await rows.fetchval("SELECT count(*) FROM idemproxy.records WHERE key = 'order-18'") == 0
    reasons = await rows.fetch("SELECT key, action, reason FROM idemproxy.changes ORDER BY key")
    assert [tuple(row) for row in reasons] == [
        ("order-17", "resolve_happened", "order 4711 is there, ticket 17"),
        ("order-18", "resolve_not_happened", "no such order, ticket 18"),
    ]


def test_the_page_has_verdicts() -> None:
    assert VERDICTS
