"""Records, events and changes as JSON: what the API, the dashboard and the `keys` verbs show. Never a credential."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from idemproxy.core.messages import Headers
from idemproxy.core.record import RecordId
from idemproxy.store.records import COUNT_LIMIT, Counts, Record

View = dict[str, Any]

# The store keeps no credentials; this is for fields whose names nobody has told it.
_SECRET = re.compile(r"auth|cookie|token|secret|passw|credential|api-?key|signature", re.IGNORECASE)
HIDDEN = "(hidden)"


def name_of(id: RecordId) -> str:
    """A record's id as one word for URLs; keys and routes may hold anything."""
    text = "\0".join((id.key, id.scope.hex(), id.route))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def id_of(name: str) -> RecordId | None:
    try:
        text = base64.urlsafe_b64decode(name + "=" * (-len(name) % 4)).decode()
        key, scope, route = text.split("\0")
        return RecordId(key, bytes.fromhex(scope), route)
    except ValueError:
        return None


def record_view(record: Record) -> View:
    return {
        "id": name_of(record.id),
        "key": record.id.key,
        "scope": record.id.scope.hex(),
        "route": record.id.route,
        "state": record.state.value,
        "attempt": record.attempt,
        "claimed_at": record.claimed_at,
        "lease_until": record.lease_until,
        "settled_at": record.settled_at,
        "expires_at": record.expires_at,
        "status": record.status,
        "answer_bytes": record.size,
        "fingerprint": record.fingerprint.hex(),
    }


def answer_view(record: Record) -> View | None:
    if record.headers is None or record.body is None:
        return None
    try:
        body = {"text": record.body.decode()}
    except UnicodeDecodeError:
        body = {"base64": base64.b64encode(record.body).decode()}
    return {"status": record.status, "headers": shown_headers(record.headers), **body}


def shown_headers(headers: Headers) -> list[list[str]]:
    shown = []
    for raw_name, raw_value in headers:
        name = raw_name.decode("latin-1")
        shown.append([name, HIDDEN if _SECRET.search(name) else raw_value.decode("latin-1")])
    return shown


def counts_view(counts: Counts) -> View:
    return {
        "running": counts.running,
        "unknown": counts.unknown,
        "oldest_unknown_seconds": round(counts.oldest_unknown_seconds, 1),
        "expired": counts.expired,
        "counted_up_to": COUNT_LIMIT,
        "total_estimate": counts.total,
    }


def row_view(row: Mapping[str, Any]) -> View:
    """A row of events or changes; the three columns of an id become one."""
    view = {name: value for name, value in row.items() if value is not None}
    if "key" in row:
        view["id"] = name_of(RecordId(row["key"], row["scope"], row["route"]))
        view["scope"] = row["scope"].hex()
    return view


_STEPS = (("decided", "claimed"), ("sent", "sent"), ("answered", "answered"), ("settled", "settled"))
_WORDS = {
    "dedup_hit": "replayed",
    "conflict": "refused: another request under this key",
    "in_flight": "refused: still running",
    "unknown": "refused: outcome unknown",
    "expired": "expired",
    "resolved": "resolved by an operator",
    "suspected_duplicate": "suspected duplicate of another key",
}


def timeline(record: Record | None, events: list[dict[str, Any]], changes: list[dict[str, Any]]) -> list[View]:
    """What became of a record, oldest first. Without events there is still what the record itself says."""
    steps: list[View] = []
    for event in events:
        steps += _steps_of(event)
    for change in changes:
        steps.append({"at": change["at"], "what": change["action"], "who": change["who"], "reason": change["reason"]})
    if record is not None:
        told = {step["what"] for step in steps if step.get("attempt") == record.attempt}
        if "claimed" not in told:
            steps.append({"at": record.claimed_at, "what": "claimed", "attempt": record.attempt})
            if record.settled_at is not None:
                what = "completed" if record.status is not None else "outcome unknown"
                steps.append({"at": record.settled_at, "what": what, "status": record.status})
    return sorted(steps, key=lambda step: step["at"])


def _steps_of(event: Mapping[str, Any]) -> list[View]:
    at: datetime = event["at"]
    detail: Mapping[str, Any] = event["detail"] or {}
    common = {name: event[name] for name in ("status", "trace") if event[name] is not None}
    if event["shadow"]:
        common["shadow"] = True
    if "decided" not in detail:
        step = {"at": at, "what": _WORDS.get(event["event"], event["event"]), "count": event["count"], **common}
        return [{**step, **({"other_key": detail["other_key"]} if "other_key" in detail else {})}]
    steps: list[View] = []
    for name, word in _STEPS:
        if name in detail:
            steps.append({"at": at + timedelta(milliseconds=detail[name]), "what": word, "attempt": event["attempt"]})
            if name == "sent" and detail.get("renewals"):
                steps.append({"at": steps[-1]["at"], "what": "renewed", "count": detail["renewals"]})
    steps[-1].update(common)
    if event["event"] == "first_write":
        steps[-1]["what"] = "completed" if detail.get("kept", True) else "released: its answer is not kept"
    elif event["event"] == "resolved":
        steps[-1]["what"] = "completed: the probe found it done"
    elif event["event"] == "unknown":
        steps[-1]["what"] = "outcome unknown"
    else:
        steps[-1]["what"] = _WORDS[event["event"]]
    return steps
