"""With a hundred thousand records, listing, searching and counting go along an index: the planner is asked."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import orjson

from idemproxy.core.steer import State
from idemproxy.store import queries
from idemproxy.store.records import COUNT_LIMIT, Records
from idemproxy.store.search import ORDERS, PART, Search, end_of_part, statement

MANY = """
INSERT INTO idemproxy.records
    (key, scope, route, fingerprint, state, token, attempt, claimed_at, lease_until, settled_at, expires_at,
     status, headers, body)
SELECT 'order-' || n, sha256((n % 50)::text::bytea), 'POST /orders/' || n % 500, decode(repeat('07', 33), 'hex'),
       state, decode(repeat('ab', 16), 'hex'), 1, at, at + interval '30 s',
       CASE WHEN state <> 'claimed' THEN at END,
       CASE WHEN n % 1000 = 7 THEN now() - interval '1 minute' ELSE at + interval '30 days' END,
       CASE WHEN state = 'completed' THEN 201 END, CASE WHEN state = 'completed' THEN ''::bytea END,
       CASE WHEN state = 'completed' THEN ''::bytea END
  FROM (SELECT n, now() - n * interval '1 second' AS at,
               CASE WHEN n % 2000 = 0 THEN 'unknown' WHEN n < 5 THEN 'claimed' ELSE 'completed' END AS state
          FROM generate_series(1, 100000) AS n) AS made
"""
SCOPE = "4a44dc15364204a80fe80e9039455cc1608281820fe2b24f1e5233ade6af1dd5"  # of '10'
NOW = datetime.now(UTC)
HOUR = timedelta(hours=1)

SEARCHES = {
    "everything": Search(),
    "a key": Search(key="order-777"),
    "a key's beginning": Search(key="order-77*"),
    "a scope": Search(scope=SCOPE),
    "a scope's beginning": Search(scope=SCOPE[:12]),
    "a route": Search(route="POST /orders/17"),
    "a route's beginning": Search(route="POST /orders/1*"),
    "what is running": Search(state=State.RUNNING),
    "what is unknown": Search(state=State.UNKNOWN),
    "what is completed": Search(state=State.COMPLETED),
    "what has expired": Search(state=State.EXPIRED),
    "an hour": Search(since=NOW - 5 * HOUR, until=NOW - 4 * HOUR),
    "unknown of a scope": Search(scope=SCOPE, state=State.UNKNOWN),
    "a scope and an hour": Search(scope=SCOPE, since=NOW - 5 * HOUR, until=NOW - 4 * HOUR),
}


async def plan(rows: asyncpg.Connection, sql: str, *arguments: Any) -> dict[str, Any]:
    text = await rows.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", *arguments)
    return dict(orjson.loads(text)[0]["Plan"])


def scans(node: dict[str, Any]) -> list[dict[str, Any]]:
    own = [node] if node.get("Relation Name") == "records" else []
    return own + [scan for child in node.get("Plans", []) for scan in scans(child)]


def assert_no_full_scan(found: dict[str, Any], what: str, most_rows: int) -> None:
    touched = scans(found)
    assert touched, what
    for scan in touched:
        assert scan["Node Type"] in ("Index Scan", "Index Only Scan", "Bitmap Heap Scan"), (what, scan["Node Type"])
        read = scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0)
        assert read <= most_rows, (what, read, scan.get("Index Name"))


async def test_no_search_no_page_and_no_count_reads_the_whole_table(rows: asyncpg.Connection) -> None:
    await rows.execute(MANY)
    await rows.execute("ANALYZE idemproxy.records")
    statements = queries.load("operator.sql")
    pool: Any = None
    columns = Records(pool)._sql["record_columns"]
    for what, search in SEARCHES.items():
        later = replace(search, after=await _middle(rows, search))
        for place, page in ((what, search), (f"{what}, a later page", later)):
            end, most = None, 3000
            if page.in_parts:
                most = PART + 2  # and the last one of the part before, and the first one of the next
                sql, arguments = end_of_part(page)
                assert_no_full_scan(await plan(rows, sql, *arguments), f"{place}, the end of a part", most)
                last = await rows.fetchrow(sql, *arguments)
                end = tuple(last) if last else None
            text, wanted = statement(page, columns, end)
            assert_no_full_scan(await plan(rows, text, *wanted), place, most)
    for name in ("count_running", "count_unknown", "count_expired"):
        assert_no_full_scan(await plan(rows, statements[name], COUNT_LIMIT), name, 500)


async def _middle(rows: asyncpg.Connection, search: Search) -> tuple[Any, ...]:
    """The place of a row far into the list."""
    columns = ORDERS[search.order].columns
    row = await rows.fetchrow(f"SELECT {', '.join(columns)} FROM idemproxy.records WHERE key = 'order-50007'")
    assert row is not None
    return tuple(row)
