"""The table holds the invariants by itself: whatever a statement tries, a record that breaks one cannot be stored."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from tests.support.records import ADA, TEA

TOKEN = bytes(16)
CLAIMED = {
    "key": "order-1",
    "scope": ADA,
    "route": "POST /orders",
    "fingerprint": TEA,
    "state": "claimed",
    "token": TOKEN,
    "attempt": 1,
    "settled": False,
    "lease": 30,
    "ttl": 90,
    "status": None,
    "headers": None,
    "body": None,
}
COMPLETED = {**CLAIMED, "state": "completed", "settled": True, "status": 201, "headers": b"", "body": b"{}"}
NOT_KEPT = {**COMPLETED, "headers": None, "body": None}
UNKNOWN = {**CLAIMED, "state": "unknown", "settled": True}

INSERT = """
    INSERT INTO idemproxy.records (key, scope, route, fingerprint, state, token, attempt, claimed_at, settled_at,
                                   lease_until, expires_at, status, headers, body)
    VALUES ($1, $2, $3, $4, $5, $6, $7, now(), CASE WHEN $8::bool THEN now() END,
            now() + $9::int * interval '1 second', now() + $10::int * interval '1 second', $11, $12, $13)
"""


async def insert(rows: asyncpg.Connection, record: dict[str, Any]) -> None:
    await rows.execute(INSERT, *record.values())


@pytest.mark.parametrize(
    "record",
    [
        CLAIMED,
        COMPLETED,
        NOT_KEPT,
        UNKNOWN,
        {**COMPLETED, "body": b""},
        {**CLAIMED, "key": "k" * 255},
        {**CLAIMED, "key": "~ !\"'\\"},
        {**CLAIMED, "route": "r" * 512},
        {**COMPLETED, "ttl": -1},
        {**UNKNOWN, "ttl": -1},
        {**COMPLETED, "status": 200},
        {**COMPLETED, "status": 599},
    ],
)
async def test_every_record_that_makes_sense_can_be_stored(rows: asyncpg.Connection, record: dict[str, Any]) -> None:
    await insert(rows, record)


VIOLATIONS: list[tuple[str, dict[str, Any]]] = [
    ("key_printable", {**CLAIMED, "key": ""}),
    ("key_printable", {**CLAIMED, "key": "k" * 256}),
    ("key_printable", {**CLAIMED, "key": "tab\t"}),
    ("key_printable", {**CLAIMED, "key": "line\n"}),
    ("key_printable", {**CLAIMED, "key": "\nline"}),
    ("key_printable", {**CLAIMED, "key": "del\x7f"}),
    ("key_printable", {**CLAIMED, "key": "clé"}),
    ("scope_length", {**CLAIMED, "scope": b"Bearer ada"}),
    ("scope_length", {**CLAIMED, "scope": b""}),
    ("route_length", {**CLAIMED, "route": ""}),
    ("route_length", {**CLAIMED, "route": "r" * 513}),
    ("fingerprint_length", {**CLAIMED, "fingerprint": TEA[1:]}),
    ("token_length", {**CLAIMED, "token": b""}),
    ("attempt_counts_from_one", {**CLAIMED, "attempt": 0}),
    ("state_is_known", {**UNKNOWN, "state": "held"}),
    ("state_is_known", {**COMPLETED, "state": ""}),
    ("state_is_known", {**COMPLETED, "state": "", "settled": False}),
    ("records_state", {**COMPLETED, "state": "claimed", "settled": False}),
    ("records_state", {**CLAIMED, "ttl": 30}),
    ("records_state", {**CLAIMED, "lease": 31, "ttl": 30}),
    ("records_state", {**CLAIMED, "settled": True}),
    ("records_state", {**COMPLETED, "settled": False}),
    ("records_state", {**UNKNOWN, "settled": False}),
    ("records_state", {**NOT_KEPT, "status": None}),
    ("records_state", {**CLAIMED, "status": 201}),
    ("records_state", {**UNKNOWN, "status": 201}),
    ("status_is_final", {**COMPLETED, "status": 199}),
    ("status_is_final", {**COMPLETED, "status": 100}),
    ("status_is_final", {**COMPLETED, "status": 600}),
    ("records_answer", {**COMPLETED, "headers": None}),
    ("records_answer", {**COMPLETED, "body": None}),
    ("records_answer", {**CLAIMED, "headers": b"", "body": b""}),
    ("records_answer", {**UNKNOWN, "headers": b"", "body": b""}),
]


@pytest.mark.parametrize(("constraint", "record"), VIOLATIONS)
async def test_a_record_that_makes_no_sense_is_refused(
    rows: asyncpg.Connection, constraint: str, record: dict[str, Any]
) -> None:
    with pytest.raises(asyncpg.CheckViolationError) as refused:
        await insert(rows, record)
    assert refused.value.constraint_name == constraint


async def test_an_id_is_there_once(rows: asyncpg.Connection) -> None:
    await insert(rows, CLAIMED)
    with pytest.raises(asyncpg.UniqueViolationError) as refused:
        await insert(rows, COMPLETED)
    assert refused.value.constraint_name == "records_id"


async def test_every_check_of_the_table_and_of_its_types_is_tried_here(rows: asyncpg.Connection) -> None:
    declared = await rows.fetch("""
        SELECT conname FROM pg_constraint
         WHERE contype = 'c' AND (conrelid = 'idemproxy.records'::regclass OR contypid IN (
               SELECT atttypid FROM pg_attribute WHERE attrelid = 'idemproxy.records'::regclass AND attnum > 0))
    """)
    assert {row["conname"] for row in declared} == {constraint for constraint, _ in VIOLATIONS}


@pytest.mark.parametrize(
    "column", ["key", "scope", "route", "fingerprint", "state", "token", "attempt", "claimed_at", "lease_until"]
)
async def test_what_every_record_has_cannot_be_left_out(rows: asyncpg.Connection, column: str) -> None:
    await insert(rows, CLAIMED)
    with pytest.raises(asyncpg.NotNullViolationError):
        await rows.execute(f"UPDATE idemproxy.records SET {column} = NULL")


async def test_a_statement_that_breaks_one_record_changes_none(rows: asyncpg.Connection) -> None:
    await insert(rows, CLAIMED)
    await insert(rows, {**COMPLETED, "key": "order-2"})
    with pytest.raises(asyncpg.CheckViolationError):
        await rows.execute("UPDATE idemproxy.records SET state = 'completed', settled_at = now()")
    assert await rows.fetchval("SELECT state FROM idemproxy.records WHERE key = 'order-1'") == "claimed"
