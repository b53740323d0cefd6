"""Searching records without reading all of them: each search goes along an index, page after page.

What is completed is in an index by time and in one by expiry. What is open is in an index of its own, and a handful: it
is looked through as a whole. A key finds both. By caller and by route there is no index, for every write would pay for
it: such a search looks through the list in order of time, part after part, and a page may end before it is full.

A page ends with a cursor, the place of its last row in that index's order; the next page begins after it. So a page
costs the same wherever it is, and rows that come or go in between shift nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from idemproxy.core.steer import State

MAX_PAGE = 500
PART = 20_000
"""Records that are looked through at a time: some 20 ms."""


@dataclass(frozen=True, slots=True)
class Order:
    columns: tuple[str, ...]
    """The index's columns first, then what makes the order total."""
    newest_first: bool


ORDERS = {
    "key": Order(("key", "scope", "route"), newest_first=False),
    "expired": Order(("expires_at", "key", "scope", "route"), newest_first=True),
    "time": Order(("claimed_at", "key", "scope", "route"), newest_first=True),
}

_COMPLETED = "state = 'completed'"
_OPEN = "attempt >= 1 AND state <> 'completed'"
"""As their indexes say it. The first half of the second is true of every record, and said by no client's statement, so
that none is planned along the index of what is open."""

_STATES = {
    None: ("true", (_COMPLETED, _OPEN)),
    State.RUNNING: ("state = 'claimed' AND lease_until > now()", (_OPEN,)),
    State.UNKNOWN: ("(state = 'unknown' OR lease_until <= now()) AND expires_at > now()", (_OPEN,)),
    State.COMPLETED: ("expires_at > now()", (_COMPLETED,)),
    State.EXPIRED: ("expires_at <= now()", (_COMPLETED, _OPEN)),
}
"""What is true of the records in a state, and among which of them they are."""


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
        if self.scope is not None or self.route is not None:
            return "time"
        return "expired" if self.state is State.EXPIRED else "time"

    @property
    def in_parts(self) -> bool:
        """Whether it looks through completed records that it may not be looking for."""
        sifts = self.key is None and (self.scope is not None or self.route is not None)
        return sifts and _COMPLETED in _STATES[self.state][1]


def _above(beginning: str) -> str:
    """Sorts after everything that begins so, in the order of the columns' bytes."""
    return beginning + "\U0010ffff" * 2


class _Arguments(list[Any]):
    def put(self, value: Any) -> str:
        self.append(value)
        return f"${len(self)}"


def statement(search: Search, columns: str, end: tuple[Any, ...] | None = None) -> tuple[str, list[Any]]:
    """The SQL of one page, and its arguments. One row more than the page tells whether there is another.

    `end`: the last place that may be looked at.
    """
    arguments = _Arguments()
    state, parts = _STATES[search.state]
    wheres = [state, *_wanted(search, arguments), *_within(search, arguments)]
    order = ORDERS[search.order]
    if end is not None:
        wheres.append(f"({', '.join(order.columns)}) >= ({', '.join(map(arguments.put, end))})")
    page = f" ORDER BY {_sorting(order)} LIMIT {arguments.put(search.limit + 1)}"

    def rows(part: str) -> str:
        where = " AND ".join([part, *wheres])
        return f"SELECT {columns} FROM idemproxy.records WHERE {where}{page}"  # noqa: S608 - built of constants

    if len(parts) == 1:
        return rows(parts[0]), arguments
    if search.key is not None:  # the primary key has all of them
        return rows("true"), arguments
    both = " UNION ALL ".join(f"({rows(part)})" for part in parts)
    return f"SELECT * FROM ({both}) AS record{page}", arguments  # noqa: S608 - built of constants


def end_of_part(search: Search) -> tuple[str, list[Any]]:
    """The SQL for the place where the next part of the list ends, and its arguments; no row where nothing is left."""
    arguments = _Arguments()
    order = ORDERS[search.order]
    wheres = " AND ".join([_COMPLETED, *_within(search, arguments)])
    sql = (
        f"SELECT {', '.join(order.columns)} FROM idemproxy.records"  # noqa: S608 - built of constants
        f" WHERE {wheres} ORDER BY {_sorting(order)} OFFSET {arguments.put(PART - 1)} LIMIT 1"
    )
    return sql, arguments


def _wanted(search: Search, arguments: _Arguments) -> list[str]:
    """What is searched for, besides state and time."""
    wheres = []
    for column, text in (("key", search.key), ("route", search.route)):
        if text is None:
            continue
        if text.endswith("*"):
            low = text[:-1]
            if low:
                wheres.append(f"{column} >= {arguments.put(low)} AND {column} < {arguments.put(_above(low))}")
        else:
            wheres.append(f"{column} = {arguments.put(text)}")
    if search.scope is not None:
        first, last = (arguments.put(bytes.fromhex(search.scope.ljust(64, digit))) for digit in "0f")
        wheres.append(f"scope BETWEEN {first} AND {last}")
    return wheres


def _within(search: Search, arguments: _Arguments) -> list[str]:
    """From where to where in the list."""
    wheres = []
    if search.since is not None:
        wheres.append(f"claimed_at >= {arguments.put(search.since)}")
    if search.until is not None:
        wheres.append(f"claimed_at < {arguments.put(search.until)}")
    if search.after is not None:
        order = ORDERS[search.order]
        beyond = "<" if order.newest_first else ">"
        wheres.append(f"({', '.join(order.columns)}) {beyond} ({', '.join(map(arguments.put, search.after))})")
    return wheres


def _sorting(order: Order) -> str:
    return ", ".join(f"{column} DESC" if order.newest_first else column for column in order.columns)
