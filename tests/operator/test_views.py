"""A record's timeline, told from its events, its changes and itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from idemproxy.core.record import RecordId
from idemproxy.operator.views import HIDDEN, id_of, name_of, shown_headers, timeline

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
STEPS = {"decided": 1.5, "sent": 2.0, "answered": 25_000.0, "settled": 25_003.0, "kept": True}


def event(kind: str, seconds: float = 0, **more: Any) -> dict[str, Any]:
    empty = {"shadow": False, "count": 1, "status": None, "attempt": None, "trace": None, "detail": None}
    return {**empty, "at": NOON + timedelta(seconds=seconds), "event": kind, **more}


def told(*events: dict[str, Any], changes: list[dict[str, Any]] | None = None) -> list[tuple[str, int | None]]:
    return [(step["what"], step.get("count")) for step in timeline(None, list(events), changes or [])]


def test_a_long_write_is_claimed_sent_renewed_answered_and_completed() -> None:
    first = event("first_write", attempt=1, status=201, detail={**STEPS, "renewals": 2})
    assert told(first, event("dedup_hit", 60, count=3)) == [
        ("claimed", None),
        ("sent", None),
        ("renewed", 2),
        ("answered", None),
        ("completed", None),
        ("replayed", 3),
    ]


def test_a_lost_answer_ends_unknown_and_the_next_attempt_completes() -> None:
    lost = event("unknown", attempt=1, status=504, detail={"decided": 1.0, "sent": 1.5, "settled": 60_000.0})
    again = event("first_write", 90, attempt=2, status=201, detail=STEPS)
    words = [what for what, _ in told(again, event("unknown", 70, status=409), lost)]
    assert words == [
        *("claimed", "sent", "outcome unknown", "refused: outcome unknown"),
        *("claimed", "sent", "answered", "completed"),
    ]


@pytest.mark.parametrize(
    ("kind", "detail", "last"),
    [
        ("first_write", {**STEPS, "kept": False}, "released: its answer is not kept"),
        ("resolved", STEPS, "completed: the probe found it done"),
        ("dedup_hit", STEPS, "replayed"),
    ],
)
def test_how_an_attempt_ended_is_its_last_step(kind: str, detail: dict[str, Any], last: str) -> None:
    assert told(event(kind, attempt=1, detail=detail))[-1] == (last, None)


def test_an_operators_change_says_who_and_why() -> None:
    change = {"at": NOON, "action": "release", "who": "ada", "reason": "ticket 17", "before": {}}
    assert timeline(None, [], [change]) == [{"at": NOON, "what": "release", "who": "ada", "reason": "ticket 17"}]


@pytest.mark.parametrize("key", ["order-1", "a b/c?d#e%f", "<script>\"'", "k" * 255])
def test_an_id_survives_its_name(key: str) -> None:
    id = RecordId(key, bytes(range(32)), "POST /orders/é")
    name = name_of(id)
    assert id_of(name) == id
    assert name.replace("-", "").replace("_", "").isalnum()


def test_fields_that_look_like_credentials_are_hidden() -> None:
    names = (b"X-Api-Key", b"X-Auth", b"Session-Token", b"X-Signature", b"Cookie2", b"Client-Secret")
    assert {value for _, value in shown_headers(tuple((name, b"s3cr3t") for name in names))} == {HIDDEN}
    assert shown_headers(((b"Content-Type", b"text/plain"),)) == [["Content-Type", "text/plain"]]
