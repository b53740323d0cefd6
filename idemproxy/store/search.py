"""Searching records without reading all of them: each search goes along one index, page after page.

A page ends with a cursor, the place of its last row in that index's order; the next page begins after it. So a page
costs the same wherever it is, and rows that come or go in between shift nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from idemproxy.core.steer import State

MAX_PAGE = 500


@dataclass(frozen=True, slots=True)
class Order:
    columns: tuple[str, ...]
    """The index's columns first, then what makes the order total."""
    newest_first: bool


ORDERS = {
    "key": Order(("key", "scope", "route"), newest_first=False),
    "scope": Order(("scope", "claimed_at", "key", "route"), newest_first=True),
    "route": Order(("route", "claimed_at", "key", "scope"), newest_first=True),
    "expired": Order(("expires_at", "key", "scope", "route"), newest_first=True),
    "time": Order(("claimed_at", "key", "scope", "route"), newest_first=True),
}

_SEEN = "attempt >= 1"
"""True of every record, and what the indexes for searching ask for: so no other statement is planned along them."""

_STATES = {
    # "state <> 'completed'" is spoken out so that the planner sees the index of what is open.
    State.RUNNING: "state <> 'completed' AND state = 'claimed' AND lease_until > now()",
    State.UNKNOWN: "state <> 'completed' AND (state = 'unknown' OR lease_until <= now()) AND expires_at > now()",
    State.COMPLETED: "state = 'completed' AND expires_at > now()",
    State.EXPIRED: "expires_at <= now()",
}


@dataclass(frozen=True, slots=True)
class Search:
    """A `*` at the end of key or route stands for any rest; `scope` is a hash in hex, or its beginning."""

    key: str | None = None
    scope: str | None = None
    route: str | None = None
    state: State | None = None
    since: datetime | None = None
    until: datetime | None = None
    after: tuple[Any, ...] | None = None
    limit: int = 50

    @property
    def order(self) -> str:
        """The order that follows from what is searched for: the index that finds it also sorts it."""
        if self.key is not None:
            return "key"
        if self.scope is not None:
            return "scope"
        if self.route is not None:
            return "route"
        return "expired" if self.state is State.EXPIRED else "time"


def _above(beginning: str) -> str:
    """Sorts after everything that begins so, in the order of the columns' bytes."""
    return beginning + "\U0010ffff" * 2


def statement(search: Search, columns: str) -> tuple[str, list[Any]]:
    """The SQL of one page, and its arguments. One row more than the page tells whether there is another."""
    arguments: list[Any] = []

    def put(value: Any) -> str:
        arguments.append(value)
        return f"${len(arguments)}"

    wheres: list[str] = [_SEEN]
    for column, text in (("key", search.key), ("route", search.route)):
        if text is None:
            continue
        if text.endswith("*"):
            low = text[:-1]
            if low:
                wheres.append(f"{column} >= {put(low)} AND {column} < {put(_above(low))}")
        else:
            wheres.append(f"{column} = {put(text)}")
    if search.scope is not None:
        first, last = (bytes.fromhex(search.scope.ljust(64, digit)) for digit in "0f")
        wheres.append(f"scope = {put(first)}" if first == last else f"scope BETWEEN {put(first)} AND {put(last)}")
    if search.state is not None:
        wheres.append(_STATES[search.state])
    if search.since is not None:
        wheres.append(f"claimed_at >= {put(search.since)}")
    if search.until is not None:
        wheres.append(f"claimed_at < {put(search.until)}")
    order = ORDERS[search.order]
    if search.after is not None:
        places = ", ".join(put(value) for value in search.after)
        wheres.append(f"({', '.join(order.columns)}) {'<' if order.newest_first else '>'} ({places})")
    direction = " DESC" if order.newest_first else ""
    sql = (
        f"SELECT {columns} FROM idemproxy.records"  # noqa: S608 - built of constants; values travel as arguments
        f" WHERE {' AND '.join(wheres)}"
        f" ORDER BY {', '.join(column + direction for column in order.columns)} LIMIT {put(search.limit + 1)}"
    )
    return sql, arguments
