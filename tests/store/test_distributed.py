"""Every statement stays within what a table distributed by key can do, and the tables can be spread by it.

Citus itself is not run here: a stand-in for its two names is, which notes what it was asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest
from pglast import ast, parse_sql
from pglast.enums import A_Expr_Kind, BoolExprType, LimitOption, OnConflictAction
from pglast.visitors import Visitor

from idemproxy.store import queries
from idemproxy.store.distribute import TABLES, distribute, undistributed, where
from idemproxy.store.search import Search, statement
from tests.support.process import idemproxy

DISTRIBUTED = {table.partition(".")[2] for table in TABLES}
RUN_APART = {"claim_and_complete"}
"""What a distributed table may refuse, and what is then run in parts: tests/store/test_postgres.py shows it."""
OPERATORS = queries.load("operator.sql")
COLUMNS = OPERATORS.pop("record_columns")
STATEMENTS = {
    **{name: sql for name, sql in queries.load().items() if name not in RUN_APART},
    **OPERATORS,
    "a search": statement(Search(key="order-*", scope="ab", route="POST /*"), COLUMNS)[0],
}

STAND_IN = """
CREATE TABLE pg_dist_partition (logicalrelid regclass PRIMARY KEY, asked text NOT NULL);
CREATE FUNCTION create_distributed_table(name regclass, by text, colocate_with text) RETURNS void LANGUAGE sql AS
$$ INSERT INTO pg_dist_partition VALUES (name, by || ' with ' || colocate_with) $$;
"""


class Reader(Visitor):
    """What a statement does that a distributed table may not be able to do."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []
        self.tables: list[str] = []

    def visit_RangeVar(self, _: Any, node: Any) -> None:  # noqa: N802 - named after the parser's nodes
        self.tables.append(node.relname)

    def visit_ColumnRef(self, _: Any, node: Any) -> None:  # noqa: N802 - named after the parser's nodes
        if getattr(node.fields[-1], "sval", "") == "ctid":
            self.faults.append("uses ctid, which is another one in each shard")

    def visit_FuncCall(self, _: Any, node: Any) -> None:  # noqa: N802 - named after the parser's nodes
        if node.funcname[-1].sval in ("nextval", "currval", "lastval", "setval"):
            self.faults.append("uses a sequence")

    def visit_WithClause(self, _: Any, __: Any) -> None:  # noqa: N802 - named after the parser's nodes
        self.faults.append("has a WITH clause, which was not tried")

    def visit_SelectStmt(self, _: Any, node: Any) -> None:  # noqa: N802 - named after the parser's nodes
        if node.lockingClause and not pinned(node.whereClause):
            self.faults.append("locks rows in more than one shard")
        self._joins(node.fromClause or ())

    def visit_InsertStmt(self, _: Any, node: Any) -> None:  # noqa: N802 - named after the parser's nodes
        conflict = node.onConflictClause
        if conflict is not None:
            if conflict.action != OnConflictAction.ONCONFLICT_NOTHING:
                self.faults.append("does more on conflict than nothing")
            if conflict.infer is None or "key" not in [column.name for column in conflict.infer.indexElems]:
                self.faults.append("names no unique index that contains the key")

    def visit_UpdateStmt(self, _: Any, node: Any) -> None:  # noqa: N802 - named after the parser's nodes
        if "key" in [target.name for target in node.targetList]:
            self.faults.append("moves a row to another shard")
        self._changes(node.whereClause, node.fromClause or ())

    def visit_DeleteStmt(self, _: Any, node: Any) -> None:  # noqa: N802 - named after the parser's nodes
        self._changes(node.whereClause, node.usingClause or ())

    def _changes(self, condition: Any, beside: tuple[Any, ...]) -> None:
        if not (pinned(condition) or named_by_arrays(beside) or picked(condition)):
            self.faults.append("changes rows that are named neither by their key, nor by arrays, nor by a picked batch")

    def _joins(self, sources: tuple[Any, ...]) -> None:
        tables = [source for source in leaves(sources) if isinstance(source, ast.RangeVar)]
        if len([table for table in tables if table.relname in DISTRIBUTED]) > 1:
            self.faults.append("joins distributed tables with each other")


def leaves(sources: tuple[Any, ...]) -> Iterator[Any]:
    for source in sources:
        if isinstance(source, ast.JoinExpr):
            yield from leaves((source.larg, source.rarg))
        else:
            yield source


def terms(condition: Any) -> Iterator[Any]:
    """What a condition is made of, as far as AND goes."""
    if isinstance(condition, ast.BoolExpr) and condition.boolop == BoolExprType.AND_EXPR:
        for part in condition.args or ():
            yield from terms(part)
    else:
        yield condition


def pinned(condition: Any) -> bool:
    """`key = $n`: all of it happens in one shard."""
    return any(
        isinstance(term, ast.A_Expr) and term.kind == A_Expr_Kind.AEXPR_OP and _is_key_and_parameter(term)
        for term in terms(condition)
    )


def _is_key_and_parameter(term: Any) -> bool:
    left, right = term.lexpr, term.rexpr
    named = isinstance(left, ast.ColumnRef) and str((left.fields or ())[-1].sval) == "key"
    return named and term.name[0].sval == "=" and isinstance(right, ast.ParamRef)


def named_by_arrays(beside: tuple[Any, ...]) -> bool:
    """`FROM unnest(...)` and nothing else."""
    return bool(beside) and all(isinstance(source, ast.RangeFunction) for source in beside)


def picked(condition: Any) -> bool:
    """`(key, ...) IN (SELECT key, ... LIMIT n)`."""
    for term in terms(condition):
        if isinstance(term, ast.SubLink):
            row: Any = term.testexpr
            batch: Any = term.subselect
            first = row.args[0].fields[-1].sval
            return first == "key" and bool(batch.limitOption == LimitOption.LIMIT_OPTION_COUNT)
    return False


def faults(sql: str) -> list[str]:
    reader = Reader()
    reader(parse_sql(sql))
    return reader.faults if DISTRIBUTED & set(reader.tables) else []


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_stays_within_what_a_distributed_table_can_do(name: str) -> None:
    assert faults(STATEMENTS[name]) == []


@pytest.mark.parametrize(
    ("sql", "fault"),
    [
        ("SELECT key FROM idemproxy.records WHERE state = 'claimed' FOR UPDATE SKIP LOCKED", "locks rows"),
        ("DELETE FROM idemproxy.records WHERE ctid = ANY($1)", "uses ctid"),
        ("DELETE FROM idemproxy.records WHERE expires_at < now()", "changes rows"),
        ("SELECT key FROM idemproxy.records WHERE key = ANY ($1) FOR UPDATE", "locks rows"),
        ("INSERT INTO idemproxy.events (id) SELECT nextval('numbers')", "uses a sequence"),
        ("UPDATE idemproxy.records SET key = $2 WHERE key = $1", "moves a row"),
        ("SELECT 1 FROM idemproxy.records JOIN idemproxy.events USING (scope)", "joins distributed"),
        ("INSERT INTO idemproxy.records (key) VALUES ($1) ON CONFLICT (scope) DO NOTHING", "names no unique index"),
        ("INSERT INTO idemproxy.records (key) VALUES ($1) ON CONFLICT (key) DO UPDATE SET attempt = 2", "does more"),
        ("WITH a AS (SELECT 1) SELECT key FROM idemproxy.records", "has a WITH"),
    ],
)
def test_a_statement_outside_of_it_is_noticed(sql: str, fault: str) -> None:
    assert any(found.startswith(fault) for found in faults(sql))


async def test_every_unique_index_contains_the_key_and_nothing_refers_to_a_distributed_table(
    rows: asyncpg.Connection,
) -> None:
    for table in TABLES:
        unique = await rows.fetch(
            """
            SELECT 'key' = ANY (SELECT attname::text FROM pg_attribute
                                 WHERE attrelid = indrelid AND attnum = ANY (indkey)) AS has
              FROM pg_index WHERE indrelid = $1::text::regclass AND indisunique
            """,
            table,
        )
        assert unique, table
        assert all(index["has"] for index in unique), table
        links = "SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND $1::text::regclass IN (conrelid, confrelid)"
        assert await rows.fetchval(links, table) == 0
        numbered = "SELECT count(*) FROM pg_attrdef WHERE adrelid = $1::text::regclass"
        assert await rows.fetchval(numbered, table) == 0


# The verbs. Without Citus, and with a stand-in for it.


async def test_without_citus_one_line_says_so_and_nothing_is_changed(empty_database: str) -> None:
    finished = await idemproxy("migrate", "--distributed", database_url=empty_database)
    assert finished.code == 2
    assert "has no Citus extension" in finished.err
    assert len(finished.err.splitlines()) == 1
    connection = await asyncpg.connect(empty_database)
    assert await connection.fetchval("SELECT to_regclass('idemproxy.records')") is None
    await connection.close()


async def test_with_citus_all_tables_are_spread_by_key_beside_each_other(empty_database: str) -> None:
    connection = await asyncpg.connect(empty_database)
    await connection.execute(STAND_IN)
    before = await idemproxy("migrate", "--distributed", "--check", database_url=empty_database)
    assert before.code == 1
    first = await idemproxy("migrate", "--distributed", database_url=empty_database)
    assert (first.code, first.out.splitlines()[-3:]) == (0, [f"distributed {table} by key" for table in TABLES])
    asked = await connection.fetch("SELECT relname, asked FROM pg_dist_partition JOIN pg_class ON oid = logicalrelid")
    assert {row["relname"]: row["asked"] for row in asked} == {
        "records": "key with default",
        "events": "key with idemproxy.records",
        "changes": "key with idemproxy.records",
    }
    again = await idemproxy("migrate", "--distributed", database_url=empty_database)
    assert (again.code, again.out) == (0, "the schema is up to date\n")
    after = await idemproxy("migrate", "--distributed", "--check", database_url=empty_database)
    assert after.code == 0
    await connection.close()


async def test_check_says_where_the_records_are(rows: asyncpg.Connection) -> None:
    assert await where(rows) == "the records are on one Postgres"
    await rows.execute(STAND_IN)
    assert "run `idemproxy migrate --distributed`" in await where(rows)
    assert await distribute(rows) == list(TABLES)
    assert await undistributed(rows) == []
    assert await where(rows) == "the records are distributed by key (Citus)"


async def test_a_failure_on_the_way_spreads_nothing(rows: asyncpg.Connection) -> None:
    await rows.execute(STAND_IN)
    await rows.execute("ALTER TABLE pg_dist_partition ADD CHECK (asked <> 'key with idemproxy.records')")
    with pytest.raises(asyncpg.CheckViolationError):
        await distribute(rows)
    assert await undistributed(rows) == list(TABLES)
